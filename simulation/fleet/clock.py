"""A virtual clock: what is due next, in order of time, and of two things at one time the one that was put first."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Agenda:
    """Calls to come. Nothing sleeps: whoever runs them says what time it is."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def put(self, at_s: float, call: Callable[..., None], *args: Any) -> None:
        """Have `call(*args)` come at a time."""
        self._count += 1
        heapq.heappush(self._heap, (at_s, self._count, call, args))

    @property
    def next_s(self) -> float:
        """Time of the next call; infinity for never."""
        return self._heap[0][0] if self._heap else float("inf")

    def run_next(self) -> None:
        """Make the next call."""
        _, _, call, args = heapq.heappop(self._heap)
        call(*args)
