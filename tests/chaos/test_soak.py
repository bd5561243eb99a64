"""A few dozen rounds leave nothing behind and no handle open; `python -m benchmarks.soak` has a thousand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.soak import KEEP, Sample, growth, soak
from tests.helpers import run

ROUNDS = 50

pytestmark = pytest.mark.timeout(900)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may count a server's open files")
def test_rounds_leave_nothing_behind(tmp_path: Path) -> None:
    found = run(soak(tmp_path, ROUNDS, num_samples=5), limit_s=840)
    assert found.rounds >= ROUNDS > KEEP
    assert found.errors == ()
    assert (found.left_in_spool, found.surplus_models, found.surplus_states) == (0, 0, 0)
    warm, last = found.samples[2], found.samples[-1]
    assert last.open_files <= warm.open_files + 16  # connections of the moment
    assert last.threads <= warm.threads + 16  # pools that were not full yet
    assert last.rss_bytes <= warm.rss_bytes + 32e6


def test_growth_is_a_slope_after_the_warm_up() -> None:
    """It doubles while it warms up, then grows by 3 in 10 rounds: 300 in 1,000."""
    rss = [100, 200, 200, 203, 206, 209]
    samples = [Sample(10 * number, value, 1, 1, 1, 1) for number, value in enumerate(rss)]
    assert round(growth(samples, "rss_bytes"), 6) == 300.0
    assert abs(growth(samples, "threads")) < 1e-6
