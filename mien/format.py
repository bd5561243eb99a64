"""Numbers as people read them: rates in percent with their counts, bytes and seconds in handy units; reasons, cut."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Final

MAX_REASON: Final = 400
"""Longest reason that is kept of anything."""
_NARROW_SPACE = "\u202f"
_MINUS = "\u2212"
_UNITS = (("days", 86400), ("h", 3600), ("min", 60), ("s", 1))


def count(number: int) -> str:
    """Return a whole number with thin spaces between thousands: 12 345 678."""
    return f"{number:,}".replace(",", _NARROW_SPACE).replace("-", _MINUS)


def several(number: int, noun: str, plural: str = "") -> str:
    """Return a number of things in words, their plural where it is no `s` more: 1 round, 2 rounds, 3 people."""
    return f"{count(number)} {noun if number == 1 else plural or f'{noun}s'}"


def percent(rate: float, digits: int = 2) -> str:
    """Return a rate in percent: 0.01234 gives 1.23 %."""
    return f"{rate * 100:.{digits}f}{_NARROW_SPACE}%".replace("-", _MINUS)


def points(difference: float, digits: int = 2) -> str:
    """Return a difference of two rates in percentage points with its sign: +0.40 points."""
    sign = "+" if difference > 0 else _MINUS if difference < 0 else "±"
    return f"{sign}{abs(difference) * 100:.{digits}f} points"


def score(value: float) -> str:
    """Return a cosine or threshold with three decimals."""
    return f"{value:.3f}".replace("-", _MINUS)


def size(size_bytes: int) -> str:
    """Return bytes in decimal units with three significant digits: 1.54 MB."""
    value = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5 or unit == "GB":
            break
        value /= 1000
    digits = 0 if unit == "B" or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f}{_NARROW_SPACE}{unit}"


def duration(duration_s: float) -> str:
    """Return seconds, or minutes and seconds from two minutes on: 8.4 s, 3 min 20 s."""
    if duration_s < 119.5:
        return f"{duration_s:.{1 if duration_s < 10 else 0}f}{_NARROW_SPACE}s"
    minutes, seconds = divmod(math.floor(duration_s + 0.5), 60)
    return f"{minutes}{_NARROW_SPACE}min {seconds:02d}{_NARROW_SPACE}s"


def spell_duration(seconds: float) -> str:
    """Return a duration for a sentence, in its largest unit and the next one: 23 h 50 min."""
    total = round(abs(seconds))
    first = next((i for i, (_, length) in enumerate(_UNITS) if total >= length), len(_UNITS) - 1)
    parts, rest = [], total
    for unit, length in _UNITS[first : first + 2]:
        number, rest = divmod(rest, length)
        parts.append(f"{number} {'day' if (unit, number) == ('days', 1) else unit}")
    return " ".join(part for part in parts if not part.startswith("0 ")) or "0 s"


def moment(unix_ms: int | None) -> str:
    """Return a time in UTC to the second: 2026-01-31 12:00:00; a dash for none."""
    return f"{datetime.fromtimestamp(unix_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}" if unix_ms else "–"


def gathered(there: int, wanted: int, since_ms: int, now_ms: int, lacks_labelled: int = 0) -> str:
    """Return how many of those wanted are there, and since how many whole minutes; `since_ms` is 0 where none is.

    `lacks_labelled` is how many labelled sources it waits for besides, whoever else is there.
    """
    minutes = (now_ms - since_ms) // 60_000 if since_ms else 0
    sources = "a labelled source" if lacks_labelled == 1 else f"{lacks_labelled} labelled sources"
    waits = f"; waiting for {sources}" if lacks_labelled else ""
    return f"{there} of {wanted}" + (f", since {minutes} min" if minutes > 0 else "") + waits


def fraction(part: int, whole: int) -> str:
    """Return the counts behind a rate: 3 of 1 200."""
    return f"{count(part)} of {count(whole)}"


def grouped(text: str) -> str:
    """Return text in groups, so that the eye keeps its place when people compare it: 0123 4567 89ab."""
    return " ".join(text[at : at + 4] for at in range(0, len(text), 4))


def cut(reason: str) -> str:
    """Return a reason no longer than one is kept, with an ellipsis where it was cut."""
    return reason if len(reason) <= MAX_REASON else reason[: MAX_REASON - 1] + "…"
