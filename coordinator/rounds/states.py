"""The server's state between rounds, on disk: public arrays as they are, all else sealed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Mapping

import numpy as np

from coordinator.store.blobs import BlobStore
from coordinator.store.sealing import MasterKey
from mien.contribution import Arrays, ContributionLayout, Total
from mien.errors import CorruptDataError
from mien.layout import Vector
from mien.protocol.ids import TaskId
from mien.protocol.rounds import BlobId
from mien.protocol.tensors import pack_tensors, unpack_tensors


class ServerStates:
    """Reads and writes server state in a blob store of its own, which no download ever reaches.

    What is put is held until `let_go`: no task that tidies up deletes what another step, not committed yet, names.
    """

    def __init__(self, blobs: BlobStore, key: MasterKey) -> None:
        self._blobs = blobs
        self._sealer = key.sealer("revealed")
        self._totals = key.sealer("totals")
        self._held: Counter[str] = Counter()
        self._lock = threading.Lock()

    def put_arrays(self, arrays: Arrays) -> str | None:
        """Return the address of public arrays, None for none."""
        return self._put(pack_tensors(arrays)) if arrays else None

    def put_revealed(self, task_id: TaskId, revealed: Mapping[str, Arrays]) -> str | None:
        """Return the address of what devices showed in clear, sealed for this task; None for nothing."""
        if not revealed:
            return None
        named = {f"{device}/{lane}": values for device, lanes in revealed.items() for lane, values in lanes.items()}
        return self._put(self._sealer.seal(pack_tensors(named), place=task_id.encode()))

    def put_total(self, task_id: TaskId, total: Total) -> str:
        """Return the address of a cohort's total, sealed for this task."""
        packed = pack_tensors({"total": total.vector, "num_reports": np.array([total.num_reports], np.int64)})
        return self._put(self._totals.seal(packed, place=task_id.encode()))

    def total(self, task_id: TaskId, sha256: str, layout: ContributionLayout) -> Total:
        """Return a cohort's total, to the last bit; raises CorruptDataError for one of another task or layout."""
        data = self._totals.open(self._blobs.read(sha256), place=task_id.encode())
        tensors = unpack_tensors(data, what="the trainers' total")
        if tensors["total"].shape != (layout.summed_size,):
            raise CorruptDataError("the trainers' total is of another form than its task; restore both from one backup")
        return Total(layout, tensors["total"], int(tensors["num_reports"][0]))

    def arrays(self, sha256: str | None) -> Arrays:
        """Return public arrays."""
        return {} if sha256 is None else unpack_tensors(self._blobs.read(sha256), what="the server's state")

    def revealed(self, task_id: TaskId, sha256: str | None) -> dict[str, Arrays]:
        """Return what devices showed in clear, by device."""
        if sha256 is None:
            return {}
        data = self._sealer.open(self._blobs.read(sha256), place=task_id.encode())
        revealed: dict[str, dict[str, Vector]] = {}
        for name, values in unpack_tensors(data, what="the server's state").items():
            device, _, lane = name.partition("/")
            revealed.setdefault(device, {})[lane] = values
        return dict(revealed)

    def _put(self, data: bytes) -> str:
        with self._lock:
            sha256 = self._blobs.put(data).sha256
            self._held[sha256] += 1
            return sha256

    def let_go(self, held: Mapping[str, int]) -> None:
        """Hold state no longer, as often as it was put: it is committed, or never will be."""
        with self._lock:
            self._held -= Counter(held)

    def remove(self, hashes: Collection[str]) -> None:
        """Forget state that no task needs any more, unless it is held."""
        for sha256 in hashes:
            with self._lock:
                if sha256 not in self._held:
                    self._blobs.remove(sha256)

    def keep_only(self, hashes: Collection[str]) -> None:
        """Forget everything else: what a crash left between a blob and its commit."""
        self._blobs.keep_only(hashes)


def read_theta(models: BlobStore, theta: BlobId) -> Vector:
    """Return a model's parameters as stored, not yet checked against a layout."""
    return np.frombuffer(models.read(theta.sha256), "<f4").astype(np.float32)
