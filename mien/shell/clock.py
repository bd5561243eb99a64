"""The one seam through which the programs see time, and wait."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final


class Clock:
    """Seconds since the Unix epoch, read from the wall once and counted on monotonically: a server's clock.

    A step of the machine's clock while rounds run can then neither end a stage early nor stretch it. `offset_s` shifts
    the clock for tests of machines whose time is wrong.
    """

    def __init__(self, offset_s: float = 0.0) -> None:
        self._start: Final = time.time() - time.monotonic() + offset_s

    def now(self) -> float:
        """Return the time in seconds."""
        return self._start + time.monotonic()

    def now_ms(self) -> int:
        """Return the time in whole milliseconds, as the database and the wire carry it."""
        return to_ms(self.now())

    def now_utc(self) -> datetime:
        """Return the time with its zone, as certificates are checked against it."""
        return datetime.fromtimestamp(self.now(), UTC)

    def monotonic_s(self) -> float:
        """Return seconds that never go back, from an arbitrary start."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class WallClock(Clock):
    """The wall's time at each look: a device's clock, which goes on while the machine sleeps, and may be set anew."""

    def now(self) -> float:
        return time.time()


def to_ms(seconds: float) -> int:
    """Return seconds as whole milliseconds."""
    return round(seconds * 1000)
