"""The one seam through which a device sees time."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final, Protocol


class Clock(Protocol):
    """Clock that a program reads and waits by."""

    def unix_s(self) -> float:
        """Return seconds since the Unix epoch, as this device believes."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds that never go back, from an arbitrary start."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The operating system's clock."""

    def unix_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def utc(clock: Clock) -> datetime:
    """Return the device's time with its zone, as certificates are compared with."""
    return datetime.fromtimestamp(clock.unix_s(), UTC)


_UNITS: Final = (("days", 86400), ("h", 3600), ("min", 60), ("s", 1))


def spell_duration(seconds: float) -> str:
    """Return a duration for a sentence, in its largest unit and the next one: "23 h 50 min"."""
    total = round(abs(seconds))
    first = next((i for i, (_, length) in enumerate(_UNITS) if total >= length), len(_UNITS) - 1)
    parts, rest = [], total
    for unit, length in _UNITS[first : first + 2]:
        count, rest = divmod(rest, length)
        parts.append(f"{count} {'day' if (unit, count) == ('days', 1) else unit}")
    return " ".join(part for part in parts if not part.startswith("0 ")) or "0 s"
