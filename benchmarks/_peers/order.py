"""A measurement of simulators: its size, and rounds that are taken one at a time, each when it is asked for.

Imports the standard library only, so that it also runs in the environments of other simulators.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Order:
    """The size of a measurement: phones a round, turns that are timed, images a phone, local steps on all of them."""

    size: str
    clients: int
    turns: int
    images: int
    steps: int
    threads: int
    momentum: float = 0.0


class Rounds:
    """Rounds of a peer, one for each line on standard input: an order's first one, or one more where it is empty.

    Each is answered by a line of JSON on standard output: the peer's version, and the round's seconds by the wall clock
    and of CPU in all processes together. What the peer does while it waits for a line is in neither.
    """

    def __init__(self, version: str) -> None:
        self._version, self._line = version, ""
        self._began = (0.0, 0.0)

    def orders(self) -> Iterator[Order]:
        """Yield orders until the input ends; the round of each begins with that."""
        self._await()
        while self._line.strip():
            yield Order(**json.loads(self._line))

    def ended(self) -> bool:
        """Tell what the round took that has just ended; once something is asked for, return whether it is another."""
        wall_s, cpu_s = time.perf_counter() - self._began[0], tree_cpu_s(os.getpid()) - self._began[1]
        sys.stdout.write(json.dumps({"version": self._version, "wall_s": wall_s, "cpu_s": cpu_s}) + "\n")
        sys.stdout.flush()
        self._await()
        return self._line != "\n"

    def _await(self) -> None:
        self._line = sys.stdin.readline()
        cpu_s = tree_cpu_s(os.getpid())
        self._began = (time.perf_counter(), cpu_s)


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
