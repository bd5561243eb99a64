"""Limits on failures of one address before it has to wait, against guessing at tokens."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

from mien.errors import RateLimitedError

_MAX_HOSTS: Final = 10_000


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
