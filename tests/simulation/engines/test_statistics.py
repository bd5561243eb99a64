"""Summed statistics in every engine: whoever runs the phones, the sum and the adapter are the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mien.errors import ConfigError
from mien.methods.base import IN_TOTAL
from mien.specs import CohortSpec, PrivacySpec, TaskSpec
from simulation.engines.base import Engine, RoundWork, SequentialEngine, combined
from simulation.engines.choice import choose
from simulation.engines.engine import Cohort, Run, run_task, select
from simulation.engines.fused import FusedEngine
from simulation.engines.runtimes import OncePerRound, PublicOnly
from simulation.engines.stacked import StackedEngine
from simulation.engines.sums import Sums
from simulation.runs.spec import RunSpec
from tests.simulation.engines.agreement import assert_same
from tests.simulation.engines.cases import several
from tests.tiny import made_up_crops, tiny_adapted, tiny_gated

pytestmark = pytest.mark.numerics

TINY = tiny_adapted()
PART, DIM = TINY.part(), 8
TASK = TaskSpec(
    name="statistics",
    method="statistics",
    rounds=1,
    cohort=CohortSpec(size=6, min_reports=4),
    privacy=PrivacySpec(min_cohort=3, max_weight=1, reveals=("class_moment",)),
    options={"form": "plda", "shrinkage": 0.2, "min_people": 12, "max_people": 2, "longest": 1.0},
    seed=3,
)


def run(engine: Engine, *, sums: Sums = "exact") -> Run:
    return run_task(TASK, PART, DIM, TINY.theta, several, engine, sums=sums)


@pytest.mark.parametrize("name", ["stacked", "fused", "auto"])
def test_every_engine_makes_the_sequential_ones_adapter(name: str) -> None:
    choice = choose(name, TINY.runtime(), TASK, PART)  # type: ignore[arg-type]
    expected = run(SequentialEngine(TINY.runtime()))
    found = run(choice.engine)
    assert_same(found, expected)
    np.testing.assert_array_equal(TINY.theta[: -PART.size], found.state.theta[: -PART.size])
    assert np.abs(found.state.theta - TINY.theta).max() > 0.1
    assert np.isnan(found.records[0].loss_before), "nobody trained"
    assert found.state.figures == {"people_in_total": 12.0, "phones_in_total": 6.0}


def test_a_cohort_in_shards_makes_it_too() -> None:
    """As a cluster's workers do: each shard by itself, then one sum of them."""
    engine = choose("auto", OncePerRound(TINY.runtime()), TASK, PART).engine
    assert engine.name == "sequential"
    state = run(SequentialEngine(TINY.runtime())).state
    work = RoundWork(TASK, PART, DIM, replace(state, theta=TINY.theta, revealed={}), several, (), 1)
    shards = [engine.train(replace(work, devices=tuple(names))) for names in ("ab", "cdef")]
    whole = engine.train(replace(work, devices=tuple("abcdef")))
    np.testing.assert_allclose(combined(shards).total.vector, whole.total.vector, atol=1e-12)


@pytest.mark.parametrize("engine", [SequentialEngine, StackedEngine, FusedEngine])
def test_ring_sums_are_the_exact_ones_to_the_quantisers_steps(engine: type[Engine]) -> None:
    made = engine(TINY.runtime())  # type: ignore[call-arg]
    ring, exact = (run(made, sums=sums).state for sums in ("ring", "exact"))
    sums = [state.revealed[IN_TOTAL]["sum"] for state in (ring, exact)]
    np.testing.assert_allclose(*sums, atol=6 * 2.0**-28)
    np.testing.assert_allclose(ring.theta, exact.theta, atol=2e-2)
    assert not np.array_equal(ring.theta, exact.theta)


def test_a_control_that_trains_on_public_people_is_refused() -> None:
    """The statistics of public people are those of a cohort of them: there is nothing to leave out of a phone's."""
    with pytest.raises(ConfigError, match="statistics has no public faces"):
        RunSpec(name="x", faces=(object(),), control="public_only", task=TASK)  # type: ignore[arg-type]
    assert choose("auto", PublicOnly(TINY.runtime()), TASK, PART).engine.name == "sequential"


def test_phones_of_one_person_and_of_several_are_one_cohort() -> None:
    one = Cohort({**several.crops, "z": several.crops["a"][:1]}, labels=several.labels)
    task = replace(TASK, cohort=CohortSpec(size=7, min_reports=7))
    found = run_task(task, PART, DIM, TINY.theta, one, TINY.runtime())
    assert found.state.figures["people_in_total"] == 13


def test_cohorts_that_do_not_overlap_make_the_map_of_all() -> None:
    """Six phones in two cohorts of three; a third one would have nobody left, and a total too poor ends the run."""
    task = replace(TASK, rounds=2, cohort=CohortSpec(size=3, min_reports=3))
    assert sorted(select(task, tuple("abcdef"), 1) + select(task, tuple("abcdef"), 2)) == list("abcdef")
    found = run_task(task, PART, DIM, TINY.theta, several, TINY.runtime())
    assert found.state.figures == {"people_in_total": 12.0, "phones_in_total": 6.0}
    np.testing.assert_allclose(found.state.theta, run(SequentialEngine(TINY.runtime())).state.theta, atol=1e-5)
    with pytest.raises(ConfigError, match="3 cohorts of 3 that do not overlap take 9"):
        run_task(replace(task, rounds=3), PART, DIM, TINY.theta, several, TINY.runtime())
    with pytest.raises(ConfigError, match="the total is of 6 people"):
        run_task(task, PART, DIM, TINY.theta, replace(several, labels={}), TINY.runtime())


# Phones that hold people of both populations: what a cohort is told depends on the one before.


@pytest.mark.parametrize("name", ["stacked", "fused", "auto"])
def test_every_engine_weighs_a_mixture_alike(name: str) -> None:
    """Of 60 people on 60 phones half are bright; in the second cohort each of these counts a tenth."""
    model = tiny_gated()
    part, dim = model.part("adapter.*"), 2 * DIM + 1
    dark = {f"n{k}": made_up_crops(4, seed=500 + k) // 4 for k in range(30)}
    phones = Cohort({**{f"o{k}": made_up_crops(4, seed=600 + k) for k in range(30)}, **dark})
    options = {"form": "wccn", "shrinkage": 0.5, "min_people": 3, "max_people": 1, "longest": 4.0, "mixture": True}
    task = replace(
        TASK, rounds=2, cohort=CohortSpec(size=30, min_reports=30), options=options, trainable=("adapter.*",)
    )

    def mixed(engine: Engine) -> Run:
        return run_task(task, part, dim, model.theta, phones, engine)

    expected = mixed(SequentialEngine(model.runtime()))
    assert_same(mixed(choose(name, model.runtime(), task, part).engine), expected)
    num_dark = sum(device.startswith("n") for device in select(task, phones.names, 2))
    assert expected.state.figures["people_in_total"] == pytest.approx(num_dark + (30 - num_dark) / 10, abs=1)
    assert expected.state.figures["people_in_total"] != round(expected.state.figures["people_in_total"])
    assert expected.state.figures["phones_in_total"] == 60
