"""A line of TCP that tests cut, mend and spoil: one port of loopback, forwarded to others."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence

End = tuple[asyncio.StreamReader, asyncio.StreamWriter]

CHUNK_BYTES = 65536


class Relay:
    """Forwards connections to other ports in turn, or to the first of them; who does not answer is left out.

    It accepts by itself and not by `asyncio.start_server`, whose `close()` leaves open for ever what it is accepting
    at that moment. `num_taken` counts connections.
    """

    def __init__(self, targets: Sequence[int], *, port: int = 0, in_turn: bool = True) -> None:
        self._targets, self._step = targets, int(in_turn)
        self._next = 0
        self._listening: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = port
        self.num_taken = 0

    @property
    def address(self) -> str:
        """Where it is reached, by the name that certificates have."""
        return f"localhost:{self.port}"

    async def __aenter__(self) -> Relay:
        self.open()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()

    def open(self) -> None:
        """Take connections on `port`, or on any port that is free, which it has from then on."""
        assert self._listening is None, "it is open"
        self._listening = socket.create_server(("127.0.0.1", self.port))
        self._listening.setblocking(False)
        self.port = self._listening.getsockname()[1]
        asyncio.get_running_loop().add_reader(self._listening, self._accept, self._listening)

    async def close(self) -> None:
        """Take no more connections, and end every one however far it is."""
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            self._listening = None
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
        await asyncio.sleep(0)  # what was aborted closes its socket in the next turn

    def _accept(self, listening: socket.socket) -> None:
        try:
            taken, _ = listening.accept()
        except OSError:  # it has gone again
            return
        self.num_taken += 1
        task = asyncio.create_task(self._forward(taken))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: taken.close())  # of a task that was cancelled before it began, too

    async def _forward(self, taken: socket.socket) -> None:
        ends: list[End] = []
        try:
            ends.append(await asyncio.open_connection(sock=taken))
            if (target := await self._connect()) is not None:
                ends.append(target)
                await self._carry(*ends)
        finally:
            for _, writer in ends:
                writer.transport.abort()

    async def _connect(self) -> End | None:
        start, self._next = self._next, self._next + self._step
        for number in range(len(self._targets)):
            with contextlib.suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", self._targets[(start + number) % len(self._targets)])
        return None

    async def _carry(self, outer: End, inner: End) -> None:
        """Pass bytes on both ways, until neither end has more."""
        await asyncio.gather(_pump(outer[0], inner[1]), _pump(inner[0], outer[1]))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on until one side has gone, and then let the other go."""
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()
        await writer.wait_closed()
