"""A round's sum of which several replicas hold the addends: each adds up its own, the owner adds up the sums.

The members are dealt by who holds them, and each is in one part: none is added twice. What a replica cannot hand over
(it is gone, or its disk is) is read from the bucket by the owner.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import numpy as np
import structlog
from numpy.typing import NDArray

from coordinator.replicas.keeper import Keeper
from coordinator.replicas.peers import Peers, explained
from coordinator.replicas.registry import Registry
from coordinator.rounds.masked import MaskedRound
from coordinator.rounds.pulse import in_thread
from coordinator.rounds.spool import Spool
from coordinator.store.thread import StoreThread
from mien.contribution import ContributionLayout, Total
from mien.errors import CorruptDataError, MienError, NotFoundError
from mien.protocol.ids import DeviceId, RoundId
from mien.protocol.v1 import replicas_pb2
from mien.rounds.records import UploadRecord
from mien.secagg.quantise import add_packed, packed_size

Numbers = NDArray[Any]
_LOG: Final = structlog.get_logger()
_LIMIT_S: Final = 300.0


@dataclass(frozen=True)
class Addends:
    """The form of addends: `length` words of `ring_bits` bits (masked vectors), or as many float32 numbers (0 bits)."""

    length: int
    ring_bits: int

    @property
    def zero(self) -> Numbers:
        """The sum over nobody: uint32 (length,), or float64 (length,)."""
        return np.zeros(self.length, np.uint32 if self.ring_bits else np.float64)

    def add(self, total: Numbers, data: bytes) -> None:
        """Add what leads a contribution to a sum, in place."""
        size_bytes = packed_size(self.length, self.ring_bits) if self.ring_bits else 4 * self.length
        if len(data) < size_bytes:
            raise CorruptDataError("a contribution is shorter than what is to be added; the round cannot close")
        leading = memoryview(data)[:size_bytes]
        if self.ring_bits:
            add_packed(total, leading, self.ring_bits)
        else:
            total += np.frombuffer(leading, "<f4")

    def parse(self, data: bytes) -> Numbers:
        """Return a sum as another replica sent it; raises CorruptDataError."""
        kind = "<u4" if self.ring_bits else "<f8"
        if len(data) != self.zero.nbytes:
            raise CorruptDataError("another replica's sum is of another length; its contributions are read instead")
        return np.frombuffer(data, kind)


def add_up(
    spool: Spool,
    round_id: RoundId,
    device_ids: Sequence[DeviceId],
    uploads: Mapping[DeviceId, UploadRecord],
    addends: Addends,
) -> Numbers:
    """Return the sum of contributions, one at a time in order of their devices' ids: memory is one sum's.

    Raises NotFoundError for a device whose contribution does not count, CorruptDataError for one that is lost.
    """
    total = addends.zero
    for device_id in sorted(device_ids):
        if device_id not in uploads:
            raise NotFoundError("a contribution that is to be added up does not count in that round")
        addends.add(total, spool.read(round_id, device_id, uploads[device_id].blob))
    return total


@dataclass(frozen=True)
class Part:
    """The sum over some devices."""

    device_ids: tuple[DeviceId, ...]
    total: Numbers = field(repr=False)


class Sums:
    """The owner's side; `coordinator.rounds.closing.PartialSums`."""

    def __init__(self, keeper: Keeper, registry: Registry, thread: StoreThread, spool: Spool, peers: Peers) -> None:
        """`thread` is the registry's own."""
        self._keeper, self._registry, self._thread = keeper, registry, thread
        self._spool, self._peers = spool, peers

    async def plain(
        self,
        round_id: RoundId,
        device_ids: Sequence[DeviceId],
        uploads: Mapping[DeviceId, UploadRecord],
        layout: ContributionLayout,
    ) -> Total:
        """Return the total over the devices; the order in which replicas add decides its last bits."""
        total = Total.empty(layout)
        for part in await self._parts(round_id, device_ids, uploads, Addends(layout.summed_size, 0)):
            total = total.merge(Total(layout, part.total, len(part.device_ids)))
        return total

    async def masked(self, round_id: RoundId, uploads: Mapping[DeviceId, UploadRecord], masked: MaskedRound) -> None:
        """Bring all vectors that are not in the sums yet into them."""
        for waiting in masked.elsewhere:
            addends = Addends(masked.num_words, masked.ring_bits)
            for part in await self._parts(round_id, sorted(waiting), uploads, addends):
                await in_thread(masked.add_sum, part.device_ids, part.total.astype(np.uint32, copy=False))

    async def _parts(
        self,
        round_id: RoundId,
        device_ids: Sequence[DeviceId],
        uploads: Mapping[DeviceId, UploadRecord],
        addends: Addends,
    ) -> list[Part]:
        """Return sums that hold every device once: those of other replicas, then what is added up here."""
        holders = await self._thread.run(self._registry.holders, round_id)
        dealt: dict[str, list[DeviceId]] = defaultdict(list)
        for device_id in device_ids:
            dealt[holders.get(device_id, self._keeper.replica_id)].append(device_id)
        here = dealt.pop(self._keeper.replica_id, [])
        asked = [self._ask(holder, round_id, dealt[holder], addends) for holder in sorted(dealt)]
        parts = [part for part in await asyncio.gather(*asked) if part is not None]
        missing = set(device_ids) - {device_id for part in parts for device_id in part.device_ids}
        if missing:
            total = await in_thread(add_up, self._spool, round_id, sorted(missing), uploads, addends)
            parts.append(Part(tuple(sorted(missing)), total))
        _LOG.info("sums of replicas", round_id=round_id, parts=len(parts), here=len(missing), held_here=len(here))
        return parts

    async def _ask(
        self, holder: str, round_id: RoundId, device_ids: Sequence[DeviceId], addends: Addends
    ) -> Part | None:
        """Return another replica's sum, None where it cannot give it."""
        address = self._keeper.view.addresses.get(holder)
        if address is None:
            return None
        request = replicas_pb2.SumRequest(
            round_id=round_id, device_ids=device_ids, length=addends.length, ring_bits=addends.ring_bits
        )
        data = bytearray()
        try:
            async for piece in self._peers.stub(holder, address).Sum(request, timeout=_LIMIT_S):
                data += piece.data
            return Part(tuple(device_ids), addends.parse(bytes(data)))
        except grpc.aio.AioRpcError as error:
            problem: MienError = explained(error)
        except CorruptDataError as error:
            problem = error
        _LOG.warning("a replica's contributions are read from the bucket", replica=holder, reason=problem.message)
        return None
