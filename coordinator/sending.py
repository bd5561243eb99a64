"""Streams that a client of asyncio sends, by gRPC's own threads.

gRPC's asyncio client loses what a server says that ends a call while a message is being written, and reports an
internal error in its place (grpc/grpc#36066). Its threads' client does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Generator
from typing import Any


async def sent(call: Any, messages: Generator[Any, None, None], *, timeout_s: float) -> Any:
    """Return the answer to a stream of messages, which is closed then; raises grpc.RpcError.

    `call` is a client-streaming method of a stub on a channel of `grpc.secure_channel`. Messages are drawn in a thread.
    """
    loop, done, drawn = asyncio.get_running_loop(), asyncio.Event(), _Drawn(messages)

    def tell(_answer: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(done.set)

    answer = call.future(drawn, timeout=timeout_s)
    answer.add_done_callback(tell)
    try:
        await done.wait()
    finally:
        answer.cancel()  # does nothing to one that is there
        drawn.close()
    return answer.result()


class _Drawn:
    """Messages that one thread draws and another may close."""

    def __init__(self, messages: Generator[Any, None, None]) -> None:
        self._messages, self._turn = messages, threading.Lock()

    def __iter__(self) -> _Drawn:
        return self

    def __next__(self) -> Any:
        with self._turn:
            return next(self._messages)

    def close(self) -> None:
        """Close what the messages are made of; none is drawn any more."""
        with self._turn:
            self._messages.close()
