"""The fused engine gives single-step rounds as the sequential one does, and refuses what one pass cannot give."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from mien.errors import ConfigError, NonFiniteError
from mien.methods import METHODS
from mien.methods.base import Property
from mien.specs import LocalSpec, PrivacySpec
from simulation.engines import linear_maps
from simulation.engines.base import RoundWork, SequentialEngine, combined
from simulation.engines.batched import BatchedEngine
from simulation.engines.engine import Cohort
from simulation.engines.fused import FusedEngine, why_not_fused
from simulation.engines.stacked import StackedEngine
from tests.simulation.engines.agreement import assert_same
from tests.simulation.engines.cases import CASES, DIM, ONE, PART, TASK, TINY, Case, one, run
from tests.tiny import tiny_cnn

pytestmark = pytest.mark.numerics

STEP = LocalSpec(lr=0.3, flip=False, momentum=0.9, weight_decay=0.01)
TOGETHER = {"fedavg", "fedaws", "fedface", "fedgc", "fedfr_uda", "fedprox", "fixed_embedding"}
SINGLE = {
    name: Case(replace(case.task, local=STEP, asynchronous=None), case.cohort)
    for name, case in CASES.items()
    if case.task.method in TOGETHER
}


def test_these_methods_sum_updates_and_no_others_do() -> None:
    assert {name for name, method in METHODS.items() if Property.SUM_ONLY in method.properties} == TOGETHER


@pytest.mark.parametrize("name", SINGLE)
def test_fused_equals_sequential(name: str) -> None:
    """But for the loss after the step, and who trained nothing, which it leaves out."""
    case, engine = SINGLE[name], FusedEngine(TINY.runtime())
    found, expected = run(case, engine), run(case, SequentialEngine(TINY.runtime()))
    assert_same(found, expected, without=("loss_after", "warning"))
    assert np.abs(expected.state.theta - TINY.theta * np.float32(1 - 0.003) ** 2).max() > 1e-3, "decay alone"
    assert engine.num_fused == sum(len(record.devices) for record in found.records)
    assert all(math.isnan(record.loss_after) for record in found.records)


@pytest.mark.parametrize("rows_of_a_weight", [0.0, math.inf], ids=["weights", "rows"])
@pytest.mark.parametrize("name", SINGLE)
def test_several_steps_equal_sequential_with_both_losses(
    name: str, rows_of_a_weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether clients' weights are made or kept as outer products: in batches of some images, mirrored by chance."""
    monkeypatch.setattr(linear_maps, "ROWS_OF_A_WEIGHT", rows_of_a_weight)
    case = SINGLE[name]
    local = replace(STEP, lr=0.05, steps=4, batch_size=2, flip=True)
    case, engine = replace(case, task=replace(case.task, local=local)), FusedEngine(TINY.runtime())
    found, expected = run(case, engine), run(case, SequentialEngine(TINY.runtime()))
    assert_same(found, expected, without=("warning",))
    assert np.abs(expected.state.theta - TINY.theta).max() > 1e-3
    assert engine.num_fused == sum(len(record.devices) for record in found.records)


@pytest.mark.parametrize("local", [LocalSpec(lr=0.1), LocalSpec(lr=0.1, steps=1, batch_size=2)])
def test_a_step_on_mirrored_or_some_images_leaves_both_losses_out(local: LocalSpec) -> None:
    case = Case(replace(TASK, local=local), one)
    found, expected = run(case, FusedEngine(TINY.runtime())), run(case, SequentialEngine(TINY.runtime()))
    assert_same(found, expected, without=("loss_before", "loss_after", "warning"))
    assert all(math.isnan(record.loss_before) for record in found.records)


def work(cohort: Cohort = one, devices: str = "abcdef", local: LocalSpec = STEP) -> RoundWork:
    task = replace(TASK, local=local)
    return RoundWork(task, PART, DIM, METHODS["fedavg"].server_start(task, PART, TINY.theta), cohort, tuple(devices), 1)


@pytest.mark.parametrize("steps", [0, 3])
def test_chunks_and_shards_change_nothing(steps: int) -> None:
    local = replace(STEP, steps=steps)
    expected = SequentialEngine(TINY.runtime()).train(work(local=local)).total
    small = FusedEngine(TINY.runtime(), memory_bytes=1)
    shards = [FusedEngine(TINY.runtime()).train(work(devices=names, local=local)) for names in ("ab", "cdef")]
    for found in (small.train(work(local=local)).total, combined(shards).total):
        assert found.num_reports == expected.num_reports
        for lane in ("count", "weight", "loss_before", "delta"):
            np.testing.assert_allclose(found[lane], expected[lane], atol=2e-5)


@pytest.mark.parametrize("steps", [0, 3])
def test_a_whole_net_and_batch_norm_in_eval_mode(steps: int) -> None:
    for tiny in (TINY, tiny_cnn(batch_norm=True)):
        part = tiny.part("*")
        task = replace(TASK, local=replace(STEP, steps=steps))
        state = METHODS["fedavg"].server_start(task, part, tiny.theta)
        whole = RoundWork(task, part, DIM, state, one, tuple(sorted(ONE)), 1)
        found, expected = (engine(tiny.runtime()).train(whole).total for engine in (FusedEngine, SequentialEngine))
        np.testing.assert_allclose(found["delta"], expected["delta"], atol=2e-5)
        assert np.abs(expected["delta"]).max() > 1e-3


@pytest.mark.parametrize("steps", [0, 3])
def test_a_phone_that_is_not_finite_is_named_and_nothing_is_lost(steps: int) -> None:
    local = replace(STEP, steps=steps)
    broken = replace(one, private={"d": {"class_embedding": np.full(DIM, np.nan, np.float32)}})
    engine = FusedEngine(TINY.runtime())
    with pytest.raises(NonFiniteError, match="client d: "):
        engine.train(work(broken, local=local))
    expected = SequentialEngine(TINY.runtime()).train(work(local=local)).total
    np.testing.assert_allclose(engine.train(work(local=local)).total["delta"], expected["delta"], atol=2e-5)


@pytest.mark.parametrize("engine", [FusedEngine, StackedEngine])
def test_a_phone_whose_own_tensors_stop_being_finite_is_named(engine: type[BatchedEngine]) -> None:
    """In the last step, of which no loss tells any more."""
    case = CASES["fedprox"]
    local = LocalSpec(lr=0.01, steps=1, flip=False, private_lr=1e3, private_weight_decay=1e3)
    long = np.full((2, DIM), 1e34, np.float32)
    devices = tuple("abcdef")
    cohort = replace(case.cohort, private={devices[2]: {"class_embeddings": long}})
    task = replace(case.task, local=local)
    state = METHODS["fedprox"].server_start(task, PART, TINY.theta)
    with pytest.raises(NonFiniteError, match=f"client {devices[2]}: .*lower local"):
        engine(TINY.runtime()).train(RoundWork(task, PART, DIM, state, cohort, devices, 1))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"method": "scaffold"}, "each client's own update"),
        ({"local": LocalSpec(batch_norm="train")}, "BatchNorm"),
    ],
)
def test_what_cannot_be_fused_is_refused_with_the_reason(changes: dict[str, object], why: str) -> None:
    task = replace(TASK, **{"local": STEP, **changes})  # type: ignore[arg-type]
    assert why in why_not_fused(task, "exact")
    with pytest.raises(ConfigError, match=why):
        FusedEngine(TINY.runtime()).train(replace(work(), task=task))


def test_ring_sums_are_refused() -> None:
    task = replace(TASK, local=STEP, privacy=PrivacySpec(min_cohort=3))
    with pytest.raises(ConfigError, match="clip and round"):
        FusedEngine(TINY.runtime()).train(replace(work(), task=task, sums="ring"))
