"""Ways of doing the same work, in turns: what a busy machine costs one of them it costs the others, too.

Speeds of one machine differ by the second and by the neighbour, so that a ratio of two times that were taken minutes
apart is another one at every run. Here every turn is a window of each way, one right after the other, in one order and
then back; a window counts as its rounds' mean, and a ratio is the median of the windows' ratios, turn by turn. Beside
other programs the best round flatters short ones: of 1.4 ms many fall between two interruptions, of 14 ms none does.
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


def mean_of(way: Way, at_least_s: float) -> Cost | None:
    """Return what a round costs on average, of one or of as many as take so long."""
    costs, ends = list[Cost](), time.perf_counter() + at_least_s
    while not costs or time.perf_counter() < ends:
        cost = way()
        if cost is None:
            return None
        costs.append(cost)
    wall, cpu = (statistics.mean(each) for each in zip(*costs, strict=True))
    return wall, cpu


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
