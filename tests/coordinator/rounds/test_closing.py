"""Closing rounds on disk: what many devices ask for at once is read once."""

from __future__ import annotations

import asyncio
from pathlib import Path

from coordinator.rounds.closing import Closer
from mien.shell.clock import Clock
from tests.coordinator.rounds.test_task import rounds
from tests.helpers import run


def test_a_model_is_read_once_however_many_devices_are_told_of_a_round_at_once(tmp_path: Path) -> None:
    """Read for each, a thousand devices would hold a thousand models in memory."""

    async def story() -> None:
        async with rounds(tmp_path) as house:
            task = await house.submit(rounds=1)
            (cohort,) = house.engine._of_population(task.population)
            closer = Closer(task, cohort.side.plan, house.stores, Clock(), 1.0, 0)
            first, *others = await asyncio.gather(*(closer.server_state(task) for _ in range(50)))
            assert all(state is first for state in others)

    run(story())
