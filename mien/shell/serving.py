"""The frame of every program that serves: ready in a moment, told to the service manager, stopped by a signal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, TypeVar

import structlog

from mien.shell.memory import collect_rarely
from mien.shell.systemd import notify

T = TypeVar("T")

_LOG: Final = structlog.get_logger()


async def serve_until_signalled(
    running: AbstractAsyncContextManager[T], announce: Callable[[T], None], *, drain_s: float
) -> None:
    """Serve until SIGTERM or SIGINT; `announce` gets what `running` yields once calls are accepted.

    The end of `running` takes up to `drain_s`. Where somebody cannot wait, a second signal stops at once, which loses
    nothing that was acknowledged.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def signalled(number: signal.Signals) -> None:
        if stop.is_set():
            loop.remove_signal_handler(number)
            signal.raise_signal(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled, number)
    async with running as ready:
        collect_rarely()
        announce(ready)
        notify("READY=1")
        await stop.wait()
        notify("STOPPING=1")
        _LOG.info("draining; once more stops at once", limit_s=drain_s)
    _LOG.info("stopped")
