"""Scripted phones against the coordinator's real engine, store and disk, on virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from coordinator.rounds.closing import Stores
from coordinator.rounds.engine import Assigned, Caller, Engine, EngineSettings, StageNews
from coordinator.rounds.spool import Spool
from coordinator.rounds.states import ServerStates
from coordinator.rounds.task import TaskSettings
from coordinator.rounds.traces import RoundTraces
from coordinator.rounds.uploads import Uploads
from coordinator.store.blobs import BlobStore
from coordinator.store.database import sqlite_url
from coordinator.store.sealing import MasterKey
from coordinator.store.store import Store
from coordinator.store.thread import StoreThread
from mien.contribution import ContributionLayout
from mien.errors import LateError, NotFoundError
from mien.protocol.canonical import model_to_json, task_sha256, task_to_json
from mien.protocol.rounds import BlobId, Stage
from mien.protocol.uploads import UploadPiece
from mien.rounds.records import ModelRecord, RoundRecord, TaskRecord, TaskState
from mien.secagg import Assignment, ContributionMap, DevicePolicy, DeviceRound, Identity, MemoryLog, Profile
from mien.secagg.planner import RoundIds
from mien.shell.clock import Clock
from mien.specs import TaskSpec
from simulation.fleet.fleet import FAILED_PAUSE_S
from simulation.fleet.phones import Outlook
from simulation.fleet.profile import CoordinatorSettings
from simulation.fleet.windows import End
from simulation.testing import LAYOUT, SPEC, THETA, contribution, layout_of
from tests.mien.secagg.cohort import verify
from tests.simulation.fleet.scripted import LATENCY_S, Script
from tests.simulation.fleet.virtual import VirtualClock, VirtualLoop

T = TypeVar("T")
MODEL = "a" * 64
Heard = tuple[float, int, int, str]
"""When which attempt of which round came to which stage."""


class CountedThread(StoreThread):
    """A store's thread for whose calls virtual time stands still."""

    loop: VirtualLoop

    async def run(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        """Return what `call` returns."""
        return await self._counted(super().run(call, *args, **kwargs))

    async def settle(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        """Return what `call` returns."""
        return await self._counted(super().settle(call, *args, **kwargs))

    async def _counted(self, work: Awaitable[T]) -> T:
        self.loop.num_busy += 1
        try:
            return await work
        finally:
            self.loop.num_busy -= 1


class HeardStages(RoundTraces):
    """Remembers the stages that attempts come to."""

    def __init__(self, clock: Clock) -> None:
        self.heard: list[Heard] = []
        self._clock = clock

    def stage(self, task: str, record: RoundRecord, stage: str) -> None:
        """Note a stage."""
        entry = (round(self._clock.now(), 6), record.round, record.attempt, str(stage))
        if not any(earlier[1:] == entry[1:] for earlier in self.heard):
            self.heard.append(entry)


@dataclass(frozen=True)
class Told:
    """What came of a task: its stages in order, and at the end of each attempt how far every device had got."""

    stages: list[Heard]
    participants: dict[tuple[int, int], dict[str, str]]
    reasons: dict[tuple[int, int], str]
    state: str


class RealPhone:
    """One scripted phone that calls the engine as the service does for a device."""

    def __init__(self, house: House, script: Script, identity: Identity) -> None:
        self.house, self.script, self.identity = house, script, identity
        self.id, self.num_chosen = identity.id.hex(), 0
        self.loop = house.loop
        self.stopped: _Part | None = None

    async def live(self) -> None:
        """Be there in each span, and take part in what it is chosen for."""
        due_s = 0.0
        for number, span in enumerate(self.script.spans):
            due_s = max(due_s, span.start_s)
            while due_s < span.end_s:
                await self._sleep_until(due_s)
                if self.stopped is not None and self.stopped.must_leave:
                    await self.stopped.leave()
                    due_s = self.loop.now + LATENCY_S
                    continue
                answer = await self._check_in(span.end_s)
                if isinstance(answer, Assigned):
                    due_s = await self._take_part(answer) + LATENCY_S
                else:
                    due_s = self.loop.now + (answer or 0.0)
                span = self._span(number, due_s)

    def _span(self, number: int, due_s: float) -> Any:
        """Return the span that a phone is in after a round, which may have outlasted the one in which it was chosen."""
        later = [span for span in self.script.spans[number:] if span.start_s <= due_s]
        return later[-1]

    async def _check_in(self, end_s: float) -> Assigned | float | None:
        """Return an assignment, or the pause until the next check-in; None where the phone hung up."""
        caller = Caller(self.id, "p")
        check_in = self.house.engine.check_in(caller, limit_s=1e9)
        try:
            async with asyncio.timeout_at(end_s):
                answer = await check_in
        except TimeoutError:
            return None
        return answer if isinstance(answer, Assigned) else answer.retry_after_s

    async def _take_part(self, assigned: Assigned) -> float:
        """Return when the phone is free again."""
        stopped, self.stopped = self.stopped, None
        if stopped is not None and stopped.is_trained and stopped.assigned.name == assigned.name:
            part = _Part(self, assigned, Outlook(0.0))
            part.is_trained = True
        else:
            part = _Part(self, assigned, self.script.outlook(self.num_chosen))
            self.num_chosen += 1
        return await part.run()

    async def _sleep_until(self, at_s: float) -> None:
        await asyncio.sleep(max(at_s - self.loop.now, 0.0))

    def end_of_span(self) -> tuple[float, bool]:
        """Return the end of the span that is now, or that was the last, and whether it ends offline."""
        begun = [span for span in self.script.spans if span.start_s <= self.loop.now]
        return begun[-1].end_s, begun[-1].ends_by is End.OFFLINE

    def next_start(self) -> float:
        """Return when the phone is there the next time; never, after its last span."""
        return next((span.start_s for span in self.script.spans if span.start_s > self.loop.now), 1e9)


class _Part:
    """A phone's part in one attempt."""

    def __init__(self, phone: RealPhone, assigned: Assigned, outlook: Outlook) -> None:
        self.phone, self.assigned, self.engine = phone, assigned, phone.house.engine
        self.training_s, self.tells = outlook.training_s, outlook.tells
        self.left_s = float("inf") if outlook.fails_after_s is None else outlook.fails_after_s
        self.is_gone, self.is_trained = asyncio.Event(), False
        self.device: DeviceRound | None = None
        self.stage = Stage.TRAINING
        self.back_s = 0.0

    @property
    def must_leave(self) -> bool:
        """Whether the phone had begun to speak of keys when its program was stopped: they are gone."""
        return self.assigned.plan.task.privacy.is_masked and self.is_trained

    async def leave(self) -> None:
        """Leave the round."""
        self.phone.stopped = None
        await self.engine.leave(self.phone.id, self.assigned.name, "")

    async def run(self) -> float:
        """Take part; return when the phone is free again."""
        works = [] if self.is_trained else [asyncio.create_task(self._train(self.training_s))]
        follows = asyncio.create_task(self._follow(works))
        gone = asyncio.create_task(self.is_gone.wait())
        await asyncio.wait({follows, gone}, return_when=asyncio.FIRST_COMPLETED)
        for task in (*works, follows, gone):
            task.cancel()
        ended = await asyncio.gather(*works, follows, gone, return_exceptions=True)
        for each in ended:
            if isinstance(each, Exception):
                raise each
        return max(self.back_s, self.phone.loop.now)

    async def _follow(self, works: list[asyncio.Task[None]]) -> None:
        try:
            async for news in self.engine.follow(self.phone.id, self.assigned.name):
                self.stage = news.stage
                if news.stage not in (Stage.TRAINING, Stage.CLOSING) and not news.stage.is_over:
                    works.append(asyncio.create_task(self._do(news)))
        except LateError:
            return

    async def _train(self, seconds: float) -> None:
        """Train while the phone is there, and go on when it is there again."""
        while True:
            end_s, _ = self.phone.end_of_span()
            can_s = max(end_s - self.phone.loop.now, 0.0)
            if await self._work(min(seconds, can_s)):
                return
            seconds -= can_s
            if seconds <= 0:
                break
            await self.phone._sleep_until(self.phone.next_start())
        self.is_trained = True
        with contextlib.suppress(LateError):
            await self.engine.report_trained(self.phone.id, self.assigned.name)

    async def _work(self, seconds: float) -> bool:
        """Work for a while; return whether the phone failed instead."""
        if self.left_s > seconds:
            self.left_s -= seconds
            await asyncio.sleep(seconds)
            return False
        await asyncio.sleep(self.left_s)
        self.left_s = float("inf")
        if self.tells:
            self.back_s = self.phone.loop.now + FAILED_PAUSE_S
            await self.engine.leave(self.phone.id, self.assigned.name, "")
        else:
            self.back_s = self.phone.next_start() - LATENCY_S
            self.phone.stopped = self
        self.is_gone.set()
        return True

    async def _do(self, news: StageNews) -> None:
        """Do the phone's part of a stage, unless it loses its network before."""
        if self.assigned.plan.task.privacy.is_masked and not news.message:
            return
        end_s, ends_offline = self.phone.end_of_span()
        seconds = self.phone.script.stage_s
        if ends_offline and end_s < self.phone.loop.now + seconds:
            if await self._work(max(end_s - self.phone.loop.now, 0.0)):
                return
            await self.phone._sleep_until(self.phone.next_start())
            if self.stage is not news.stage:
                return  # the round went on, and asks for something else, or for nothing
        if await self._work(seconds):
            return
        with contextlib.suppress(LateError, NotFoundError):
            await self._send(news)

    async def _send(self, news: StageNews) -> None:
        phone, name, task = self.phone, self.assigned.name, self.assigned.plan.task
        data = contribution(task, name.round, int(phone.id[:8], 16))
        if not task.privacy.is_masked:
            await self._upload(data, b"")
            return
        answer, payload = self._answer(news, data)
        if news.stage is Stage.UPLOAD:
            await self._upload(payload, answer)
        else:
            await self.engine.take_step(phone.id, name, news.stage, answer)

    async def _upload(self, data: bytes, message: bytes) -> None:
        async def pieces() -> AsyncIterator[UploadPiece]:
            yield UploadPiece(None, 0, memoryview(data))

        blob = BlobId(hashlib.sha256(data).hexdigest(), len(data))
        await self.phone.house.uploads.receive(self.phone.id, self.assigned.name, blob, message, pieces())

    def _answer(self, news: StageNews, data: bytes) -> tuple[bytes, bytes]:
        """Return the device's message of a stage, and its masked vector."""
        if news.stage is Stage.KEYS:
            self.device = self._device(news.message)
            return self.device.advertise(), b""
        assert self.device is not None
        if news.stage is Stage.SHARES:
            return self.device.share(news.message), b""
        if news.stage is Stage.UPLOAD:
            layout = layout_of(self.assigned.plan.task)
            masked = self.device.mask(news.message, ContributionMap(layout).addends(layout.parse(data)))
            return masked.message, masked.payload
        if news.stage is Stage.CONSISTENCY:
            return self.device.agree(news.message), b""
        return self.device.unmask(news.message), b""

    def _device(self, invite: bytes) -> DeviceRound:
        task, name = self.assigned.plan.task, self.assigned.name
        layout = layout_of(task)
        return DeviceRound(
            invite,
            identity=self.phone.identity,
            assignment=_known(
                task, layout, RoundIds.of(task, name.task_id, name.round, name.attempt, SPEC, self.assigned.model_id)
            ),
            policy=DevicePolicy(min_cohort=3, profiles=frozenset(Profile)),
            verify=verify,
            log=MemoryLog(),
            random_bytes=os.urandom,
        )


def _known(task: TaskSpec, layout: ContributionLayout, ids: RoundIds) -> Assignment:
    vector = ContributionMap(layout).vector_layout
    return Assignment(
        ids.task_id,
        bytes.fromhex(task_sha256(task)),
        ids.model_sha256,
        bytes.fromhex(layout.sha256),
        ids.statement_sha256,
        vector.size,
        vector.num_metrics,
    )


@dataclass
class House:
    """An engine over a real database and real folders, on virtual time."""

    loop: VirtualLoop
    engine: Engine
    uploads: Uploads
    stores: Stores
    stages: HeardStages


@contextlib.asynccontextmanager
async def house(folder: Path, loop: VirtualLoop, settings: CoordinatorSettings) -> AsyncIterator[House]:
    """Run an engine in a folder that holds the tiny model."""
    clock = VirtualClock(loop)
    store, blobs = Store.open(sqlite_url(folder / "test.db"), clock), BlobStore(str(folder / "models"))
    key, thread = MasterKey.create(folder / "store.key"), CountedThread(patience_s=1e6)
    thread.loop = loop
    stages = HeardStages(clock)
    states = ServerStates(BlobStore(str(folder / "states")), key)
    stores = Stores(store, thread, blobs, states, Spool(folder / "spool", key), traces=stages)
    theta = blobs.put(THETA.astype("<f4").tobytes())
    store.add_model(ModelRecord(MODEL, model_to_json(SPEC, LAYOUT), LAYOUT.sha256, theta, 1), actor="alice")
    engine = Engine(
        stores,
        clock,
        EngineSettings(
            settings.check_in_hold_s,
            settings.retry_after_s,
            TaskSettings(max_aborted=settings.max_aborted, max_step_ratio=1e9),
            check_ins_per_s=settings.check_ins_per_s,
        ),
        lambda _population: verify,
    )
    await engine.start()
    try:
        yield House(loop, engine, Uploads(engine, stores, idle_s=1e6), stores, stages)
    finally:
        await engine.stop()
        thread.close()
        store.close()


def _record(task: TaskSpec, task_id: str) -> TaskRecord:
    return TaskRecord(
        task_id=task_id,
        name=task.name,
        population=task.population,
        task_json=task_to_json(task),
        idempotency_token="t",
        state=TaskState.RUNNING,
        base_model_id=MODEL,
        model_id=MODEL,
        submitted_by="alice",
        created_ms=1,
    )


def really(
    folder: Path,
    task: TaskSpec,
    scripts: Sequence[Script],
    identities: Sequence[Identity],
    settings: CoordinatorSettings,
    until_s: float,
    task_id: str,
) -> Told:
    """Return what came of a task in the real engine; its id settles whom chance chooses."""
    loop = VirtualLoop()

    async def story() -> Told:
        async with house(folder, loop, settings) as made:
            record = made.stores.store.add_task(_record(replace(task, model_id=MODEL), task_id))
            await made.engine.take_over()
            lives = [
                asyncio.create_task(RealPhone(made, *each).live()) for each in zip(scripts, identities, strict=True)
            ]
            await asyncio.sleep(until_s)
            for life in lives:
                life.cancel()
            ended = await asyncio.gather(*lives, return_exceptions=True)
            for each in ended:
                if isinstance(each, Exception):
                    raise each
            rounds = made.stores.store.rounds(record.task_id)
            people = {(r.round, r.attempt): made.stores.store.participants(r.id) for r in rounds}
            return Told(
                made.stages.heard,
                {key: {device: str(step) for device, step in each.items()} for key, each in people.items()},
                {(r.round, r.attempt): r.reason for r in rounds},
                str(made.stores.store.task(record.task_id).state),
            )

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(story())
