"""A line between devices and coordinator whose weather can change: loss, delay, a trickle, silence, half-open ends."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.servers.relay import End, Relay

CHUNK_BYTES = 4096


@dataclass(frozen=True)
class Weather:
    """What a line does to what goes through it, in either direction.

    `loss` is the chance that a chunk is the last one of its connection, which both ends see reset. `rate_bytes_s` is
    what a connection carries at most, 0 for no limit. `delay_s` is the longest delay of a chunk; each draws its own,
    so that calls on several connections overtake each other. While it `is_silent` nothing arrives, nothing is lost and
    no connection ends; new ones are taken and hear nothing either.
    """

    loss: float = 0.0
    rate_bytes_s: float = 0.0
    delay_s: float = 0.0
    is_silent: bool = False


FAIR = Weather()


class Proxy(Relay):
    """A relay in whatever weather."""

    def __init__(self, targets: Sequence[int], luck: random.Random) -> None:
        super().__init__(targets)
        self._luck = luck
        self._changed = asyncio.Event()
        self._weather = FAIR
        self._lines: set[_Line] = set()
        self.num_cut = 0
        self.num_half_open = 0

    @property
    def weather(self) -> Weather:
        """The weather of the moment; a change concerns connections that are open too."""
        return self._weather

    @weather.setter
    def weather(self, weather: Weather) -> None:
        self._weather = weather
        self._changed.set()
        self._changed = asyncio.Event()

    def cut(self) -> None:
        """Reset every connection, in the middle of whatever it carries."""
        for line in list(self._lines):
            line.reset()
            self.num_cut += 1

    def leave_half_open(self, share: float = 0.5) -> None:
        """Have the coordinator's end of a share of the connections vanish; devices are not told, and talk to nobody."""
        for line in [line for line in self._lines if self._luck.random() < share]:
            line.is_half_open = True
            line.inner.transport.abort()
            self.num_half_open += 1

    async def _carry(self, outer: End, inner: End) -> None:
        line = _Line(outer[1], inner[1])
        self._lines.add(line)
        try:
            await asyncio.gather(self._pump(line, outer[0], inner[1]), self._pump(line, inner[0], outer[1]))
        finally:
            self._lines.discard(line)

    async def _pump(self, line: _Line, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await self._endure(line, len(data))
                if line.is_half_open:
                    continue
                writer.write(data)
                await writer.drain()
        if not line.is_half_open:
            line.reset()

    async def _endure(self, line: _Line, size: int) -> None:
        """Do to one chunk what the weather does."""
        while (weather := self._weather).is_silent:
            await self._changed.wait()
        if weather.delay_s:
            await asyncio.sleep(self._luck.uniform(0.0, weather.delay_s))
        if weather.rate_bytes_s:
            await asyncio.sleep(size / weather.rate_bytes_s)
        if weather.loss and self._luck.random() < weather.loss:
            self.num_cut += 1
            line.reset()


class _Line:
    """One connection through the proxy."""

    def __init__(self, outer: asyncio.StreamWriter, inner: asyncio.StreamWriter) -> None:
        self.outer, self.inner = outer, inner
        self.is_half_open = False

    def reset(self) -> None:
        """End it as a broken link does."""
        self.outer.transport.abort()
        self.inner.transport.abort()
