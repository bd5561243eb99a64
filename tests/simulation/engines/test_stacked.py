"""The stacked engine gives every method's round as the sequential one does, and really stacks what it says."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch

from device_sdk.runtimes.objectives import OBJECTIVES, LossInput, find_loss, takes_sample_weight
from device_sdk.runtimes.schedule import Batch
from device_sdk.runtimes.torch_runtime import TorchRuntime
from mien.errors import ConfigError, NonFiniteError
from mien.methods import METHODS
from mien.methods.base import Crops
from mien.specs import LocalSpec, TaskSpec
from simulation.engines.base import Engine, RoundWork, SequentialEngine
from simulation.engines.batched import Device, FeatureBlocks
from simulation.engines.engine import Cohort, rounds
from simulation.engines.fused import FusedEngine
from simulation.engines.stacked import StackedEngine, Tail
from simulation.engines.sums import Sums
from tests.simulation.engines.agreement import assert_same
from tests.simulation.engines.cases import CASES, DIM, ONE, PART, SIZES, TASK, TINY, Case, one, run
from tests.tiny import made_up_crops, tiny_cnn

pytestmark = pytest.mark.numerics


def test_every_method_has_a_case() -> None:
    """But for the one that needs a model with an adapter (test_statistics.py)."""
    assert {case.task.method for case in CASES.values()} | {"statistics"} == set(METHODS)


@pytest.mark.parametrize("name", CASES)
def test_stacked_equals_sequential(name: str) -> None:
    case, engine = CASES[name], StackedEngine(TINY.runtime(), max_clients=4)
    expected = run(case, SequentialEngine(TINY.runtime()))
    assert_same(run(case, engine), expected)
    trains = METHODS[case.task.method].trains
    assert (np.abs(expected.state.theta - TINY.theta).max() > 1e-3) == trains
    assert (engine.num_stacked > 0) == trains, "nothing was stacked: only the fall-back was tested"


def work(task: TaskSpec, cohort: Cohort = one, sums: Sums = "exact") -> RoundWork:
    """Return one round's work for all phones."""
    state = METHODS[task.method].server_start(task, PART, TINY.theta)
    return RoundWork(task, PART, DIM, state, cohort, tuple(sorted(cohort.crops)), 1, sums)


def test_ring_sums_are_those_of_the_same_contributions() -> None:
    """To a few of the ring's steps of 2^-22 and more: a last digit of float32 may tip the rounding of a step."""
    privacy = replace(TASK.privacy, min_cohort=3, secure_aggregation="malicious_server", l2_clip=50.0)
    ring = work(replace(TASK, privacy=privacy), sums="ring")
    found, expected = (
        engine.train(ring).total.vector for engine in (StackedEngine(TINY.runtime()), SequentialEngine(TINY.runtime()))
    )
    np.testing.assert_allclose(found, expected, atol=1e-3)
    assert (found == expected).mean() > 0.5


def test_a_phone_that_stops_being_finite_is_named_and_the_others_are_not_lost() -> None:
    """The engine is as good as before; the phone alone is at fault, in a stack with phones that are not."""
    broken = np.full(PART.size, np.inf, np.float32)
    cohort = replace(one, private={"d": {"control": broken}})
    engine = StackedEngine(TINY.runtime())
    scaffold = replace(TASK, method="scaffold")
    with pytest.raises(NonFiniteError, match="client d: "):
        engine.train(work(scaffold, cohort))
    found, expected = (e.train(work(scaffold)).total.vector for e in (engine, SequentialEngine(TINY.runtime())))
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_the_sequential_engine_names_it_too() -> None:
    cohort = replace(one, private={"d": {"control": np.full(PART.size, np.inf, np.float32)}})
    with pytest.raises(NonFiniteError, match="client d: "):
        SequentialEngine(TINY.runtime()).train(work(replace(TASK, method="scaffold"), cohort))


def test_a_runtime_whose_losses_are_of_some_crops_is_refused() -> None:
    tiny = tiny_cnn()
    runtime = TorchRuntime(tiny.spec, tiny.layout, backbone=tiny.backbone, losses_on=3)
    with pytest.raises(ConfigError, match=r"of 3 \(losses_on\). Use engine sequential"):
        StackedEngine(runtime)


@pytest.mark.parametrize("max_clients", [1, 2, 6])
def test_chunks_change_nothing(max_clients: int) -> None:
    found = StackedEngine(TINY.runtime(), max_clients=max_clients).train(work(TASK)).total.vector
    np.testing.assert_allclose(found, SequentialEngine(TINY.runtime()).train(work(TASK)).total.vector, atol=2e-5)


def test_a_chunk_is_cut_where_memory_ends() -> None:
    engine = StackedEngine(TINY.runtime(), memory_bytes=1)
    engine.train(work(TASK))
    assert (engine.num_stacked, engine.num_alone) == (0, len(SIZES))


@pytest.mark.parametrize("flip", [False, True])
def test_the_loss_before_is_the_first_steps_where_that_is_of_all_images(
    monkeypatch: pytest.MonkeyPatch, flip: bool
) -> None:
    """Phones draw in which order and what is mirrored; of some crops, or mirrored ones, it is a pass of its own."""
    trains, tail = list[bool](), Tail.forward
    monkeypatch.setattr(Tail, "forward", lambda self, x: trains.append(torch.is_grad_enabled()) or tail(self, x))
    task = replace(TASK, local=LocalSpec(lr=0.1, epochs=2, flip=flip))
    found = StackedEngine(TINY.runtime()).train(work(task)).total
    expected = SequentialEngine(TINY.runtime()).train(work(task)).total
    before = found.layout.slices["loss_before"]
    np.testing.assert_allclose(found.vector[before], expected.vector[before], rtol=1e-5)
    assert trains.count(False) * 2 == trains.count(True) * (1 + flip) > 0, "of two steps, each stack's other passes"


def test_candidates_cost_a_client_their_addends_and_no_training_of_their_own() -> None:
    """A task whose devices send T multiples of one update was taken to train T models in each."""
    one_update, many = taken(CASES["fedgc"]), taken(CASES["pfm_fv"])
    more_addends = 2 * PART.size + 3  # two more candidates, and three weights
    assert {name: many[name] - one_update[name] for name in SIZES} == dict.fromkeys(SIZES, 4 * more_addends)


def test_a_clients_own_tensors_take_memory() -> None:
    """Both phones train on 7 images; one of them on a classifier of 4 rows, and with weights."""
    more = taken(CASES["fedface"])["a"] - taken(CASES["fedavg"])["c"]
    assert more == 4 * (5 * (4 - 1) * DIM + 7 * 4 + 7)


def taken(case: Case) -> dict[str, int]:
    """Return the bytes that the stacked engine expects of each of a case's phones in a round."""

    class Weighing(StackedEngine):
        def chunks(
            self, devices: Iterable[Device], taken_bytes: Callable[[Device], int], *, most: int | None = None
        ) -> Iterator[list[Device]]:
            for chunk in super().chunks(devices, taken_bytes, most=most):
                found.update((device.name, taken_bytes(device)) for device in chunk)
                yield chunk

    found = dict[str, int]()
    Weighing(TINY.runtime()).train(work(case.task, case.cohort))
    return found


def test_batch_norm_that_learns_is_trained_alone() -> None:
    """Its statistics are of one client's batches."""
    tiny = tiny_cnn(batch_norm=True)
    task = replace(TASK, local=replace(TASK.local, batch_norm="train", batch_size=3))
    cohort = Cohort({name: crops for name, crops in ONE.items() if len(crops) > 1})
    part = tiny.part("mix.*", "embedding.*")
    engine = StackedEngine(tiny.runtime())
    state = METHODS["fedavg"].server_start(task, part, tiny.theta)
    works = RoundWork(task, part, DIM, state, cohort, tuple(sorted(cohort.crops)), 1)
    found, expected = (e.train(works).total.vector for e in (engine, SequentialEngine(tiny.runtime())))
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert engine.num_stacked == 0


@pytest.mark.parametrize(
    "local", [LocalSpec(lr=0.1, steps=2), LocalSpec(lr=0.1), LocalSpec(lr=0.1, steps=2, batch_size=1)]
)
def test_batch_norm_that_cannot_learn_is_refused_as_one_after_another(local: LocalSpec) -> None:
    """One phone has a single image: with steps to reach there is no batch to take them on."""
    tiny = tiny_cnn(batch_norm=True)
    part = tiny.part("*")
    task = replace(TASK, local=replace(local, batch_norm="train"))
    state = METHODS["fedavg"].server_start(task, part, tiny.theta)
    works = RoundWork(task, part, DIM, state, one, tuple(sorted(ONE)), 1)
    for engine in (SequentialEngine(tiny.runtime()), StackedEngine(tiny.runtime())):
        with pytest.raises(ConfigError, match="no statistics"):
            engine.train(works)


def test_batch_norm_in_eval_mode_is_stacked() -> None:
    tiny = tiny_cnn(batch_norm=True)
    part = tiny.part()
    state = METHODS["fedavg"].server_start(TASK, part, tiny.theta)
    works = RoundWork(TASK, part, DIM, state, one, tuple(sorted(ONE)), 1)
    engine = StackedEngine(tiny.runtime())
    found, expected = (e.train(works).total.vector for e in (engine, SequentialEngine(tiny.runtime())))
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert engine.num_stacked > 0


def test_a_whole_net_without_a_frozen_trunk_is_stacked() -> None:
    part = TINY.part("*")
    task = replace(TASK, local=LocalSpec(lr=0.1, epochs=1))
    state = METHODS["fedavg"].server_start(task, part, TINY.theta)
    works = RoundWork(task, part, DIM, state, one, tuple(sorted(ONE)), 1)
    engine = StackedEngine(TINY.runtime())
    found, expected = (e.train(works).total.vector for e in (engine, SequentialEngine(TINY.runtime())))
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert engine.num_stacked > 0


def test_features_are_remembered_of_crops_that_nobody_can_write_to() -> None:
    """Mirrored ones are added as batches draw them; what the crops' owner drops is forgotten."""
    crops = made_up_crops(4, seed=1)
    crops.flags.writeable = False
    blocks = FeatureBlocks()
    flipped = np.array([True, False])
    with TINY.runtime().loaded(TINY.theta, PART) as trunk:
        first = blocks.rows(trunk, crops, [Batch(np.array([2, 3]), flipped, 1.0)])
        again = blocks.rows(trunk, crops, [])
        more = blocks.rows(trunk, crops, [Batch(np.array([1, 2]), flipped, 1.0)])
        assert again is first
        assert [list(row) for row in more.place] == [[0, 1, 2, 3], [-1, 5, 4, -1]]
        mirrored = trunk.features(crops[:, :, ::-1].copy())
        np.testing.assert_array_equal(more.features[5].numpy(), mirrored[1].numpy())
        del crops
        assert blocks.num_kept == 0


class MadeWhenAsked(Mapping[str, Crops]):
    """Phones whose crops are another array each time, as a population's that cannot all be held."""

    def __getitem__(self, name: str) -> Crops:
        crops = ONE[name].copy()
        crops.flags.writeable = False
        return crops

    def __iter__(self) -> Iterator[str]:
        return iter(ONE)

    def __len__(self) -> int:
        return len(ONE)


@pytest.mark.parametrize("engine", [StackedEngine, FusedEngine])
def test_memory_is_flat_over_rounds(engine: Callable[[TorchRuntime], Engine]) -> None:
    """Whatever rounds leave behind would be crops of a megabyte, blocks of features, or models."""
    task = replace(TASK, rounds=14, local=LocalSpec(lr=0.01, flip=False))
    state = METHODS["fedavg"].server_start(task, PART, TINY.theta)
    held = []
    tracemalloc.start()
    try:
        for step in rounds(task, PART, DIM, state, Cohort(MadeWhenAsked()), engine(TINY.runtime())):
            if step.record.round in (6, 14):
                del step
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert held[1] - held[0] < 100_000


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if takes_sample_weight(name)])
def test_images_of_weight_0_are_as_good_as_absent_where_a_loss_says_so(name: str) -> None:
    """Or a stack's filled-up batches would not be those of a phone."""
    rng = np.random.default_rng(0)
    emb_BD, w_KD = (torch.from_numpy(rng.standard_normal(s).astype(np.float32)) for s in ((3, DIM), (2, DIM)))
    target_BK = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    private = {"class_embeddings": w_KD, "class_embedding": w_KD}
    fixed = {"class_embeddings": w_KD, "mean": w_KD.mean(0), "covariance": w_KD.T @ w_KD / 8}
    constants = {"margin": 1.0, "scale": 4.0, "log_others": 3.0}

    def loss(num_images: int, **rows: torch.Tensor) -> float:
        at = LossInput(emb_BD[:num_images], private, {"target": target_BK[:num_images], **rows}, constants, fixed)
        return float(find_loss(name)(at))

    filled = loss(3, sample_weight=torch.tensor([1.0, 1.0, 0.0]))
    assert filled == pytest.approx(loss(2), rel=1e-5)
    assert filled != pytest.approx(loss(3), rel=1e-3)
