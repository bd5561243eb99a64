"""Plug-in point of presentation attack detection. None comes with this package, and none is claimed.

A recogniser compares faces; a photograph of a face is one. A check is taken only with a measured report (ISO/IEC
30107-3: APCER for each species of attack, BPCER), so that nobody believes in more than was shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mien.errors import ConfigError

if TYPE_CHECKING:
    from device_sdk.faces import AcquiredFace
    from mien.evaluation.pad import PadReport


class PadCheck(Protocol):
    """Liveness check: a score of how much a presentation looks like a living face."""

    @property
    def report(self) -> PadReport:
        """Measured error rates of this check, at the threshold that decides."""
        ...

    def score(self, face: AcquiredFace) -> float:
        """Return the score of a face: `face.image` is the whole picture (H, W, 3), `face.box` where the face is."""
        ...


def checked(pad: PadCheck | None) -> PadCheck | None:
    """Return a check that brings its report; raises ConfigError for one that does not."""
    if pad is None:
        return None
    from mien.evaluation.pad import PadReport

    if not isinstance(getattr(pad, "report", None), PadReport):
        raise ConfigError(
            "this liveness check brings no measured report; measure APCER for each species of attack and BPCER "
            "(`mien.evaluation.pad.evaluate_pad`), or leave the check out"
        )
    return pad


def is_attack(pad: PadCheck, face: AcquiredFace) -> bool:
    """Return whether a face scores below the threshold that the report was measured at; NaN does."""
    return not pad.score(face) >= pad.report.threshold
