"""Closing rounds on disk (I/O): spool files into `server_step`, blobs out of it; what it makes is not yet committed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, ParamSpec, Protocol

import numpy as np
import structlog
from numpy.typing import NDArray

from coordinator.rounds.masked import MaskedRound, suspects_in_words
from coordinator.rounds.pulse import in_thread
from coordinator.rounds.spool import Spool
from coordinator.rounds.states import ServerStates, read_theta
from coordinator.rounds.traces import NO_TRACES, RoundTraces
from coordinator.store.audit import COORDINATOR
from coordinator.store.blobs import BlobStore
from coordinator.store.store import Store
from coordinator.store.thread import StoreThread
from mien.contribution import Arrays, ContributionLayout, Total
from mien.errors import MienError
from mien.layout import Vector
from mien.methods.base import CANDIDATES, ServerState
from mien.protocol.canonical import to_canonical_json
from mien.protocol.ids import DeviceId, RoundId, RoundNumber
from mien.protocol.rounds import Role
from mien.protocol.tensors import pack_tensors
from mien.rounds.buffered import staleness, weighed, weight
from mien.rounds.plan import TaskPlan
from mien.rounds.records import EvaluationRecord, ModelRecord, RoundRecord, TaskRecord, UploadRecord
from mien.rounds.server_step import (
    MOVED_NOTHING,
    ClosedRound,
    add_up,
    make_candidates,
    scalar_means,
    take_judged_step,
    take_step,
)
from mien.shell.clock import Clock, to_ms

_LOG: Final = structlog.get_logger()
P = ParamSpec("P")


class PartialSums(Protocol):
    """Adds up contributions that several replicas hold (`coordinator.replicas.sums`)."""

    async def plain(
        self,
        round_id: RoundId,
        device_ids: Sequence[DeviceId],
        uploads: Mapping[DeviceId, UploadRecord],
        layout: ContributionLayout,
    ) -> Total:
        """Return the total over the devices."""

    async def masked(self, round_id: RoundId, uploads: Mapping[DeviceId, UploadRecord], masked: MaskedRound) -> None:
        """Bring all vectors that are not in the sums yet into them."""


@dataclass(frozen=True)
class Stores:
    """The stores of rounds; `sums` where replicas share the rounds; `traces` hears how they go."""

    store: Store
    thread: StoreThread
    models: BlobStore
    states: ServerStates
    spool: Spool
    sums: PartialSums | None = None
    traces: RoundTraces = NO_TRACES

    def sums_of(self, plan: TaskPlan) -> PartialSums | None:
        """Return the adder of a task's contributions, None where the owner of the round reads each of them itself.

        It does where they show something in clear: what each device showed is needed, not only a sum.
        """
        return None if plan.contribution.revealed else self.sums


@dataclass(frozen=True)
class Closed:
    """The result of closing, its blobs on stable storage already; `model` is the task's own where none was made."""

    state: ServerState = field(repr=False)
    metrics: Mapping[str, float]
    model: ModelRecord
    arrays_sha256: str | None = None
    revealed_sha256: str | None = None
    next_clip: float | None = None
    evaluations: tuple[EvaluationRecord, ...] = ()

    @property
    def model_blobs(self) -> set[str]:
        """The hashes of what the model consists of."""
        return {blob.sha256 for blob in (self.model.theta, self.model.changes) if blob is not None}

    @property
    def state_blobs(self) -> set[str]:
        """The hashes of the server state that the step leaves."""
        return {sha256 for sha256 in (self.arrays_sha256, self.revealed_sha256) if sha256}


@dataclass(frozen=True)
class Offered:
    """The trainers' total where validators judge it, on stable storage already; there is no model yet."""

    candidates_sha256: str
    metrics: Mapping[str, float]

    @property
    def model_blobs(self) -> set[str]:
        """The hashes of what a model consists of: there is none."""
        return set()

    @property
    def state_blobs(self) -> set[str]:
        """The hash of the total."""
        return {self.candidates_sha256}


@dataclass(frozen=True)
class _Sum:
    """A cohort's total, what its devices showed in clear, what is told of it, and what an adaptive clip becomes."""

    total: Total = field(repr=False)
    revealed: Mapping[str, Arrays] = field(repr=False)
    metrics: Mapping[str, float]
    next_clip: float | None = None


class Closer:
    """Holds one task's server state, and takes its step at the end of a round."""

    def __init__(
        self,
        task: TaskRecord,
        plan: TaskPlan,
        stores: Stores,
        clock: Clock,
        max_step_ratio: float,
        keep_round_models: int,
    ) -> None:
        """`keep_round_models` of the task are kept besides those that something refers to."""
        self._task_id, self._plan, self._stores, self._clock = task.task_id, plan, stores, clock
        self._max_step_ratio, self._keep_round_models = max_step_ratio, keep_round_models
        self._state: ServerState | None = None
        self._candidates: tuple[str, Arrays] | None = None
        self._blobs = task.state_blobs
        self._held: Counter[str] = Counter()
        """Server state of steps that are not committed yet, as often as it was put."""
        self._pending: list[Closed] = []
        self._reading = asyncio.Lock()

    async def server_state(self, task: TaskRecord) -> ServerState:
        """Return the server's state between rounds; read from disk when it is first needed.

        Once, however many devices are told of the round at the same time: each reading holds a model in memory.
        """
        async with self._reading:
            if self._state is None or self._state.rounds != task.rounds_closed:
                self._state = await self._load(task)
            return self._state

    async def _load(self, task: TaskRecord) -> ServerState:
        model = await self._stores.thread.run(self._stores.store.model, task.model_id)
        theta = self._plan.layout.check(await in_thread(read_theta, self._stores.models, model.theta))
        if task.arrays_sha256 is None and task.revealed_sha256 is None:  # the first round, or back at its model
            start = self._plan.method.server_start(self._plan.task, self._plan.part, theta)
            return replace(start, rounds=task.rounds_closed)
        states = self._stores.states
        return ServerState(
            theta=theta,
            arrays=await in_thread(states.arrays, task.arrays_sha256),
            revealed=await in_thread(states.revealed, task.task_id, task.revealed_sha256),
            rounds=task.rounds_closed,
        )

    async def candidates(self, task: TaskRecord) -> Arrays:
        """Return the validators' arrays on waiting candidates; raises CorruptDataError, StorageError."""
        sha256 = task.candidates_sha256
        assert sha256 is not None, "nothing is judged before trainers have made it"
        server = await self.server_state(task)
        async with self._reading:  # as there: validators are told at the same time
            if self._candidates is None or self._candidates[0] != sha256:
                values = await in_thread(lambda: self._make_candidates(server, self._trainers_total(task)))
                self._candidates = sha256, {CANDIDATES: values}
            return self._candidates[1]

    def _trainers_total(self, task: TaskRecord) -> Total:
        assert task.candidates_sha256 is not None
        return self._stores.states.total(task.task_id, task.candidates_sha256, self._plan.contribution)

    def _make_candidates(self, server: ServerState, total: Total) -> NDArray[np.float32]:
        return make_candidates(self._plan, server, total, max_step_ratio=self._max_step_ratio)

    async def close(
        self, task: TaskRecord, record: RoundRecord, device_ids: Sequence[DeviceId], masked: MaskedRound | None
    ) -> Closed | Offered:
        """Return the model that the devices' contributions make, added up in order of their ids, or by `masked`.

        Where validators judge it, trainers make no model yet but candidates, and the validators' scores the model.
        Raises NonFiniteError or CorruptDataError when the round has to be aborted, StorageError or UnreachableError to
        try again.
        """
        server = await self.server_state(task)
        uploads = await self._stores.thread.run(self._stores.store.uploads, record.id)
        plan = self._plan if record.role is Role.TRAIN else self._plan.validators
        assert plan is not None, "only a task with validators has attempts of theirs"

        def read(device: DeviceId) -> bytes:
            return self._stores.spool.read(record.id, device, uploads[device].blob)

        total = None
        if (sums := self._stores.sums_of(plan)) is not None:
            if masked is None:
                total = await sums.plain(record.id, sorted(device_ids), uploads, plan.contribution)
            else:
                await sums.masked(record.id, uploads, masked)
        with self._stores.traces.work("sum", record.ref):
            summed = await in_thread(lambda: self._sum_up(plan, masked, sorted(device_ids), read, total))
        if record.role is Role.TRAIN and plan.validators is not None:
            return await in_thread(lambda: self._offer(task, server, summed))
        with self._stores.traces.work("server step", record.ref):
            result = await in_thread(lambda: self._step(task, record, server, summed))
        return await self._keep(task, record, result, summed.next_clip)

    def _sum_up(
        self,
        plan: TaskPlan,
        masked: MaskedRound | None,
        device_ids: Sequence[DeviceId],
        read: Callable[[DeviceId], bytes],
        total: Total | None,
    ) -> _Sum:
        """Return the opened sums, or the plain one: `total` where replicas have added it up."""
        if total is not None:
            return _Sum(total, {}, scalar_means(total))
        if masked is None:
            total, shown = add_up(plan, ((device, read(device)) for device in device_ids))
            return _Sum(total, shown, scalar_means(total))
        opened, revealed = masked.open(), dict[str, Arrays]()
        if plan.contribution.revealed:
            start = masked.payload_bytes
            revealed = {device: plan.contribution.parse_revealed(read(device)[start:]) for device in device_ids}
        if opened.suspects:
            _LOG.warning("shares that did not fit", task=plan.task.name, pairs=suspects_in_words(opened.suspects))
        told = {} if plan.task.privacy.dp.is_on else scalar_means(opened.total)  # devices send none under it
        metrics = {**told, "unmask_s": opened.seconds}
        if opened.share_clipped is not None:
            metrics["share_clipped"] = opened.share_clipped
        return _Sum(opened.total, revealed, metrics, opened.next_clip)

    def _offer(self, task: TaskRecord, server: ServerState, summed: _Sum) -> Offered:
        """Keep the trainers' total, of which validators judge the candidates."""
        candidates = self._make_candidates(server, summed.total)  # what could not become a model is refused here
        sha256 = self._put(self._stores.states.put_total, task.task_id, summed.total)
        assert sha256 is not None, "a total is never empty"
        self._candidates = sha256, {CANDIDATES: candidates}
        return Offered(sha256, summed.metrics)

    def _step(self, task: TaskRecord, record: RoundRecord, server: ServerState, summed: _Sum) -> ClosedRound:
        """Return the result of the server's step on a sum, and all that is told of it."""
        ratio, metrics, total = self._max_step_ratio, dict(summed.metrics), summed.total
        if (spec := self._plan.task.asynchronous) is not None:
            tau = staleness(server.rounds, record.base_version)
            total = weighed(spec, total, server.rounds, record.base_version)
            metrics |= {"staleness": float(tau), "staleness_weight": weight(spec, tau)}
        if record.role is Role.VALIDATE:
            trained = self._trainers_total(task)
            result = take_judged_step(self._plan, server, trained, summed.total, max_step_ratio=ratio)
        else:
            result = take_step(self._plan, server, total, summed.revealed, max_step_ratio=ratio)
        if MOVED_NOTHING in result.metrics:
            _LOG.warning("a round moved nothing", task=self._plan.task.name, round=record.round)
        told = {} if self._plan.task.privacy.dp.is_on else result.metrics
        return replace(result, metrics={**told, **metrics, **result.state.figures})

    async def _keep(
        self, task: TaskRecord, record: RoundRecord, result: ClosedRound, next_clip: float | None
    ) -> Closed:
        """Lay down the blobs of a new model and of the server's state."""
        state, states = result.state, self._stores.states
        if result.measured is not None:
            return await self._keep_measured(task, record, result)
        # In asynchronous mode the step was taken on a newer model than that of the cohort.
        parent = await self._stores.thread.run(self._stores.store.model, task.model_id)
        model = parent if state.lacks else await self._keep_model(task, result, parent)
        arrays_sha256 = await in_thread(self._put, states.put_arrays, state.arrays)
        try:
            revealed_sha256 = await in_thread(self._put, states.put_revealed, task.task_id, state.revealed)
        except MienError:
            self._let_go({arrays_sha256: 1} if arrays_sha256 else {})  # the whole step is taken again
            raise
        evidence = (self._evaluation(task, record, model, self._predicted(state)),) if state.evidence else ()
        closed = Closed(state, result.metrics, model, arrays_sha256, revealed_sha256, next_clip, evidence)
        self._pending.append(closed)
        return closed

    async def _keep_model(self, task: TaskRecord, result: ClosedRound, parent: ModelRecord) -> ModelRecord:
        """Lay down the blobs of a round's model."""
        state = result.state
        theta = await in_thread(self._stores.models.put, state.theta.astype("<f4").tobytes())
        changes = await in_thread(self._stores.models.put, self._changed_tensors(state.theta))
        return ModelRecord(
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
            round=RoundNumber(state.rounds),
        )

    def _put(self, put: Callable[P, str | None], *args: P.args, **kwargs: P.kwargs) -> str | None:
        """Lay server state down, which is held until its step is committed or dropped."""
        sha256 = put(*args, **kwargs)
        if sha256 is not None:
            self._blobs |= {sha256}
            self._held[sha256] += 1
        return sha256

    async def _keep_measured(self, task: TaskRecord, record: RoundRecord, result: ClosedRound) -> Closed:
        """Return a round that leaves the model as it is, with what it says of that."""
        model = await self._stores.thread.run(self._stores.store.model, record.base_model_id)
        kept = self._evaluation(task, record, model, result.measured or {})
        return Closed(result.state, result.metrics, model, evaluations=(kept,))

    def _predicted(self, state: ServerState) -> Mapping[str, Any]:
        """Return what a model was chosen by as a record of it: predicted, for nobody's pictures were compared."""
        task = self._plan.task
        return {
            "protocol": f"{task.method}, predicted",
            "protocol_version": "1",
            "dataset": f"moments of the newest cohort of population {task.population}",
            "seed": task.seed,
            **state.evidence,
        }

    def _evaluation(
        self, task: TaskRecord, record: RoundRecord, model: ModelRecord, told: Mapping[str, Any]
    ) -> EvaluationRecord:
        """Return what a round says of a model, with its provenance."""
        said = {
            **told,
            "model_id": model.model_id,
            "task_id": task.task_id,
            "round": record.round,
            "command": f"mien-coordinator serve: task {task.name}, round {record.round}",
        }
        return EvaluationRecord(model.model_id, to_canonical_json(said), self._clock.now_ms(), COORDINATOR)

    def _changed_tensors(self, theta: Vector) -> bytes:
        """Return what devices that hold an earlier model of the task need of this one: the trained tensors."""
        tensors = self._plan.layout.unflatten(theta)
        return pack_tensors({name: tensors[name] for name in self._plan.part.names})

    async def committed(self, closed: Closed | Offered) -> None:
        """Go on from the committed state, and forget the one that it replaced."""
        self._settle(closed)
        if isinstance(closed, Offered):
            return
        # Where cohorts add up the next one is of the task's own model, which is read again.
        self._state, self._candidates = None if self._plan.method.adds_up else closed.state, None
        await self.forget_unneeded()
        store = self._stores.store
        gone = await self._stores.thread.run(store.forget_round_models, self._task_id, self._keep_round_models)
        await self._remove_models(set(gone))

    async def drop(self, closed: Closed | Offered) -> None:
        """Delete what a step that will not be committed has laid down, unless it is another one's as well."""
        self._settle(closed)
        thread, store = self._stores.thread, self._stores.store
        await self._remove_models(closed.model_blobs - await thread.run(store.model_blobs))
        await self._remove_states(closed.state_blobs - await thread.run(store.state_blobs))

    def _settle(self, closed: Closed | Offered) -> None:
        """Hold a step's blobs no longer: it is committed, or never will be."""
        self._pending = [each for each in self._pending if each is not closed]
        self._let_go({sha256: 1 for sha256 in closed.state_blobs if self._held[sha256]})

    def _let_go(self, held: Mapping[str, int]) -> None:
        self._held -= Counter(held)
        self._stores.states.let_go(held)

    async def _remove_models(self, hashes: set[str]) -> None:
        for sha256 in hashes.difference(*(each.model_blobs for each in self._pending)):
            await in_thread(self._stores.models.remove, sha256)

    async def _remove_states(self, hashes: set[str]) -> None:
        await in_thread(self._stores.states.remove, hashes)
        self._blobs -= hashes.difference(self._held)

    async def go_back(self) -> None:
        """Go on from what the task's record names, which is another model than that of the last round."""
        self._state, self._candidates = None, None
        await self.forget_unneeded()

    async def forget_unneeded(self) -> None:
        """Delete the server state that no task goes on from and no step is about to commit."""
        await self._remove_states(self._blobs - await self._stores.thread.run(self._stores.store.state_blobs))

    async def forget_all(self) -> None:
        """Delete the server state of a task that is over; its steps that are yet to be committed leave none."""
        self.give_up()
        await self.forget_unneeded()

    def give_up(self) -> None:
        """Hold nothing any more for steps that are not committed: nobody will commit them with their state."""
        self._let_go(dict(self._held))
