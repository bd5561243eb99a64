"""The line that faults come over: each weather does what it says."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socketserver
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from tests.chaos.proxy import FAIR, Proxy, Weather
from tests.helpers import run

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Echo(socketserver.BaseRequestHandler):
    """Sends everything back."""

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.request.recv(65536):
                self.request.sendall(data)


@contextlib.asynccontextmanager
async def echoing() -> AsyncIterator[tuple[Proxy, Ends]]:
    """Run a server that sends everything back, a line to it, and one connection over that."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            async with Proxy([server.server_address[1]], random.Random(1)) as proxy:
                reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
                try:
                    yield proxy, (reader, writer)
                finally:
                    writer.transport.abort()
        finally:
            server.shutdown()
            thread.join()


async def said(ends: Ends, data: bytes = b"hello", limit_s: float = 60.0) -> bytes:
    """Return what comes back of some bytes."""
    ends[1].write(data)
    async with asyncio.timeout(limit_s):
        return await ends[0].readexactly(len(data))


def story(play: Callable[[Proxy, Ends], Coroutine[Any, Any, None]]) -> None:
    """Play a story over a line of its own."""

    async def whole() -> None:
        async with echoing() as (proxy, ends):
            assert await said(ends) == b"hello"
            await play(proxy, ends)

    run(whole())


def test_silence_keeps_what_was_said_until_it_ends() -> None:
    async def play(proxy: Proxy, ends: Ends) -> None:
        proxy.weather = Weather(is_silent=True)
        with pytest.raises(TimeoutError):
            await said(ends, b"anybody?", limit_s=0.3)
        proxy.weather = FAIR
        async with asyncio.timeout(60):
            assert await ends[0].readexactly(8) == b"anybody?"

    story(play)


@pytest.mark.parametrize("how", ["loss", "cut"])
def test_a_lost_connection_is_seen_as_reset(how: str) -> None:
    async def play(proxy: Proxy, ends: Ends) -> None:
        if how == "cut":
            proxy.cut()
        proxy.weather = Weather(loss=1.0)
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await said(ends)
        assert proxy.num_cut >= 1

    story(play)


def test_a_half_open_connection_hears_nothing_and_is_not_told() -> None:
    async def play(proxy: Proxy, ends: Ends) -> None:
        proxy.leave_half_open(share=1.0)
        with pytest.raises(TimeoutError):
            await said(ends, limit_s=0.3)
        assert not ends[0].at_eof()

    story(play)


def test_a_trickle_takes_the_time_that_its_rate_means() -> None:
    async def play(proxy: Proxy, ends: Ends) -> None:
        proxy.weather = Weather(rate_bytes_s=20_000.0)
        began = time.monotonic()
        assert await said(ends, bytes(4000)) == bytes(4000)
        assert time.monotonic() - began >= 2 * 4000 / 20_000  # there and back

    story(play)


def test_a_delay_comes_before_each_chunk() -> None:
    async def play(proxy: Proxy, ends: Ends) -> None:
        proxy.weather = Weather(delay_s=0.1)
        assert await said(ends) == b"hello"

    story(play)
