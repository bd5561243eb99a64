"""Queries and entries of a task's rounds in the privacy ledger of its population."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import sqlalchemy as sa

from coordinator.store import account
from coordinator.store.store import Store
from coordinator.store.thread import StoreThread
from mien.log.entries import LogEntry
from mien.protocol.ids import AttemptNumber, DeviceId, ModelId, PopulationId, RoundNumber, TaskId
from mien.rounds.plan import TaskPlan
from mien.rounds.records import SumOpening
from mien.secagg import RoundConfig
from mien.secagg.noise import opening


class TaskLedger:
    """One task's side of its population's ledger, and the terms of its attempts that follow from it."""

    def __init__(
        self,
        task_id: TaskId,
        plan: TaskPlan,
        store: Store,
        thread: StoreThread,
        shared: Callable[[], Awaitable[bytes]] | None = None,
    ) -> None:
        """`shared` gives the words that all devices of the attempt that is open, or due, are told alike, if any."""
        self._task_id, self._plan, self._store, self._thread = task_id, plan, store, thread
        self._shared = shared

    async def ask(self, number: RoundNumber, attempt: AttemptNumber, model_id: ModelId) -> frozenset[DeviceId]:
        """Return the devices that their caps keep out of an attempt that is about to begin.

        Raises BudgetExceededError when its sum may not be opened.
        """
        task = self._plan.task
        coming = opening(task, self._task_id, number, attempt, await self.terms(number, attempt, model_id))

        def asked(db: sa.Connection) -> frozenset[DeviceId]:
            account.before_attempt(db, PopulationId(task.population), coming)
            return account.barred(db, self._task_id, task.privacy.dp, number, counts_once=self._plan.method.adds_up)

        return await self._thread.run(self._store.privacy, asked)

    async def counted(self, device_ids: frozenset[DeviceId], number: RoundNumber) -> frozenset[DeviceId]:
        """Return which of these devices are counted already; none where a device may be in several sums of the task."""
        dp, once = self._plan.task.privacy.dp, self._plan.method.adds_up
        if not once:
            return frozenset()
        return await self._thread.run(
            self._store.privacy,
            lambda db: account.barred(db, self._task_id, dp, number, among=device_ids, counts_once=once),
        )

    async def terms(self, number: RoundNumber, attempt: AttemptNumber, model_id: ModelId) -> RoundConfig | None:
        """Return what the devices of an attempt agree on, None for plain sums; earlier rounds may have left a clip."""
        task, task_id, clip = self._plan.task, self._task_id, None
        if not task.privacy.is_masked:
            return None
        if task.privacy.dp.is_adaptive:
            clip = await self._thread.run(self._store.privacy, lambda db: account.clip_for(db, task_id, task, number))
        shared = b"" if self._shared is None else await self._shared()
        return self._plan.round_config(task_id, number, attempt, model_id, clip, shared=shared)

    async def entry(self, number: RoundNumber, attempt: AttemptNumber, model_id: ModelId) -> LogEntry:
        """Return what the public log is to hold of an attempt before its devices train."""
        shared = b"" if self._shared is None else await self._shared()
        return self._plan.round_entry(self._task_id, number, attempt, model_id, shared)

    def opening(
        self, number: RoundNumber, attempt: AttemptNumber, config: RoundConfig | None, device_ids: Sequence[DeviceId]
    ) -> SumOpening:
        """Return the entry of a sum that can be opened from now on, to be committed with what makes it so."""
        task = self._plan.task
        told = opening(task, self._task_id, number, attempt, config, len(device_ids))
        return SumOpening(PopulationId(task.population), told, tuple(device_ids), counts_once=self._plan.method.adds_up)
