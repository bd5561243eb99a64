"""Telling browsers that something changed: one look at the store a second for all of them, by Server-Sent Events.

An event names the store's new revision and what happened, in words; the browser then fetches the page that it shows.
Nothing queues up: a browser that is slow, or comes back with the last revision that it saw, hears of the newest state
only. Whoever listens in vain for too long, or too many, is turned away.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from mien.errors import MienError, RateLimitedError

MAX_LISTENERS: Final = 100
MAX_OF_ONE: Final = 12
POLL_S: Final = 1.0
BEAT_S: Final = 15.0
SEND_S: Final = 20.0
"""Time that a browser has to make room for an event."""

_LOG: Final = structlog.get_logger()


@dataclass(frozen=True)
class News:
    """The store's revision, and what happened last that is worth telling, if anything."""

    revision: str
    note: str = ""


class Live:
    """The store's newest revision, looked up while somebody listens."""

    def __init__(self, look: Callable[[], Awaitable[News]], *, poll_s: float = POLL_S, beat_s: float = BEAT_S) -> None:
        self._look, self._poll_s, self._beat_s = look, poll_s, beat_s
        self._news: News | None = None
        self._changed = asyncio.Condition()
        self._listeners: Counter[str] = Counter()
        self._is_closing = False

    @property
    def num_listeners(self) -> int:
        """Return how many browsers listen."""
        return self._listeners.total()

    async def run(self) -> None:
        """Look at the store again and again until cancelled; a database that is away is asked again."""
        while True:
            if self.num_listeners:
                await self._look_once()
            await asyncio.sleep(self._poll_s)

    async def _look_once(self) -> None:
        try:
            news = await self._look()
        except MienError as error:
            _LOG.warning("the store does not answer", reason=error.message)
            return
        if self._news is None or news.revision != self._news.revision:
            async with self._changed:
                self._news = news
                self._changed.notify_all()

    async def close(self) -> None:
        """Send everybody away."""
        async with self._changed:
            self._is_closing = True
            self._changed.notify_all()

    def admit(self, name: str) -> None:
        """Count a listener; raises RateLimitedError for one too many. Whoever was admitted must `dismiss`."""
        if self.num_listeners >= MAX_LISTENERS or self._listeners[name] >= MAX_OF_ONE:
            raise RateLimitedError("too many pages listen; close some", retry_after_s=30.0)
        self._listeners[name] += 1

    def dismiss(self, name: str) -> None:
        """Count a listener no more."""
        self._listeners[name] -= 1
        if not self._listeners[name]:
            del self._listeners[name]

    async def events(self, since: str, is_welcome: Callable[[], Awaitable[bool]]) -> AsyncIterator[bytes]:
        """Yield an event for every revision but `since`, and a beat now and then, while the listener is welcome."""
        yield b"retry: 3000\n\n"
        while not self._is_over():
            news = await self._next(since)
            if self._is_over():
                return
            if not await is_welcome():
                yield b"event: end\ndata: {}\n\n"
                return
            if news is None:
                yield b": beat\n\n"
                continue
            since = news.revision
            data = json.dumps({"revision": news.revision, "note": news.note})
            yield f"id: {news.revision}\nevent: change\ndata: {data}\n\n".encode()

    def _is_over(self) -> bool:
        return self._is_closing

    async def _next(self, since: str) -> News | None:
        """Return news other than `since`, None when there are none until the next beat."""

        def is_due() -> bool:
            return self._is_closing or (self._news is not None and self._news.revision != since)

        try:
            async with asyncio.timeout(self._beat_s), self._changed:
                await self._changed.wait_for(is_due)
        except TimeoutError:
            return None
        return self._news


class EventStream(StreamingResponse):
    """An answer that goes on: events until they end, the browser goes away, or makes no room for them."""

    def __init__(self, events: AsyncIterator[bytes], done: Callable[[], None]) -> None:
        """`done` is called once nothing more is sent."""
        super().__init__(events, headers={"X-Accel-Buffering": "no"}, media_type="text/event-stream")
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events; whoever is left without them asks again."""

        async def send_soon(message: Message) -> None:
            async with asyncio.timeout(SEND_S):
                await send(message)

        try:
            with contextlib.suppress(TimeoutError, MienError):
                await super().__call__(scope, receive, send_soon)
        finally:
            self._done()
