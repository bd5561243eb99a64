"""Pauses between tries that grow: what is down is not asked at the same pace for hours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mien.shell.keys import SYSTEM_RANDOM

LONGEST_S: Final = 15.0
"""Short beside a round's deadlines: what was away goes on soon after it is back."""


class Backoff:
    """Pauses in seconds: each up to twice the last, at most `longest_s`, and at least `least` of that by a draw.

    The draw keeps those who failed together from coming back together. `draw` returns numbers in [0, 1).
    """

    def __init__(
        self,
        first_s: float,
        longest_s: float = LONGEST_S,
        *,
        least: float = 0.5,
        draw: Callable[[], float] = SYSTEM_RANDOM.random,
    ) -> None:
        self._first_s, self._longest_s, self._least, self._draw = first_s, max(longest_s, first_s), least, draw
        self._failures = 0

    def next_s(self) -> float:
        """Return the pause after one more failure."""
        limit = min(self._first_s * 2.0 ** min(self._failures, 64), self._longest_s)
        self._failures += 1
        return limit * (self._least + (1.0 - self._least) * self._draw())

    def reset(self) -> None:
        """Begin again with the shortest: something succeeded."""
        self._failures = 0
