"""Features of clients' crops by a frozen trunk, one block a client, for programs that take many at once."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from device_sdk.runtimes.schedule import Batch
from device_sdk.runtimes.torch_runtime import TAIL_BATCH, Trunk
from mien.methods.base import Crops

KEPT_BYTES: Final = 192 * 2**20
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """Features of one client's crops (R, ...), and which row holds a crop as it is and mirrored, (2, N); -1 if none."""

    features: Tensor = field(repr=False)
    place: Indices = field(repr=False)

    @property
    def num_bytes(self) -> int:
        """Memory that the features take."""
        return self.features.numel() * self.features.element_size()


class FeatureBlocks:
    """Remembers clients' blocks of features between rounds, least recently used first out.

    Only of crops that nobody can write to, which are known by the array they are; other crops are looked up one by one
    in the runtime's own cache. Without a trunk there is nothing to remember.
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._size_bytes = 0
        self._trunk_id = b""
        self._kept: OrderedDict[int, tuple[weakref.ref[Crops], Rows]] = OrderedDict()

    @property
    def num_kept(self) -> int:
        """Number of clients whose blocks are remembered."""
        return len(self._kept)

    def rows(self, trunk: Trunk, crops: Crops, batches: Sequence[Batch]) -> Rows:
        """Return the features of all crops as they are, and of those that the batches mirror."""
        mirrored = np.zeros(len(crops), np.bool_)
        for batch in batches:
            mirrored[batch.indices[batch.flipped]] = True
        known = self._known(trunk, crops)
        rows = _plain(trunk, crops) if known is None else known
        missing = np.flatnonzero(mirrored & (rows.place[1] < 0))
        if len(missing):
            rows = _with_mirrored(trunk, crops, rows, missing)
        if rows is not known:
            self._keep(trunk, crops, rows)
        return rows

    def _known(self, trunk: Trunk, crops: Crops) -> Rows | None:
        if trunk.trunk_id != self._trunk_id:
            self._kept.clear()
            self._size_bytes, self._trunk_id = 0, trunk.trunk_id
        kept = self._kept.get(id(crops))
        if kept is None or kept[0]() is not crops:
            return None
        self._kept.move_to_end(id(crops))
        return kept[1]

    def _keep(self, trunk: Trunk, crops: Crops, rows: Rows) -> None:
        if trunk.split == 0 or crops.flags.writeable:
            return
        self._forget(id(crops))
        address = id(crops)
        self._kept[address] = (weakref.ref(crops, lambda _: self._forget(address)), rows)
        self._size_bytes += rows.num_bytes
        while self._size_bytes > self._kept_bytes:
            self._forget(next(iter(self._kept)))

    def _forget(self, address: int) -> None:
        kept = self._kept.pop(address, None)
        if kept is not None:
            self._size_bytes -= kept[1].num_bytes


def _plain(trunk: Trunk, crops: Crops) -> Rows:
    pieces = [trunk.features(crops[start : start + TAIL_BATCH]) for start in range(0, len(crops), TAIL_BATCH)]
    if len(crops) <= TAIL_BATCH:  # the very array, whose digests may be known
        pieces = [trunk.features(crops)]
    place = np.stack([np.arange(len(crops)), np.full(len(crops), -1)])
    return Rows(pieces[0] if len(pieces) == 1 else torch.cat(pieces), place)


def _with_mirrored(trunk: Trunk, crops: Crops, rows: Rows, missing: Indices) -> Rows:
    added = trunk.features(crops[missing], np.ones(len(missing), np.bool_))
    place = rows.place.copy()
    place[1, missing] = len(rows.features) + np.arange(len(missing))
    return Rows(torch.cat([rows.features, added]), place)
