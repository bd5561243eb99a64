"""Turns: how many uploads bring their bytes at full speed at the same time.

A stream holds some hundred kilobytes on its way (in gRPC, in Python, before a thread), so that memory would grow with
the number of devices that send at once, while a few fill network, processor and disk. The others wait before they are
read: HTTP/2's flow control keeps what they send with them. A sender that is slow gives its turn up and is read all the
same, without one: it can neither fill memory nor hold others up. Where those with a turn bring enough together, it is
this machine that is slow, and a sender has to be silent for much longer.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

_PATIENCE: Final = 10


class Turn:
    """One upload's place among those that are read at full speed."""

    def __init__(self) -> None:
        self._heard_at = math.inf
        self.num_heard = 0

    def heard(self) -> None:
        """Tell that a piece has arrived."""
        self._heard_at = asyncio.get_running_loop().time()
        self.num_heard += 1

    def busy(self) -> None:
        """Tell that the next piece is not waited for, until `heard`: the sender is not to blame for the time."""
        self._heard_at = math.inf

    def silent_s(self) -> float:
        """Return for how long the sender was waited for."""
        return asyncio.get_running_loop().time() - self._heard_at


class Turns:
    """Gives turns in the order in which they are asked for; of one event loop."""

    def __init__(self, count: int, *, slow_s: float) -> None:
        """A holder of whom nothing is heard for `slow_s` while others wait has to give its turn up; for ten times as
        long, while the holders together bring more than a piece each in `slow_s`.
        """
        self._count, self._slow_s = count, slow_s
        self._holders = set[Turn]()
        self._waiting = deque[tuple[Turn, asyncio.Future[None]]]()
        self._check: asyncio.TimerHandle | None = None

    @property
    def num_waiting(self) -> int:
        """Number of uploads that wait for a turn."""
        return len(self._waiting)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Turn]:
        """Hold a turn while the block runs, or until it was given up."""
        turn = Turn()
        try:
            await self._taken(turn)
            turn.heard()
            yield turn
        finally:
            self._holders.discard(turn)
            self._hand_on()

    async def _taken(self, turn: Turn) -> None:
        if len(self._holders) < self._count:
            self._holders.add(turn)
            return
        place = turn, asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        self._check_later()
        try:
            await place[1]
        finally:
            if place in self._waiting:  # its caller went away
                self._waiting.remove(place)

    def _hand_on(self) -> None:
        while self._waiting and len(self._holders) < self._count:
            turn, told = self._waiting.popleft()
            if not told.done():
                self._holders.add(turn)
                told.set_result(None)

    def _check_later(self) -> None:
        if self._check is None:
            loop = asyncio.get_running_loop()
            self._check = loop.call_at(loop.time() + self._slow_s, self._pass_over)

    def _pass_over(self) -> None:
        """Give up the turns of uploads that stalled."""
        assert self._check is not None, "it has just come due"
        late_s = asyncio.get_running_loop().time() - self._check.when()
        self._check = None
        num_heard = sum(turn.num_heard for turn in self._holders)
        limit_s = self._slow_s * (_PATIENCE if num_heard > len(self._holders) else 1)
        for turn in [*self._holders]:
            turn.num_heard = 0
            if turn.silent_s() >= limit_s and late_s < self._slow_s:  # else nobody was heard: this program stood still
                self._holders.remove(turn)
        self._hand_on()
        if self._waiting:
            self._check_later()
