"""The benchmark of groups and statistics: people are told apart, and a threshold set anew keeps the others' rate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.__main__ import names
from benchmarks.group_statistics import GROUP, OTHERS, SYSTEMS, drawn, halves
from tests.simulation.papers.test_gate import made_up_faces

pytestmark = pytest.mark.numerics


def test_errors_of_both_are_counted_with_each_system_and_both_thresholds() -> None:
    known = made_up_faces()
    rows = {name.replace("own", OTHERS).replace("new", GROUP): found for name, found in known.rows.items()}
    found = drawn(replace(known, rows=rows, own=tuple(name for name in rows if name.startswith(OTHERS))), 0)
    assert (found["phones"], found["tests"], found["others"]) == (100, 100, 30)
    released = found["released"]
    assert released["threshold_set_anew"] == released["threshold_as_it_was"]
    assert released["threshold_set_anew"]["group"]["fmr"]["of"] == 5 * 5 * 100 * 99 // 2
    for system in SYSTEMS:
        group = found[system]["threshold_set_anew"]["group"]
        low, high = group["fmr"]["interval"]
        assert low <= group["fmr"]["rate"] <= high
    before, after = (found[system]["threshold_set_anew"]["group"]["fmr"]["rate"] for system in ("released", "adapter"))
    assert after < 0.1 < before  # phones' people lie together in half of the directions; their sum takes those away


def test_people_are_divided_once_and_by_chance() -> None:
    people = [str(n) for n in range(9)]
    one, other = halves(people, 1)
    assert (len(one), sorted([*one, *other])) == (4, people)
    assert halves(people, 1) == (one, other) != halves(people, 2)


def test_it_is_listed() -> None:
    assert "group_statistics" in names()
