"""Closing rounds on disk: what many devices ask for at once is read once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from coordinator.rounds.closing import Closer
from mien.rounds.server_step import add_up
from mien.shell.clock import Clock
from mien.specs import CohortSpec
from simulation.testing import contribution
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


def test_candidates_are_made_once_however_many_validators_are_told_of_them_at_once(tmp_path: Path) -> None:
    """After a restart they are made again, and each making holds several models in memory."""

    async def story() -> None:
        async with rounds(tmp_path) as house:
            four = CohortSpec(size=4, min_reports=4)
            options = {"candidates": 2}
            task = await house.submit(method="pfm_fv", rounds=1, cohort=four, validators=four, options=options)
            (cohort,) = house.engine._of_population(task.population)
            plan = cohort.side.plan
            total, _ = add_up(plan, ((device, contribution(plan.task, int(device, 16))) for device in "de"))
            kept = house.stores.states.put_total(task.task_id, total)
            closer = Closer(task, plan, house.stores, Clock(), max_step_ratio=100.0, keep_round_models=0)
            judged = replace(task, candidates_sha256=kept)
            first, *others = await asyncio.gather(*(closer.candidates(judged) for _ in range(20)))
            assert all(candidates is first for candidates in others)

    run(story())
