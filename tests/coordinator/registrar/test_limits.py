"""The limiter of failed attempts."""

from __future__ import annotations

import pytest

from coordinator.service import limits
from coordinator.service.limits import FailureLimiter, network_of
from mien.errors import RateLimitedError


class Seconds:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_host_that_failed_too_often_waits_and_no_other() -> None:
    seconds = Seconds()
    limiter = FailureLimiter(3, 60, seconds)
    for seconds.now in (0.0, 10.0, 20.0):
        limiter.check("192.0.2.1")
        limiter.record_failure("192.0.2.1")
    seconds.now = 25.0
    with pytest.raises(RateLimitedError) as refused:
        limiter.check("192.0.2.1")
    # The oldest failure, at 0 s, is 60 s old at 60 s: 35 s from now.
    assert refused.value.retry_after_s == 35.0
    limiter.check("192.0.2.2")
    seconds.now = 60.0
    limiter.check("192.0.2.1")
    limiter.record_failure("192.0.2.1")
    with pytest.raises(RateLimitedError) as refused:
        limiter.check("192.0.2.1")
    # Now the failures at 10, 20 and 60 s count.
    assert refused.value.retry_after_s == 10.0


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_MAX_HOSTS", 2)
    limiter = FailureLimiter(1, 60, Seconds())
    for host in ("a", "b", "c"):
        limiter.record_failure(host)
    limiter.check("a")
    for host in ("b", "c"):
        with pytest.raises(RateLimitedError):
            limiter.check(host)


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:aaaa:bbbb:cccc:dddd", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unix:/run/mien.sock", "unix:/run/mien.sock"),
    ],
)
def test_one_caller_is_one_address_or_one_household(host: str, network: str) -> None:
    assert network_of(host) == network
