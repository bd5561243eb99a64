"""Times at which devices are to come back, by a count of the devices that is renewed now and then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog

from mien.errors import MienError
from mien.protocol.ids import PopulationId
from mien.rounds.pacing import COUNT_EVERY_S, Pace, pause_s
from mien.shell.clock import Clock
from mien.shell.keys import SYSTEM_RANDOM

_LOG: Final = structlog.get_logger()


class Pacer:
    """Pauses of devices, by a count of the devices that is at most a minute old."""

    def __init__(
        self,
        pace: Pace,
        clock: Clock,
        count: Callable[[], Awaitable[Mapping[PopulationId, int]]],
        draw: Callable[[], float] = SYSTEM_RANDOM.random,
    ) -> None:
        """`count` gives the devices that were seen within `ACTIVE_S`, by population."""
        self._pace, self._clock, self._count, self._draw = pace, clock, count, draw
        self._devices: Mapping[PopulationId, int] = {}
        self._count_again = 0.0

    async def pause_s(self, population: PopulationId, wanted_per_s: float) -> float:
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
