"""Serving HTTP on a socket of ours."""

from __future__ import annotations

import asyncio
import socket

from coordinator.service.http import listening


def test_small_answers_do_not_wait_for_more() -> None:
    async def story() -> int:
        told = asyncio.get_running_loop().create_future()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            told.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with listening("127.0.0.1", 0, change="free it") as listener:
            async with await asyncio.start_server(connected, sock=listener):
                _, writer = await asyncio.open_connection(*listener.getsockname())
                try:
                    return int(await told)
                finally:
                    writer.close()

    assert asyncio.run(story())
