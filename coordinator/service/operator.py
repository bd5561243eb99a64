"""`mien.v1.Operator`: tasks and models, for holders of an operator's certificate."""

# ruff: noqa: N802 - methods are named by the protocol

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from coordinator.release.rollback_check import check_way_back
from coordinator.rounds.closing import Stores
from coordinator.rounds.engine import Engine, TaskNews
from coordinator.rounds.pulse import in_thread
from coordinator.rounds.states import read_theta
from coordinator.service.access import caller
from coordinator.service.messages import check_hash, check_id, manifest, roll_out_status, seen_device
from coordinator.service.rpc import hello_reply
from coordinator.store.blobs import BlobWriter
from mien.errors import ConfigError, CorruptDataError, ModelMismatchError, UnavailableError
from mien.layout import ParameterLayout, model_id
from mien.models import bundles
from mien.models.bundles import BundleManifest
from mien.models.known_thresholds import known_thresholds
from mien.protocol.canonical import model_from_json, model_to_json, parse_json, task_from_json, to_canonical_json
from mien.protocol.ids import ModelId, PopulationId, TaskId
from mien.protocol.messages import REPORTED_STAGES, ROLES
from mien.protocol.rounds import BlobId
from mien.protocol.tensors import PublicShard
from mien.protocol.v1 import common_pb2, models_pb2, operator_pb2, operator_pb2_grpc, rounds_pb2
from mien.records import from_mapping
from mien.rounds.plan import check_hidden
from mien.rounds.records import BundleRecord, ModelRecord, RoundRecord, TaskRecord, TaskState
from mien.rounds.releases import ModelState, Standing, check_comparable
from mien.rounds.rollouts import Move, RollOutRecord, RollOutState, continued, spec_from_json, threshold_for
from mien.rounds.thresholds import PHONES_MAX_FMR, decides, with_own, with_rates
from mien.shell.clock import Clock
from mien.shell.keys import secret_hex
from mien.specs import GroupRate, ModelSpec, Threshold

_MAX_TOKEN: Final = 80
_PAGE: Final = 1000

_T = TypeVar("_T")


class OperatorService(operator_pb2_grpc.OperatorServicer):
    """The operators' service."""

    def __init__(
        self,
        engine: Engine,
        stores: Stores,
        clock: Clock,
        *,
        max_model_bytes: int,
        max_shard_bytes: int,
        settings: Mapping[str, Any],
        readiness: Callable[[], Awaitable[dict[str, str]]],
        release_key: str = "",
    ) -> None:
        """With a `release_key` nothing is released that it did not sign.

        `settings` are those in force as they may be shown, `readiness` returns what is wrong with each thing needed.
        """
        self._release_key, self._instance = release_key, secret_hex(16)
        self._settings, self._readiness = settings, readiness
        self._store, self._thread, self._models = stores.store, stores.thread, stores.models
        self._engine, self._clock = engine, clock
        self._max_model_bytes, self._max_shard_bytes = max_model_bytes, max_shard_bytes

    async def Hello(self, request: common_pb2.HelloRequest, context: Any) -> common_pb2.HelloReply:
        """Return the protocol version to speak, and the clock."""
        return hello_reply(request, "mien-coordinator", self._clock.now_ms())

    async def Examine(self, request: operator_pb2.ExamineRequest, context: Any) -> operator_pb2.ExamineReply:
        """Return the settings in force, and what keeps this coordinator from taking devices."""
        settings_json = to_canonical_json(self._settings)
        checks = await self._readiness()
        return operator_pb2.ExamineReply(settings_json=settings_json, checks=checks, instance=self._instance)

    # Tasks

    async def SubmitTask(self, request: operator_pb2.SubmitTaskRequest, context: Any) -> operator_pb2.TaskStatus:
        """Return the new task's status; the same token again returns the same task.

        What was accepted stays so, whatever rules, its model and the ledger have come to since.
        """
        if not 1 <= len(request.idempotency_token) <= _MAX_TOKEN:
            raise ConfigError(f"idempotency_token must have 1 to {_MAX_TOKEN} characters")
        kept = await self._thread.run(self._store.task_of_token, request.idempotency_token)
        if kept is None:
            task = task_from_json(request.task_json)
            check_hidden(task)
            kept = await self._engine.submit(task, token=request.idempotency_token, actor=caller().id)
        return self._status(kept)

    async def ListTasks(self, request: operator_pb2.ListTasksRequest, context: Any) -> operator_pb2.ListTasksReply:
        """Return every task's status."""
        tasks = await self._thread.run(self._store.tasks)
        return operator_pb2.ListTasksReply(tasks=[self._status(task) for task in tasks])

    async def WatchTask(
        self, request: operator_pb2.WatchTaskRequest, context: Any
    ) -> AsyncGenerator[operator_pb2.TaskEvent, None]:
        """Yield a task's history, then its changes until it is over."""
        async for news in self._engine.watch(TaskId(request.task_id)):
            yield _event(news)

    async def PauseTask(self, request: operator_pb2.TaskRequest, context: Any) -> operator_pb2.TaskStatus:
        """Return the task's status; a round under way goes on to its end, no new one begins."""
        return await self._command(TaskId(request.task_id), TaskState.PAUSED)

    async def ResumeTask(self, request: operator_pb2.TaskRequest, context: Any) -> operator_pb2.TaskStatus:
        """Return the task's status; new rounds begin again."""
        return await self._command(TaskId(request.task_id), TaskState.RUNNING)

    async def CancelTask(self, request: operator_pb2.TaskRequest, context: Any) -> operator_pb2.TaskStatus:
        """Return the task's status; a round under way is aborted."""
        return await self._command(TaskId(request.task_id), TaskState.CANCELLED)

    async def _command(self, task_id: TaskId, state: TaskState) -> operator_pb2.TaskStatus:
        return self._status(await self._engine.command(task_id, state, actor=caller().id))

    def _status(self, task: TaskRecord) -> operator_pb2.TaskStatus:
        return _status(self._engine.news(task))

    # Devices

    async def ListSeenDevices(
        self, request: operator_pb2.ListSeenDevicesRequest, context: Any
    ) -> operator_pb2.ListSeenDevicesReply:
        """Return devices that have called, in the order of ids, a page of them."""
        limit = min(request.limit or _PAGE, _PAGE)
        found = await self._thread.run(
            partial(self._store.devices, after=check_id(request.after_device_id), limit=limit)
        )
        return operator_pb2.ListSeenDevicesReply(devices=[seen_device(device) for device in found])

    async def CountSeenDevices(
        self, request: operator_pb2.CountSeenDevicesRequest, context: Any
    ) -> operator_pb2.CountSeenDevicesReply:
        """Return how many devices of each population have ever called."""
        counts = await self._thread.run(self._store.devices_since, 0)
        return operator_pb2.CountSeenDevicesReply(num_devices={str(name): number for name, number in counts.items()})

    # Models

    async def ListModels(self, request: operator_pb2.ListModelsRequest, context: Any) -> operator_pb2.ListModelsReply:
        """Return every model's manifest and where it stands; layouts are left out: they can be long."""
        models = await self._thread.run(self._store.models)
        standings = await self._thread.run(self._store.standings)
        statuses = [_model_status(model, standings.get(model.model_id, Standing(ModelState.ROUND))) for model in models]
        return operator_pb2.ListModelsReply(
            models=[
                manifest(replace(model, spec_json=b""), is_released=status.state == ModelState.RELEASED)
                for model, status in zip(models, statuses, strict=True)
            ],
            statuses=statuses,
        )

    async def ReleaseModel(self, request: operator_pb2.ReleaseModelRequest, context: Any) -> models_pb2.ModelManifest:
        """Return the model that is in force from now on, for all devices or a share of them."""
        model = await self._thread.run(self._store.model, ModelId(request.model_id))
        bundle = await self._signed(model, request)
        if bundle is None and self._release_key and await self._thread.run(self._store.bundle, model.model_id) is None:
            raise ConfigError(
                "phones take only what the release key signed: run model export, model sign where the key is, then "
                "model release --bundle"
            )
        told: dict[str, Any] = {"population": model.population, "actor": caller().id, "bundle": bundle}
        told["despite_gates"] = request.despite_gates
        if request.roll_out_json:
            await self._roll_out(model, request, told)
        else:
            await self._thread.run(self._store.release, model.model_id, share=request.share or 1.0, **told)
        self._engine.changed.beat()
        return manifest(model, is_released=True)

    async def _roll_out(
        self, model: ModelRecord, request: operator_pb2.ReleaseModelRequest, told: Mapping[str, Any]
    ) -> None:
        """Begin a staged roll-out; what phones could not be asked, or would not go back from, is refused now."""
        if request.share:
            raise ConfigError("the roll-out's stages say which share is first; leave --share out")
        spec = spec_from_json(request.roll_out_json)
        spec = replace(spec, population=model.population or spec.population)
        if model.shard is None:
            raise ConfigError(
                "the model came without public faces, and phones compare with those: import it with --public"
            )
        reference = await self._thread.run(self._store.released, PopulationId(spec.population))
        if reference is not None:
            before = await self._thread.run(self._store.model, reference.model_id)
            check_comparable(model, before)
            for each, bundle in ((model, told["bundle"]), (before, None)):
                signed = bundle or await self._thread.run(self._store.bundle, each.model_id)
                threshold_for(signed.spec_json if signed else each.spec_json, each.model_id, spec.gates.fmr)
        await self._thread.run(self._store.start_roll_out, model.model_id, spec, **told)

    # Roll-outs

    async def ListRollOuts(
        self, request: operator_pb2.ListRollOutsRequest, context: Any
    ) -> operator_pb2.ListRollOutsReply:
        """Return all staged roll-outs, oldest first."""
        found = await self._thread.run(self._store.roll_outs)
        return operator_pb2.ListRollOutsReply(roll_outs=[roll_out_status(each) for each in found])

    async def ContinueRollOut(self, request: operator_pb2.RollOutRequest, context: Any) -> operator_pb2.RollOutStatus:
        """Return a roll-out that goes on: to its next share where it held, else phones are asked again."""
        before = await self._thread.run(self._store.roll_out, request.id)
        return await self._move(before, continued(before))

    async def StopRollOut(self, request: operator_pb2.RollOutRequest, context: Any) -> operator_pb2.RollOutStatus:
        """Return a roll-out that has ended where it was; again changes nothing."""
        before = await self._thread.run(self._store.roll_out, request.id)
        if before.state.is_over:
            return roll_out_status(before)
        stopped = replace(before, state=RollOutState.STOPPED, reason=f"stopped by {caller().id}")
        told = await self._move(before, Move(stopped))
        if before.task_id is not None:
            with contextlib.suppress(UnavailableError):  # another coordinator has the task: it ends by itself
                await self._engine.command(before.task_id, TaskState.CANCELLED, actor=caller().id)
        return told

    async def _move(self, before: RollOutRecord, move: Move) -> operator_pb2.RollOutStatus:
        after = await self._thread.run(self._store.move_roll_out, before, move, actor=caller().id)
        self._engine.changed.beat()
        return roll_out_status(after)

    def _verified(self, manifest_json: bytes, signature: bytes) -> BundleManifest:
        if not self._release_key:
            raise ConfigError("this coordinator trusts no release key; put release_key into coordinator.toml, restart")
        return bundles.verify(self._release_key, manifest_json, signature)

    async def _signed(self, model: ModelRecord, request: operator_pb2.ReleaseModelRequest) -> BundleRecord | None:
        """Return the bundle that a release brings, checked against the model that is here; None where there is none."""
        if not request.bundle_manifest:
            return None
        signed = self._verified(request.bundle_manifest, request.bundle_signature)
        if signed.model_id != model.model_id:
            raise ModelMismatchError("the bundle is of another model; name that one, or sign this one")
        bundles.check_description(signed, model.spec_json)
        ours = {bundles.THETA: model.theta, **({bundles.SHARD: model.shard} if model.shard is not None else {})}
        for file in signed.files:
            if bundles.is_extra(file.name):
                here = await in_thread(self._models.exists, file.sha256)
            else:
                here = file.name == bundles.MODEL or ours.get(file.name) == BlobId(file.sha256, file.size_bytes)
            if not here:
                raise CorruptDataError(f"the bundle lists {file.name}, which this coordinator does not have so")
        return BundleRecord(
            signed.sequence, model.model_id, request.bundle_manifest, request.bundle_signature, model.spec_json
        )

    async def RollBack(self, request: operator_pb2.RollBackRequest, context: Any) -> models_pb2.ModelManifest:
        """Return the model that is in force again."""
        newest = await self._thread.run(self._store.newest_release)
        population = PopulationId(request.population) or (None if newest is None else newest.population)
        await self._thread.run(check_way_back, self._store, self._release_key, population)
        release = await self._thread.run(self._store.roll_back, population, actor=caller().id)
        self._engine.changed.beat()
        return manifest(await self._thread.run(self._store.model, release.model_id), is_released=True)

    async def AddEvaluation(
        self, request: operator_pb2.AddEvaluationRequest, context: Any
    ) -> operator_pb2.AddEvaluationReply:
        """Keep a measurement of a model; raises CorruptDataError for what is no record of it."""
        model = await self._thread.run(self._store.model, ModelId(request.model_id))
        record = parse_json(request.record_json, what="the evaluation's record")
        if not isinstance(record, dict) or record.get("model_id") != model.model_id:
            raise CorruptDataError("the evaluation's record is not of this model; evaluate it again")
        kept = to_canonical_json(record)
        await self._thread.run(self._store.add_evaluation, model.model_id, kept, actor=caller().id)
        return operator_pb2.AddEvaluationReply()

    async def ListEvaluations(
        self, request: operator_pb2.ListEvaluationsRequest, context: Any
    ) -> operator_pb2.ListEvaluationsReply:
        """Return all measurements of a model, oldest first."""
        model = await self._thread.run(self._store.model, ModelId(request.model_id))
        found = await self._thread.run(self._store.evaluations, model.model_id)
        return operator_pb2.ListEvaluationsReply(record_json=[evaluation.record_json for evaluation in found])

    async def AddThreshold(self, request: operator_pb2.AddThresholdRequest, context: Any) -> models_pb2.ModelManifest:
        """Return the model with one more threshold; the same again changes nothing.

        The first of an operator's own that decides on phones takes the place of those that came with a public model.
        """
        value = parse_json(request.threshold_json, what="threshold")
        threshold = from_mapping(Threshold, value if isinstance(value, dict) else {})

        def anew(model: ModelRecord) -> bytes:
            spec, layout = model_from_json(model.spec_json)
            if threshold.model_id != model.model_id:
                raise ModelMismatchError("this threshold was measured on another model; measure it on this one")
            if threshold in spec.thresholds:
                return model.spec_json
            kept = with_own(spec.thresholds, threshold, brought=known_thresholds(model.model_id))
            return model_to_json(replace(spec, thresholds=kept), layout)

        return await self._described(request.model_id, anew)

    async def SetThresholds(self, request: operator_pb2.SetThresholdsRequest, context: Any) -> models_pb2.ModelManifest:
        """Return the model with other thresholds and rates by group, or with more; the same again changes nothing.

        Raises ModelMismatchError for those of another model, and ConfigError for thresholds in place of the model's
        that would leave it without one with which phones decide.
        """
        thresholds = _records(Threshold, request.thresholds_json, what="thresholds")
        groups = _records(GroupRate, request.groups_json or b"[]", what="groups")

        def anew(model: ModelRecord) -> bytes:
            spec, layout = model_from_json(model.spec_json)
            theirs = [each for each in thresholds if each.model_id != model.model_id and each not in spec.thresholds]
            if theirs or any(each.model_id != model.model_id for each in groups):
                raise ModelMismatchError("these were measured on another model; measure them on this one")
            if request.in_addition:
                kept = with_own(spec.thresholds, *thresholds, brought=known_thresholds(model.model_id))
                rates = with_rates(spec.groups or (), groups, model.model_id)
            else:
                kept, rates = thresholds, groups
                if decides(model.spec_json, model.model_id) and not any(known.fmr <= PHONES_MAX_FMR for known in kept):
                    raise ConfigError(
                        f"none of these thresholds is for a false match rate of {PHONES_MAX_FMR:g} or less, with which "
                        "phones decide, and the model would lose those that it has; measure more people"
                    )
            return model_to_json(replace(spec, thresholds=kept, groups=rates or None), layout)

        return await self._described(request.model_id, anew)

    async def _described(self, model_id: str, anew: Callable[[ModelRecord], bytes]) -> models_pb2.ModelManifest:
        """Return the manifest of a model that is described anew."""
        model = await self._thread.run(self._store.describe, ModelId(model_id), anew, actor=caller().id)
        released = await self._thread.run(self._store.released_ids)
        return manifest(model, is_released=model.model_id in released)

    async def ImportModel(
        self, request_iterator: AsyncIterator[operator_pb2.ImportModelChunk], context: Any
    ) -> models_pb2.ModelManifest:
        """Return the manifest of a model that was sent; the same model again changes nothing."""
        chunks = aiter(request_iterator)
        first = await anext(chunks, None)
        if first is None or not first.HasField("header"):
            raise CorruptDataError("an import begins with a header; send it again")
        spec, layout, theta, shard = self._checked_header(first.header)
        data = _Bytes(chunk.data async for chunk in chunks)
        await self._receive(data, theta)
        if shard is not None:
            await self._receive(data, shard)
        record = await self._judged(spec, layout, theta, shard)
        kept = await self._thread.run(self._store.add_model, record, actor=caller().id)
        released = await self._thread.run(self._store.released_ids)
        return manifest(kept, is_released=kept.model_id in released)

    async def AddGraphs(
        self, request_iterator: AsyncIterator[operator_pb2.AddGraphsChunk], context: Any
    ) -> operator_pb2.AddGraphsReply:
        """Keep a signed bundle's graphs and variants; they stay where its release follows before the next start."""
        chunks = aiter(request_iterator)
        first = await anext(chunks, None)
        if first is None or not first.HasField("header"):
            raise CorruptDataError("graphs begin with a header; send them again")
        signed = self._verified(first.header.bundle_manifest, first.header.bundle_signature)
        data = _Bytes(chunk.data async for chunk in chunks)
        for file in signed.extras:
            await self._receive(data, BlobId(file.sha256, file.size_bytes))
        return operator_pb2.AddGraphsReply()

    def _checked_header(
        self, header: operator_pb2.ImportModelHeader
    ) -> tuple[ModelSpec, ParameterLayout, BlobId, BlobId | None]:
        """Return what an import announces, checked before a byte of it is taken."""
        spec, layout = model_from_json(header.spec_json)
        theta = BlobId(check_hash(header.theta.sha256), header.theta.size_bytes)
        if theta.size_bytes != 4 * layout.size:
            raise CorruptDataError(
                f"the layout has {layout.size} parameters, theta {theta.size_bytes} bytes; pack again"
            )
        if theta.size_bytes > self._max_model_bytes:
            raise ConfigError(f"the model has {theta.size_bytes} bytes; max_model_bytes is {self._max_model_bytes}")
        if not header.HasField("public_shard"):
            return spec, layout, theta, None
        shard = BlobId(check_hash(header.public_shard.sha256), header.public_shard.size_bytes)
        if shard.size_bytes > self._max_shard_bytes:
            raise ConfigError(f"the shard has {shard.size_bytes} bytes; max_shard_bytes is {self._max_shard_bytes}")
        return spec, layout, theta, shard

    async def _receive(self, data: _Bytes, blob: BlobId) -> None:
        writer: BlobWriter = await in_thread(self._models.writer)
        try:
            async for piece in data.take(blob.size_bytes):
                await in_thread(writer.write, piece)
            await in_thread(writer.commit, blob)
        finally:
            await in_thread(writer.abandon)

    async def _judged(
        self, spec: ModelSpec, layout: ParameterLayout, theta: BlobId, shard: BlobId | None
    ) -> ModelRecord:
        """Return the model's record once its numbers are finite and its shard fits its input."""

        def judge() -> ModelId:
            if shard is not None:
                PublicShard.from_bytes(self._models.read(shard.sha256), spec.input)
            return ModelId(model_id(layout.sha256, layout.check(read_theta(self._models, theta), what="theta")))

        return ModelRecord(
            model_id=await in_thread(judge),
            spec_json=model_to_json(spec, layout),
            layout_sha256=layout.sha256,
            theta=theta,
            created_ms=self._clock.now_ms(),
            shard=shard,
        )


def _records(kind: type[_T], data: bytes, *, what: str) -> tuple[_T, ...]:
    """Return the records in a JSON list; raises CorruptDataError for what is none, ConfigError for a wrong record."""
    value = parse_json(data, what=what)
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise CorruptDataError(f"{what} are no list of records; send them again")
    return tuple(from_mapping(kind, each, where=f"{what}.") for each in value)


class _Bytes:
    """A stream of bytes that is cut where the reader wants."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    async def take(self, count: int) -> AsyncIterator[bytes]:
        """Yield the next `count` bytes in pieces; fewer when the stream ends."""
        while count > 0:
            piece = self._rest or await anext(self._chunks, b"")
            if not piece:
                return
            piece, self._rest = piece[:count], piece[count:]
            count -= len(piece)
            yield piece


def _model_status(model: ModelRecord, standing: Standing) -> operator_pb2.ModelStatus:
    return operator_pb2.ModelStatus(
        model_id=model.model_id,
        state=standing.state.value,
        share=standing.share,
        reason=standing.reason,
        population=model.population or "",
        task_id=model.task_id or "",
        round=model.round or 0,
        removed=model.removed_ms is not None,
    )


def _status(news: TaskNews) -> operator_pb2.TaskStatus:
    task = news.task
    spec = task_from_json(task.task_json)
    return operator_pb2.TaskStatus(
        task_id=task.task_id,
        name=task.name,
        state=task.state.value,
        rounds_closed=task.rounds_closed,
        rounds_total=spec.rounds,
        model_id=task.model_id,
        reason=task.reason,
        method=spec.method,
        reveals=spec.privacy.reveals,
        task_json=task.task_json,
        num_cannot_train=news.num_cannot_train,
        num_want_larger_sums=news.num_want_larger_sums,
        num_used_up=news.num_used_up,
        num_left_out=news.num_left_out,
        gathering_there=0 if news.gathering is None else news.gathering.there,
        gathering_wanted=0 if news.gathering is None else news.gathering.wanted,
        gathering_since_unix_ms=0 if news.gathering is None else news.gathering.since_ms,
        gathering_lacks_labelled=0 if news.gathering is None else news.gathering.lacks_labelled,
    )


def _event(news: TaskNews) -> operator_pb2.TaskEvent:
    report = None if news.round is None else _report(news.round)
    return operator_pb2.TaskEvent(task=_status(news), round=report)


def _report(record: RoundRecord) -> operator_pb2.RoundReport:
    return operator_pb2.RoundReport(
        round=rounds_pb2.RoundRef(task_id=record.task_id, round=record.round, attempt=record.attempt),
        stage=REPORTED_STAGES[record.stage],
        num_selected=record.num_selected,
        num_trained=record.num_trained,
        num_reports=record.num_reports,
        started_unix_ms=record.started_ms,
        ended_unix_ms=record.ended_ms or 0,
        reason=record.reason,
        model_id=record.model_id or "",
        upload_bytes=record.upload_bytes,
        metrics=dict(record.metrics),
        duty=ROLES[record.role],
        base_version=record.base_version,
    )
