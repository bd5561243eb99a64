"""The store and its thread, as a serving coordinator measures them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import sqlalchemy as sa

from coordinator.service.metrics import Metrics
from coordinator.store.store import Store
from coordinator.store.thread import StoreThread
from mien.protocol.ids import AttemptNumber, PopulationId, RoundNumber, TaskId
from mien.protocol.rounds import Role
from mien.rounds.records import RoundChange, RoundRecord, TaskRecord
from mien.shell.clock import Clock

P = ParamSpec("P")
T = TypeVar("T")


class MeasuredStore(Store):
    """Tells metrics of each committed transition of a round; all calls come from one thread."""

    def __init__(self, engine: sa.Engine, clock: Clock) -> None:
        super().__init__(engine, clock)
        self.metrics: Metrics | None = None
        self._populations: dict[TaskId, PopulationId] = {}

    def open_attempt(
        self,
        task: TaskRecord,
        *,
        round_number: RoundNumber,
        attempt: AttemptNumber,
        deadline: float,
        role: Role = Role.TRAIN,
    ) -> RoundRecord:
        """Return a new attempt of a round, in its first stage."""
        opened = super().open_attempt(task, round_number=round_number, attempt=attempt, deadline=deadline, role=role)
        if self.metrics is not None:
            self.metrics.round_moved(task.population, None, opened, 0)
        return opened

    def save_round(self, change: RoundChange) -> RoundRecord:
        """Commit one transition of a round as a whole, and return the round as it is afterwards."""
        after = super().save_round(change)
        if self.metrics is not None:
            population = self._population(after.task_id)
            self.metrics.round_moved(population, change.record, after, len(change.committed))
        return after

    def _population(self, task_id: TaskId) -> PopulationId:
        if task_id not in self._populations:
            self._populations[task_id] = self.task(task_id).population
        return self._populations[task_id]


class MeasuredThread(StoreThread):
    """Tells metrics how long each call took, waiting for its turn included."""

    def __init__(self, metrics: Metrics) -> None:
        super().__init__()
        self._metrics = metrics
        self.queue_length = 0

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of `call`, without blocking the event loop."""
        with self._measured():
            return await super().run(call, *args, **kwargs)

    async def settle(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of `call`, however long the database is away."""
        with self._measured():
            return await super().settle(call, *args, **kwargs)

    @contextlib.contextmanager
    def _measured(self) -> Iterator[None]:
        began = time.monotonic()
        self.queue_length += 1
        try:
            yield
        finally:
            self.queue_length -= 1
            self._metrics.store_answered(time.monotonic() - began)
