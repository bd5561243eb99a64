"""The thread that a store's calls run on: one after another, through times in which the database is away."""

from __future__ import annotations

import asyncio
import functools
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Generic, ParamSpec, TypeVar

import structlog

from mien.errors import DiskFullError, FileAccessError, UnavailableError, UnreachableError

P = ParamSpec("P")
T = TypeVar("T")
Item = TypeVar("Item")
Answer = TypeVar("Answer")

_LOG: Final = structlog.get_logger()
_GROUP: Final = 500

_OF_THE_DATABASE: Final = (UnavailableError, DiskFullError, FileAccessError)
"""Errors that no single item causes: asking again for each alone would find the same."""


class StoreThread:
    """Runs a store's methods one after another on a thread of its own, and outlives a database that goes away.

    While the database does not answer, a call is tried again for `patience_s` and then raises UnreachableError; what
    it would have written may then be there or not. `settle` never leaves that open.
    """

    def __init__(self, *, patience_s: float = 10.0, retry_s: float = 0.5) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._patience_s, self._retry_s = patience_s, retry_s
        self._closing = threading.Event()
        self._down_since: float | None = None

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `call` returns, without blocking the event loop. What has begun is finished even when the
        caller goes away.
        """
        future = self._pool.submit(self._answer, functools.partial(call, *args, **kwargs), self._patience_s)
        answer = asyncio.wrap_future(future)
        answer.add_done_callback(_heard)
        while True:
            done, _ = await asyncio.wait({answer}, timeout=self._patience_s)
            if done:
                return answer.result()
            if self._down_since is not None and future.cancel():  # behind a call that has to know
                raise UnreachableError("the database does not answer; try again", retry_after_s=5.0)

    async def settle(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of `call`, however long the database is away: for a write whose outcome has to be known.

        `call` gives the same answer when it is asked again. Raises UnreachableError only once this thread is closed.
        """
        future = self._pool.submit(self._answer, functools.partial(call, *args, **kwargs), math.inf)
        return await asyncio.shield(asyncio.wrap_future(future))

    def _answer(self, call: Callable[[], T], patience_s: float) -> T:
        end = time.monotonic() + patience_s
        while True:
            try:
                answer = call()
            except UnreachableError as error:
                if self._down_since is None:
                    self._down_since = time.monotonic()
                    _LOG.error("the database does not answer; it is asked again and again", reason=error.message)
                if time.monotonic() >= end or self._closing.wait(self._retry_s):
                    raise
            else:
                if self._down_since is not None:
                    _LOG.warning("the database answers again", after_s=round(time.monotonic() - self._down_since, 1))
                    self._down_since = None
                return answer

    def close(self) -> None:
        """Wait for what has begun."""
        self._closing.set()
        self._pool.shutdown(wait=True)


class Grouped(Generic[Item, Answer]):
    """Calls of one method that wait for the store's thread at the same time become one transaction.

    `call` takes all items together and returns their answers in the same order. Under load an fsync is shared; alone,
    a call does not wait for others. An item that cannot be stored is refused alone, not those that came with it.
    """

    def __init__(self, thread: StoreThread, call: Callable[[Sequence[Item]], Sequence[Answer]]) -> None:
        self._thread, self._call = thread, call
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._running: asyncio.Task[None] | None = None

    async def __call__(self, item: Item) -> Answer:
        """Return one item's answer, once it is committed."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        return await answer

    async def _run(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting[:_GROUP], self._waiting[_GROUP:]
            try:
                found = await self._found([item for item, _ in group])
                for (_, answer), each in zip(group, found, strict=True):
                    _tell(answer, each)
            finally:  # whatever happened, nobody waits for ever
                for _, answer in group:
                    answer.cancel()

    async def _found(self, items: Sequence[Item]) -> list[Answer | Exception]:
        """Return for each item its answer, or why there is none."""
        try:
            return [*await self._thread.run(self._call, items)]
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait have to hear of it, or they hang
            if len(items) == 1 or isinstance(error, _OF_THE_DATABASE):
                return [error] * len(items)
        found: list[Answer | Exception] = []
        for item in items:
            found += await self._found([item])
            if isinstance(found[-1], _OF_THE_DATABASE):
                break
        return found + found[-1:] * (len(items) - len(found))


def _tell(answer: asyncio.Future[Answer], found: Answer | Exception) -> None:
    if answer.done():
        return
    if isinstance(found, Exception):
        answer.set_exception(found)
    else:
        answer.set_result(found)


def _heard(answer: asyncio.Future[Any]) -> None:
    """Take note of how a call ended that nobody may wait for any more."""
    if not answer.cancelled():
        answer.exception()
