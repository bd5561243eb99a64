"""Limits on callers: on a device's calls, lest it crowd out the others, and on failures, against guessing at tokens."""

from __future__ import annotations

import contextlib
import ipaddress
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from mien.errors import RateLimitedError
from mien.protocol.ids import DeviceId

_MAX_DEVICES: Final = 100_000
_MAX_HOSTS: Final = 10_000


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
        self._devices: OrderedDict[DeviceId, _Allowance] = OrderedDict()

    @contextlib.contextmanager
    def call(self, device_id: DeviceId) -> Iterator[None]:
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

    def _allowance(self, device_id: DeviceId) -> _Allowance:
        """Return a device's allowance as it is now."""
        now = self._monotonic()
        allowance = self._devices.setdefault(device_id, _Allowance(self._per_minute, now))
        self._devices.move_to_end(device_id)
        allowance.left = min(allowance.left + (now - allowance.at) * self._per_minute / 60, self._per_minute)
        allowance.at = now
        if len(self._devices) > _MAX_DEVICES:
            self._devices.popitem(last=False)
        return allowance


class OpenCalls:
    """Refuses a caller's calls beyond `at_once` that are being answered."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._open: dict[str, int] = {}

    @contextlib.contextmanager
    def call(self, caller: str) -> Iterator[None]:
        """Count a call while the block runs; raises RateLimitedError instead of beginning it."""
        if self._open.get(caller, 0) >= self._at_once:
            raise RateLimitedError(
                f"this address has {self._at_once} calls open, the most that one may have; try again", retry_after_s=1.0
            )
        self._open[caller] = self._open.get(caller, 0) + 1
        try:
            yield
        finally:
            self._open[caller] -= 1
            if not self._open[caller]:
                del self._open[caller]


def network_of(host: str) -> str:
    """Return the network of one caller: an IPv4 address, or the /64 network that one IPv6 household is given."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))
    return str(address)


class FailureLimiter:
    """Refuses a host that failed `max_failures` times within `window_s` seconds, until the oldest failure is that old.

    Successes are free, so phones behind one address do not hinder each other. Memory is bounded: of more than 10 000
    hosts the one that failed longest ago is forgotten. `monotonic` gives seconds that never go back.
    """

    def __init__(self, max_failures: int, window_s: float, monotonic: Callable[[], float]) -> None:
        self._max_failures = max_failures
        self._window_s = window_s
        self._monotonic = monotonic
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def check(self, host: str) -> None:
        """Raise RateLimitedError with the pause when `host` failed too often."""
        failures = self._failures.get(host)
        if failures is None or len(failures) < self._max_failures:
            return
        wait_s = failures[0] + self._window_s - self._monotonic()
        if wait_s > 0:
            raise RateLimitedError(
                f"too many failed attempts from this address; try again in {wait_s:.0f} s", retry_after_s=wait_s
            )

    def record_failure(self, host: str) -> None:
        """Count a failure against `host`."""
        failures = self._failures.setdefault(host, deque(maxlen=self._max_failures))
        failures.append(self._monotonic())
        self._failures.move_to_end(host)
        if len(self._failures) > _MAX_HOSTS:
            self._failures.popitem(last=False)
