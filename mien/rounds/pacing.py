"""When devices that nobody needs now are to come back (pace steering): as often as they are wanted, never all at once.

A small population comes back every `shortest_s`, so that enough of them are there together when a round gathers them; a
large one is spread over so long a time that no more than `check_ins_per_s` come, on average, whatever made them come
at the same instant. Source: Bonawitz et al., "Towards Federated Learning at Scale" (2019), section 2.3.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from mien.errors import MienError
from mien.shell.clock import Clock
from mien.specs import TaskSpec

_LOG: Final = structlog.get_logger()
_RANDOM: Final = secrets.SystemRandom()

LONGEST_S: Final = 86400.0
"""Phones are idle at night: one that is told to come back later than in a day would miss its next one."""

ACTIVE_S: Final = 7 * 86400.0
"""Devices that have not been seen for so long are not reckoned with."""

_MARGIN: Final = 2.0
"""How many more come than are wanted: not every one is idle, charging and eligible when it does."""

COUNT_EVERY_S: Final = 60.0
"""How old a count of devices may be."""

_GATHERING_S: Final = 1.0


@dataclass(frozen=True)
class Pace:
    """The shortest pause, and how many check-ins a second are enough while no task wants more."""

    shortest_s: float = 5.0
    check_ins_per_s: float = 50.0


def pause_s(pace: Pace, *, devices: int, wanted_per_s: float, draw: float) -> float:
    """Return how long one of `devices` is to stay away; `draw` in [0, 1) spreads them.

    `wanted_per_s` is how many devices the open tasks have to gather in a second: more than `check_ins_per_s` may come
    then. Long pauses are exponentially distributed: devices that were told theirs at one instant come at an even rate
    from then on, where evenly drawn pauses would bring them back in waves.
    """
    spread_s = devices / max(pace.check_ins_per_s, _MARGIN * wanted_per_s)
    return min(max(pace.shortest_s * (1 + draw / 2), -spread_s * math.log1p(-draw)), LONGEST_S)


def wanted_per_s(tasks: Iterable[TaskSpec]) -> float:
    """Return how many devices tasks that look for some have to gather in a second."""
    return sum(task.cohort.num_selected / task.deadlines.selecting_s for task in tasks)


def gathering_pause_s(pace: Pace) -> float:
    """Return how long a device stays away from a round that gathers devices and may choose it: it stays a candidate."""
    return min(_GATHERING_S, pace.shortest_s)


class Pacer:
    """Knows how many devices there are, from a count that is at most a minute old."""

    def __init__(
        self,
        pace: Pace,
        clock: Clock,
        count: Callable[[], Awaitable[Mapping[str, int]]],
        draw: Callable[[], float] = _RANDOM.random,
    ) -> None:
        """`count` gives the devices that were seen within `ACTIVE_S`, by population."""
        self._pace, self._clock, self._count, self._draw = pace, clock, count, draw
        self._devices: Mapping[str, int] = {}
        self._count_again = 0.0

    async def pause_s(self, population: str, wanted_per_s: float) -> float:
        """Return how long a device of a population is to stay away."""
        await self._look()
        devices = self._devices.get(population, 0)
        return pause_s(self._pace, devices=devices, wanted_per_s=wanted_per_s, draw=self._draw())

    async def _look(self) -> None:
        """Count again where that is due; while the database is away, the last count has to do."""
        now = self._clock.now()
        if now < self._count_again:
            return
        self._count_again = now + COUNT_EVERY_S  # before the answer is there: one caller asks for all
        try:
            self._devices = await self._count()
        except MienError as error:
            _LOG.warning("devices not counted", error=error.code, reason=error.message)
