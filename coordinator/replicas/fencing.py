"""The shared database as a replica may write to it: what a round becomes is committed by its population's owner alone.

In the transaction that changes a task or a round, the population's lease is read under a lock that a take-over waits
for. A replica that was stopped, or cut off, while another took the lease finds the other's epoch there, and commits
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import sqlalchemy as sa

from coordinator.replicas.registry import check_engine, limit_idle_transactions
from coordinator.service.measured import MeasuredStore
from coordinator.store.tables import LEASES, TASKS
from mien.errors import DrainingError
from mien.protocol.rounds import Role
from mien.rounds.records import RoundChange, RoundRecord, TaskRecord
from mien.rounds.verdicts import Decision, Verdict
from mien.shell.clock import Clock

_RETRY_AFTER_S: Final = 0.5


class FencedStore(MeasuredStore):
    """A store whose tasks belong to several replicas. All calls come from one thread.

    `held` are the epochs of this replica's leases by population, `on_lost` is told of one that another has taken.
    """

    def __init__(self, engine: sa.Engine, clock: Clock) -> None:
        check_engine(engine)
        super().__init__(engine, clock)
        self.held: dict[str, int] = {}
        self.on_lost: Callable[[str], None] = lambda _population: None
        self._guarded: str | None = None

    def limit_idle(self, limit_s: float) -> None:
        """Let no transaction of a replica that was stopped hold its locks for longer."""
        limit_idle_transactions(self._engine, limit_s)
        self._engine.dispose()  # connections that are open already have no limit

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        guarded, self._guarded = self._guarded, None  # the first transaction of a call is the one that writes
        with super()._transaction() as db:
            if guarded is not None:
                self._require_lease(db, guarded)
            yield db

    def _require_lease(self, db: sa.Connection, task_id: str) -> None:
        """Raise DrainingError unless this replica holds the lease of a task's population until the transaction ends."""
        population = db.scalar(sa.select(TASKS.c.population).where(TASKS.c.task_id == task_id))
        wanted = sa.select(LEASES.c.epoch).where(LEASES.c.population == population)
        epoch = db.scalar(wanted.with_for_update(read=True))
        if population is None or epoch is None or self.held.get(population) != epoch:
            if population is not None:
                self.on_lost(population)
            raise DrainingError("another replica runs this task now; try again", retry_after_s=_RETRY_AFTER_S)

    @contextmanager
    def _guarding(self, task_id: str) -> Iterator[None]:
        self._guarded = task_id
        try:
            yield
        finally:
            self._guarded = None

    def save_task(self, task: TaskRecord, *, actor: str, action: str) -> None:
        """Commit a task's new state, as its owner."""
        with self._guarding(task.task_id):
            super().save_task(task, actor=actor, action=action)

    def save_verdict(self, decision: Decision, verdict: Verdict) -> None:
        """Commit what the gates say of a candidate, as its task's owner."""
        with self._guarding(decision.task.task_id):
            super().save_verdict(decision, verdict)

    def open_attempt(
        self, task: TaskRecord, *, round_number: int, attempt: int, deadline: float, duty: Role = Role.TRAIN
    ) -> RoundRecord:
        """Return a new attempt of a round, opened by its task's owner."""
        with self._guarding(task.task_id):
            return super().open_attempt(task, round_number=round_number, attempt=attempt, deadline=deadline, duty=duty)

    def save_round(self, change: RoundChange) -> RoundRecord:
        """Commit one transition of a round, as its task's owner."""
        with self._guarding(change.record.task_id):
            return super().save_round(change)
