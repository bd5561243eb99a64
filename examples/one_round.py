"""One round of a task on a real coordinator, with devices that have no faces: the start of a test of your own.

Run: python examples/one_round.py. A method of yours is tested so once it has its entry, Mien's own or that of an
installed package: `tiny_task(..., method="fedadam")`.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

from mien import TaskSpec
from simulation.testing import THETA, FakeFleet, contribution, tiny_task

NUM_DEVICES = 4


def made_up(seed: int) -> Callable[[TaskSpec, object], bytes]:
    """Return what makes a device's contribution, once it has been told its task and its assignment."""
    return lambda task, _assignment: contribution(task, seed)


async def one_round(fleet: FakeFleet, task: TaskSpec) -> tuple[str, str]:
    """Return the ids of the models before and after the task's first round."""
    async with fleet.operator() as operator, fleet.devices(task.population, NUM_DEVICES) as devices:
        before = await fleet.release_tiny_model(operator)
        status = await operator.submit(task, token=task.name)
        # Every device checks in, is assigned, and sends a vector of small numbers in place of an update.
        await asyncio.gather(*(device.take_part(made_up(seed)) for seed, device in enumerate(devices)))
        async for event in operator.watch(status.task_id):
            if event.HasField("round") and event.round.model_id:
                return before, event.round.model_id
    raise AssertionError("the task ended before its first round did")


def main() -> None:
    """Print how far the round moved the model."""
    with tempfile.TemporaryDirectory() as folder, FakeFleet(Path(folder)) as fleet:
        before, after = asyncio.run(one_round(fleet, tiny_task("first", "people")))
        step = fleet.theta(after) - fleet.theta(before)
        print(f"{(step != 0).sum()} of {THETA.size} parameters moved, by {abs(step).max():.4f} at most")


if __name__ == "__main__":
    main()
