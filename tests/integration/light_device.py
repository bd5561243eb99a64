"""A device without faces: a real gRPC client over mutual TLS that sends made-up contributions of a tiny model.

It speaks the protocol with the generated stubs, step by step, so that a test can stop it, repeat it or have it lie at
any point; `take_part` is the honest way through one round.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import grpc
import numpy as np

from mien.contribution import ContributionLayout
from mien.errors import LateError, MienError, UnavailableError
from mien.layout import ParameterEntry, ParameterLayout
from mien.methods import METHODS
from mien.specs import FaceInputSpec, ModelSpec, TaskSpec
from mien.wire import PROTOCOL_VERSIONS
from mien.wire.canonical import task_from_json
from mien.wire.status import from_rpc_error
from mien.wire.v1 import common_pb2, models_pb2, models_pb2_grpc, rounds_pb2, rounds_pb2_grpc

LAYOUT = ParameterLayout(
    (
        ParameterEntry("stem.weight", (10, 20)),
        ParameterEntry("tail.weight", (20, 12)),
        ParameterEntry("tail.bias", (12,)),
    )
)
SPEC = ModelSpec(
    backbone="tiny",
    layout_sha256=LAYOUT.sha256,
    input=FaceInputSpec(dim=8),
    source="made up for tests",
    terms="public domain",
    trainable=("tail.*",),
)
THETA = np.random.default_rng(1).standard_normal(LAYOUT.size).astype(np.float32)
SECONDS = 30.0
"""How long a single step may take before a test fails."""


@dataclass(frozen=True)
class Credentials:
    """What a device holds after joining (PEM)."""

    device_id: str
    population: str
    coordinator_ca: bytes
    chain: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True)
class Sent:
    """A contribution that the coordinator has acknowledged."""

    device_id: str
    round: tuple[int, int]
    data: bytes = field(repr=False)


def layout_of(task: TaskSpec) -> ContributionLayout:
    """Return the form of a contribution to a task on the tiny model."""
    part = LAYOUT.part(task.trainable or SPEC.trainable)
    return METHODS[task.method].contribution_layout(task, part, SPEC.input.dim)


def contribution(task: TaskSpec, *seed: int, weight: float = 0.0) -> bytes:
    """Return a small contribution that depends on nothing but the task's layout and the seed."""
    layout = layout_of(task)
    rng = np.random.default_rng(seed)
    vector = (0.01 * rng.standard_normal(layout.size)).astype("<f4")
    weight = weight or float(rng.integers(1, 33))
    vector[layout.slices["count"]], vector[layout.slices["weight"]] = 1.0, weight
    vector[2 : layout.summed_size] *= np.float32(weight)
    return vector.tobytes()


def ref_of(assignment: rounds_pb2.Assignment) -> tuple[int, int]:
    """Return an assignment's round and attempt."""
    return assignment.round.round, assignment.round.attempt


class LightDevice:
    """One device on one channel; use as an asynchronous context manager."""

    def __init__(self, address: str, credentials: Credentials, *, root: bytes | None = None) -> None:
        self.id, self.population = credentials.device_id, credentials.population
        tls = grpc.ssl_channel_credentials(root or credentials.coordinator_ca, credentials.key, credentials.chain)
        # Reconnect quickly: tests restart the coordinator all the time.
        options = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 300))
        self._channel = grpc.aio.secure_channel(address, tls, options=options)
        self.rounds = rounds_pb2_grpc.RoundsStub(self._channel)
        self.models = models_pb2_grpc.ModelsStub(self._channel)

    async def __aenter__(self) -> LightDevice:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._channel.close()

    async def hello(self, versions: tuple[int, ...] = PROTOCOL_VERSIONS) -> common_pb2.HelloReply:
        """Return the coordinator's greeting."""
        return await answer(self.rounds.Hello(common_pb2.HelloRequest(protocol_versions=versions), timeout=SECONDS))

    async def check_in(self, *, population: str | None = None, timeout_s: float = SECONDS) -> rounds_pb2.CheckInReply:
        """Return an assignment or a pause."""
        request = rounds_pb2.CheckInRequest(
            population=self.population if population is None else population, software="light", backbones=["tiny"]
        )
        return await answer(self.rounds.CheckIn(request, timeout=timeout_s))

    async def assignment(self) -> rounds_pb2.Assignment:
        """Return an assignment, asking again after each pause."""
        while True:
            reply = await self.check_in()
            if reply.HasField("assignment"):
                return reply.assignment
            await asyncio.sleep(min(reply.wait.retry_after_s, 0.2))

    async def report_trained(self, ref: rounds_pb2.RoundRef) -> int:
        """Return the stage after reporting."""
        reply = await answer(self.rounds.ReportTrained(rounds_pb2.ReportTrainedRequest(round=ref), timeout=SECONDS))
        return reply.stage

    async def events(self, ref: rounds_pb2.RoundRef) -> AsyncIterator[rounds_pb2.StageEvent]:
        """Yield a round's stage events."""
        try:
            async for event in self.rounds.FollowRound(rounds_pb2.FollowRoundRequest(round=ref)):
                yield event
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, peer="the coordinator") from error

    async def until(self, ref: rounds_pb2.RoundRef, *stages: int) -> rounds_pb2.StageEvent:
        """Return the first event of any of the stages, or of the round's end."""
        async with asyncio.timeout(SECONDS):
            async for event in self.events(ref):
                if event.stage in (*stages, rounds_pb2.CLOSED, rounds_pb2.ABORTED):
                    return event
        raise AssertionError("the stream ended before the round did")

    async def upload_status(self, ref: rounds_pb2.RoundRef) -> rounds_pb2.UploadStatus:
        """Return how far the upload is."""
        return await answer(self.rounds.GetUploadStatus(rounds_pb2.UploadStatusRequest(round=ref), timeout=SECONDS))

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
    ) -> rounds_pb2.UploadStatus:
        """Return the answer to one upload stream of bytes [offset, stop)."""
        digest = hashlib.sha256(data).hexdigest()
        header = rounds_pb2.UploadHeader(
            round=ref,
            contribution=common_pb2.BlobRef(sha256=digest, size_bytes=len(data) if size is None else size),
        )
        end = len(data) if stop is None else stop

        async def chunks() -> AsyncIterator[rounds_pb2.UploadChunk]:
            yield rounds_pb2.UploadChunk(header=header, offset=offset, data=data[offset : min(offset + chunk, end)])
            for start in range(offset + chunk, end, chunk):
                await asyncio.sleep(pause_s)
                yield rounds_pb2.UploadChunk(offset=start, data=data[start : min(start + chunk, end)])

        return await answer(self.rounds.Upload(chunks(), timeout=SECONDS))

    async def leave(self, ref: rounds_pb2.RoundRef, code: str = "low_quality") -> None:
        """Leave a round."""
        request = rounds_pb2.LeaveRoundRequest(round=ref, error_code=code)
        await answer(self.rounds.LeaveRound(request, timeout=SECONDS))

    async def manifest(self, model_id: str = "") -> models_pb2.ModelManifest:
        """Return a model's manifest."""
        return await answer(self.models.GetManifest(models_pb2.GetManifestRequest(model_id=model_id), timeout=SECONDS))

    async def download(self, sha256: str, offset: int = 0) -> bytes:
        """Return a blob's bytes from an offset on."""
        call = self.models.Download(models_pb2.DownloadRequest(sha256=sha256, offset=offset), timeout=SECONDS)
        data = bytearray()
        try:
            async for piece in call:
                assert piece.offset == offset + len(data)
                data += piece.data
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, peer="the coordinator") from error
        return bytes(data)

    async def take_part(self, make: Callable[[TaskSpec, rounds_pb2.Assignment], bytes]) -> Sent:
        """Return what was acknowledged after an honest way through one round."""
        assignment = await self.assignment()
        data = make(task_from_json(assignment.task_json), assignment)
        await self.report_trained(assignment.round)
        event = await self.until(assignment.round, rounds_pb2.UPLOAD)
        if event.stage != rounds_pb2.UPLOAD:
            raise LateError(f"the round ended: {event.reason}")
        status = await self.upload(assignment.round, data)
        assert status.accepted
        return Sent(self.id, ref_of(assignment), data)

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


async def answer(call: Any) -> Any:
    """Return a call's reply; raises the MienError that the status carries."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error, peer="the coordinator") from error


async def raised(call: Any) -> MienError:
    """Return the error that a call raises; a call that raises none fails the test."""
    try:
        await call
    except MienError as error:
        return error
    raise AssertionError("the call was not refused")
