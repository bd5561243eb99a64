"""What an emulated phone holds in memory behaves as the phone's own files do, where rounds ask for it."""

from __future__ import annotations

import threading
from typing import cast

import numpy as np
import pytest

from device_sdk.people.trained import Pending
from mien.errors import BudgetExceededError, InviteError, NotEnrolledError, ReplayError
from mien.layout import ParameterEntry, ParameterLayout
from mien.methods.base import Objective, Runtime, TrainingJob
from mien.protocol.rounds import Role
from mien.secagg import RoundConfig
from mien.specs import LocalSpec
from simulation.phones.holdings import MemoryGallery, MemoryIdentity, ReplayRuntime, SharedRuntimes, SumsInMemory
from tests.device_sdk.made_up_people import noise_crops
from tests.mien.secagg.cohort import make_config

W = np.arange(4, dtype=np.float32)


def pending(number: int, **private: np.ndarray) -> Pending:
    return Pending((1,), "task", number, 1, b"contribution", private, per_identity=("w",))


def test_private_state_is_kept_of_counted_rounds_only() -> None:
    gallery = MemoryGallery(noise_crops(1))
    lost, counted = pending(1, w=W + 1), pending(2, w=W)
    gallery.keep_pending(lost)
    assert gallery.pending() is lost
    gallery.settle(lost, counted=False)
    assert gallery.pending() is None
    assert not gallery.training_faces((1,), "task", ("w",)).private
    gallery.keep_pending(counted)
    gallery.settle(lost, counted=True)  # not pending any more: nothing happens
    assert gallery.is_pending(counted)
    gallery.settle(counted, counted=True)
    np.testing.assert_array_equal(gallery.training_faces((1,), "task", ("w",)).private["w"], W[None])
    assert not gallery.training_faces((1,), "another", ("w",)).private
    assert gallery.roles("task", (1,), gallery.crops) == {Role.TRAIN}


def test_crops_are_not_copied() -> None:
    crops = noise_crops(1)
    faces = MemoryGallery(crops).training_faces((1,), "task")
    assert np.shares_memory(faces.crops, crops)
    assert faces.labels.tolist() == [0, 0, 0]


def test_only_the_owner_is_enrolled() -> None:
    gallery = MemoryGallery(noise_crops(1))
    (owner,) = gallery.people()
    assert gallery.person("owner") == owner
    assert owner.trains
    with pytest.raises(NotEnrolledError):
        gallery.person("guest")


def test_an_identity_is_there_once_it_was_saved() -> None:
    files = MemoryIdentity()
    assert not files.joined()
    assert files.key() is files.key()
    with pytest.raises(InviteError):
        files.load()


def test_sums_are_remembered_and_attempts_only_grow() -> None:
    log = SumsInMemory()
    config = make_config(4)
    assert not log.has_begun(config.attempt_id)
    log.begin(config)
    assert log.has_begun(config.attempt_id)
    assert log.sums() == ()
    log.record_masked(config.attempt_id)
    assert [(sum_.terms, sum_.is_released) for sum_ in log.sums()] == [(config, False)]
    log.record_unmasked(config.attempt_id)
    assert [sum_.is_released for sum_ in log.sums()] == [True]
    with pytest.raises(ReplayError):
        log.begin(config)


def test_a_budget_is_asked_with_all_sums_so_far() -> None:
    log, config, asked = SumsInMemory(), make_config(4), list[int]()

    def refuse(_terms: RoundConfig, earlier: object) -> None:
        asked.append(len(cast("tuple[RoundConfig, ...]", earlier)))
        raise BudgetExceededError("no")

    log.begin(config)
    log.record_masked(config.attempt_id)
    with pytest.raises(BudgetExceededError):
        log.under(refuse).begin(config)
    assert asked == [1]


def test_replayed_updates_have_the_right_shape_and_train_nothing() -> None:
    layout = ParameterLayout((ParameterEntry("a", (3,)), ParameterEntry("b", (2, 2))))
    part, theta = layout.part(("b",)), np.zeros(7, np.float32)
    runtime = ReplayRuntime(8)
    trained = runtime.train(TrainingJob(theta, part, noise_crops(1), Objective("x", private={"w": W}), LocalSpec(), 5))
    assert trained.values.shape == (4,)
    assert 0 < np.abs(trained.values).max() < 1e-2
    np.testing.assert_array_equal(trained.private["w"], W)
    np.testing.assert_allclose(np.linalg.norm(runtime.embed(theta, noise_crops(1)), axis=1), 1, atol=1e-5)


def test_one_thread_trains_for_all_phones() -> None:
    threads = set[str]()

    class Spy(ReplayRuntime):
        def embed(self, theta, crops):  # type: ignore[no-untyped-def]
            threads.add(threading.current_thread().name)
            return super().embed(theta, crops)

    from tests.integration.real_fleet import small_model

    runtimes = SharedRuntimes(lambda model: cast("Runtime", Spy(model.spec.input.dim)))
    runtime = runtimes.for_model(small_model())
    assert runtimes.for_model(small_model()) is runtime
    callers = [threading.Thread(target=runtime.embed, args=(W, noise_crops(1))) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    runtimes.close()
    assert len(threads) == 1
