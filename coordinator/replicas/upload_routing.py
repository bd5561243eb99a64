"""Routing of uploads to the round that they belong to: one that this replica runs, or one of another's.

Either way a contribution lies in the bucket, and it is known who holds it, before the round's owner is told; and only
when the owner has committed it does the device hear that it counts.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from functools import partial
from typing import Final

import grpc
import structlog

from coordinator.replicas.contributions import SharedSpool
from coordinator.replicas.keeper import Keeper, Owner
from coordinator.replicas.peers import Peers, explained
from coordinator.replicas.registry import Registry, View
from coordinator.rounds.closing import Stores
from coordinator.rounds.engine import Engine
from coordinator.rounds.pulse import in_thread, log_end
from coordinator.rounds.uploads import UploadTarget
from coordinator.store.thread import Grouped, StoreThread
from mien.errors import MienError, NotFoundError
from mien.protocol.canonical import task_from_json
from mien.protocol.ids import DeviceId, PopulationId, RoundId, TaskId
from mien.protocol.messages import round_message
from mien.protocol.rounds import Role, RoundRef, Stage
from mien.protocol.v1 import replicas_pb2, replicas_pb2_grpc
from mien.rounds.machine import Left, RoundState, Step, Uploaded
from mien.rounds.plan import TaskPlan, plan_task
from mien.rounds.records import RoundRecord, StepRecord

_LOG: Final = structlog.get_logger()
_LIMIT_S: Final = 60.0
_PLANS: Final = 256
_TASKS: Final = 4096


class Desks:
    """Finds the rounds of uploads; what is uploaded is shared before it counts."""

    def __init__(
        self, engine: Engine, stores: Stores, spool: SharedSpool, keeper: Keeper, peers: Peers, registry: Registry,
        thread: StoreThread,
    ) -> None:  # fmt: skip
        """`thread` is the registry's own."""
        self._engine, self._stores, self._keeper, self._peers = engine, stores, keeper, peers
        self._spool, self._hold = spool, Grouped(thread, registry.hold)
        self._populations: dict[TaskId, PopulationId] = {}
        self._plans: dict[tuple[str, Role], TaskPlan] = {}
        self._away: weakref.WeakSet[_Away] = weakref.WeakSet()
        self._refreshing: asyncio.Task[None] | None = None
        keeper.on_view.append(self._see)

    async def locate(self, device_id: DeviceId, name: RoundRef) -> tuple[UploadTarget | None, RoundRecord]:
        """Return the attempt that takes a device's upload, None where it is an old one, and its record."""
        population = await self._population(name.task_id)
        owner = await self._keeper.owner(population)
        found: tuple[UploadTarget | None, RoundRecord]
        if owner is None or owner.address is None:
            found = await self._engine.locate(device_id, name)
        else:
            found = await self._ask(owner, device_id, name)
        target, record = found
        return (None if target is None else _Shared(target, self, population, record.id)), record

    async def _population(self, task_id: TaskId) -> PopulationId:
        """Return a task's population, which never changes; the database is asked for those that run elsewhere."""
        if (here := self._engine.population_of(task_id)) is not None:
            return here
        if task_id not in self._populations:
            task = await self._stores.thread.run(self._stores.store.task, task_id)
            if len(self._populations) >= _TASKS:
                self._populations.clear()
            self._populations[task_id] = task.population
        return self._populations[task_id]

    def runs(self, population: PopulationId) -> bool:
        """Return whether this replica runs a population's tasks."""
        return self._keeper.owns(population)

    async def keep(self, round_id: RoundId, device_id: DeviceId) -> None:
        """Return once a complete contribution is in the bucket, and this replica known to hold it."""
        await in_thread(self._spool.publish, round_id, device_id)
        await self._hold((round_id, device_id))

    async def _ask(self, owner: Owner, device_id: DeviceId, name: RoundRef) -> tuple[_Away | None, RoundRecord]:
        """Return another replica's attempt; raises what it says of the device."""
        assert owner.address is not None
        stub, round_ = self._peers.stub(owner.replica_id, owner.address), round_message(name)
        request = replicas_pb2.FindUploadRequest(device_id=device_id, round=round_)
        try:
            found = await stub.FindUpload(request, timeout=_LIMIT_S)
        except grpc.aio.AioRpcError as error:
            self._keeper.nudge()
            raise explained(error) from error
        thread, store = self._stores.thread, self._stores.store
        record = await thread.run(store.round, name.task_id, name.round, name.attempt)
        if record is None:
            raise NotFoundError("this device was not selected for that round; check in again")
        if found.round_id == 0:
            return None, record
        away = _Away(stub, name, record.id, found, await self._plan(name.task_id, record.role))
        self._away.add(away)
        return away, record

    async def _plan(self, task_id: TaskId, role: Role) -> TaskPlan:
        """Return a task's plan for the devices of one role."""
        if (task_id, role) not in self._plans:
            thread, store = self._stores.thread, self._stores.store
            task = await thread.run(store.task, task_id)
            model = await thread.run(store.model, task.base_model_id)
            plan = plan_task(task_from_json(task.task_json), model.spec_json, public_shard=model.shard)
            if len(self._plans) >= _PLANS:
                self._plans.clear()
            self._plans[task_id, Role.TRAIN] = plan
            if plan.validators is not None:
                self._plans[task_id, Role.VALIDATE] = plan.validators
        return self._plans[task_id, role]

    def _see(self, _view: View) -> None:
        """Look what became of other replicas' rounds."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh(), name="rounds of other replicas")
            what = "a look at other replicas' rounds failed"
            self._refreshing.add_done_callback(partial(log_end, what=what))

    async def _refresh(self) -> None:
        try:
            await self._tell_arriving()
            await self._forget_ended()
        except MienError as error:  # there is another look soon
            _LOG.warning("no look at other replicas' rounds", reason=error.message)

    async def _forget_ended(self) -> None:
        """Erase this machine's contributions to rounds that are over; those in the bucket their owner erases."""
        here = await in_thread(self._spool.rounds)
        if here:
            thread, store = self._stores.thread, self._stores.store
            for round_id in await thread.run(store.ended_rounds, here):
                await in_thread(self._spool.remove_here, round_id)

    async def _tell_arriving(self) -> None:
        """Have uploads that are on their way to other replicas' rounds hear of it when those end."""
        for name in {away.name for away in self._away}:
            thread, store = self._stores.thread, self._stores.store
            record = await thread.run(store.round, name.task_id, name.round, name.attempt)
            for away in self._away:
                if away.name == name and record is not None:
                    away.state = RoundState(record.stage, math.inf)


class _Away:
    """An attempt that another replica runs, as it was told when this was made; its stage is kept up to date."""

    def __init__(
        self,
        stub: replicas_pb2_grpc.ReplicasAsyncStub,
        name: RoundRef,
        round_id: RoundId,
        found: replicas_pb2.FindUploadReply,
        plan: TaskPlan,
    ) -> None:
        self._stub, self.name, self._round_id = stub, name, round_id
        self.state = RoundState(Stage(found.stage), math.inf)
        self.plan, self.upload_bytes = plan, found.upload_bytes
        self._step = Step(found.step) if found.step else None

    @property
    def is_current(self) -> bool:
        """True while the attempt goes on, for all that is known here: its owner says more."""
        return True

    def step_of(self, device_id: DeviceId) -> Step | None:
        """Return the step that the device of this object has reached."""
        return self._step

    async def post(self, event: Uploaded | Left, *, step: StepRecord | None = None) -> None:
        request = replicas_pb2.PostUploadRequest(
            device_id=event.device_id,
            round=round_message(self.name),
            round_id=self._round_id,
            error_code=event.error_code if isinstance(event, Left) else "",
            masked=b"" if step is None else step.message,
        )
        try:
            await self._stub.PostUpload(request, timeout=_LIMIT_S)
        except grpc.aio.AioRpcError as error:
            raise explained(error) from error


class _Shared:
    """An attempt, of this replica or another, whose contributions lie in the bucket before they count."""

    def __init__(self, target: UploadTarget, desks: Desks, population: PopulationId, round_id: RoundId) -> None:
        self._target, self._desks, self._population, self._round_id = target, desks, population, round_id
        self.plan, self.upload_bytes = target.plan, target.upload_bytes

    @property
    def state(self) -> RoundState:
        return self._target.state

    @property
    def is_current(self) -> bool:
        """True while the attempt goes on here, or for all that is known elsewhere: its owner then says more."""
        return self._target.is_current or not self._desks.runs(self._population)

    def step_of(self, device_id: DeviceId) -> Step | None:
        return self._target.step_of(device_id)

    async def post(self, event: Uploaded | Left, *, step: StepRecord | None = None) -> None:
        if isinstance(event, Uploaded):
            await self._desks.keep(self._round_id, event.device_id)
        await self._target.post(event, step=step)
