"""Ways of doing the same work, in turns: what a busy machine costs one of them it costs the others, too.

Speeds of one machine differ by the second and by the neighbour, so that a ratio of two times that were taken minutes
apart is another one at every run. Here every turn is a window of each way, one right after the other, in one order and
then back; a window counts as its best round, and a ratio is the median of the windows' ratios, turn by turn.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

Cost = tuple[float, float]
"""Seconds by the wall clock and of processor time."""

Way = Callable[[], Cost | None]
"""Does the work once and returns what it cost; None for one that can do it no more."""


def timed(work: Callable[[], object]) -> Cost:
    """Return what this process spends on some work, all its threads together."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def best_of(way: Way, at_least_s: float) -> Cost | None:
    """Return the best round's wall time and the best one's processor time, of one or of as many as take so long."""
    costs, ends = [way()], time.perf_counter() + at_least_s
    while costs[-1] is not None and time.perf_counter() < ends:
        costs.append(way())
    found = [cost for cost in costs if cost is not None]
    return (min(wall for wall, _ in found), min(cpu for _, cpu in found)) if costs[-1] is not None else None


def in_turns(ways: Mapping[str, Way], turns: int) -> dict[str, list[Cost]]:
    """Return what each turn of each way cost; one that can do its work no more has fewer turns than others."""
    found: dict[str, list[Cost]] = {name: [] for name in ways}
    ended = set[str]()
    for turn in range(turns):
        for name in list(ways) if turn % 2 == 0 else reversed(list(ways)):
            cost = None if name in ended else ways[name]()
            if cost is None:
                ended.add(name)
            else:
                found[name].append(cost)
    return found


def over(ours: Sequence[Cost], theirs: Sequence[Cost]) -> Cost:
    """Return ours over theirs by wall time and by processor time: the median over the turns that both took."""
    wall, cpu = (
        statistics.median(one[at] / other[at] for one, other in zip(ours, theirs, strict=False)) for at in (0, 1)
    )
    return wall, cpu
