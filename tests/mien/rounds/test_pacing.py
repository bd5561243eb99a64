"""Pace steering: pauses by hand, and a million phones that come at the same instant and never again do so."""

from __future__ import annotations

import numpy as np
import pytest

from mien.rounds.pacing import LONGEST_S, Pace, gathering_pause_s, pause_s, wanted_per_s
from mien.specs import CohortSpec, DeadlineSpec, PrivacySpec, TaskSpec

PACE = Pace(shortest_s=5.0, check_ins_per_s=50.0)


@pytest.mark.parametrize(
    ("devices", "wanted_per_s", "draw", "expected"),
    [
        (10, 0.0, 0.0, 5.0),  # few: soon, and not in step
        (10, 0.0, 0.5, 6.25),
        (1_000_000, 0.0, 0.0, 5.0),
        (1_000_000, 0.0, 0.5, 13_862.943611198906),  # 20,000 s x ln 2
        (1_000_000, 10.0, 0.5, 13_862.943611198906),  # 20 a second are no more than come anyway
        (1_000_000, 100.0, 0.5, 3_465.7359027997264),  # twice as many come as are wanted
        (10**9, 0.0, 0.5, LONGEST_S),
    ],
)
def test_pauses_by_hand(devices: int, wanted_per_s: float, draw: float, expected: float) -> None:
    assert pause_s(PACE, devices=devices, wanted_per_s=wanted_per_s, draw=draw) == pytest.approx(expected)


def test_tasks_want_their_cohorts_within_the_time_of_gathering() -> None:
    one = TaskSpec("one", cohort=CohortSpec(20, 16, 1.5), deadlines=DeadlineSpec(selecting_s=60.0))
    two = TaskSpec(
        "two", cohort=CohortSpec(3, 3), deadlines=DeadlineSpec(selecting_s=300.0), privacy=PrivacySpec(min_cohort=3)
    )
    assert wanted_per_s([one, two]) == pytest.approx(30 / 60 + 3 / 300)
    assert wanted_per_s([]) == 0


def test_a_candidate_stays_away_for_a_second_at_most() -> None:
    assert gathering_pause_s(PACE) == 1.0
    assert gathering_pause_s(Pace(shortest_s=0.2)) == 0.2


def test_a_million_phones_that_come_at_once_come_at_the_set_rate_from_then_on() -> None:
    """Over 16 hours, in windows of five minutes, no more than a tenth above or below `check_ins_per_s`."""
    rng, end_s = np.random.default_rng(3), 16 * 3600
    due, counts = np.zeros(1_000_000), np.zeros(end_s // 300, np.int64)
    while len(due):
        due += np.minimum(np.maximum(7.5, rng.exponential(20_000.0, len(due))), LONGEST_S)
        due = due[due < end_s]
        counts += np.histogram(due, bins=counts.size, range=(0, end_s))[0]
    assert 45 < counts.min() / 300 < counts.max() / 300 < 55
    told = [pause_s(PACE, devices=1_000_000, wanted_per_s=0.0, draw=draw) for draw in np.arange(0.05, 1, 0.1)]
    drawn = rng.exponential(20_000.0, 100_000)
    assert [np.mean(drawn < told_s) for told_s in told] == pytest.approx(np.arange(0.05, 1, 0.1), abs=0.01)
