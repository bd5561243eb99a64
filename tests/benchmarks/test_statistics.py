"""The benchmark of statistics: its virtual phones are the method's own, and more of them make a better map."""

from __future__ import annotations

from argparse import Namespace

import pytest

from benchmarks.__main__ import names
from benchmarks.statistics import benchmark

pytestmark = pytest.mark.numerics


def test_a_toy_fleet_counts_every_phone_once_and_learns() -> None:
    """The benchmark itself asserts that the first cohort's phones add up, one by one, to its total."""
    found = benchmark(Namespace(quick=True, cohorts=10, cohort_size=60))
    assert (found["phones"], found["counted"], found["cohorts"]) == (600, 600, 10)
    errors = [row["eer"] for row in found["rows"]]
    assert [row["phones"] for row in found["rows"]] == [60, 600]
    assert errors[1] < 0.7 * errors[0] < 0.7 * found["eer_before"]
    assert 66_000 < found["phone_sent_bytes"] < 200_000
    assert found["total_bytes"] == 8 * 16_645


def test_it_is_listed() -> None:
    assert "statistics" in names()
