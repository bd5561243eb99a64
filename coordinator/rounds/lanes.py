"""One task and its lanes: a runner for each cohort that may be in flight, all of which live and fall together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from coordinator.rounds.closing_io import Closer, Stores
from coordinator.rounds.runner import RunnerSettings, TaskRunner
from coordinator.rounds.shared_task import SharedTask
from mien.rounds.plan import TaskPlan
from mien.rounds.records import CandidateState, RoundRecord, TaskRecord
from mien.secagg.keys import VerifyLeaf
from mien.shell.clock import Clock


class TaskLanes:
    """The runners of one task: one, or in asynchronous mode as many as cohorts may be in flight."""

    def __init__(
        self,
        task: TaskRecord,
        plan: TaskPlan,
        stores: Stores,
        clock: Clock,
        settings: RunnerSettings,
        verify: VerifyLeaf,
        on_change: Callable[[bool], None],
    ) -> None:
        """`verify` says whom a leaf certificate of this task's population names."""
        spec, self._stores = plan.task.asynchronous, stores
        closer = Closer(task, plan, stores, clock, settings.max_step_ratio, settings.keep_round_models)
        self._shared = SharedTask(task, plan.task, closer)
        count = 1 if spec is None else spec.max_concurrency
        self.lanes = tuple(
            TaskRunner(self._shared, plan, stores, clock, settings, verify, on_change) for _ in range(count)
        )

    @property
    def task(self) -> TaskRecord:
        """The task as it was last committed."""
        return self._shared.record

    @property
    def lead(self) -> TaskRunner:
        """The lane that hears what is said to the task: commands, and verdicts of the gates."""
        return self.lanes[0]

    @property
    def has_committed(self) -> bool:
        """Whether anything was committed since the task was picked up."""
        return any(lane.has_committed for lane in self.lanes)

    async def pick_up(self) -> None:
        """Go on where the last run of this program stopped, with every cohort; to be called before `run`."""
        thread, store, task_id = self._stores.thread, self._stores.store, self.task.task_id
        last = await thread.run(store.last_round, task_id)
        self._shared.last_number = 0 if last is None else last.round
        if not self._shared.is_asynchronous:
            await self.lead.pick_up(last)
            return
        waiting = await thread.run(store.candidate, task_id, CandidateState.WAITING)
        self._shared.await_verdict(waiting is not None)
        records: list[RoundRecord] = await thread.run(store.open_rounds, task_id)
        resumed = dict(zip(self.lanes, records, strict=False))
        for lane, record in resumed.items():  # who is busy in one is not to be asked by another
            await lane.place(record)
        for lane in resumed:
            await lane.go_on()

    async def run(self) -> None:
        """Run until the task is over; an error in one lane ends them all."""
        loops = [asyncio.create_task(lane.run(), name=f"lane {lane.task.task_id}") for lane in self.lanes]
        try:
            await asyncio.gather(*loops)
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.wait(loops)

    async def abandon(self) -> None:
        """Give up sums that are being taken, so that other runners can take them."""
        await asyncio.gather(*(lane.abandon() for lane in self.lanes))
        self._shared.closer.give_up()
