"""Retries of calls that can succeed later: exponential pauses with jitter, up to a limit."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from mien.errors import UnavailableError
from mien.shell.backoff import Backoff
from mien.shell.clock import Clock


@dataclass(frozen=True)
class RetryPolicy:
    """The n-th pause is drawn from [0, min(longest_s, first_s * 2**n)] ("full jitter", so that a fleet that lost its
    server does not return in step); a server's own `retry_after_s` is the least. After `give_up_s` in a row without
    progress the last error stands.
    """

    first_s: float = 0.5
    longest_s: float = 30.0
    give_up_s: float = 120.0


class Retries:
    """The pauses of one call."""

    def __init__(
        self,
        policy: RetryPolicy,
        clock: Clock,
        rng: random.Random,
        on_failure: Callable[[UnavailableError], object] = lambda _error: None,
    ) -> None:
        """`on_failure` is told of each failure, before the pause."""
        self._pauses = Backoff(policy.first_s, policy.longest_s, least=0.0, draw=rng.random)
        self._give_up_s, self._clock, self._on_failure = policy.give_up_s, clock, on_failure
        self.progress()

    def progress(self) -> None:
        """Start over: something was achieved."""
        self._pauses.reset()
        self._since_s = self._clock.monotonic_s()

    def wait(self, error: UnavailableError) -> None:
        """Pause after a failure; raises `error` instead when the pause would end after the limit."""
        self._on_failure(error)
        pause_s = max(self._pauses.next_s(), error.retry_after_s or 0.0)
        if self._clock.monotonic_s() + pause_s - self._since_s > self._give_up_s:
            raise error
        self._clock.sleep(pause_s)
