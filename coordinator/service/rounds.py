"""`mien.v1.Rounds`: what devices say. Messages in, engine calls out; the device is the certificate's, never a field."""

# ruff: noqa: N802 - methods are named by the protocol

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import replace
from typing import Any, Final

import grpc

from coordinator.keys.pki import PeerIdentity
from coordinator.rounds.engine import STAYS_OUT, Assigned, Caller, Engine, StageNews
from coordinator.rounds.uploads import Uploads
from coordinator.service.access import caller
from coordinator.service.log_keeper import HOLD_S, EntryProof, LogKeeper
from coordinator.service.messages import STEP_STAGES, check_hash, check_id, printable, round_ref, told_json
from coordinator.service.replies import ReplyStreams
from coordinator.service.revocations import Revocations
from coordinator.service.rpc import hello_reply
from coordinator.store.store import Store
from coordinator.store.thread import Grouped, StoreThread
from mien.errors import CorruptDataError, LateError, NotFoundError, OffsetError, PermissionDeniedError
from mien.log.merkle import MAX_SIZE
from mien.protocol import CHUNK_BYTES
from mien.protocol.ids import ModelId, PopulationId
from mien.protocol.messages import ROLES, STAGES, blob_message, round_message
from mien.protocol.rounds import BlobId, RoundRef, Wait
from mien.protocol.tensors import pack_tensors
from mien.protocol.uploads import UploadPiece, parse_piece
from mien.protocol.v1 import common_pb2, rounds_pb2, rounds_pb2_grpc
from mien.rounds.records import DeviceCall
from mien.secagg.planner import log_subject
from mien.shell.clock import Clock, to_ms

_MAX_NAMES: Final = 64
_MAX_ROUND: Final = 2**31 - 1  # what a column of the database holds
_DEFAULT_LIMIT_S: Final = 3600.0
_MARGIN_S: Final = 2.0


def add_rounds_service(service: RoundsService, server: grpc.aio.Server) -> None:
    """Let a server answer for a service; an upload's pieces are read by a parser of our own."""
    rounds_pb2_grpc.add_RoundsServicer_to_server(service, server)
    upload = grpc.stream_unary_rpc_method_handler(
        service.Upload, request_deserializer=parse_piece, response_serializer=rounds_pb2.UploadStatus.SerializeToString
    )
    server.add_registered_method_handlers("mien.v1.Rounds", {"Upload": upload})


class RoundsService(rounds_pb2_grpc.RoundsServicer):
    """The devices' service."""

    def __init__(
        self,
        engine: Engine,
        uploads: Uploads,
        store: Store,
        thread: StoreThread,
        clock: Clock,
        log: LogKeeper,
        revocations: Revocations,
        owner_address: Callable[[PopulationId, Any], str] = lambda _population, _context: "",
    ) -> None:
        """`owner_address` gives where devices reach who runs their population's tasks, by a call's context; empty:
        where they are.
        """
        self._engine, self._uploads, self._log, self._revocations = engine, uploads, log, revocations
        self._store, self._thread, self._clock = store, thread, clock
        self._saw = Grouped(thread, store.saw_devices)
        self._replies, self._owner_address = ReplyStreams(), owner_address

    async def Hello(self, request: common_pb2.HelloRequest, context: Any) -> common_pb2.HelloReply:
        """Return the protocol version to speak, and the clock."""
        return hello_reply(request, "mien-coordinator", self._clock.now_ms())

    async def CheckIn(self, request: rounds_pb2.CheckInRequest, context: Any) -> rounds_pb2.CheckInReply:
        """Return an assignment, or when to come back; held while a round may still want the device."""
        device = caller()
        population = _population(device, request.population)
        for what, names in (
            ("backbones", request.backbones),
            ("methods", request.methods),
            ("engines", request.engines),
            ("parts", request.parts),
            ("used-up models", request.used_up_models),
            *(("objectives", part.objectives) for part in request.parts),
        ):
            if len(names) > _MAX_NAMES:
                raise CorruptDataError(f"check-in names {len(names)} {what}; at most {_MAX_NAMES}")
        call = DeviceCall(device.device_id, population, printable(request.software), told_json(request))
        stays_out = await self._saw(call)
        role = next((role for role, value in ROLES.items() if value == request.duty), None)
        if role is None:
            raise CorruptDataError("check-in offers a duty that this coordinator does not know; upgrade mien")
        if stays_out:
            return rounds_pb2.CheckInReply(wait=_wait(STAYS_OUT))
        engines = tuple(printable(name) for name in request.engines)
        backbones, methods = tuple(request.backbones), tuple(request.methods)
        parts = {part.sha256: frozenset(part.objectives) for part in request.parts}
        offer = Caller(device.device_id, population, backbones, request.min_cohort, role, methods, engines, parts)
        used_up = frozenset(ModelId(name) for name in request.used_up_models)
        offer = replace(offer, labelled=request.labelled, used_up_models=used_up, used_up_day=request.used_up_day)
        found = await self._engine.check_in(offer, limit_s=_time_left_s(context))
        if isinstance(found, Wait):
            reply = rounds_pb2.CheckInReply(wait=_wait(found))
        else:
            reply = rounds_pb2.CheckInReply(assignment=await self._assignment(found))
        reply.owner_address = self._owner_address(population, context)
        return reply

    async def SetParticipation(
        self, request: rounds_pb2.SetParticipationRequest, context: Any
    ) -> rounds_pb2.SetParticipationReply:
        """Return once it is remembered whether this device may be chosen, and a check-in that is held knows."""
        device = caller()
        await self._saw(
            DeviceCall(device.device_id, PopulationId(device.population or ""), printable(request.software))
        )
        await self._thread.run(self._store.set_participation, device.device_id, stays_out=request.stays_out)
        await self._engine.leave_out(
            device.device_id, PopulationId(device.population or ""), stays_out=request.stays_out
        )
        return rounds_pb2.SetParticipationReply()

    async def FollowRound(
        self, request: rounds_pb2.FollowRoundRequest, context: Any
    ) -> AsyncGenerator[rounds_pb2.StageEvent, None]:
        """Yield stage events until the round is over."""
        async for news in self._engine.follow(caller().device_id, _name(request.round)):
            yield self._event(news)

    async def ReportTrained(
        self, request: rounds_pb2.ReportTrainedRequest, context: Any
    ) -> rounds_pb2.ReportTrainedReply:
        """Return the stage that the round is in now."""
        stage = await self._engine.report_trained(caller().device_id, _name(request.round))
        return rounds_pb2.ReportTrainedReply(stage=STAGES[stage])

    async def SendStep(self, request: rounds_pb2.SendStepRequest, context: Any) -> rounds_pb2.SendStepReply:
        """Return the stage after a device's message of secure aggregation was accepted."""
        stage = STEP_STAGES.get(request.stage)
        if stage is None:
            raise CorruptDataError("a step names no stage of secure aggregation; upgrade mien")
        after = await self._engine.take_step(caller().device_id, _name(request.round), stage, request.message)
        return rounds_pb2.SendStepReply(stage=STAGES[after])

    async def GetUploadStatus(self, request: rounds_pb2.UploadStatusRequest, context: Any) -> rounds_pb2.UploadStatus:
        """Return where to go on with an upload."""
        progress = await self._uploads.status(caller().device_id, _name(request.round))
        return rounds_pb2.UploadStatus(received_bytes=progress.received_bytes, accepted=progress.is_accepted)

    async def Upload(self, request_iterator: Any, context: Any) -> rounds_pb2.UploadStatus:
        """Return how far the upload is once its bytes are on stable storage; pieces come as `UploadPiece`."""
        chunks: AsyncIterator[UploadPiece] = aiter(request_iterator)
        first = await anext(chunks, None)
        if first is None or first.header is None:
            raise CorruptDataError("an upload begins with a header; send it again")
        contribution = first.header.contribution
        announced = BlobId(check_hash(contribution.sha256), contribution.size_bytes)

        async def pieces() -> AsyncIterator[UploadPiece]:
            yield first
            async for chunk in chunks:
                if not chunk.data:  # it brings nothing on, but would count as a sign of life
                    raise CorruptDataError("a piece of an upload is empty; ask for the status, then go on")
                yield chunk

        header, device_id = first.header, caller().device_id
        progress = await self._uploads.receive(device_id, _name(header.round), announced, header.masked, pieces())
        return rounds_pb2.UploadStatus(received_bytes=progress.received_bytes, accepted=progress.is_accepted)

    async def DownloadReply(
        self, request: rounds_pb2.DownloadReplyRequest, context: Any
    ) -> AsyncGenerator[common_pb2.DataChunk, None]:
        """Yield the long part of an assignment's reply from an offset on, in pieces."""
        sha256, offset = check_hash(request.sha256), request.offset
        _, stream = await self._replies.split(await self._engine.reply(caller().device_id, _name(request.round)))
        if stream is None or stream.sha256 != sha256:
            raise LateError("that reply is of another round; nothing is lost, check in again")
        if offset > stream.size_bytes:
            raise OffsetError(f"download resumes at byte {offset}, the reply has {stream.size_bytes}; begin at 0")
        for piece in stream.pieces(offset):
            yield common_pb2.DataChunk(offset=offset, data=piece)
            offset += len(piece)

    async def ProveRound(self, request: rounds_pb2.ProveRoundRequest, context: Any) -> rounds_pb2.ProveRoundReply:
        """Return the proof that the log holds the statement of a device's round."""
        name = _name(request.round)
        await self._engine.locate(caller().device_id, name)
        subject = log_subject(name.task_id, name.round, name.attempt)
        return self._shown(await self._log.prove(subject, _first_size(request), _hold_s(context)))

    async def ProveRelease(self, request: rounds_pb2.ProveReleaseRequest, context: Any) -> rounds_pb2.ProveRoundReply:
        """Return the proof that the log holds the release of a model to a device's population."""
        model_id = check_id(request.model_id)
        asked = (model_id, caller().population, _first_size(request), _hold_s(context))
        return self._shown(await self._log.prove_release(*asked))

    def _shown(self, proof: EntryProof) -> rounds_pb2.ProveRoundReply:
        return rounds_pb2.ProveRoundReply(
            checkpoint=proof.checkpoint,
            log_key=self._log.public_key,
            position=proof.position,
            inclusion=proof.inclusion,
            consistency=proof.consistency,
            entry=proof.entry,
        )

    async def DownloadRevocations(
        self, request: rounds_pb2.DownloadRevocationsRequest, context: Any
    ) -> AsyncIterator[common_pb2.DataChunk]:
        """Stream the registrar's list of revoked certificates."""
        der = self._revocations.der
        for offset in range(0, len(der), CHUNK_BYTES):
            yield common_pb2.DataChunk(offset=offset, data=der[offset : offset + CHUNK_BYTES])

    async def LeaveRound(self, request: rounds_pb2.LeaveRoundRequest, context: Any) -> rounds_pb2.LeaveRoundReply:
        """Take the device out of a round."""
        await self._engine.leave(caller().device_id, _name(request.round), request.error_code)
        return rounds_pb2.LeaveRoundReply()

    async def _assignment(self, found: Assigned) -> rounds_pb2.Assignment:
        short, stream = await self._replies.split(found.reply)
        return rounds_pb2.Assignment(
            round=round_message(found.name),
            task_json=found.task_json,
            model_id=found.model_id,
            contribution_sha256=found.plan.contribution.sha256,
            reply=pack_tensors(short) if short else b"",
            stage=STAGES[found.stage],
            deadline_unix_ms=to_ms(found.deadline),
            duty=ROLES[found.role],
            reply_stream=None if stream is None else blob_message(BlobId(stream.sha256, stream.size_bytes)),
        )

    def _event(self, news: StageNews) -> rounds_pb2.StageEvent:
        has_deadline = math.isfinite(news.deadline) and not news.stage.is_over
        remaining_s = max(news.deadline - self._clock.now(), 0.0) if has_deadline else 0.0
        return rounds_pb2.StageEvent(
            round=round_message(news.name),
            stage=STAGES[news.stage],
            deadline_unix_ms=to_ms(news.deadline) if has_deadline else 0,
            remaining_ms=to_ms(remaining_s),
            reason=news.reason,
            model_id=news.model_id,
            num_reports=news.num_reports,
            message=news.message,
        )


def _population(device: PeerIdentity, asked: str) -> PopulationId:
    """Return the device's population; a device cannot ask for another's tasks."""
    population = PopulationId(device.population or "")
    if asked not in ("", population):
        raise PermissionDeniedError(f"this device belongs to population {population!r}; check in with that name")
    return population


def _time_left_s(context: Any) -> float:
    """Return how long a call may be held before its caller gives up."""
    left_s = context.time_remaining()
    return _DEFAULT_LIMIT_S if left_s is None else max(left_s - max(_MARGIN_S, 0.1 * left_s), 0.0)


def _hold_s(context: Any) -> float:
    """Return how long a question about the log may be held for the registrar's cosignature."""
    return min(_time_left_s(context), HOLD_S)


def _first_size(request: rounds_pb2.ProveRoundRequest | rounds_pb2.ProveReleaseRequest) -> int:
    return min(request.first_size, MAX_SIZE)


def _wait(told: Wait) -> rounds_pb2.Wait:
    return rounds_pb2.Wait(retry_after_s=told.retry_after_s, reason=told.reason, cannot_train=told.cannot_train)


def _name(ref: rounds_pb2.RoundRef) -> RoundRef:
    if max(ref.round, ref.attempt) > _MAX_ROUND:
        raise NotFoundError("there is no round of that number; check in again")
    return round_ref(ref)
