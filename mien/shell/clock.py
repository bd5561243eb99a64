"""The coordinator's one clock: wall time that does not jump while the program runs."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final


class Clock:
    """Seconds since the Unix epoch, read from the wall once and counted on monotonically.

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
        """Return the time as certificates are checked against it."""
        return datetime.fromtimestamp(self.now(), UTC)


def to_ms(seconds: float) -> int:
    """Return seconds as whole milliseconds."""
    return round(seconds * 1000)
