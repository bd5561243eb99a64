"""Streams that a client of asyncio sends, by gRPC's own threads.

gRPC's asyncio client loses what a server says that ends a call while a message is being written, and reports an
internal error in its place (grpc/grpc#36066). Its threads' client does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Generator
from typing import Any

from mien.errors import MienError


async def sent(call: Any, messages: Generator[Any, None, None], *, timeout_s: float) -> Any:
    """Return the answer to a stream of messages, which is closed then; raises grpc.RpcError, and what `messages` raise.

    `call` is a client-streaming method of a stub on a channel of `grpc.secure_channel`. Messages are drawn in a thread.
    """
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def tell(_answer: Any = None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(done.set)

    drawn = _Drawn(messages, on_failure=tell)
    answer = call.future(drawn, timeout=timeout_s)
    answer.add_done_callback(tell)
    try:
        await done.wait()
    finally:
        answer.cancel()  # does nothing to one that is there
        drawn.close()
    if drawn.failed is not None:
        raise drawn.failed
    return answer.result()


class _Drawn:
    """Messages that one thread draws and another may close; `failed` is what was raised in the place of one."""

    def __init__(self, messages: Generator[Any, None, None], *, on_failure: Callable[[], None]) -> None:
        self._messages, self._turn, self._closed = messages, threading.Lock(), threading.Event()
        self._on_failure = on_failure
        self.failed: MienError | OSError | None = None

    def __iter__(self) -> _Drawn:
        return self

    def __next__(self) -> Any:
        with self._turn:
            try:
                return next(self._messages)
            except (MienError, OSError) as error:
                self.failed = error
        # gRPC would log what is raised here, and take the end of the messages for the end of a whole stream: this
        # thread waits until the call is cancelled.
        self._on_failure()
        self._closed.wait()
        raise StopIteration

    def close(self) -> None:
        """Close what the messages are made of; none is drawn any more."""
        with self._turn:
            self._messages.close()
        self._closed.set()
