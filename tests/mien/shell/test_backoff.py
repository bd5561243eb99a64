"""Pauses that double up to a bound, begin anew after a success, and are not the same for all."""

from __future__ import annotations

import pytest

from mien.shell.backoff import Backoff


def test_pauses_double_to_a_bound_and_begin_anew() -> None:
    pauses = Backoff(0.5, 3.0, draw=lambda: 1.0)
    assert [pauses.next_s() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    pauses.reset()
    assert pauses.next_s() == 0.5


def test_a_pause_is_drawn_from_the_upper_half() -> None:
    pauses = Backoff(8.0, 8.0, draw=lambda: 0.5)
    assert pauses.next_s() == pytest.approx(6.0)
    shortest = Backoff(8.0, 8.0, draw=lambda: 2**-53)
    assert 4.0 <= shortest.next_s() < 4.001


def test_a_year_of_failures_does_not_overflow() -> None:
    pauses = Backoff(1.0, 15.0)
    assert all(0.5 <= pauses.next_s() <= 15.0 for _ in range(5000))
