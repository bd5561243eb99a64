"""Retries of calls that can succeed later: exponential pauses with jitter, up to a limit."""

from __future__ import annotations

import random
from dataclasses import dataclass

from device_sdk.clock import Clock
from mien.errors import UnavailableError


@dataclass(frozen=True)
class RetryPolicy:
    """The n-th pause is drawn from [0, min(longest_s, first_s * 2**n)] ("full jitter", so that a fleet that lost its
    server does not return in step); a server's own `retry_after_s` is the least. After `give_up_s` in a row without
    progress the last error stands.
    """

    first_s: float = 0.5
    longest_s: float = 30.0
    give_up_s: float = 120.0


class Backoff:
    """The pauses of one call."""

    def __init__(self, policy: RetryPolicy, clock: Clock, rng: random.Random) -> None:
        self._policy = policy
        self._clock = clock
        self._rng = rng
        self.progress()

    def progress(self) -> None:
        """Start over: something was achieved."""
        self._failures = 0
        self._since_s = self._clock.monotonic_s()

    def wait(self, error: UnavailableError) -> None:
        """Pause after a failure; raises `error` instead when the pause would end after the limit."""
        ceiling = min(self._policy.longest_s, self._policy.first_s * 2.0**self._failures)
        pause_s = max(self._rng.uniform(0.0, ceiling), error.retry_after_s or 0.0)
        if self._clock.monotonic_s() + pause_s - self._since_s > self._policy.give_up_s:
            raise error
        self._failures += 1
        self._clock.sleep(pause_s)
