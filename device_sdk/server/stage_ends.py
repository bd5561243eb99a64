"""How long a phone listens to one attempt of a round: no stream keeps it for ever, however steadily it drips."""

from __future__ import annotations

from typing import Final

from mien.errors import LateError
from mien.protocol.rounds import Stage
from mien.shell.clock import Clock

LONGEST_S: Final = 7 * 86400.0
"""A task's deadlines are no longer."""
GRACE_S: Final = 600.0
"""Time that a stage may take beyond the end that the coordinator named for it."""


class StageEnds:
    """The end of the stage that a round is in: the one that its first event named, whatever is said after it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard: set[Stage | None] = set()
        self._end_s = clock.monotonic_s() + GRACE_S

    def hear(self, stage: Stage | None, remaining_s: float) -> None:
        """Take an event; raises LateError where its stage should have ended long ago."""
        now_s = self._clock.monotonic_s()
        if stage not in self._heard:
            self._heard.add(stage)
            self._end_s = now_s + min(max(remaining_s, 0.0), LONGEST_S) + GRACE_S
        if now_s > self._end_s:
            raise LateError("the coordinator did not end a stage by its own deadline; nothing is lost, check in again")
