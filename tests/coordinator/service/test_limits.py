"""One device's allowance of calls, with a clock set by hand."""

from __future__ import annotations

import contextlib

import pytest

from coordinator.service import limits
from coordinator.service.limits import CallLimiter, OpenCalls
from mien.errors import RateLimitedError


class SetClock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


def begin(limiter: CallLimiter, device: str = "a") -> None:
    with limiter.call(device):
        pass


def test_a_minutes_worth_at_once_then_as_it_fills_up() -> None:
    clock = SetClock()
    limiter = CallLimiter(30, 4, clock)
    for _ in range(30):
        begin(limiter)
    with pytest.raises(RateLimitedError, match="more than 30 times a minute") as refused:
        begin(limiter)
    assert refused.value.retry_after_s == pytest.approx(2.0)
    begin(limiter, "b")  # others are not concerned
    clock.now += 2.001
    begin(limiter)
    with pytest.raises(RateLimitedError):
        begin(limiter)
    clock.now += 1000  # no more than a minute's worth is saved up
    for _ in range(30):
        begin(limiter)
    with pytest.raises(RateLimitedError):
        begin(limiter)


def test_only_so_many_at_once_also_when_they_fail() -> None:
    limiter = CallLimiter(100, 2, SetClock())
    with contextlib.ExitStack() as stack:
        stack.enter_context(limiter.call("a"))
        stack.enter_context(limiter.call("a"))
        with pytest.raises(RateLimitedError, match="2 calls open"):
            begin(limiter)
        begin(limiter, "b")
    with pytest.raises(ZeroDivisionError), limiter.call("a"):
        raise ZeroDivisionError
    with limiter.call("a"):
        begin(limiter)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_MAX_DEVICES", 3)
    limiter = CallLimiter(1, 1, SetClock())
    for device in "abcd":
        begin(limiter, device)
    for device in "dcb":
        with pytest.raises(RateLimitedError):
            begin(limiter, device)
    begin(limiter, "a")


def test_an_address_has_a_share_of_the_calls_that_are_answered() -> None:
    calls = OpenCalls(2)
    with (
        calls.call("a"),
        calls.call("a"),
        calls.call("b"),
        pytest.raises(RateLimitedError, match="this address has 2 calls open"),
        calls.call("a"),
    ):
        pass
    with calls.call("a"):
        pass
