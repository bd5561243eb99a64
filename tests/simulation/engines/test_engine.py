"""The reference engine: a round's total is the weighted mean of its devices' updates, and nothing else moves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mien.errors import ConfigError
from mien.methods import find_method
from mien.methods.base import DeviceInput, ServerState
from mien.specs import CohortSpec, LocalSpec, MustInclude, PrivacySpec, TaskSpec
from simulation.engines.engine import (
    Cohort,
    PublicFaces,
    RoundRecord,
    check_runnable,
    device_seed,
    rounds,
    run_task,
    select,
)
from tests.tiny import made_up_crops, tiny_cnn

pytestmark = pytest.mark.numerics

TINY = tiny_cnn()
PART = TINY.part()
PUBLIC = PublicFaces(np.concatenate([made_up_crops(3, seed=100 + k) for k in range(4)]), np.repeat(np.arange(4), 3))
CLIENTS = {name: made_up_crops(n, seed=n) for name, n in (("a", 2), ("b", 3), ("c", 7), ("d", 4))}
COHORT = Cohort(CLIENTS, public=PUBLIC)
TASK = TaskSpec(
    name="engine",
    rounds=2,
    cohort=CohortSpec(size=3, min_reports=2),
    local=LocalSpec(lr=0.1),
    privacy=PrivacySpec(min_cohort=2, max_weight=5, secure_aggregation="off"),
    seed=3,
)
FORMS = {
    "fedavg": replace(TASK, method="fedavg"),
    "fedface": TASK,
    "fedface_exact": replace(
        TASK, privacy=PrivacySpec(("class_embeddings",), min_cohort=2, max_weight=5, secure_aggregation="off")
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_round_is_the_weighted_mean_of_its_devices_updates(form: str) -> None:
    """Every device's update made again on its own, averaged in float64 with the capped numbers of images."""
    task = replace(FORMS[form], rounds=1)
    run = run_task(task, PART, 8, TINY.theta, COHORT, TINY.runtime())
    devices = run.records[0].devices
    weighted, weights = np.zeros(PART.size), 0.0
    for device in devices:
        inp = DeviceInput(
            task=task,
            part=PART,
            dim=8,
            theta=TINY.theta,
            crops=CLIENTS[device],
            public_crops=PUBLIC.crops,
            public_labels=PUBLIC.labels,
            seed=device_seed(task, device, 1),
        )
        contribution = find_method(task.method).device_round(inp, TINY.runtime()).contribution
        weight = min(len(CLIENTS[device]), 5)
        delta = contribution.vector[contribution.layout.slices["delta"]].astype(np.float64) / weight
        weighted, weights = weighted + weight * delta, weights + weight
    moved = PART.gather(run.state.theta).astype(np.float64) - PART.gather(TINY.theta)
    assert len(devices) == 3
    assert np.abs(moved).max() > 1e-5
    np.testing.assert_allclose(moved, weighted / weights, atol=1e-6)
    frozen = TINY.part("stem.*")
    np.testing.assert_array_equal(frozen.gather(run.state.theta), frozen.gather(TINY.theta))


def test_a_run_repeats_exactly_and_another_seed_differs() -> None:
    one, same = (run_task(TASK, PART, 8, TINY.theta, COHORT, TINY.runtime()) for _ in range(2))
    other = run_task(replace(TASK, seed=4), PART, 8, TINY.theta, COHORT, TINY.runtime())
    np.testing.assert_array_equal(one.state.theta, same.state.theta)
    assert one.records == same.records
    assert np.abs(one.state.theta - other.state.theta).max() > 0


@pytest.mark.parametrize("form", FORMS)
def test_a_run_that_goes_on_equals_one_that_never_stopped(form: str) -> None:
    task = replace(FORMS[form], rounds=3)
    whole = run_task(task, PART, 8, TINY.theta, COHORT, TINY.runtime())
    start = find_method(task.method).server_start(task, PART, TINY.theta)
    first = next(rounds(task, PART, 8, start, COHORT, TINY.runtime()))
    *_, last = rounds(task, PART, 8, first.state, first.cohort, TINY.runtime(), first=2)
    np.testing.assert_array_equal(last.state.theta, whole.state.theta)
    assert last.record == whole.records[-1]
    assert last.cohort.private.keys() == whole.cohort.private.keys()


def test_private_state_stays_with_its_phone_from_round_to_round() -> None:
    everybody = replace(TASK, cohort=CohortSpec(size=4, min_reports=2))
    once, twice = (
        run_task(replace(everybody, rounds=n), PART, 8, TINY.theta, COHORT, TINY.runtime()).cohort.private
        for n in (1, 2)
    )
    assert sorted(once) == ["a", "b", "c", "d"]
    assert COHORT.private == {}
    for device in "abcd":
        assert np.abs(twice[device]["class_embedding"] - once[device]["class_embedding"]).max() > 0


def test_only_the_exact_form_shows_class_embeddings() -> None:
    private = run_task(FORMS["fedface"], PART, 8, TINY.theta, COHORT, TINY.runtime())
    exact = run_task(FORMS["fedface_exact"], PART, 8, TINY.theta, COHORT, TINY.runtime())
    assert private.state.revealed == {}
    assert set(exact.state.revealed) == {d for record in exact.records for d in record.devices}


def test_the_caller_sees_every_round() -> None:
    seen: list[tuple[int, int]] = []

    def note(state: ServerState, record: RoundRecord) -> None:
        seen.append((state.rounds, record.round))

    run_task(TASK, PART, 8, TINY.theta, COHORT, TINY.runtime(), after_round=note)
    assert seen == [(1, 1), (2, 2)]


def test_selection_draws_the_cohort_and_in_time_everybody() -> None:
    devices = tuple("abcdefgh")
    rounds = [select(TASK, devices, number) for number in range(1, 30)]
    assert all(len(set(chosen)) == 3 and list(chosen) == sorted(chosen) for chosen in rounds)
    assert set().union(*rounds) == set(devices)
    assert len(set(rounds)) > 10


def test_a_cohort_that_must_include_a_labelled_client_has_one_in_every_round() -> None:
    devices, cohort = tuple("abcdefgh"), CohortSpec(size=3, min_reports=3, must_include=MustInclude())
    task = TaskSpec("t", method="fedfr_uda", cohort=cohort, privacy=PrivacySpec(min_cohort=3))
    rounds = [select(task, devices, number, {"c": None, "f": None}) for number in range(1, 60)]
    assert all(len(set(chosen)) == 3 and list(chosen) == sorted(chosen) for chosen in rounds)
    assert all({"c", "f"}.intersection(chosen) for chosen in rounds)
    assert set().union(*rounds) == set(devices)
    plain = replace(task, cohort=replace(cohort, must_include=None))
    assert not all("c" in select(plain, devices, number) for number in range(1, 60)), "as it was without"


@pytest.mark.parametrize(
    ("method", "num_labelled", "match"),
    [("fedfr_uda", 0, "there are 0 labelled clients"), ("fedavg", 8, "trains all of its devices alike")],
)
def test_what_a_cohort_must_include_is_there_or_nothing_runs(method: str, num_labelled: int, match: str) -> None:
    cohort = CohortSpec(size=3, min_reports=3, must_include=MustInclude())
    task = TaskSpec("t", method=method, cohort=cohort, privacy=PrivacySpec(min_cohort=3))
    with pytest.raises(ConfigError, match=match):
        check_runnable(task, 8, has_validators=False, num_labelled=num_labelled)


def test_seeds_differ_between_devices_rounds_and_tasks() -> None:
    seeds = {
        device_seed(task, device, number)
        for task in (TASK, replace(TASK, seed=4), replace(TASK, name="other"))
        for device in "ab"
        for number in (1, 2)
    }
    assert len(seeds) == 12


def test_too_few_clients_are_refused() -> None:
    with pytest.raises(ConfigError, match="there are 1 clients"):
        run_task(TASK, PART, 8, TINY.theta, Cohort({"a": CLIENTS["a"]}, public=PUBLIC), TINY.runtime())
