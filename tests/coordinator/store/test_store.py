"""The store's transactions in the words of the domain."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pytest
import sqlalchemy as sa

from coordinator.store.store import Store
from coordinator.store.tables import PARTICIPANTS
from mien.errors import AlreadyExistsError, LateError, MienError, NotFoundError, ReplayError
from mien.protocol.rounds import BlobId, Stage
from mien.rounds.machine import RoundState, Step
from mien.rounds.records import (
    DeviceCall,
    ModelRecord,
    RoundChange,
    RoundRecord,
    TaskRecord,
    TaskState,
    UploadRecord,
)
from mien.shell.clock import Clock

T = TypeVar("T")


def model(name: str, *, population: str | None = None) -> ModelRecord:
    model_id = name * 64
    return ModelRecord(model_id, b"{}", "1" * 64, BlobId(name * 64, 400), 1000, population=population)


def announced(store: Store, opened: RoundRecord, blob: BlobId) -> UploadRecord:
    """Return the upload of device d1 as it is kept once these bytes were announced."""
    (kept,) = store.announce_uploads([UploadRecord(opened.id, "d1", blob, is_committed=False)])
    return kept


def task(task_id: str = "t1", *, population: str = "default", token: str = "one") -> TaskRecord:
    return TaskRecord(
        task_id,
        f"demo-{task_id}",
        population,
        b"{}",
        token,
        TaskState.RUNNING,
        "a" * 64,
        "a" * 64,
        "alice",
        created_ms=1,
    )


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    store = Store.open(database_url, Clock())
    store.add_model(model("a"), actor="alice")
    yield store
    store.close()


def test_models_are_kept_once(store: Store) -> None:
    again = store.add_model(replace(model("a"), created_ms=5), actor="bob")
    assert again.created_ms == 1000
    assert [m.model_id for m in store.models()] == ["a" * 64]
    assert [row[2] for row in store.events("a" * 64)] == ["model.import"]
    with pytest.raises(NotFoundError):
        store.model("b" * 64)


def test_the_newest_release_of_a_population_or_of_all_is_in_force(store: Store) -> None:
    store.add_model(model("b"), actor="alice")
    assert store.released("default") is None
    store.release("a" * 64, population=None, actor="alice")
    store.release("b" * 64, population="beta", actor="alice")
    found = [store.released(population) for population in ("default", "beta", None)]
    assert [release.model_id[0] for release in found if release] == ["a", "b", "a"]
    assert store.released_ids() == {"a" * 64, "b" * 64}
    store.release("a" * 64, population=None, actor="alice")  # newer than beta's own? unchanged, so nothing is written
    release = store.released("beta")
    assert release is not None
    assert release.model_id == "b" * 64


def test_devices_see_what_was_released_or_belongs_to_their_population(store: Store) -> None:
    store.add_model(model("b", population="beta"), actor="alice")
    assert not store.may_read_model("a" * 64, "default")
    assert store.may_read_model("b" * 64, "beta")
    assert not store.may_read_model("b" * 64, "default")
    store.add_task(task())
    assert store.may_read_model("a" * 64, "default")
    assert not store.may_read_model("a" * 64, "beta")
    assert store.may_read_blob("b" * 64, "default") is None
    assert store.may_read_blob("b" * 64, None) == BlobId("b" * 64, 400)
    assert store.may_read_blob("c" * 64, None) is None


def test_the_same_token_gives_the_same_task(store: Store) -> None:
    assert store.add_task(task("t1")) == task("t1")
    assert store.add_task(task("t2")).task_id == "t1"
    assert store.add_task(task("t3", token="two")).task_id == "t3"
    assert [t.task_id for t in store.tasks()] == ["t1", "t3"]


def test_a_name_means_one_task_that_goes_on(store: Store) -> None:
    first = store.add_task(replace(task("t1"), name="night"))
    again = replace(task("t2", token="two"), name="night")
    with pytest.raises(AlreadyExistsError, match=r"a task named night goes on already \(t1\)"):
        store.add_task(again)
    store.save_task(first.ended(TaskState.CANCELLED, "", 5), actor="alice", action="task.cancelled")
    assert store.add_task(again).task_id == "t2"


def of_replicas_at_once(url: str, *calls: Callable[[Store], T]) -> list[T | MienError]:
    """Return what replicas answer that each begin a call while those before could not yet write to the audit log."""
    waiting = sa.text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )

    def answer(call: Callable[[Store], T]) -> T | MienError:
        replica = Store.open(url, Clock())
        try:
            return call(replica)
        except MienError as error:
            return error
        finally:
            replica.close()

    engine = sa.create_engine(url, poolclass=sa.NullPool)
    begun: list[Future[T | MienError]] = []
    with ThreadPoolExecutor(len(calls)) as replicas:
        with engine.begin() as slow:
            slow.execute(sa.text("SELECT position FROM audit_head FOR UPDATE"))
            for call in calls:
                begun.append(replicas.submit(answer, call))
                while not begun[-1].done():
                    with engine.connect() as watching:
                        if watching.scalar(waiting) == sum(not each.done() for each in begun):
                            break
        return [each.result() for each in begun]


def test_replicas_that_take_a_task_at_once_keep_one(postgres_url: str) -> None:
    begun = Store.open(postgres_url, Clock())
    begun.add_model(model("a"), actor="alice")
    night = [replace(task(f"t{number}", token=f"token {number}"), name="night") for number in range(2)]
    found = of_replicas_at_once(postgres_url, *(partial(Store.add_task, task=record) for record in night))
    assert sorted(type(each).__name__ for each in found) == ["AlreadyExistsError", "TaskRecord"]
    same = [task(name, token="again") for name in ("t8", "t9")]
    found = of_replicas_at_once(postgres_url, *(partial(Store.add_task, task=record) for record in same))
    assert found == [same[0], same[0]]
    assert len(begun.tasks()) == 2
    begun.close()


def test_replicas_that_take_a_model_at_once_keep_it_once(postgres_url: str) -> None:
    begun = Store.open(postgres_url, Clock())
    both = (replace(model("a"), created_ms=time_ms) for time_ms in (5, 6))
    found = of_replicas_at_once(postgres_url, *(partial(Store.add_model, model=each, actor="alice") for each in both))
    assert [each.created_ms for each in found if isinstance(each, ModelRecord)] == [5, 5]
    begun.close()


def test_a_round_from_open_to_closed(store: Store) -> None:
    record = store.add_task(task())
    opened = store.open_attempt(record, round_number=1, attempt=1, deadline=12.5)
    assert (opened.stage, opened.deadline_ms, opened.base_model_id) == (Stage.SELECTING, 12500, "a" * 64)

    steps = {"d1": Step.SELECTED, "d2": Step.SELECTED}
    training = RoundState(Stage.TRAINING, 99.0, {}, steps, labelled=frozenset({"d2"}))
    saved = store.save_round(RoundChange(opened, training, steps=steps))
    assert (saved.stage, saved.num_selected, saved.deadline_ms) == (Stage.TRAINING, 2, 99000)
    assert store.participants(opened.id) == steps
    assert store.labelled(opened.id) == {"d2"}
    assert [store.participant(opened.id, device) for device in ("d1", "d3")] == [Step.SELECTED, None]

    blob = BlobId("e" * 64, 800)
    assert not announced(store, opened, blob).agreeing(blob).is_committed
    announced(store, opened, blob).agreeing(blob)
    other = BlobId("f" * 64, 800)
    with pytest.raises(ReplayError):
        announced(store, opened, other).agreeing(other)

    steps = {"d1": Step.UPLOADED, "d2": Step.LEFT}
    closing = RoundState(Stage.CLOSING, math.inf, {}, steps)
    saved = store.save_round(
        RoundChange(saved, closing, steps=steps, error_codes={"d2": "non_finite"}, committed=("d1",))
    )
    assert (saved.num_reports, saved.upload_bytes, saved.deadline_ms) == (1, 800, None)
    codes = sa.select(PARTICIPANTS.c.device_id, PARTICIPANTS.c.error_code).order_by(PARTICIPANTS.c.device_id)
    assert store.privacy(lambda db: db.execute(codes).all()) == [("d1", ""), ("d2", "non_finite")]
    assert {device: upload.blob for device, upload in store.uploads(opened.id).items()} == {"d1": blob}

    made = replace(model("b"), parent_model_id="a" * 64, task_id="t1", round=1)
    after = replace(record, rounds_closed=1, model_id="b" * 64, state=TaskState.DONE)
    closed = replace(closing, stage=Stage.CLOSED)
    saved = store.save_round(RoundChange(saved, closed, task=after, model=made, metrics={"loss": 0.5}))
    assert (saved.model_id, saved.metrics, saved.num_trained) == ("b" * 64, {"loss": 0.5}, 1)
    assert saved.ended_ms is not None
    assert store.task("t1") == after
    assert store.model("b" * 64).parent_model_id == "a" * 64
    assert store.labelled(opened.id) == {"d2"}, "what a device said when it was chosen stays"
    assert [row[2] for row in store.events("t1/1/1")] == ["round.training", "round.closing", "round.closed"]
    assert store.last_round("t1") == saved == store.round("t1", 1, 1)


@pytest.mark.parametrize("end", [TaskState.DONE, TaskState.CANCELLED, TaskState.FAILED])
def test_a_task_that_is_over_needs_no_state(store: Store, end: TaskState) -> None:
    going_on = replace(task("t1"), arrays_sha256="c" * 64, revealed_sha256="d" * 64)
    ending = replace(task("t2", token="two"), arrays_sha256="e" * 64, revealed_sha256="f" * 64)
    store.add_task(going_on)
    store.add_task(ending)
    assert store.state_blobs() == {"c" * 64, "d" * 64, "e" * 64, "f" * 64}
    store.save_task(ending.ended(end, "why", 5), actor="alice", action="task.end")
    ended = store.task("t2")
    assert (ended.state, ended.reason, ended.ended_ms, ended.state_blobs) == (end, "why", 5, set())
    assert store.state_blobs() == {"c" * 64, "d" * 64}
    store.save_task(replace(ending, state=end), actor="alice", action="task.end")  # as an earlier program left it
    assert store.state_blobs() == {"c" * 64, "d" * 64}


def test_two_writers_cannot_overwrite_each_other(store: Store) -> None:
    opened = store.open_attempt(store.add_task(task()), round_number=1, attempt=1, deadline=1.0)
    first = store.save_round(RoundChange(opened, RoundState(Stage.TRAINING, 5.0)))
    with pytest.raises(LateError, match="another coordinator"):
        store.save_round(RoundChange(opened, RoundState(Stage.ABORTED, math.inf, reason="stale")))
    assert store.last_round("t1") == first


def test_a_transition_is_whole_or_absent(store: Store) -> None:
    """A change that names an upload which was never announced commits nothing of itself."""
    opened = store.open_attempt(store.add_task(task()), round_number=1, attempt=1, deadline=1.0)
    steps = {"d1": Step.UPLOADED}
    with pytest.raises(NotFoundError):
        store.save_round(RoundChange(opened, RoundState(Stage.UPLOAD, 9.0, {}, steps), steps=steps, committed=("d1",)))
    assert store.participants(opened.id) == {}
    assert store.last_round("t1") == opened


def test_a_damaged_upload_may_be_sent_again_but_not_a_counted_one(store: Store) -> None:
    opened = store.open_attempt(store.add_task(task()), round_number=1, attempt=1, deadline=1.0)
    announced(store, opened, BlobId("e" * 64, 800))
    store.forget_upload(opened.id, "d1")
    assert announced(store, opened, BlobId("f" * 64, 800)).blob == BlobId("f" * 64, 800)
    state = RoundState(Stage.UPLOAD, 9.0, {}, {"d1": Step.UPLOADED})
    store.save_round(RoundChange(opened, state, steps=state.participants, committed=("d1",)))
    store.forget_upload(opened.id, "d1")
    upload = store.upload(opened.id, "d1")
    assert upload is not None
    assert upload.is_committed


def test_devices_and_settings_are_remembered(store: Store) -> None:
    store.saw_devices([("d1", "default", "first")])
    store.saw_devices([("d1", "default", "second")])
    (device,) = store.devices()
    assert (device.device_id, device.software) == ("d1", "second")
    assert device.first_seen_ms <= device.last_seen_ms
    store.saw_devices([DeviceCall("d1", "default", "third", '{"engines":["torch"]}'), DeviceCall("d2", "default", "a")])
    store.saw_devices([DeviceCall("d1", "default", "fourth")])
    told = [(device.device_id, device.software, device.told_json) for device in store.devices()]
    assert told == [("d1", "fourth", '{"engines":["torch"]}'), ("d2", "a", None)]
    assert [device.device_id for device in store.devices(limit=1)] == ["d1"]
    assert [device.device_id for device in store.devices(after="d1", limit=5)] == ["d2"]
    both = [DeviceCall("d2", "default", "b", '{"engines":["onnxruntime"]}'), DeviceCall("d2", "default", "c")]
    store.saw_devices(both)
    assert [(device.software, device.told_json) for device in store.devices(after="d1")] == [("c", both[0].told_json)]
    store.set_participation("d1", stays_out=True)
    assert store.saw_devices([("d1", "default", "a"), ("d3", "default", "a")]) == [True, False]
    store.remember("k", "1")
    store.remember("k", "2")
    assert (store.setting("k"), store.setting("other")) == ("2", None)
