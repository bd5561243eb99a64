"""The line that tests cut: what it has taken ends with it, however far it is with that."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket

import pytest

from simulation.testing import free_port
from tests.helpers import run
from tests.servers.relay import Relay


@pytest.mark.parametrize("turns", range(10))
@pytest.mark.parametrize("is_answered", [False, True], ids=["nobody there", "somebody there"])
@pytest.mark.parametrize("is_reopened", [False, True], ids=["closed", "closed and opened"])
def test_a_connection_that_comes_as_it_closes_is_closed(turns: int, is_answered: bool, is_reopened: bool) -> None:
    """However far it is: not yet taken, about to connect, or connected; the one who called sees the end."""

    async def story(target: int) -> None:
        relay = Relay([target])
        async with relay:
            port = relay.port
            with socket.create_connection(("127.0.0.1", port), timeout=60) as caller:
                for _ in range(turns):
                    await asyncio.sleep(0)
                await relay.close()
                with contextlib.suppress(ConnectionResetError):
                    assert caller.recv(1) == b""
            if is_reopened:
                relay.open()
                assert relay.port == port

    with socket.create_server(("127.0.0.1", 0)) as listening:
        run(story(listening.getsockname()[1] if is_answered else free_port()))
    gc.collect()  # an open transport or socket would warn, which fails this test


def test_what_was_sent_before_an_end_arrives_whole() -> None:
    """A server that answers and hangs up at once, as HTTP's do."""
    data = bytes(range(256)) * 40_000

    def answer(listening: socket.socket) -> None:
        taken, _ = listening.accept()
        with taken:
            taken.sendall(data)

    async def story(listening: socket.socket) -> bytes:
        answering = asyncio.create_task(asyncio.to_thread(answer, listening))
        async with Relay([listening.getsockname()[1]]) as relay:
            reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
            await asyncio.sleep(0.1)  # so that most of it waits in the relay
            found = await reader.read(-1)
            writer.close()
            await writer.wait_closed()
        await answering
        return found

    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert run(story(listening)) == data


@pytest.mark.parametrize(("in_turn", "takes"), [(True, [0, 1, 0, 1]), (False, [0, 0, 0, 0])])
def test_targets_take_turns_or_the_first_takes_all(in_turn: bool, takes: list[int]) -> None:
    async def story(targets: list[socket.socket]) -> list[int]:
        found = []
        async with Relay([each.getsockname()[1] for each in targets], in_turn=in_turn) as relay:
            for _ in takes:
                _, writer = await asyncio.open_connection("127.0.0.1", relay.port)
                loop = asyncio.get_running_loop()
                waits = [asyncio.create_task(loop.sock_accept(each)) for each in targets]
                done, left = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                found.append(waits.index(next(iter(done))))
                for each in done:
                    each.result()[0].close()
                for each in left:
                    each.cancel()
                await asyncio.gather(*left, return_exceptions=True)
                writer.transport.abort()
            assert relay.num_taken == len(takes)
        return found

    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        for each in (one, other):
            each.setblocking(False)
        assert run(story([one, other])) == takes
