"""What tests of every package need: the repository's folder, who runs them, asynchronous stories, a listener."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from mien.errors import MienError

ROOT = Path(__file__).resolve().parents[1]

_T = TypeVar("_T")


def run(story: Coroutine[Any, Any, _T], *, limit_s: float = 480.0) -> _T:
    """Return what an asynchronous test returns, within a limit."""

    async def bounded() -> _T:
        async with asyncio.timeout(limit_s):
            return await story

    return asyncio.run(bounded())


async def raised(call: Any) -> MienError:
    """Return the error that a call raises; a call that raises none fails the test."""
    try:
        await call
    except MienError as error:
        return error
    raise AssertionError("the call was not refused")


@contextlib.contextmanager
def one_caller(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """Yield a port of loopback whose first caller is answered on a thread, which has ended with the block.

    Nobody has to call: a client whose time ran out on a busy machine before it came to that leaves no thread behind.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):  # who called has gone, or nobody came
                caller, _ = listener.accept()
                with caller:
                    answer(caller)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def is_root() -> bool:
    """Return whether this process may mount file systems."""
    return os.geteuid() == 0


def forget_outside_methods() -> None:
    """Let this process know Mien's own methods only, as one that begins; imports nothing."""
    if registry := sys.modules.get("mien.methods.registry"):
        for name in registry.METHODS.keys() - registry._own_names:
            del registry._known[name]
        registry._broken.clear()
    if specs := sys.modules.get("simulation.runs.spec"):
        specs._ENTERED.clear()
