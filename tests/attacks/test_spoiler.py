"""One phone whose vector spoils every sum that it is in: real servers find it by halves, and go on without it."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from coordinator.store.audit import LEFT_OUT
from mien.errors import MienError
from mien.log.audit import Entry
from mien.protocol.ids import TaskId
from mien.protocol.v1 import rounds_pb2
from mien.rounds.records import TaskRecord, TaskState
from simulation.testing import FakeDevice, FakeFleet, FakePart, masked_task
from simulation.testing.tiny import STEP_LIMIT_S
from tests.helpers import run
from tests.integration.test_rounds import make

pytestmark = pytest.mark.slow

COHORT, PHONES = 4, 8


class SpoilingPart(FakePart):
    """A part whose device adds another mask than its neighbours hold shares of."""

    def _step(self, stage: int, message: bytes) -> bytes:
        if stage == rounds_pb2.UPLOAD:
            assert self.device is not None
            state: Any = self.device._state
            state.b[0] ^= 1
        return super()._step(stage, message)


@dataclass
class Phones:
    """Devices that take part in round after round; of them `spoiler` spoils every sum once it `is_at_it`."""

    devices: list[FakeDevice]
    counted: set[str] = field(default_factory=set)
    is_at_it: bool = False

    @property
    def spoiler(self) -> FakeDevice:
        """The device that spoils sums."""
        return self.devices[0]

    @contextlib.asynccontextmanager
    async def taking_part(self) -> AsyncIterator[None]:
        """Have all take part while the block runs, which may take as long as a step of a test does."""
        honest = self.spoiler.masked_part

        def masked_part(*arguments: Any, **named: Any) -> FakePart:
            part = honest(*arguments, **named)
            kind = SpoilingPart if self.is_at_it else FakePart
            return kind(part.ref, part.task, part.layout, part.data, part.begin)

        self.spoiler.masked_part = masked_part  # type: ignore[method-assign]
        loops = [asyncio.create_task(self._go_on(device, index)) for index, device in enumerate(self.devices)]
        try:
            async with asyncio.timeout(STEP_LIMIT_S):
                yield
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.wait(loops)

    async def _go_on(self, device: FakeDevice, index: int) -> None:
        while True:
            with contextlib.suppress(MienError):
                await device.take_part(make(index))
                self.counted.add(device.id)
            await asyncio.sleep(0.01)


def entries(fleet: FakeFleet, task_id: str) -> list[Entry]:
    """Return what the audit log says of devices that a task leaves out."""
    with fleet.store() as store:
        found = store.audit(lambda log, db: log.read(db, subject=task_id))
    return [entry for entry in found if entry.action == LEFT_OUT]


def is_under_way(fleet: FakeFleet, task_id: str) -> bool:
    """Return whether a round of a task has not ended."""
    with fleet.store() as store:
        return bool(store.open_rounds(TaskId(task_id)))


def test_a_phone_that_spoils_sums_is_found_and_left_out_and_the_task_goes_on(tmp_path: Path) -> None:
    """One abort that left no fewer suspects would pause the task."""
    task = masked_task("spoilt", "spoilt", size=COHORT, min_reports=COHORT, rounds=10_000)

    async def story(fleet: FakeFleet) -> None:
        async with fleet.operator() as operator, fleet.devices("spoilt", PHONES) as devices:
            await fleet.release_tiny_model(operator)
            status = await operator.submit(task, "spoilt")
            phones = Phones(devices)

            def now() -> TaskRecord:
                with fleet.store() as store:
                    return store.task(TaskId(status.task_id))

            async with phones.taking_part():
                while len(phones.counted) < PHONES:  # everybody is known
                    await asyncio.sleep(0.1)
                phones.is_at_it = True
                while not entries(fleet, status.task_id):
                    await asyncio.sleep(0.1)
                (entry,) = entries(fleet, status.task_id)
                assert phones.spoiler.id in entry.detail_json
                spoiled = fleet.log_records("spoiled sum")
                assert [record["suspects"] for record in spoiled[:1] + spoiled[-1:]] == [COHORT, 0]
                assert len(spoiled) <= 1 + math.log2(COHORT)
                assert now().state is TaskState.RUNNING
                # After a restart, too, nobody asks it any more, and the others go on.
                await operator.pause(status.task_id)
                while is_under_way(fleet, status.task_id):
                    await asyncio.sleep(0.1)
                await fleet.restart(*devices)
                await operator.resume(status.task_id)
                closed = now().rounds_closed
                while now().rounds_closed < closed + 3:
                    await asyncio.sleep(0.1)
            assert (now().state, fleet.log_records("spoiled sum")) == (TaskState.RUNNING, spoiled)

    with FakeFleet(tmp_path / "fleet", max_aborted=1) as fleet:
        run(story(fleet))
