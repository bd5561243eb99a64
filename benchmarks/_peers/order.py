"""A measurement of simulators: its size, its times, and the clock that notes them.

Imports the standard library only, so that it also runs in the environments of other simulators.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Order:
    """The size of a measurement: phones a round, rounds that are timed, images a phone, local steps on all of them."""

    size: str
    clients: int
    rounds: int
    images: int
    steps: int
    threads: int
    momentum: float = 0.0


@dataclass(frozen=True)
class Timed:
    """Milliseconds a phone of each timed round: by the wall clock, and of CPU in all processes together."""

    wall_ms: tuple[float, ...]
    cpu_ms: tuple[float, ...]


class RoundClock:
    """Notes the end of every round; the first round is not counted, in which simulators warm up."""

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self._ticks: list[tuple[float, float]] = []

    def tick(self) -> None:
        """Note that a round has ended."""
        self._ticks.append((time.perf_counter(), tree_cpu_s(os.getpid())))

    def timed(self) -> Timed:
        """Return every round's time but the first one's."""
        pairs = list(zip(self._ticks, self._ticks[1:], strict=False))
        scale = 1e3 / self._clients
        return Timed(
            tuple((after[0] - before[0]) * scale for before, after in pairs),
            tuple((after[1] - before[1]) * scale for before, after in pairs),
        )


def tree_cpu_s(root: int) -> float:
    """Return CPU seconds that a process and all that it started have used; this process's alone without /proc."""
    used, parents = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()
        except OSError:  # it ended meanwhile
            continue
        pid = int(path.parent.name)
        parents[pid] = int(words[1])
        used[pid] = sum(int(word) for word in words[11:15])  # its own ticks, and those of children that have ended
    if root not in used:
        return time.process_time()
    tree, grown = {root}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in tree} - tree
        tree, grown = tree | more, bool(more)
    others = sum(used[pid] for pid in tree if pid != root) / os.sysconf("SC_CLK_TCK")
    return time.process_time() + others if root == os.getpid() else used[root] / os.sysconf("SC_CLK_TCK") + others
