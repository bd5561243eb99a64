"""`mien.v1.Models`: manifests, and their blobs from any byte on."""

# ruff: noqa: N802 - methods are named by the protocol

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Any

from coordinator.keys.pki import Role
from coordinator.rounds.pulse import in_thread
from coordinator.service.access import caller
from coordinator.service.messages import check_hash, check_id, manifest
from coordinator.store.blobs import BlobStore
from coordinator.store.store import Store
from coordinator.store.thread import StoreThread
from mien.errors import NotFoundError, OffsetError
from mien.protocol.ids import ModelId, PopulationId
from mien.protocol.v1 import common_pb2, models_pb2, models_pb2_grpc


class ModelsService(models_pb2_grpc.ModelsServicer):
    """Downloads, for devices (what is released or their own population's) and operators (everything)."""

    def __init__(self, store: Store, thread: StoreThread, models: BlobStore) -> None:
        self._store, self._thread, self._models = store, thread, models

    async def GetManifest(self, request: models_pb2.GetManifestRequest, context: Any) -> models_pb2.ModelManifest:
        """Return a model's manifest; without an id the one in force for a device, an operator's newest release."""
        peer = caller()
        if peer.role is Role.DEVICE:
            released = await self._thread.run(self._store.released, peer.population, peer.device_id)
        else:
            released = await self._thread.run(self._store.newest_release)
        model_id = ModelId(check_id(request.model_id) or (released.model_id if released is not None else ""))
        if not model_id:
            raise NotFoundError("no model is released yet; ask the operator")
        if peer.role is Role.DEVICE and not await self._thread.run(
            self._store.may_read_model, model_id, PopulationId(peer.population or "")
        ):
            raise NotFoundError(f"there is no model {model_id[:12]} for this device; check in again")
        model = await self._thread.run(self._store.model, model_id)
        signed = await self._thread.run(self._store.bundle, model_id)
        in_force = released is not None and released.model_id == model_id
        return manifest(model, is_released=in_force, bundle=signed, as_signed=peer.role is Role.DEVICE)

    async def Download(
        self, request: models_pb2.DownloadRequest, context: Any
    ) -> AsyncGenerator[common_pb2.DataChunk, None]:
        """Yield a model's blob from an offset on, in pieces."""
        peer, sha256 = caller(), check_hash(request.sha256)
        population = peer.population if peer.role is Role.DEVICE else None
        blob = await self._thread.run(self._store.may_read_blob, sha256, population)
        if blob is None:
            raise NotFoundError(f"there is no file {sha256[:12]} for this caller; fetch the manifest again")
        offset = request.offset
        if offset > blob.size_bytes:
            raise OffsetError(f"download resumes at byte {offset}, the file has {blob.size_bytes}; begin at 0")
        pieces = self._models.stream(sha256, offset)
        while (piece := await in_thread(_next, pieces)) is not None:
            yield common_pb2.DataChunk(offset=offset, data=piece)
            offset += len(piece)


def _next(pieces: Iterator[bytes]) -> bytes | None:
    return next(pieces, None)
