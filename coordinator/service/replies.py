"""Long replies, made ready once a round however many devices fetch them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from coordinator.rounds.pulse import in_thread
from mien.contribution import Arrays
from mien.protocol.replies import TensorStream, split_reply

_MOST_KEPT: Final = 4


class ReplyStreams:
    """Streams of the arrays that devices are told; the same arrays are hashed once. Runs on one event loop."""

    def __init__(self) -> None:
        # The key names arrays by identity: the value keeps them alive, so that no other can take their place.
        self._kept: OrderedDict[tuple[tuple[str, int], ...], tuple[Arrays, TensorStream]] = OrderedDict()
        self._hashing = asyncio.Lock()

    async def split(self, reply: Arrays) -> tuple[Arrays, TensorStream | None]:
        """Return what goes with the assignment, and the stream of the rest, its hash known; None for no rest."""
        short, long = split_reply(reply)
        if not long:
            return short, None
        key = tuple(sorted((name, id(values)) for name, values in long.items()))
        async with self._hashing:  # a cohort asks all at once
            if key not in self._kept:
                stream = TensorStream(long)
                await in_thread(lambda: stream.sha256)
                self._kept[key] = long, stream
        self._kept.move_to_end(key)
        while len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        return short, self._kept[key][1]
