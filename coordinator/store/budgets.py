"""Privacy budgets that populations have spent, for monitoring: computed again only where a ledger grew."""

from __future__ import annotations

import sqlalchemy as sa

from coordinator.store.account import read
from coordinator.store.tables import PRIVACY_EVENTS
from mien.rounds.monitoring import BudgetNow


class Budgets:
    """Remembers what each population's ledger came to; for one thread."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, tuple[BudgetNow, ...]]] = {}

    def __call__(self, db: sa.Connection) -> tuple[BudgetNow, ...]:
        """Return every budget in force and what is spent of it."""
        events = PRIVACY_EVENTS.c
        counts = sa.select(events.population, sa.func.count()).group_by(events.population).order_by(events.population)
        told: list[BudgetNow] = []
        for population, count in db.execute(counts).all():
            if self._known.get(population, (0, ()))[0] != count:
                self._known[population] = (count, _budgets(db, population))
            told += self._known[population][1]
        return tuple(told)


def _budgets(db: sa.Connection, population: str) -> tuple[BudgetNow, ...]:
    ledger = read(db, population)
    return tuple(BudgetNow(population, delta, epsilon, ledger.epsilon(delta)) for epsilon, delta in ledger.budgets)
