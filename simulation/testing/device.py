"""A device without faces: a real gRPC client over mutual TLS that sends made-up contributions to the tiny model.

It speaks the protocol with the generated stubs, step by step, so that a test can stop it, repeat it or have it lie at
any point; `take_part` is the honest way through one round, plain or under secure aggregation, as its task says.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Self, TypeVar

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from mien.contribution import ContributionLayout
from mien.errors import LateError, MienError, UnavailableError
from mien.methods import find_method
from mien.methods.base import shared_words
from mien.protocol import PROTOCOL_VERSIONS
from mien.protocol.canonical import model_from_json, task_from_json, task_sha256
from mien.protocol.ids import AttemptNumber, DeviceId, ModelId, PopulationId, RoundNumber, TaskId
from mien.protocol.status import from_rpc_error
from mien.protocol.tensors import unpack_tensors
from mien.protocol.v1 import common_pb2, models_pb2, models_pb2_grpc, rounds_pb2, rounds_pb2_grpc
from mien.secagg import (
    Assignment,
    AttemptLog,
    ContributionMap,
    DevicePolicy,
    DeviceRound,
    EcdsaSigner,
    Identity,
    MemoryLog,
    Profile,
)
from mien.secagg.keys import VerifyLeaf
from mien.secagg.leaves import leaf_verifier
from mien.secagg.noise import protect
from mien.secagg.planner import RoundIds
from mien.shell.keys import secret_bytes
from mien.specs import ModelSpec, TaskSpec
from simulation.testing.tiny import SPEC, STEP_LIMIT_S, layout_of

_T = TypeVar("_T")


@dataclass(frozen=True)
class DeviceCredentials:
    """What a device holds after joining; certificates and key are PEM, the id is 64 hexadecimal digits."""

    device_id: DeviceId
    population: PopulationId
    coordinator_ca: bytes
    chain: bytes
    key: bytes = field(repr=False)

    @property
    def signer(self) -> Identity:
        """Who the device is in a private sum."""
        key = serialization.load_pem_private_key(self.key, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        leaf = x509.load_pem_x509_certificates(self.chain)[0].public_bytes(serialization.Encoding.DER)
        return Identity(bytes.fromhex(self.device_id), leaf, EcdsaSigner.of(key))

    @property
    def registrar(self) -> x509.Certificate:
        """Who vouches for this device and all others."""
        return x509.load_pem_x509_certificates(self.chain)[1]


@dataclass(frozen=True)
class Sent:
    """A contribution, as it was before any mask, that was acknowledged; `round` is its round and attempt."""

    device_id: str
    round: tuple[int, int]
    data: bytes = field(repr=False)


def ref_of(assignment: rounds_pb2.Assignment) -> tuple[int, int]:
    """Return an assignment's round and attempt."""
    return assignment.round.round, assignment.round.attempt


PROTOCOL_STAGES: Final = (
    rounds_pb2.KEYS,
    rounds_pb2.SHARES,
    rounds_pb2.UPLOAD,
    rounds_pb2.CONSISTENCY,
    rounds_pb2.UNMASK,
)


@dataclass
class FakePart:
    """One fake device's part in one attempt under secure aggregation; `answers` are its messages by stage, made once.

    `upload` is what it streams: its masked vector and, behind that, what the task reveals; empty before its time.
    """

    ref: rounds_pb2.RoundRef
    task: TaskSpec
    layout: ContributionLayout
    data: bytes = field(repr=False)
    begin: Callable[[bytes], DeviceRound]
    answers: dict[int, bytes] = field(default_factory=dict, repr=False)
    upload: bytes = field(default=b"", repr=False)
    device: DeviceRound | None = field(default=None, repr=False)

    def answer(self, stage: int, message: bytes) -> bytes:
        """Return this device's message of a stage; the same bytes whenever it is asked again."""
        if stage not in self.answers:
            self.answers[stage] = self._step(stage, message)
        return self.answers[stage]

    def _step(self, stage: int, message: bytes) -> bytes:
        if stage == rounds_pb2.KEYS:
            self.device = self.begin(message)
            return self.device.advertise()
        assert self.device is not None, "a device that has not sent its keys was told more"
        if stage == rounds_pb2.SHARES:
            return self.device.share(message)
        if stage == rounds_pb2.UPLOAD:
            layout = self.layout
            addends = ContributionMap(layout).addends(layout.parse(self.data))
            noised = protect(addends, self.device.config, self.task.privacy.dp, secret_bytes)
            masked = self.device.mask(message, noised)
            self.upload = masked.payload + self.data[4 * layout.summed_size :]
            return masked.message
        if stage == rounds_pb2.CONSISTENCY or self.device.stage == "Masked":
            return self.device.agree(message)
        return self.device.unmask(message)


class FakeDevice:
    """One device on one channel; use as an asynchronous context manager.

    It stays at its `address`: where else its last check-in told it to go is `unverified_owner_address`. It has no
    owner's limits of its own: it says that `used_up_models`, or with `used_up_day` any sum today, are too many for it.

    Its calls raise the MienError that the coordinator answers with, and TimeoutError after `call_s` seconds.
    """

    def __init__(
        self,
        address: str,
        credentials: DeviceCredentials,
        *,
        root: bytes | None = None,
        backbone: str = "tiny",
        log: AttemptLog | None = None,
        call_s: float = STEP_LIMIT_S,
        options: tuple[tuple[str, int], ...] = (),
        labelled: bool = False,
    ) -> None:
        """`address` is the coordinator's, `root` the authority (PEM) that has to vouch for it, by default the fleet's.

        `backbone` is what it says that it can train, `log` what it remembers of attempts, `call_s` how long it waits
        for an answer to one call, in seconds, `options` the channel's own. A `labelled` one says that it knows whose
        faces it trains on.
        """
        self.backbone, self.labelled, self.address = backbone, labelled, address
        self.id, self.population = credentials.device_id, credentials.population
        self.credentials, self._log, self.call_s = credentials, log or MemoryLog(), call_s
        self.unverified_owner_address = ""
        self.used_up_models: tuple[str, ...] = ()
        self.used_up_day = False
        tls = grpc.ssl_channel_credentials(root or credentials.coordinator_ca, credentials.key, credentials.chain)
        # Reconnect quickly: tests restart the coordinator all the time.
        quick = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 300))
        self.channel = grpc.aio.secure_channel(address, tls, options=(*quick, *options))
        self.rounds = rounds_pb2_grpc.RoundsStub(self.channel)
        self.models = models_pb2_grpc.ModelsStub(self.channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.channel.close()

    async def hello(self, versions: tuple[int, ...] = PROTOCOL_VERSIONS) -> common_pb2.HelloReply:
        """Return the coordinator's greeting."""
        return await answer(self.rounds.Hello(common_pb2.HelloRequest(protocol_versions=versions), timeout=self.call_s))

    async def check_in(
        self,
        *,
        population: str | None = None,
        timeout_s: float = STEP_LIMIT_S,
        duty: rounds_pb2.Duty = rounds_pb2.TRAIN,
    ) -> rounds_pb2.CheckInReply:
        """Return an assignment or a pause."""
        request = rounds_pb2.CheckInRequest(
            population=self.population if population is None else population,
            software="light",
            backbones=[self.backbone],
            duty=duty,
            labelled=self.labelled,
            used_up_models=self.used_up_models,
            used_up_day=self.used_up_day,
        )
        reply = await answer(self.rounds.CheckIn(request, timeout=timeout_s))
        self.unverified_owner_address = reply.owner_address
        return reply

    async def assignment(self, *, duty: rounds_pb2.Duty = rounds_pb2.TRAIN) -> rounds_pb2.Assignment:
        """Return an assignment, asking again after each pause, and when the coordinator is away for a moment.

        What went out on a connection that the old process left behind fails once more after the new one is there.
        """
        while True:
            reply = await patiently(lambda: self.check_in(duty=duty))
            if reply.HasField("assignment"):
                return reply.assignment
            await asyncio.sleep(min(reply.wait.retry_after_s, 0.2))

    async def report_trained(self, ref: rounds_pb2.RoundRef) -> int:
        """Return the stage after reporting."""
        reply = await answer(self.rounds.ReportTrained(rounds_pb2.ReportTrainedRequest(round=ref), timeout=self.call_s))
        return reply.stage

    async def send_step(self, ref: rounds_pb2.RoundRef, stage: int, message: bytes) -> int:
        """Return the stage after a message of secure aggregation."""
        request = rounds_pb2.SendStepRequest(round=ref, stage=rounds_pb2.Stage.Name(stage), message=message)
        reply = await answer(self.rounds.SendStep(request, timeout=self.call_s))
        return reply.stage

    async def events(self, ref: rounds_pb2.RoundRef) -> AsyncGenerator[rounds_pb2.StageEvent, None]:
        """Yield a round's stage events; to be closed by who does not want them all, for the call is open until then."""
        call = self.rounds.FollowRound(rounds_pb2.FollowRoundRequest(round=ref))
        try:
            async for event in call:
                yield event
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, peer="the coordinator") from error
        finally:
            call.cancel()

    async def until(self, ref: rounds_pb2.RoundRef, *stages: int) -> rounds_pb2.StageEvent:
        """Return the first event of any of the stages, or of the round's end."""
        async with asyncio.timeout(STEP_LIMIT_S), aclosing(self.events(ref)) as events:
            async for event in events:
                if event.stage in (*stages, rounds_pb2.CLOSED, rounds_pb2.ABORTED):
                    return event
        raise AssertionError("the stream ended before the round did")

    async def upload_status(self, ref: rounds_pb2.RoundRef) -> rounds_pb2.UploadStatus:
        """Return how many bytes of the upload have arrived, and whether it counts."""
        return await answer(self.rounds.GetUploadStatus(rounds_pb2.UploadStatusRequest(round=ref), timeout=self.call_s))

    async def upload(
        self,
        ref: rounds_pb2.RoundRef,
        data: bytes,
        *,
        offset: int = 0,
        stop: int | None = None,
        chunk: int = 64 * 1024,
        size: int | None = None,
        pause_s: float = 0.0,
        go_on: asyncio.Event | None = None,
        masked: bytes = b"",
    ) -> rounds_pb2.UploadStatus:
        """Return the answer to one stream of a contribution's bytes [offset, stop).

        It goes in pieces of `chunk` bytes, `pause_s` seconds apart, and before all but the first waits for `go_on`.
        `size` is what it claims to be long, by default what it is; `masked` is the protocol's message with it.
        """
        digest = hashlib.sha256(data).hexdigest()
        header = rounds_pb2.UploadHeader(
            round=ref,
            contribution=common_pb2.BlobRef(sha256=digest, size_bytes=len(data) if size is None else size),
            masked=masked,
        )
        end = len(data) if stop is None else stop

        async def chunks() -> AsyncIterator[rounds_pb2.UploadChunk]:
            yield rounds_pb2.UploadChunk(header=header, offset=offset, data=data[offset : min(offset + chunk, end)])
            for start in range(offset + chunk, end, chunk):
                await asyncio.sleep(pause_s)
                if go_on is not None:
                    await go_on.wait()
                yield rounds_pb2.UploadChunk(offset=start, data=data[start : min(start + chunk, end)])

        return await streamed(lambda: self.rounds.Upload(chunks(), timeout=self.call_s))

    async def leave(self, ref: rounds_pb2.RoundRef, code: str = "low_quality") -> None:
        """Leave a round."""
        request = rounds_pb2.LeaveRoundRequest(round=ref, error_code=code)
        await answer(self.rounds.LeaveRound(request, timeout=self.call_s))

    async def describe(self, model_id: str) -> tuple[ModelSpec, str]:
        """Return a model's description and the SHA-256 of its public faces in hex, empty where it has none."""
        told = await patiently(lambda: self.manifest(model_id))
        return model_from_json(told.spec_json)[0], told.public_shard.sha256

    async def manifest(self, model_id: str = "") -> models_pb2.ModelManifest:
        """Return a model's manifest."""
        return await answer(
            self.models.GetManifest(models_pb2.GetManifestRequest(model_id=model_id), timeout=self.call_s)
        )

    async def download(self, sha256: str, offset: int = 0) -> bytes:
        """Return a blob's bytes from an offset on; raises NotFoundError for what is no model's."""
        call = self.models.Download(models_pb2.DownloadRequest(sha256=sha256, offset=offset), timeout=self.call_s)
        data = bytearray()
        try:
            async for piece in call:
                assert piece.offset == offset + len(data)
                data += piece.data
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, peer="the coordinator") from error
        return bytes(data)

    async def take_part(self, make: Callable[[TaskSpec, rounds_pb2.Assignment], bytes]) -> Sent:
        """Return what was acknowledged after an honest way through one round; a masked one is followed to its end.

        `make` returns the contribution's bytes, float32, as `contribution` does. Raises LateError where the round ends
        without it.
        """
        assignment = await self.assignment()
        task = task_from_json(assignment.task_json)
        data = make(task, assignment)
        await self.report_trained(assignment.round)
        if task.privacy.is_masked:
            names = find_method(task.method).requirements(task).shared_reply
            told = unpack_tensors(assignment.reply, what="what the method tells") if assignment.reply else {}
            model, shard = await self.describe(assignment.model_id)
            words = shared_words(told, names)
            part = self.masked_part(assignment, task, data, model=model, public_shard=shard, shared=words)
            event = await self.take_part_masked(part)
            if event.stage != rounds_pb2.CLOSED:
                raise LateError(f"the round ended: {event.reason}")
            return Sent(self.id, ref_of(assignment), data)
        event = await self.until(assignment.round, rounds_pb2.UPLOAD)
        if event.stage != rounds_pb2.UPLOAD:
            raise LateError(f"the round ended: {event.reason}")
        status = await self.upload(assignment.round, data)
        assert status.accepted
        return Sent(self.id, ref_of(assignment), data)

    def masked_part(
        self,
        assignment: rounds_pb2.Assignment,
        task: TaskSpec,
        data: bytes,
        *,
        layout: ContributionLayout | None = None,
        model: ModelSpec = SPEC,
        public_shard: str = "",
        shared: bytes = b"",
        verify: VerifyLeaf | None = None,
    ) -> FakePart:
        """Return this device's part in an attempt that it was given, not yet begun.

        `layout` is the contribution's, by default that on the tiny model, whose description `model` is by default;
        `public_shard` names the public faces that came with it. `shared` are the words of the method's reply,
        `verify` checks peers' certificates: many devices in one process may share what each has found.
        """
        ref, layout = assignment.round, layout or layout_of(task)
        names = TaskId(ref.task_id), RoundNumber(ref.round), AttemptNumber(ref.attempt)
        ids = RoundIds.of(task, *names, model, ModelId(assignment.model_id), public_shard=public_shard, shared=shared)
        vector = ContributionMap(layout).vector_layout
        known = Assignment(
            ids.task_id,
            bytes.fromhex(task_sha256(task)),
            ids.model_sha256,
            bytes.fromhex(layout.sha256),
            ids.statement_sha256,
            vector.size,
            vector.num_metrics,
        )

        def begin(invite: bytes) -> DeviceRound:
            return DeviceRound(
                invite,
                identity=self.credentials.signer,
                assignment=known,
                policy=DevicePolicy(min_cohort=2, profiles=frozenset(Profile)),
                verify=verify or leaf_verifier(self.credentials.registrar, self.population, lambda: datetime.now(UTC)),
                log=self._log,
                random_bytes=secret_bytes,
            )

        return FakePart(ref, task, layout, data, begin)

    async def take_part_masked(self, part: FakePart, *, gone_at: int | None = None) -> rounds_pb2.StageEvent:
        """Answer each stage and return the round's last event, or the first of `gone_at`, unanswered.

        A coordinator that is away for a moment is asked again, and hears the same bytes again.
        """
        async with asyncio.timeout(STEP_LIMIT_S):
            while True:
                try:
                    return await self._answer_stages(part, gone_at)
                except UnavailableError:
                    await asyncio.sleep(0.05)

    async def _answer_stages(self, part: FakePart, gone_at: int | None) -> rounds_pb2.StageEvent:
        async with aclosing(self.events(part.ref)) as events:
            async for event in events:
                if event.stage in (rounds_pb2.CLOSED, rounds_pb2.ABORTED, gone_at):
                    return event
                if not event.message or event.stage not in PROTOCOL_STAGES:
                    continue
                message = part.answer(event.stage, event.message)
                if event.stage == rounds_pb2.UPLOAD:
                    status = await self.upload_status(part.ref)
                    if not status.accepted:
                        await self.upload(part.ref, part.upload, offset=status.received_bytes, masked=message)
                else:
                    await self.send_step(part.ref, event.stage, message)
        raise UnavailableError("the stream ended before the round did")

    async def take_part_stubbornly(
        self, make: Callable[[TaskSpec, rounds_pb2.Assignment], bytes], acknowledged: list[Sent], stop: asyncio.Event
    ) -> None:
        """Take part in round after round, whatever happens to the coordinator, until told to stop."""
        while not stop.is_set():
            try:
                acknowledged.append(await self.take_part(make))
            except UnavailableError:
                await asyncio.sleep(0.05)
            except MienError:
                await asyncio.sleep(0.01)


async def answer(call: Awaitable[_T]) -> _T:
    """Return the reply to a call of a stub's own; raises the MienError that the status carries."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error, peer="the coordinator") from error


async def streamed(call: Callable[[], Awaitable[_T]]) -> _T:
    """Return the reply to a stream that a device sends, sent again where gRPC lost what the server said.

    Its asyncio client does, where that ends the call while a message is being written (grpc/grpc#36066). The server may
    still be busy with the first stream then, and asks the second one to wait.
    """
    was_lost = False
    async with asyncio.timeout(STEP_LIMIT_S):
        while True:
            try:
                return await call()
            except grpc.aio.AioRpcError as error:
                is_busy = was_lost and error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                if not is_lost(error) and not is_busy:
                    raise from_rpc_error(error, peer="the coordinator") from error
                was_lost = True
                await asyncio.sleep(0.05)


def is_lost(error: grpc.aio.AioRpcError) -> bool:
    """Return whether a status is gRPC's own, in place of the server's."""
    return error.code() is grpc.StatusCode.INTERNAL and "Internal error from Core" in (error.details() or "")


async def patiently(call: Callable[[], Awaitable[_T]], *, limit_s: float | None = STEP_LIMIT_S) -> _T:
    """Return a call's reply, making it again while the coordinator, or its replica that would answer, is away.

    `limit_s` is for how long; with None a call may also run out of its own time, however often.
    """
    again = (UnavailableError,) if limit_s is not None else (UnavailableError, TimeoutError)
    async with asyncio.timeout(limit_s):
        while True:
            try:
                return await call()
            except again:
                await asyncio.sleep(0.05)
