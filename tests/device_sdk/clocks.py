"""A clock for tests: runs with the real one, shifted, and counts pauses instead of waiting through long ones."""

from __future__ import annotations

import time

from mien.shell.clock import WallClock


class ShiftedClock(WallClock):
    """The real time plus `shift_s`; pauses are noted and cut to a hundredth of a second."""

    def __init__(self, shift_s: float = 0.0) -> None:
        self.shift_s = shift_s
        self.pauses: list[float] = []
        self._slept_s = 0.0

    def now(self) -> float:
        return time.time() + self.shift_s

    def monotonic_s(self) -> float:
        return time.monotonic() + self._slept_s

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self._slept_s += seconds
        time.sleep(min(seconds, 0.01))


class HandClock(WallClock):
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Let so much time pass."""
        self.now_s += seconds
