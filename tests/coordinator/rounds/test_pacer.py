"""The count of devices behind their pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from coordinator.rounds.pacer import Pacer
from mien.errors import UnreachableError
from mien.rounds.pacing import Pace

PACE = Pace(shortest_s=5.0, check_ins_per_s=50.0)


class Hand:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> float:
        """Return the time."""
        return self.seconds


def test_devices_are_counted_once_a_minute_and_the_last_count_serves_while_the_database_is_away() -> None:
    clock, asked = Hand(), list[float]()

    async def count() -> Mapping[str, int]:
        asked.append(clock.seconds)
        if len(asked) == 2:
            raise UnreachableError("the database does not answer", retry_after_s=5.0)
        return {"big": 1_000_000, "small": 3}

    async def story() -> list[float]:
        pacer = Pacer(PACE, clock, count, draw=lambda: 0.5)  # type: ignore[arg-type]
        found = [await pacer.pause_s("big", 0.0), await pacer.pause_s("small", 0.0), await pacer.pause_s("none", 0.0)]
        clock.seconds += 61
        return [*found, await pacer.pause_s("big", 0.0), await pacer.pause_s("big", 0.0)]

    assert asyncio.run(story()) == pytest.approx([13_862.9436, 6.25, 6.25, 13_862.9436, 13_862.9436])
    assert asked == [1000.0, 1061.0]
