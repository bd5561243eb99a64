"""`mien.v1.Replicas`: what other replicas ask of this one. Messages in, calls of engine and spool out."""

# ruff: noqa: N802 - methods are named by the protocol

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final

from coordinator.replicas.keeper import Keeper
from coordinator.replicas.sums import Addends, add_up
from coordinator.rounds.closing import Stores
from coordinator.rounds.engine import Engine
from coordinator.rounds.pulse import in_thread
from coordinator.service.messages import round_ref
from mien.errors import CorruptDataError, LateError, UnreachableError
from mien.protocol import CHUNK_BYTES
from mien.protocol.ids import DeviceId, PopulationId, RoundId, TaskId
from mien.protocol.rounds import RoundRef, Stage
from mien.protocol.v1 import common_pb2, replicas_pb2, replicas_pb2_grpc, rounds_pb2
from mien.rounds.machine import Left, Uploaded
from mien.rounds.records import StepRecord
from mien.secagg.quantise import RING_BITS

_MAX_LENGTH: Final = 2**31
"""Most numbers of a sum: the largest model has fewer."""


class ReplicasService(replicas_pb2_grpc.ReplicasServicer):
    """The replicas' own service."""

    def __init__(self, engine: Engine, stores: Stores, keeper: Keeper) -> None:
        self._engine, self._stores, self._keeper = engine, stores, keeper
        self._populations: dict[TaskId, PopulationId] = {}

    async def FindUpload(self, request: replicas_pb2.FindUploadRequest, context: Any) -> replicas_pb2.FindUploadReply:
        """Return where a device's upload stands."""
        name, device_id = await self._own(request.round), DeviceId(request.device_id)
        target, record = await self._engine.locate(device_id, name)
        if target is None:
            return replicas_pb2.FindUploadReply()
        return replicas_pb2.FindUploadReply(
            round_id=record.id,
            stage=target.state.stage.value,
            step=step.value if (step := target.step_of(device_id)) is not None else "",
            upload_bytes=target.upload_bytes,
        )

    async def PostUpload(self, request: replicas_pb2.PostUploadRequest, context: Any) -> replicas_pb2.PostUploadReply:
        """Return once a contribution counts, or the device that cannot send one has left."""
        name, device_id = await self._own(request.round), DeviceId(request.device_id)
        target, record = await self._engine.locate(device_id, name)
        if target is None or record.id != request.round_id:
            raise LateError("that round is over; nothing is lost, check in again")
        if request.error_code:
            await target.post(Left(device_id, request.error_code))
        else:
            step = StepRecord(device_id, Stage.UPLOAD, request.masked) if request.masked else None
            await target.post(Uploaded(device_id), step=step)
        return replicas_pb2.PostUploadReply()

    async def Sum(self, request: replicas_pb2.SumRequest, context: Any) -> AsyncGenerator[common_pb2.DataChunk, None]:
        """Yield the sum of contributions that this replica holds."""
        if not 0 < request.length <= _MAX_LENGTH or request.ring_bits not in (0, *RING_BITS):
            raise CorruptDataError("a sum is asked for that no round has; upgrade the older replica")
        addends, store = Addends(request.length, request.ring_bits), self._stores.store
        round_id = RoundId(request.round_id)
        uploads = await self._stores.thread.run(store.uploads, round_id)
        device_ids = [DeviceId(each) for each in dict.fromkeys(request.device_ids)]
        total = await in_thread(add_up, self._stores.spool, round_id, device_ids, uploads, addends)
        data = memoryview(total.astype(total.dtype.newbyteorder("<"), copy=False).tobytes())
        for offset in range(0, len(data), CHUNK_BYTES):
            yield common_pb2.DataChunk(offset=offset, data=bytes(data[offset : offset + CHUNK_BYTES]))

    async def _own(self, round_: rounds_pb2.RoundRef) -> RoundRef:
        """Return the name of an attempt that this replica runs; raises UnreachableError for another's."""
        name = round_ref(round_)
        if name.task_id not in self._populations:
            task = await self._stores.thread.run(self._stores.store.task, name.task_id)
            self._populations[name.task_id] = task.population
        if not self._keeper.owns(self._populations[name.task_id]):
            raise UnreachableError("this replica does not run that task; try again", retry_after_s=0.5)
        return name
