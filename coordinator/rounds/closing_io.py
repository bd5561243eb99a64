"""Closing rounds on disk (I/O): spool files into `server_step`, blobs out of it; what it makes is not yet committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from coordinator.clock import Clock, to_ms
from coordinator.rounds.masked import MaskedRound, suspects_in_words
from coordinator.rounds.plan import TaskPlan
from coordinator.rounds.pulse import in_thread
from coordinator.rounds.server_step import ClosedRound, close_round, take_step
from coordinator.rounds.spool import Spool
from coordinator.rounds.states import ServerStates, read_theta
from coordinator.store.blobs import BlobStore
from coordinator.store.records import ModelRecord, RoundRecord, TaskRecord
from coordinator.store.store import Store, StoreThread
from mien.contribution import Arrays
from mien.layout import Vector
from mien.methods.base import ServerState
from mien.wire.tensors import pack_tensors

_LOG: Final = structlog.get_logger()


@dataclass(frozen=True)
class Stores:
    """Where rounds keep things."""

    store: Store
    thread: StoreThread
    models: BlobStore
    states: ServerStates
    spool: Spool


@dataclass(frozen=True)
class Closed:
    """What closing made, its blobs on stable storage already."""

    state: ServerState = field(repr=False)
    result: ClosedRound
    model: ModelRecord
    arrays_sha256: str | None
    revealed_sha256: str | None
    next_clip: float | None = None


class Closer:
    """Holds one task's server state, and takes its step at the end of a round."""

    def __init__(self, task: TaskRecord, plan: TaskPlan, stores: Stores, clock: Clock, max_step_ratio: float) -> None:
        self._plan, self._stores, self._clock = plan, stores, clock
        self._max_step_ratio = max_step_ratio
        self._state: ServerState | None = None
        self._blobs = task.state_blobs

    async def server_state(self, task: TaskRecord) -> ServerState:
        """Return what the server carries from round to round; read from disk when it is first needed."""
        if self._state is None or self._state.rounds != task.rounds_closed:
            self._state = await self._load(task)
        return self._state

    async def _load(self, task: TaskRecord) -> ServerState:
        model = await self._stores.thread.run(self._stores.store.model, task.model_id)
        theta = self._plan.layout.check(await in_thread(read_theta, self._stores.models, model.theta))
        if task.rounds_closed == 0:
            return self._plan.method.server_start(self._plan.task, self._plan.part, theta)
        states = self._stores.states
        return ServerState(
            theta=theta,
            arrays=await in_thread(states.arrays, task.arrays_sha256),
            revealed=await in_thread(states.revealed, task.task_id, task.revealed_sha256),
            rounds=task.rounds_closed,
        )

    async def close(
        self, task: TaskRecord, record: RoundRecord, device_ids: Sequence[str], masked: MaskedRound | None
    ) -> Closed:
        """Return the model that the devices' contributions make, added up in order of their ids, or by `masked`.

        Where validators judge it, trainers make no model yet but candidates, and the validators' scores the model.
        Raises NonFiniteError or CorruptDataError when the round has to be aborted, StorageError or UnreachableError to
        try again.
        """
        server = await self.server_state(task)
        uploads = await self._stores.thread.run(self._stores.store.uploads, record.id)

        def read(device: str) -> bytes:
            return self._stores.spool.read(record.id, device, uploads[device].blob)

        def sum_up() -> tuple[ClosedRound, float | None]:
            if masked is not None:
                return self._open(masked, server, device_ids, read)
            pairs = ((device, read(device)) for device in sorted(device_ids))
            return close_round(self._plan, server, pairs, max_step_ratio=self._max_step_ratio), None

        result, next_clip = await in_thread(sum_up)
        state, states = result.state, self._stores.states
        theta = await in_thread(self._stores.models.put, state.theta.astype("<f4").tobytes())
        changes = await in_thread(self._stores.models.put, self._changed_tensors(state.theta))
        parent = await self._stores.thread.run(self._stores.store.model, record.base_model_id)
        model = ModelRecord(
            model_id=result.model_id,
            spec_json=result.spec_json,
            layout_sha256=self._plan.layout.sha256,
            theta=theta,
            created_ms=to_ms(self._clock.now()),
            shard=parent.shard,
            changes=changes,
            parent_model_id=parent.model_id,
            population=task.population,
            task_id=task.task_id,
            round=record.round,
        )
        arrays_sha256 = await in_thread(states.put_arrays, state.arrays)
        revealed_sha256 = await in_thread(states.put_revealed, task.task_id, state.revealed)
        self._blobs |= {sha256 for sha256 in (arrays_sha256, revealed_sha256) if sha256}
        return Closed(state, result, model, arrays_sha256, revealed_sha256, next_clip)

    def _open(
        self, masked: MaskedRound, server: ServerState, device_ids: Sequence[str], read: Callable[[str], bytes]
    ) -> tuple[ClosedRound, float | None]:
        """Return what the server's step on the opened sums makes, and what an adaptive clip becomes."""
        opened, layout = masked.open(), self._plan.contribution
        revealed: dict[str, Arrays] = {}
        if layout.revealed:
            start = masked.payload_bytes
            revealed = {device: layout.parse_revealed(read(device)[start:]) for device in device_ids}
        if opened.suspects:
            _LOG.warning("shares that did not fit", task=self._plan.task.name, pairs=suspects_in_words(opened.suspects))
        result = take_step(self._plan, server, opened.total, revealed, max_step_ratio=self._max_step_ratio)
        told = {} if self._plan.task.privacy.dp.is_on else result.metrics  # devices send none under it
        metrics = {**told, "unmask_s": opened.seconds}
        if opened.share_clipped is not None:
            metrics["share_clipped"] = opened.share_clipped
        return replace(result, metrics=metrics), opened.next_clip

    def _changed_tensors(self, theta: Vector) -> bytes:
        """Return what devices that hold an earlier model of the task need of this one: the trained tensors."""
        tensors = self._plan.layout.unflatten(theta)
        return pack_tensors({name: tensors[name] for name in self._plan.part.names})

    async def committed(self, closed: Closed) -> None:
        """Go on from the committed state, and forget the one that it replaced."""
        self._state = closed.state
        await self.forget_unneeded()

    async def forget_unneeded(self) -> None:
        """Delete the server state that no task goes on from: all of this one's once it is over."""
        needed = await self._stores.thread.run(self._stores.store.state_blobs)
        await in_thread(self._stores.states.remove, self._blobs - needed)
        self._blobs &= needed
