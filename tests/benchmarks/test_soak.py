"""The soak tells growth of a whole run alone, and the page says why a quick one has none."""

from __future__ import annotations

from benchmarks.soak import AIMS, GROWTH, NO_GROWTH, growth_of, holds
from scripts.write_performance_pages import performance
from tests.chaos.soak import Sample

SAMPLES = [Sample(100 * number, 10**8 + 10**6 * number, 20, 10, 10**6, 30) for number in range(11)]


def test_a_quick_run_tells_no_growth() -> None:
    """All of its rounds are in the warm-up of a whole one."""
    assert growth_of(SAMPLES, quick=True) == {"growth": NO_GROWTH}
    whole = growth_of(SAMPLES, quick=False)
    assert whole.keys() == GROWTH.keys() >= AIMS.keys()
    assert (whole["rss_growth_mb_per_1000"], whole["fd_growth_per_1000"]) == (10.0, 0.0)


def test_a_quick_run_holds_if_nothing_is_left_over() -> None:
    nothing_left = {"left_in_spool": 0, "surplus_models": 0, "surplus_states": 0}
    assert holds({"quick": True, **nothing_left})
    assert not holds({"quick": True, **nothing_left, "left_in_spool": 1})
    assert not holds({"quick": False, **nothing_left, **growth_of(SAMPLES, quick=False)})


def test_the_page_says_why_there_is_no_growth() -> None:
    result = {"command": "-", "machine": "-", "commit": "-", "rounds": 102, "aims": {}}
    page = performance({"soak": {**result, **growth_of(SAMPLES, quick=True)}})
    assert f"Growth: {NO_GROWTH}." in page
    assert "growth of memory" not in page
