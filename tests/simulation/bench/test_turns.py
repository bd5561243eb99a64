"""Turns: who takes one when, what counts of a window, and ratios that a machine's speed is not in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from simulation.bench.turns import Cost, Way, in_turns, mean_of, over, timed


def costs(*found: Cost) -> Way:
    each: Iterator[Cost] = iter(found)
    return lambda: next(each, None)


def test_ways_go_there_and_back() -> None:
    taken: list[str] = []

    def noted(name: str) -> Way:
        return lambda: timed(lambda: taken.append(name))

    found = in_turns({name: noted(name) for name in "abc"}, 3)
    assert "".join(taken) == "abccbaabc"
    assert {name: len(turns) for name, turns in found.items()} == {"a": 3, "b": 3, "c": 3}


def test_one_that_can_do_it_no_more_is_not_asked_again() -> None:
    def ends_after_one() -> Iterator[Cost | None]:
        yield 1.0, 1.0
        yield None

    ending = ends_after_one()
    found = in_turns({"ends": lambda: next(ending), "goes on": lambda: (2.0, 2.0)}, 3)
    assert found == {"ends": [(1.0, 1.0)], "goes on": [(2.0, 2.0)] * 3}


def test_a_window_counts_as_its_mean() -> None:
    assert mean_of(costs((3.0, 1.0), (2.0, 5.0)), 0.0) == (3.0, 1.0)
    assert mean_of(costs(), 0.0) is None
    assert mean_of(costs((3.0, 1.0)), 60.0) is None, "it ended in the middle of the window"
    calls = 0

    def round_() -> Cost:
        nonlocal calls
        calls += 1
        return float(calls), 1.0

    assert mean_of(round_, 0.02) == ((calls + 1) / 2, 1.0)
    assert calls > 1


def test_a_ratio_is_the_median_of_the_turns_that_both_took() -> None:
    """The machine's speed halves in the second turn, and something disturbs the third of ours."""
    ours, theirs = [(1.0, 1.0), (2.0, 1.0), (9.0, 1.0)], [(2.0, 4.0), (4.0, 4.0), (2.0, 4.0), (1.0, 1.0)]
    assert over(ours, theirs) == (0.5, 0.25)
    assert over(ours, ours) == (1.0, pytest.approx(1.0))
