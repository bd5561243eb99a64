"""A coordinator whose clock a test puts forward, where a stage is to run out and the wait is not what is tested."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import ClassVar

from mien.protocol.ids import AttemptNumber, RoundNumber, TaskId
from mien.protocol.rounds import Stage
from mien.rounds.machine import STEP_OF
from simulation.testing import FakeFleet
from tests.servers import clock_ahead

FIRST = RoundNumber(1), AttemptNumber(1)


class AheadFleet(FakeFleet):
    """A coordinator with its clock in the test's hands; it goes as any other until `run_out`."""

    program: ClassVar[tuple[str, ...]] = (str(Path(clock_ahead.__file__)),)

    async def run_out(self, task_id: str, stage: Stage, *, done: int) -> None:
        """Let a stage of the first attempt run out, as soon as `done` devices' part of it is on disk.

        However slow the machine, nobody is late who was going to answer. An attempt that ends without that, because it
        needs nobody else, is left alone.
        """
        with self.store() as store:
            while True:
                found = store.round(TaskId(task_id), *FIRST)
                if found is not None and found.ended_ms is not None:
                    return
                if found is not None and found.stage is stage:
                    steps = store.participants(found.id)
                    if sum(step is STEP_OF[stage] for step in steps.values()) >= done:
                        break
                await asyncio.sleep(0.05)
        self.process.send_signal(signal.SIGUSR1)
