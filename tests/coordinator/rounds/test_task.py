"""One failed call to the bucket or the database, or a defect: the task goes on, without a restart of the program."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from coordinator.home.config import EvaluationSets
from coordinator.release.gates_worker import Gatekeeper
from coordinator.rounds import engine
from coordinator.rounds.closing import Stores
from coordinator.rounds.cohort import Cohort
from coordinator.rounds.engine import STAYS_OUT, Assigned, Caller, Engine, EngineSettings
from coordinator.rounds.spool import Spool, SpoolFile
from coordinator.rounds.states import ServerStates
from coordinator.rounds.task import TaskSettings
from coordinator.rounds.uploads import UploadProgress, Uploads
from coordinator.store.blobs import BlobStore
from coordinator.store.database import sqlite_url
from coordinator.store.sealing import MasterKey
from coordinator.store.store import Store
from coordinator.store.thread import StoreThread
from mien.contribution import Total
from mien.errors import (
    BudgetExceededError,
    ConfigError,
    DiskFullError,
    ReplayError,
    UnavailableError,
    UnreachableError,
)
from mien.methods import METHODS
from mien.methods.base import IN_TOTAL, Property, ServerState
from mien.protocol.canonical import model_to_json, parse_json
from mien.protocol.rounds import BlobId, RoundRef, Stage, Wait
from mien.protocol.uploads import UploadPiece
from mien.rounds import plan
from mien.rounds.machine import SumFailed
from mien.rounds.records import ModelRecord, TaskRecord, TaskState
from mien.shell.clock import Clock
from mien.specs import CohortSpec, MustInclude, PrivacySpec
from simulation.testing import LAYOUT, SPEC, THETA, contribution, running_out, tiny_task
from tests.helpers import run

MODEL = "a" * 64
AWAY = UnreachableError("the database does not answer", retry_after_s=5.0)


SETTINGS = EngineSettings(
    check_in_hold_s=0.2, retry_after_s=0.1, pick_up_s=0.05, tasks=TaskSettings(keep_round_models=0)
)


@dataclass
class Faults:
    """Errors that calls raise instead of doing anything, by their names: the next ones each time, then none."""

    waiting: dict[str, list[Exception]] = field(default_factory=dict)

    def hit(self, name: str) -> None:
        """Raise what waits for a call of that name."""
        if self.waiting.get(name):
            raise self.waiting[name].pop(0)


class FaultyBlobs(BlobStore):
    """A folder of blobs that refuses to delete when it is told to."""

    faults: Faults

    def remove(self, sha256: str) -> None:
        """Delete a blob."""
        self.faults.hit("remove")
        super().remove(sha256)


class FaultyStore(Store):
    """A database that is away when it is told to be."""

    faults: Faults
    holds: Sequence[Callable[[], object]] = ()
    before_a_commit: Callable[[], object] | None = None
    after_a_task: Callable[[], object] = staticmethod(lambda: None)

    def add_task(self, task: TaskRecord) -> TaskRecord:
        """Keep a task; something may happen before anybody hears of it."""
        kept = super().add_task(task)
        self.after_a_task()
        return kept

    def announce_uploads(self, *arguments: Any) -> Any:
        """Announce uploads; the answer may be held up."""
        return self._held_up(super().announce_uploads(*arguments))

    def upload(self, *arguments: Any) -> Any:
        """Return an announcement; the answer may be held up."""
        return self._held_up(super().upload(*arguments))

    def _held_up(self, answer: Any) -> Any:
        if self.holds:
            hold, *self.holds = self.holds
            hold()
        return answer

    def candidate(self, *arguments: Any) -> Any:
        """Return a task's candidate."""
        self.faults.hit("candidate")
        return super().candidate(*arguments)

    def state_blobs(self) -> Any:
        """Return the server state that tasks need."""
        self.faults.hit("state_blobs")
        return super().state_blobs()

    def save_task(self, *arguments: Any, **named: Any) -> Any:
        """Keep a task."""
        self.faults.hit("save_task")
        return super().save_task(*arguments, **named)

    def save_round(self, *arguments: Any, **named: Any) -> Any:
        """Keep a round; it may be held up before."""
        self.faults.hit("save_round")
        if self.before_a_commit is not None:
            self.before_a_commit()
        return super().save_round(*arguments, **named)

    def model(self, *arguments: Any) -> ModelRecord:
        """Return a model."""
        self.faults.hit("model")
        return super().model(*arguments)

    def task(self, task_id: str) -> TaskRecord:
        """Return a task."""
        self.faults.hit("task")
        return super().task(task_id)


@dataclass
class Rounds:
    """An engine over a real database and real folders that fail when a test wants them to."""

    engine: Engine
    uploads: Uploads
    stores: Stores
    faults: Faults

    async def submit(self, **changes: Any) -> TaskRecord:
        """Start a task of two devices a round."""
        task = tiny_task(
            "t",
            "p",
            model_id=MODEL,
            cohort=changes.pop("cohort", CohortSpec(size=2, min_reports=2)),
            privacy=PrivacySpec(min_cohort=2, secure_aggregation="off"),
            deadlines=running_out(),
            **changes,
        )
        return await self.engine.submit(task, token="t", actor="alice")

    async def take_part(self, number: int, names: str = "de") -> None:
        """Have two devices take part in a round, to its end."""
        await asyncio.gather(*(self._device(name * 32, number) for name in names))

    async def _device(self, device_id: str, number: int) -> None:
        assigned = await self.assigned(device_id)
        assert assigned.name.round == number
        await self.engine.report_trained(device_id, assigned.name)
        async for news in self.engine.follow(device_id, assigned.name):
            if news.stage is Stage.UPLOAD:
                break
        await self.send(device_id, assigned, contribution(assigned.plan.task, number, int(device_id, 16)))
        async for news in self.engine.follow(device_id, assigned.name):
            assert news.stage is not Stage.ABORTED

    async def assigned(self, device_id: str) -> Assigned:
        """Check in until there is work."""
        found: Any = None
        while not isinstance(found, Assigned):
            found = await self.engine.check_in(Caller(device_id, "p"), limit_s=0.2)
        return found

    async def send(self, device_id: str, assigned: Assigned, sent: bytes) -> UploadProgress:
        """Upload a contribution in one piece."""

        async def pieces() -> AsyncIterator[UploadPiece]:
            yield UploadPiece(None, 0, memoryview(sent))

        blob = BlobId(hashlib.sha256(sent).hexdigest(), len(sent))
        return await self.uploads.receive(device_id, assigned.name, blob, b"", pieces())

    def after_a_task_is_kept(self, then: Callable[[], object]) -> None:
        """Have something happen on the store's thread as soon as the next task is on disk."""
        assert isinstance(self.stores.store, FaultyStore)
        self.stores.store.after_a_task = then

    def task(self, task_id: str) -> TaskRecord:
        """Return a task as it is on disk."""
        return Store.task(self.stores.store, task_id)


@contextlib.asynccontextmanager
async def rounds(folder: Path, *, has_gates: bool = False, hold_s: float = 0.2) -> AsyncIterator[Rounds]:
    """Run an engine in a folder that holds the tiny model."""
    faults = Faults()
    store, blobs = FaultyStore.open(sqlite_url(folder / "test.db"), Clock()), FaultyBlobs(str(folder / "models"))
    assert isinstance(store, FaultyStore)
    store.faults = blobs.faults = faults
    key = MasterKey.create(folder / "store.key")
    states = ServerStates(BlobStore(str(folder / "states")), key)
    thread = StoreThread(patience_s=0.05, retry_s=0.01)
    stores = Stores(store, thread, blobs, states, Spool(folder / "spool", key))
    theta = blobs.put(THETA.astype("<f4").tobytes())
    store.add_model(ModelRecord(MODEL, model_to_json(SPEC, LAYOUT), LAYOUT.sha256, theta, 1), actor="alice")
    settings = replace(SETTINGS, check_in_hold_s=hold_s, tasks=TaskSettings(has_gates=has_gates, keep_round_models=0))
    engine = Engine(stores, Clock(), settings, lambda _: _no_leaf)
    await engine.start()
    try:
        yield Rounds(engine, Uploads(engine, stores, idle_s=60.0), stores, faults)
    finally:
        await engine.stop()
        thread.close()
        store.close()


def _no_leaf(*_: object) -> Any:
    raise AssertionError("plain sums have no certificates")


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something to become true."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def stubbornly(call: Callable[[], Awaitable[TaskRecord]]) -> TaskRecord:
    """Return what a call answers in the end."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()
            except UnavailableError:
                await asyncio.sleep(0.02)


def test_an_engine_knows_the_population_of_a_task_that_it_runs_and_of_no_other(tmp_path: Path) -> None:
    async def story() -> None:
        async with rounds(tmp_path) as house:
            task = await house.submit()
            assert house.engine.population_of(task.task_id) == task.population
            await house.engine.let_go(task.population)
            assert house.engine.population_of(task.task_id) is None

    run(story())


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("remove", UnreachableError("the object store does not answer; try again")),
        ("state_blobs", DiskFullError("no space left")),
    ],
)
def test_cleaning_up_that_fails_does_not_stop_the_task(tmp_path: Path, call: str, error: Exception) -> None:
    async def story() -> None:
        async with rounds(tmp_path) as house:
            task = await house.submit(rounds=3)
            await house.take_part(1)
            house.faults.waiting[call] = [error]
            await house.take_part(2)
            await until(lambda: not house.faults.waiting[call])
            await house.take_part(3)
            await until(lambda: house.task(task.task_id).state.is_over)
            done = house.task(task.task_id)
            assert (done.state, done.rounds_closed) == (TaskState.DONE, 3)

    with capture_logs() as logs:
        run(story())
    assert [line["error"] for line in logs if line["event"] == "not cleaned up yet"] == [getattr(error, "code", "")]
    assert not [line for line in logs if line["event"].startswith("task stopped")]


def test_a_command_that_the_database_does_not_answer_is_refused_and_can_be_repeated(tmp_path: Path) -> None:
    async def story() -> None:
        async with rounds(tmp_path) as house:
            task = await house.submit(rounds=1)
            await house.engine.command(task.task_id, TaskState.PAUSED, actor="alice")
            house.faults.waiting["candidate"] = [AWAY] * 100
            with pytest.raises(UnreachableError):
                await house.engine.command(task.task_id, TaskState.RUNNING, actor="alice")
            house.faults.waiting.clear()
            resumed = await stubbornly(lambda: house.engine.command(task.task_id, TaskState.RUNNING, actor="alice"))
            assert resumed.state is TaskState.RUNNING
            await house.take_part(1)

    with capture_logs() as logs:
        run(story())
    assert not [line for line in logs if line["event"].startswith("task stopped")]


def test_a_submitted_task_runs_though_the_database_goes_away_meanwhile(tmp_path: Path) -> None:
    """It is kept already, and asking again with its token begins nothing."""

    async def story() -> None:
        async with rounds(tmp_path) as house:
            house.after_a_task_is_kept(lambda: house.faults.waiting.update(model=[AWAY] * 1000))
            with contextlib.suppress(UnreachableError):
                await house.submit(rounds=1)
            house.faults.waiting.clear()
            await until(lambda: bool(house.engine.tasks_now()))
            await house.take_part(1)

    run(story())


def test_a_task_runs_whose_submitter_goes_away_as_soon_as_it_is_kept(tmp_path: Path) -> None:
    async def story() -> None:
        async with rounds(tmp_path) as house:
            loop = asyncio.get_running_loop()
            submitting = asyncio.create_task(house.submit(rounds=1))
            house.after_a_task_is_kept(lambda: loop.call_soon_threadsafe(submitting.cancel))
            with pytest.raises(asyncio.CancelledError):
                await submitting
            await until(lambda: bool(house.engine.tasks_now()))
            await house.take_part(1)

    run(story())


@pytest.mark.parametrize("again", [0, 2])
@pytest.mark.parametrize("error", [ZeroDivisionError("a defect"), KeyError("another")])
def test_a_defect_is_logged_and_the_task_picked_up_from_what_is_committed(
    tmp_path: Path, error: Exception, again: int
) -> None:
    """A command meets a defect; picking the task up meets some more. It then goes on in the middle of its rounds."""

    async def story() -> None:
        async with rounds(tmp_path) as house:
            task = await house.submit(rounds=2)
            await house.take_part(1)
            house.faults.waiting["save_task"] = [error]
            house.faults.waiting["task"] = [error] * again
            command = asyncio.create_task(house.engine.command(task.task_id, TaskState.PAUSED, actor="alice"))
            with pytest.raises(UnreachableError, match="picked up"):
                await command
            await until(lambda: not house.faults.waiting["task"])
            paused = await stubbornly(lambda: house.engine.command(task.task_id, TaskState.PAUSED, actor="alice"))
            assert paused.state is TaskState.PAUSED
            await house.engine.command(task.task_id, TaskState.RUNNING, actor="alice")
            await house.take_part(2)
            await until(lambda: house.task(task.task_id).state is TaskState.DONE)

    with capture_logs() as logs:
        run(story())
    told = [line for line in logs if line["event"].startswith("task stopped by an error")]
    assert [line["error"] for line in told] == [type(error).__name__] * (1 + again)


def test_a_database_that_is_away_when_a_task_starts_does_not_fail_the_task(tmp_path: Path) -> None:
    async def story() -> None:
        async with rounds(tmp_path) as house:
            task = await house.submit(rounds=2)
            await house.take_part(1)
            await house.engine.stop()
            again = Engine(house.stores, Clock(), SETTINGS, lambda _: _no_leaf)
            house.faults.waiting["model"] = [AWAY] * 1000
            await again.start()
            assert house.task(task.task_id).state is TaskState.RUNNING
            with pytest.raises(UnreachableError, match=r"being picked up|does not answer"):
                await again.command(task.task_id, TaskState.PAUSED, actor="alice")
            house.faults.waiting.clear()
            await until(lambda: bool(again.tasks_now()))
            resumed = Rounds(again, Uploads(again, house.stores, idle_s=60.0), house.stores, house.faults)
            await resumed.take_part(2)
            await until(lambda: house.task(task.task_id).state is TaskState.DONE)
            await again.stop()

    with capture_logs() as logs:
        run(story())
    assert "task cannot go on" not in {line["event"] for line in logs}
    assert {line["error"] for line in logs if line["event"].startswith("task stopped")} == {"unreachable"}


def test_after_a_restart_the_last_rounds_devices_hear_how_it_ended(tmp_path: Path) -> None:
    """The program ended when the round had closed, and nobody had been told: its devices ask the next one."""

    async def story() -> None:
        async with rounds(tmp_path) as house:
            task = await house.submit(rounds=2)
            await house.take_part(1)
            await house.engine.stop()
            again = Engine(house.stores, Clock(), SETTINGS, lambda _: _no_leaf)
            await again.start()
            uploads = Uploads(again, house.stores, idle_s=60.0)
            for device_id in ("d" * 32, "e" * 32):
                name = RoundRef(task.task_id, 1, 1)
                (news,) = [news async for news in again.follow(device_id, name)]
                assert (news.stage, news.num_reports) == (Stage.CLOSED, 2)
                assert await again.report_trained(device_id, name) is Stage.CLOSED
                assert (await uploads.status(device_id, name)).is_accepted
            await Rounds(again, uploads, house.stores, house.faults).take_part(2)
            await again.stop()

    run(story())


@pytest.mark.parametrize("ask", ["receive", "status"])
def test_who_asks_while_the_same_contribution_ends_the_round_hears_that_it_counts(tmp_path: Path, ask: str) -> None:
    """A device's second connection waits for the database while its first one brings the last contribution."""
    is_announced, goes_on, is_whole = threading.Event(), threading.Event(), threading.Event()
    commits, is_asked = threading.Event(), threading.Event()

    def hold_the_first() -> None:
        is_announced.set()
        assert goes_on.wait(60)

    def hold_the_commit() -> None:
        commits.set()
        assert is_asked.wait(60)

    async def story() -> None:
        async with rounds(tmp_path) as house:
            await house.submit(rounds=1)
            found = await asyncio.gather(*(house.assigned(name * 32) for name in "de"))
            sent = [contribution(assigned.plan.task, number) for number, assigned in enumerate(found)]
            for name in "de":
                await house.engine.report_trained(name * 32, found[0].name)
            await house.send("d" * 32, found[0], sent[0])
            store: Any = house.stores.store
            store.holds = [hold_the_first, lambda: is_whole.wait(60)]
            first = asyncio.create_task(house.send("e" * 32, found[1], sent[1]))
            await until(is_announced.is_set)
            if ask == "receive":
                second = asyncio.create_task(house.send("e" * 32, found[1], sent[1]))
                await asyncio.sleep(0.1)
            if ask == "status":
                store.before_a_commit = hold_the_commit
            goes_on.set()
            if ask == "status":  # it waits for the commit of what is complete
                await until(commits.is_set)
                assert any(arrival.is_complete for arrival, _ in house.uploads._active.values())
                second = asyncio.create_task(house.uploads.status("e" * 32, found[1].name))
                await asyncio.sleep(0.1)
                assert not second.done()
                is_asked.set()
            else:
                await until(
                    lambda: first.done() or any(arrival.is_complete for arrival, _ in house.uploads._active.values())
                )
            is_whole.set()
            answers = await asyncio.gather(first, second)
            assert [answer.received_bytes for answer in answers] == [len(sent[1])] * 2
            assert [answer.is_accepted for answer in answers] == [True] * 2
            with pytest.raises(ReplayError):
                await house.send("e" * 32, found[1], contribution(found[1].plan.task, 7))

    run(story())


def test_an_upload_that_is_cut_while_its_file_opens_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_open, goes_on = threading.Event(), threading.Event()
    opened: list[SpoolFile] = []
    closed: list[SpoolFile] = []
    close = SpoolFile.close

    def noting(file: SpoolFile) -> None:
        close(file)
        closed.append(file)

    monkeypatch.setattr(SpoolFile, "close", noting)

    async def story() -> None:
        async with rounds(tmp_path) as house:
            await house.submit(rounds=1)
            found = await asyncio.gather(*(house.assigned(name * 32) for name in "de"))
            for name in "de":
                await house.engine.report_trained(name * 32, found[0].name)
            spool = house.stores.spool

            def slowly(*arguments: Any, **named: Any) -> Any:
                opened.append(Spool.open(spool, *arguments, **named))
                is_open.set()
                assert goes_on.wait(60)
                return opened[-1]

            monkeypatch.setattr(spool, "open", slowly)
            sending = asyncio.create_task(house.send("d" * 32, found[0], contribution(found[0].plan.task, 1)))
            await until(is_open.is_set)
            sending.cancel()
            await asyncio.sleep(0)
            goes_on.set()
            await asyncio.gather(sending, return_exceptions=True)
            await until(lambda: closed == opened)

    run(story())
    assert len(opened) == 1


def test_who_follows_a_round_whose_runner_fell_is_told_to_follow_it_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with rounds(tmp_path) as house:
            task = await house.submit(rounds=1)
            callers = [Caller(name * 32, "p") for name in "de"]
            answers: list[Any] = []
            while not all(isinstance(answer, Assigned) for answer in answers) or not answers:
                answers = await asyncio.gather(*(house.engine.check_in(c, limit_s=0.5) for c in callers))

            follows = asyncio.Event()

            async def follow() -> None:
                async for _ in house.engine.follow("d" * 32, answers[0].name):
                    follows.set()

            following = asyncio.create_task(follow())
            await follows.wait()
            house.faults.waiting["save_round"] = [ZeroDivisionError("a defect")]
            with contextlib.suppress(Exception):
                await house.engine.report_trained("d" * 32, answers[0].name)
            with pytest.raises(UnavailableError, match="follow it again"):
                await asyncio.wait_for(following, 60)
            await until(lambda: bool(house.engine.tasks_now()))
            await house.take_part(1)
            await until(lambda: house.task(task.task_id).state is TaskState.DONE)

    run(story())


class Gates(Gatekeeper):
    """Gates whose measurement meets a defect."""

    async def _measure(self, *_: object) -> Any:
        raise ZeroDivisionError("a defect")


async def _with_gates(house: Rounds, story: Callable[[asyncio.Task[None]], Awaitable[None]]) -> None:
    sets = EvaluationSets({}, {})
    gates = asyncio.create_task(Gates(house.engine, house.stores, Clock(), sets, limit_s=5.0, retry_s=0.05).run())
    try:
        await story(gates)
        assert not gates.done()
    finally:
        gates.cancel()
        await asyncio.wait({gates})


@pytest.mark.parametrize("error", [AWAY, DiskFullError("no space left"), ZeroDivisionError("another defect")])
def test_gates_outlive_a_database_that_is_away_and_a_defect_pauses_the_task(tmp_path: Path, error: Exception) -> None:
    async def story() -> None:
        async with rounds(tmp_path, has_gates=True) as house:
            task = await house.submit(rounds=1)

            async def judged(gates: asyncio.Task[None]) -> None:
                await house.take_part(1)
                await until(lambda: house.task(task.task_id).state is TaskState.PAUSED or gates.done())

            house.faults.waiting["candidate"] = [error] * 20
            await _with_gates(house, judged)
            assert not house.faults.waiting["candidate"]
            assert "internal error: ZeroDivisionError; see the log" in house.task(task.task_id).reason

    with capture_logs() as logs:
        run(story())
    assert [line for line in logs if line["event"].startswith("gates ")]


@pytest.mark.parametrize("is_held", [True, False], ids=["held", "between"])
def test_a_device_that_asks_to_be_left_out_is_not_chosen_from_then_on(tmp_path: Path, is_held: bool) -> None:
    """It had offered itself before: its check-in is still held, or was answered while the round gathers devices."""
    quitter, others = "a" * 32, ["b" * 32, "c" * 32]

    async def story() -> None:
        async with rounds(tmp_path, hold_s=20.0) as house:
            await house.submit()
            waits = house.engine.check_in(Caller(quitter, "p"), limit_s=20.0 if is_held else 0.2)
            held = asyncio.create_task(waits)
            if is_held:
                await until(lambda: [dict(now.devices) for now in house.engine.tasks_now()] == [{"waiting": 1}])
            else:
                assert isinstance(await held, Wait)
            await house.engine.leave_out(quitter, "p", stays_out=True)
            assert [dict(now.devices) for now in house.engine.tasks_now()] == [{}]
            if is_held:
                assert await held == STAYS_OUT
            answers = [await house.engine.check_in(Caller(others[0], "p"), limit_s=0.2)]
            assert isinstance(answers[0], Wait), "one of two is there"
            chosen = await asyncio.gather(
                *(house.engine.check_in(Caller(device, "p"), limit_s=20.0) for device in others)
            )
            assert all(isinstance(each, Assigned) for each in chosen)

    run(story())


def test_a_device_that_takes_part_again_at_once_is_still_held(tmp_path: Path) -> None:
    async def story() -> None:
        async with rounds(tmp_path, hold_s=20.0) as house:
            await house.submit()
            held = asyncio.create_task(house.engine.check_in(Caller("d" * 32, "p"), limit_s=20.0))
            await until(lambda: [dict(now.devices) for now in house.engine.tasks_now()] == [{"waiting": 1}])
            await asyncio.gather(
                house.engine.leave_out("d" * 32, "p", stays_out=True),
                house.engine.leave_out("d" * 32, "p", stays_out=False),
            )
            other = await house.engine.check_in(Caller("e" * 32, "p"), limit_s=20.0)
            assert [type(each) for each in (await held, other)] == [Assigned, Assigned]

    run(story())


@pytest.mark.parametrize("tells_the_same", [True, False])
def test_a_sum_that_gave_nothing_is_not_opened_again_where_devices_would_send_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tells_the_same: bool
) -> None:
    """Two sums over nearly the same devices tell what the difference sent."""

    def refuse(*_: object) -> Any:
        raise ConfigError("too few people")

    fedavg = METHODS["fedavg"]
    properties = fedavg.properties | ({Property.DETERMINISTIC} if tells_the_same else set())
    monkeypatch.setattr(plan, "METHODS", {"fedavg": replace(fedavg, server_step=refuse, properties=properties)})

    async def story() -> None:
        async with rounds(tmp_path) as house:
            task = await house.submit()
            with pytest.raises(AssertionError):  # the devices hear that their round was aborted
                await house.take_part(1)
            await until(lambda: house.task(task.task_id).aborted_in_a_row == 1)
            found = house.task(task.task_id)
            assert found.state is (TaskState.PAUSED if tells_the_same else TaskState.RUNNING)

    run(story())


class AddingUp:
    """FedAvg as a method whose sums add up: its model is made once four devices are in the total."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.before_it_returns: Callable[[], None] = lambda: None
        fedavg = METHODS["fedavg"]
        properties = fedavg.properties | {Property.ADDS_UP, Property.DETERMINISTIC}
        known = {**METHODS, "fedavg": replace(fedavg, server_step=self._step, properties=properties)}
        monkeypatch.setattr("mien.methods.registry.METHODS", known)
        monkeypatch.setattr(plan, "METHODS", known)

    def _step(self, task: Any, part: Any, state: ServerState, total: Total, revealed: Any) -> ServerState:
        before = state.revealed.get(IN_TOTAL)
        count = total.num_reports + (0 if before is None else int(before["count"][0]))
        self.before_it_returns()
        return ServerState(
            theta=state.theta if count < 4 else state.theta + np.float32(0.01 * count),
            revealed={IN_TOTAL: {"count": np.array([count], np.int64)}},
            rounds=state.rounds + 1,
            figures={"phones_in_total": float(count)},
            lacks="" if count >= 4 else f"the total is of {count} phones",
            evidence={"form": "wccn", "eer": 0.01 * count} if count >= 4 else {},
        )


def test_cohorts_of_one_model_add_up_and_a_device_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    AddingUp(monkeypatch)

    async def story() -> None:
        async with rounds(tmp_path) as house:
            task = await house.submit(rounds=3)
            await house.take_part(1)
            await until(lambda: house.task(task.task_id).rounds_closed == 1)
            found = house.task(task.task_id)
            assert (found.state, found.reason) == (TaskState.RUNNING, "the total is of 2 phones")
            assert (found.model_id, found.arrays_sha256) == (MODEL, None)
            kept = house.stores.states.revealed(task.task_id, found.revealed_sha256)
            assert kept[IN_TOTAL]["count"].tolist() == [2]

            # Who is counted opens nothing, however often it asks; nor does that pause the task.
            for _ in range(3):
                answers = [await house.engine.check_in(Caller(name * 32, "p"), limit_s=0.1) for name in "de"]
                assert all(isinstance(answer, Wait) for answer in answers)
            assert [each.stage for each in house.stores.store.rounds(task.task_id)] == [Stage.CLOSED]

            await house.take_part(2, "fa")
            await house.take_part(3, "bc")
            await until(lambda: house.task(task.task_id).state.is_over)
            done, attempts = house.task(task.task_id), house.stores.store.rounds(task.task_id)
            assert [each.metrics["phones_in_total"] for each in attempts] == [2.0, 4.0, 6.0]
            assert [each.base_model_id for each in attempts] == [MODEL] * 3
            models = [str(each.model_id) for each in attempts]
            assert models[0] == MODEL
            assert len(set(models)) == 3
            assert (done.state, done.reason, done.model_id) == (TaskState.DONE, "", models[2])
            assert house.stores.store.model(done.model_id).parent_model_id == MODEL
            (record,) = house.stores.store.evaluations(done.model_id)
            told = parse_json(record.record_json, what="a measurement")
            assert (told["protocol"], told["form"], told["eer"]) == ("fedavg, predicted", "wccn", 0.06)
            assert (told["model_id"], told["task_id"], told["round"]) == (done.model_id, task.task_id, 3)

    run(story())


def test_a_gathering_that_finds_too_few_new_devices_pauses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    AddingUp(monkeypatch)

    async def story() -> None:
        async with rounds(tmp_path) as house:
            task = await house.submit(rounds=2)
            await house.take_part(1)
            cohort = house.engine._tasks[task.task_id].cohorts[0]
            for number in range(7):
                await house.engine.check_in(Caller("f" * 32, "p"), limit_s=0.05)
                await cohort.post(SumFailed("1 devices checked in within 1 s; 2 are needed"))
                await until(lambda n=number: len(house.stores.store.rounds(task.task_id)) == n + 2)  # type: ignore[misc]
            found = house.task(task.task_id)
            assert (found.state, found.aborted_in_a_row) == (TaskState.RUNNING, 0)

    run(story())


@pytest.mark.parametrize("point", ["before the sum is added", "before that is committed"])
def test_a_coordinator_that_dies_between_opening_a_sum_and_adding_it_counts_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    method = AddingUp(monkeypatch)

    async def story() -> None:
        async with rounds(tmp_path) as house:

            def die() -> None:
                house.faults.waiting["save_round"] = [AWAY] * 10_000
                if point == "before the sum is added":
                    raise UnreachableError("the folder is away")

            task = await house.submit(rounds=2)
            await house.take_part(1)
            method.before_it_returns = die
            going_on = asyncio.gather(*(house._device(name * 32, 2) for name in "fa"), return_exceptions=True)
            await until(lambda: bool(house.faults.waiting.get("save_round")))
            await house.engine.stop()
            await going_on
            assert house.task(task.task_id).rounds_closed == 1

            house.faults.waiting.clear()
            method.before_it_returns = lambda: None
            again = Engine(house.stores, Clock(), SETTINGS, lambda _: _no_leaf)
            await again.start()
            await until(lambda: house.task(task.task_id).state.is_over)
            attempts = house.stores.store.rounds(task.task_id)
            assert [each.metrics["phones_in_total"] for each in attempts] == [2.0, 4.0]
            await again.stop()

    run(story())


def test_a_total_that_stays_too_poor_fails_its_task_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    AddingUp(monkeypatch)

    async def story() -> None:
        async with rounds(tmp_path) as house:
            task = await house.submit(rounds=1)
            await house.take_part(1)
            await until(lambda: house.task(task.task_id).state.is_over)
            found = house.task(task.task_id)
            assert (found.state, found.reason) == (TaskState.FAILED, "the total is of 2 phones")
            assert (found.model_id, found.revealed_sha256) == (MODEL, None)

    run(story())


SOURCE, TARGETS = "5" * 32, ("a" * 32, "b" * 32, "c" * 32)
PAIR = CohortSpec(size=2, min_reports=2, must_include=MustInclude())


def source(device_id: str = SOURCE) -> Caller:
    """Return a device that says it knows whose faces it trains on."""
    return Caller(device_id, "p", labelled=True)


async def offer(house: Rounds, *callers: Caller) -> list[Assigned | Wait]:
    """Have devices check in at once, and return what each is told once all of them are there."""
    for _ in range(2):
        answers = await asyncio.gather(*(house.engine.check_in(caller, limit_s=0.0) for caller in callers))
    return list(answers)


def test_a_task_waits_for_its_source_says_so_and_pauses_for_no_such_wait(tmp_path: Path) -> None:
    async def story() -> None:
        async with rounds(tmp_path) as house:
            task = await house.submit(method="fedfr_uda", cohort=PAIR)
            told = [house.engine.news(house.task(task.task_id)).gathering]
            for number in range(7):
                answers = await offer(house, *(Caller(each, "p") for each in TARGETS))
                assert [type(each) for each in answers] == [Wait] * 3, "three are there, and two are enough"
                assert {str(each.reason) for each in answers if isinstance(each, Wait)} == {
                    "a round of t is gathering devices: 3 of 2; waiting for a labelled source"
                }
                told.append(house.engine.news(house.task(task.task_id)).gathering)
                await house.engine._tasks[task.task_id].cohorts[0].post(SumFailed("0 labelled devices checked in"))
                await until(lambda n=number: len(house.stores.store.rounds(task.task_id)) == n + 1)  # type: ignore[misc]
            assert [(each.there, each.lacks_labelled) for each in told if each] == [(0, 1)] + [(3, 1)] * 7
            found = house.task(task.task_id)
            assert (found.state, found.aborted_in_a_row) == (TaskState.RUNNING, 0)

            answers = await offer(house, *(Caller(each, "p") for each in TARGETS), source())
            assert isinstance(answers[3], Assigned), "whatever chance says of the others"
            (attempt,) = [each for each in house.stores.store.rounds(task.task_id) if each.stage is Stage.TRAINING]
            assert len(house.stores.store.participants(attempt.id)) == 2
            assert house.stores.store.labelled(attempt.id) == {SOURCE}

    run(story())


def test_after_a_restart_a_round_still_knows_its_source(tmp_path: Path) -> None:
    """Which of its devices are labelled is on disk: one without its source has no sum."""

    async def story() -> None:
        async with rounds(tmp_path) as house:
            task = await house.submit(method="fedfr_uda", cohort=replace(PAIR, size=3))
            answers = await offer(house, *(Caller(each, "p") for each in TARGETS[:2]), source())
            (name,) = {each.name for each in answers if isinstance(each, Assigned)}
            await house.engine.stop()
            again = Engine(house.stores, Clock(), SETTINGS, lambda _: _no_leaf)
            await again.start()
            for device in TARGETS[:2]:
                assert await again.report_trained(device, name) is Stage.TRAINING
            await again.leave(SOURCE, name, "low_quality")
            (attempt,) = house.stores.store.rounds(task.task_id)
            why = "0 labelled devices are left; cohort.must_include asks for 1"
            assert (attempt.stage, attempt.reason) == (Stage.ABORTED, why)
            assert house.task(task.task_id).aborted_in_a_row == 1, "it had its source, which left"
            await again.stop()

    run(story())


def test_a_task_without_its_source_holds_nobody_whom_another_task_can_use(tmp_path: Path) -> None:
    async def story() -> None:
        async with rounds(tmp_path) as house:
            await house.submit(method="fedfr_uda", cohort=PAIR)
            younger = tiny_task(
                "young",
                "p",
                model_id=MODEL,
                cohort=CohortSpec(size=2, min_reports=2),
                privacy=PrivacySpec(min_cohort=2, secure_aggregation="off"),
            )
            record = await house.engine.submit(younger, token="y", actor="alice")
            answers = await asyncio.gather(*(house.assigned(each) for each in TARGETS[:2]))
            assert {each.name.task_id for each in answers} == {record.task_id}

    run(story())


def test_a_phone_for_which_a_waiting_task_has_no_room_is_told_so(tmp_path: Path) -> None:
    """A population that comes to a task without its source takes no more memory than four cohorts, whoever is first."""

    async def story() -> None:
        async with rounds(tmp_path) as house:
            task = await house.submit(method="fedfr_uda", cohort=PAIR)
            (cohort,) = house.engine._tasks[task.task_id].cohorts
            callers = [Caller(f"{number:032x}", "p") for number in range(12)]
            for caller in callers:
                await offer(house, caller)
            told = [(await offer(house, caller))[0] for caller in callers]
            assert _num_candidates(cohort) == 8
            assert cohort.under_way is not None
            there = [caller.device_id in cohort.under_way.state.candidates for caller in callers]
            reasons = [each.reason for each in told if isinstance(each, Wait)]
            assert [
                reason.endswith("; enough phones wait for that, and this one is asked later") for reason in reasons
            ] == [not is_there for is_there in there]
            assert all("8 of 2" in reason and "waiting for a labelled source" in reason for reason in reasons)
            assert isinstance((await offer(house, source()))[0], Assigned)

    run(story())


def test_a_check_in_does_not_look_at_all_that_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands may be held for a source that does not come, and each would look at all others."""
    looked = list[Cohort]()

    def is_for(caller: Caller, cohort: Cohort) -> bool:
        looked.append(cohort)
        return was_for(caller, cohort)

    was_for = engine._is_for
    monkeypatch.setattr(engine, "_is_for", is_for)

    async def story() -> None:
        async with rounds(tmp_path, hold_s=60.0) as house:
            task = await house.submit(method="fedfr_uda", cohort=replace(PAIR, size=5))
            large = tiny_task("large", "p", model_id=MODEL, cohort=CohortSpec(size=50, min_reports=50))
            await house.engine.submit(large, token="l", actor="alice")
            (cohort,) = house.engine._tasks[task.task_id].cohorts
            held = list[asyncio.Task[Assigned | Wait]]()
            for number in range(20):
                looked.clear()
                held.append(asyncio.create_task(house.engine.check_in(Caller(f"{number:032x}", "p"), limit_s=60.0)))
                await until(lambda n=number: _num_candidates(cohort) == n + 1)  # type: ignore[misc]
                if number:  # the first one opens a round, and is looked at again
                    assert len(looked) == 2, "whether each of the tasks is for this one itself"
            assert isinstance(await house.engine.check_in(source(), limit_s=60.0), Assigned)
            for each in held:
                each.cancel()
            await asyncio.wait(held)

    run(story())


def _num_candidates(cohort: Cohort) -> int:
    return 0 if cohort.under_way is None else len(cohort.under_way.state.candidates)


def test_a_source_that_the_task_keeps_out_is_no_source_of_its_round(tmp_path: Path) -> None:
    """Whoever had enough sums over this model, or spoiled some, is not let in by what it says of itself."""

    async def story() -> None:
        async with rounds(tmp_path) as house:
            task = await house.submit(method="fedfr_uda", cohort=PAIR)
            house.engine._tasks[task.task_id].note_left(SOURCE, BudgetExceededError.code)
            answers = await offer(house, *(Caller(each, "p") for each in TARGETS), source())
            assert [type(each) for each in answers] == [Wait] * 4
            (cohort,) = house.engine._tasks[task.task_id].cohorts
            assert cohort.attempt is not None
            assert cohort.attempt.state.labelled == frozenset()
            await cohort.post(SumFailed("0 labelled devices checked in"))
            await until(lambda: house.task(task.task_id).aborted_in_a_row == 1)  # else it would wait without end

    run(story())
