"""Small asynchronous tools of the engine: telling many waiters at once, and work in threads that is never torn."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, ParamSpec, TypeVar

import structlog

from mien.errors import MienError

P = ParamSpec("P")
T = TypeVar("T")

_LOG: Final = structlog.get_logger()


class Pulse:
    """Tells everyone who waits that something changed.

    Take the `count` first, look at the state, then wait for a later count: nothing that happens in between is missed.
    """

    def __init__(self) -> None:
        self.count = 0
        self._event = asyncio.Event()

    def beat(self) -> None:
        """Wake everyone who waits."""
        self.count += 1
        self._event.set()
        self._event = asyncio.Event()

    async def after(self, count: int, timeout_s: float | None = None) -> None:
        """Return once there was a beat since `count`, or the time is over."""
        if self.count != count:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return


class Together:
    """Lets those who come one after another go on together: what they do then costs little more than for one."""

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self._go: asyncio.Event | None = None

    async def ready(self) -> None:
        """Return with everyone who comes within the time that the first of them waits."""
        if self._go is None:
            self._go = asyncio.Event()
            asyncio.get_running_loop().call_later(self._within_s, self._start)
        await self._go.wait()

    def _start(self) -> None:
        assert self._go is not None, "somebody waits"
        self._go.set()
        self._go = None


async def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what a blocking call returns. A cancelled caller is held until the call is over, so that whatever it
    works on (a file) is not closed under it.
    """
    return await held(asyncio.get_running_loop().run_in_executor(None, functools.partial(call, *args, **kwargs)))


class Threads:
    """Threads of their own for calls that wait for the disk most of the time; like `in_thread`."""

    def __init__(self, count: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)

    def start(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Return the future of a blocking call's result, to be waited for with `held`."""
        return asyncio.get_running_loop().run_in_executor(self._pool, functools.partial(call, *args, **kwargs))

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a blocking call."""
        return await held(self.start(call, *args, **kwargs))


def log_failure(what: str, error: BaseException, **where: object) -> None:
    """Log what kept something from its work: a defect with its traceback, else what to do."""
    if isinstance(error, MienError):
        _LOG.error(f"{what} held up", error=error.code, reason=error.message, **where)
    else:
        _LOG.error(f"{what} failed by an internal error", error=type(error).__name__, exc_info=error, **where)


def log_end(ended: asyncio.Task[Any], *, what: str) -> None:
    """Log the error that ended a task which was to go on."""
    if not ended.cancelled() and (error := ended.exception()) is not None:
        _LOG.error(what, error=type(error).__name__, exc_info=error)


async def held(work: asyncio.Future[T]) -> T:
    """Return what a thread's work gives. A cancelled caller is held until the work is over, and does not stop it."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait({work})
        raise
