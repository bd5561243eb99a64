"""A value of many devices behaves as a dict, and one that differs by a check-in is made without looking at all."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mien.protocol.ids import DeviceId
from mien.protocol.rounds import Stage
from mien.rounds import candidates
from mien.rounds.candidates import Candidates, lined_up
from mien.rounds.machine import CheckedIn, RoundRules, Withdrew, advance, open_round

DEVICES = st.frozensets(st.integers(0, 400).map(lambda number: DeviceId(f"d{number}")), max_size=90)


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), DEVICES), max_size=30))
def test_it_is_a_dict_in_the_order_in_which_devices_were_heard_of(
    changes: list[tuple[bool, frozenset[DeviceId]]],
) -> None:
    made, model = Candidates({}), dict[DeviceId, float]()
    for now, (is_heard, devices) in enumerate(changes):
        before, was = made, {**model}
        for device in devices:
            model.pop(device, None)
        if is_heard:
            model.update(dict.fromkeys(devices, float(now)))
        made = made.heard(devices, float(now)) if is_heard else made.without(devices)
        assert (dict(before), len(before)) == (was, len(was)), "a value never changes"
        assert (dict(made), len(made)) == (model, len(model))
        assert [*made.values()] == sorted(made.values())
        assert all((device in made) == (device in model) for device in devices | {DeviceId("other")})
        for since in (0.0, now / 2, now + 1.0):
            assert {*made.silent(since)} == {device for device, seen in model.items() if seen < since}


@given(st.lists(st.tuples(DEVICES, DEVICES), max_size=8), st.integers(1, 60))
def test_a_line_is_as_if_all_had_come_at_once(
    changes: list[tuple[frozenset[DeviceId], frozenset[DeviceId]]], room: int
) -> None:
    line: candidates.Line = ()
    for come, leave in changes:
        there = {device for _, device in line}
        left = frozenset(leave & there)
        expected, _ = lined_up((), 7, (there - left) | come, frozenset(), room)
        line, beyond = lined_up(line, 7, come - there, left, room) if come.isdisjoint(left) else (line, frozenset())
        if come.isdisjoint(left):
            assert line == expected
            assert beyond == (((there - left) | come) - {device for _, device in line})


@pytest.mark.parametrize("min_labelled", [0, 1])
def test_a_check_in_looks_at_few_of_those_that_wait(min_labelled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand phones may wait for the last one that a cohort needs, or for its source."""
    many = 10_000
    rules = RoundRules(2 * many, 2 * many, 2 * many, 1e6, dict.fromkeys(Stage, 1.0), min_labelled=min_labelled)
    if min_labelled:
        rules = replace(rules, num_selected=many // 8)
    state, _ = open_round(rules, 0.0)
    state, _ = advance(rules, state, CheckedIn(frozenset(DeviceId(f"d{number}") for number in range(many))), 1.0)
    placed, looked = list[str](), list[object]()
    was_place, was_iter = candidates._place, Candidates.__iter__
    monkeypatch.setattr(candidates, "_place", lambda seed, device: placed.append(device) or was_place(seed, device))

    def each_looked_at(made: Candidates) -> object:
        for device in was_iter(made):
            looked.append(device)
            yield device

    monkeypatch.setattr(Candidates, "__iter__", each_looked_at)
    shared = set[int]()
    for number, now in zip(range(many, many + 100), itertools.count(2), strict=False):
        state, _ = advance(rules, state, CheckedIn(frozenset({DeviceId(f"d{number}")})), now / 100)
        state, _ = advance(rules, state, Withdrew(DeviceId(f"d{number}")), now / 100)
        assert isinstance(state.candidates, Candidates)
        shared.add(id(state.candidates._shared))
    assert state.stage is Stage.SELECTING
    assert len(placed) <= 200
    assert len(looked) <= 200
    assert len(shared) == 1, "one dict for all of them"
