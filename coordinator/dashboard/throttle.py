"""Limits on password guesses: pure counting, with the time handed in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_FIRST_PAUSE_S: Final = 30.0
_LONGEST_PAUSE_S: Final = 900.0
_FORGET_S: Final = 3600.0
_MAX_KEYS: Final = 10_000


@dataclass
class _Count:
    failures: int = 0
    last_s: float = 0.0
    locked_until_s: float = 0.0


class Throttle:
    """Counts failures by key: after `limit` in a row each further one locks the key, twice as long as the one before.

    A key that was quiet for an hour is forgotten, and the oldest ones when there are too many: memory is bounded
    whatever strangers try.
    """

    def __init__(self) -> None:
        self._counts: OrderedDict[str, _Count] = OrderedDict()

    def pause_s(self, keys: Iterable[str], now_s: float) -> float:
        """Return how long to wait before another try; 0 for not at all."""
        counts = (self._counts.get(key) for key in keys)
        return max(
            (count.locked_until_s - now_s for count in counts if count is not None and count.locked_until_s > now_s),
            default=0.0,
        )

    def failed(self, limits: Iterable[tuple[str, int]], now_s: float) -> bool:
        """Count a failure under each key with its limit, and return whether one of them is locked from now on."""
        is_locked = False
        for key, limit in limits:
            count = self._counts.pop(key, None)
            if count is None or now_s - count.last_s > _FORGET_S:
                count = _Count()
            count.failures, count.last_s = count.failures + 1, now_s
            if count.failures >= limit:
                pause = _FIRST_PAUSE_S * 2.0 ** min(count.failures - limit, 10)
                count.locked_until_s = now_s + min(pause, _LONGEST_PAUSE_S)
                is_locked = True
            self._counts[key] = count
        while len(self._counts) > _MAX_KEYS:
            self._counts.popitem(last=False)
        return is_locked

    def succeeded(self, keys: Iterable[str]) -> None:
        """Forget the failures of keys."""
        for key in keys:
            self._counts.pop(key, None)
