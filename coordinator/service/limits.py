"""Limits on one device's calls, in a minute and at once: a phone gone mad must not crowd out the others."""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from mien.errors import RateLimitedError

_MAX_DEVICES: Final = 100_000


@dataclass
class _Allowance:
    """A bucket that a call takes one from, and that fills up again in a minute."""

    left: float
    at: float
    open_calls: int = 0


class CallLimiter:
    """Refuses a device's calls beyond its allowance. Bounded memory: who was silent longest is forgotten first."""

    def __init__(self, per_minute: int, at_once: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._per_minute, self._at_once, self._monotonic = per_minute, at_once, monotonic
        self._devices: OrderedDict[str, _Allowance] = OrderedDict()

    @contextlib.contextmanager
    def call(self, device_id: str) -> Iterator[None]:
        """Count a call while the block runs; raises RateLimitedError, with the pause, instead of beginning it."""
        allowance = self._allowance(device_id)
        if allowance.open_calls >= self._at_once:
            raise RateLimitedError(
                f"this device has {allowance.open_calls} calls open, the most that one may have; end one first",
                retry_after_s=1.0,
            )
        if allowance.left < 1:
            wait_s = (1 - allowance.left) * 60 / self._per_minute
            raise RateLimitedError(
                f"this device calls more than {self._per_minute} times a minute; wait {wait_s:.1f} s",
                retry_after_s=wait_s,
            )
        allowance.left -= 1
        allowance.open_calls += 1
        try:
            yield
        finally:
            allowance.open_calls -= 1

    def _allowance(self, device_id: str) -> _Allowance:
        """Return a device's allowance as it is now."""
        now = self._monotonic()
        allowance = self._devices.setdefault(device_id, _Allowance(self._per_minute, now))
        self._devices.move_to_end(device_id)
        allowance.left = min(allowance.left + (now - allowance.at) * self._per_minute / 60, self._per_minute)
        allowance.at = now
        if len(self._devices) > _MAX_DEVICES:
            self._devices.popitem(last=False)
        return allowance
