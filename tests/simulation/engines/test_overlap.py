"""Asynchronous mode in the simulator: who lands when, on which base, with what weight; computed again by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mien.errors import ConfigError
from mien.layout import Vector
from mien.rounds.buffered import Flight
from mien.specs import AsynchronousSpec, CohortSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.engines.engine import Cohort, InFlight, Overlap, overlapping, rounds, run_task
from tests.tiny import made_up_crops, tiny_cnn

TINY, DIM = tiny_cnn(), 8
PART = TINY.part()
PEOPLE = tuple("abcdef")
PAIRS = CohortSpec(size=2, min_reports=2)
COHORT = Cohort({name: made_up_crops(2 + index % 3, seed=index) for index, name in enumerate(PEOPLE)})


def task(rounds: int = 4, **spec: Any) -> TaskSpec:
    return TaskSpec(
        "async",
        method="fedavg",
        rounds=rounds,
        cohort=PAIRS,
        local=LocalSpec(lr=1.0, flip=False),
        options={"margin": 1.0},
        privacy=PrivacySpec(min_cohort=2, secure_aggregation="off"),
        asynchronous=AsynchronousSpec(**spec),
    )


def in_turn(_task: TaskSpec, idle: tuple[str, ...], _number: int) -> tuple[str, ...]:
    """Choose the first two that are idle."""
    return idle[:2]


def story(task: TaskSpec, overlap: Overlap, everybody: Sequence[str] = PEOPLE) -> list[tuple[int, int, str]]:
    """Return what landed: the cohort's number, its base, its devices."""
    landed: list[InFlight[int]] = list(overlapping(task, everybody, overlap, lambda number, _devices: number))
    assert all(each.trained == each.flight.number for each in landed)
    return [(each.flight.number, each.base, "".join(each.devices)) for each in landed]


def test_the_oldest_lands_first_and_is_as_many_models_behind_as_cohorts_were_beside_it() -> None:
    expected = [(1, 0, "ab"), (2, 0, "cd"), (3, 0, "ef"), (4, 1, "ab"), (5, 2, "cd")]
    assert story(task(5, max_concurrency=3), Overlap(choose=in_turn)) == expected


def test_one_at_a_time_is_never_stale() -> None:
    assert [base for _, base, _ in story(task(4, max_concurrency=1), Overlap())] == [0, 1, 2, 3]


def test_what_is_too_stale_never_lands() -> None:
    """The newest always lands first; with a bound of 1, cohort 1 is discarded once two others have landed."""

    def newest(flights: Sequence[Flight]) -> int:
        return max(flight.number for flight in flights)

    landed = story(task(5, max_concurrency=2, max_staleness=1), Overlap(newest, in_turn))
    assert landed == [(2, 0, "cd"), (3, 1, "cd"), (5, 2, "cd"), (6, 3, "cd"), (7, 4, "ab")]


def test_too_few_phones_for_two_cohorts_run_one_and_too_few_for_one_say_so() -> None:
    assert story(task(2, max_concurrency=2), Overlap(), PEOPLE[:3])[1][1] == 1
    with pytest.raises(ConfigError, match="min_reports"):
        story(task(2), Overlap(), PEOPLE[:1])


def plain_round(theta: Vector, devices: str, cohort: Cohort = COHORT) -> tuple[Vector, Cohort]:
    """Return the mean update of devices that train on `theta`, from a plain round of theirs, and what they keep."""
    theirs = replace(cohort, crops={name: COHORT.crops[name] for name in devices})
    one = replace(task(1), asynchronous=None)
    run = run_task(one, PART, DIM, theta.astype(np.float32), theirs, TINY.runtime())
    return run.state.theta - theta, run.cohort


def test_a_run_is_the_models_by_hand() -> None:
    """Two cohorts on the first model, then one on the second: weights 1, 1/2, 1/2 (exponent 1)."""
    spec = task(3, max_concurrency=2, staleness_exponent=1.0)
    run = run_task(spec, PART, DIM, TINY.theta, COHORT, TINY.runtime(), overlap=Overlap(choose=in_turn))
    assert [record.devices for record in run.records] == [("a", "b"), ("c", "d"), ("a", "b")]
    assert [record.staleness for record in run.records] == [0, 1, 1]
    assert [record.round for record in run.records] == [1, 2, 3]
    update, kept = plain_round(TINY.theta, "ab")
    first = TINY.theta + update
    second = first + 0.5 * plain_round(TINY.theta, "cd")[0]
    last = plain_round(first, "ab", kept)[0]
    assert np.abs(last).max() > 1e-4
    np.testing.assert_allclose(run.state.theta, second + 0.5 * last, atol=2e-6)


def test_one_cohort_in_flight_is_the_synchronous_run() -> None:
    spec = task(3, max_concurrency=1)
    one, other = (
        run_task(each, PART, DIM, TINY.theta, COHORT, TINY.runtime())
        for each in (spec, replace(spec, asynchronous=None))
    )
    np.testing.assert_array_equal(one.state.theta, other.state.theta)
    assert one.records == other.records


def test_methods_without_it_and_runs_that_go_on_are_refused() -> None:
    with pytest.raises(ConfigError, match="scaffold has no asynchronous mode"):
        run_task(replace(task(), method="scaffold"), PART, DIM, TINY.theta, COHORT, TINY.runtime())
    start = run_task(task(1), PART, DIM, TINY.theta, COHORT, TINY.runtime()).state
    with pytest.raises(ConfigError, match="begin it again"):
        next(rounds(task(), PART, DIM, start, COHORT, TINY.runtime(), first=2))
