"""An event loop on virtual time: it waits for threads, and skips all other waiting."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

from mien.shell.clock import Clock


class _Selector(selectors.DefaultSelector):
    """Never waits for time to pass: it has the loop's clock jump instead, unless a thread is still at work."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready."""
        if timeout is not None and timeout <= 0:
            return super().select(0)
        if self.loop.num_busy:
            return super().select(0.05)  # a thread wakes the selector when it is done
        ready = super().select(0)
        if not ready and timeout is not None:
            self.loop.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose clock stands still while it works, and jumps to the next call when it would wait."""

    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        self.now, self.num_busy = 0.0, 0
        super().__init__(selector)

    def time(self) -> float:
        """Return the time in seconds."""
        return self.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Run a call in a thread, and let no time pass until its result was taken up."""
        self.num_busy += 1
        work = super().run_in_executor(executor, func, *args)
        work.add_done_callback(self._is_free)
        return work

    def _is_free(self, _work: asyncio.Future[Any]) -> None:
        self.num_busy -= 1


class VirtualClock(Clock):
    """The coordinator's clock on a virtual loop."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def now(self) -> float:
        """Return the loop's time."""
        return self._loop.now
