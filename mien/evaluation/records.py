"""Records of measurements: a number together with all that is needed to trust and repeat it."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mien.errors import ConfigError, CorruptDataError
from mien.evaluation.intervals import Interval
from mien.specs import from_mapping, to_mapping

_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Provenance:
    """Origin of a measurement; the program that measures fills it in, the core never looks these up.

    `dataset_sha256` is `dataset_digest` of the files used; `commit` and `command` say which code ran and how.
    """

    dataset: str
    dataset_sha256: str
    model_id: str
    commit: str
    command: str
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("dataset", "model_id", "commit", "command"):
            if not getattr(self, name).strip():
                raise ConfigError(f"provenance.{name} is empty; write 'unknown' if it truly is")
        if not _SHA256.fullmatch(self.dataset_sha256):
            raise ConfigError("provenance.dataset_sha256 must be 64 lower-case hex digits")


@dataclass(frozen=True)
class MetricRecord:
    """One measured value with protocol, counts, operating point, interval and provenance.

    `num_fte` counts samples of which no template could be made. `threshold` and `target_fmr` are absent where the
    metric has none; `details` holds further figures of the same measurement (e.g. achieved FMR, fold deviation).
    """

    metric: str
    value: float
    protocol: str
    protocol_version: str
    num_mated: int
    num_non_mated: int
    num_fte: int
    provenance: Provenance
    threshold: float | None = None
    target_fmr: float | None = None
    interval: Interval | None = None
    details: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("metric", "protocol", "protocol_version"):
            if not getattr(self, name):
                raise ConfigError(f"metric record needs a {name}")
        for name in ("num_mated", "num_non_mated", "num_fte"):
            if getattr(self, name) < 0:
                raise ConfigError(f"metric record's {name} is negative; it counts things")
        figures = {"value": self.value, "threshold": self.threshold, "target_fmr": self.target_fmr, **self.details}
        for name, figure in figures.items():
            if figure is not None and (isinstance(figure, bool) or not math.isfinite(figure)):
                raise ConfigError(f"metric record's {name} is {figure}; a record holds finite numbers only")

    def to_json(self) -> str:
        """Return the record as one line of JSON with sorted keys."""
        return json.dumps(to_mapping(self), sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> MetricRecord:
        """Return the record that `to_json` wrote.

        Raises CorruptDataError for text that is not JSON or holds NaN, ConfigError naming a wrong or missing field.
        """
        return from_mapping(cls, _parse_object(text))


def dataset_digest(files: Iterable[tuple[str, str]]) -> str:
    """Return one SHA-256 for a data set from (relative name, SHA-256 of content) pairs, whatever their order."""
    lines = sorted(f"{digest}  {name}\n" for name, digest in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _parse_object(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except (json.JSONDecodeError, RecursionError) as error:
        raise CorruptDataError("metric record is not JSON; measure again, or restore the file") from error
    if not isinstance(data, dict):
        raise CorruptDataError("metric record is not a JSON object; measure again, or restore the file")
    return data


def _refuse_constant(name: str) -> float:
    raise CorruptDataError(f"metric record holds {name}; a record holds finite numbers only")
