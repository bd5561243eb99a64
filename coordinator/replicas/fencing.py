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
from mien.protocol.ids import PopulationId, TaskId
from mien.shell.clock import Clock

_RETRY_AFTER_S: Final = 0.5


class FencedStore(MeasuredStore):
    """A store whose tasks belong to several replicas. All calls come from one thread.

    `held` are the epochs of this replica's leases by population, `on_lost` is told of one that another has taken.
    """

    def __init__(self, engine: sa.Engine, clock: Clock) -> None:
        check_engine(engine)
        super().__init__(engine, clock)
        self.held: dict[PopulationId, int] = {}
        self.on_lost: Callable[[PopulationId], None] = lambda _population: None

    def limit_idle(self, limit_s: float) -> None:
        """Let no transaction of a replica that was stopped hold its locks for longer."""
        limit_idle_transactions(self._engine, limit_s)
        self._engine.dispose()  # connections that are open already have no limit

    @contextmanager
    def _transaction(self, of_task: TaskId | None = None) -> Iterator[sa.Connection]:
        with super()._transaction() as db:
            if of_task is not None:
                self._require_lease(db, of_task)
            yield db

    def _require_lease(self, db: sa.Connection, task_id: TaskId) -> None:
        """Raise DrainingError unless this replica holds the lease of a task's population until the transaction ends."""
        population = db.scalar(sa.select(TASKS.c.population).where(TASKS.c.task_id == task_id))
        wanted = sa.select(LEASES.c.epoch).where(LEASES.c.population == population)
        epoch = db.scalar(wanted.with_for_update(read=True))
        if population is None or epoch is None or self.held.get(PopulationId(population)) != epoch:
            if population is not None:
                self.on_lost(PopulationId(population))
            raise DrainingError("another replica runs this task now; try again", retry_after_s=_RETRY_AFTER_S)
