"""Privacy that populations have spent: the report of `mien-coordinator privacy report`, and budgets for monitoring."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import sqlalchemy as sa

from coordinator.store.account import populations, read, unrecorded_rounds
from coordinator.store.tables import PRIVACY_EVENTS, PRIVACY_PARTICIPATIONS, TASKS
from mien.dp.accountant import Composition, epsilon_pld, epsilon_rdp
from mien.dp.ledger import Event, Ledger
from mien.dp.words import guarantee
from mien.errors import CorruptDataError
from mien.protocol.canonical import task_from_json
from mien.protocol.ids import PopulationId, TaskId


@dataclass(frozen=True)
class BudgetReport:
    """A budget in force and what is spent of it; None is unbounded, or (PLD) not defined for Skellam noise.

    `epsilon_replace` is the figure against replacing a device's data instead of emptying its update.
    """

    epsilon: float
    delta: float
    spent_rdp: float | None
    spent_pld: float | None
    epsilon_replace: float | None


@dataclass(frozen=True)
class TaskReport:
    """One task's opened sums, what they cost by themselves, and the most sums that any device was in."""

    task_id: TaskId
    name: str
    mechanism: str
    noise_multiplier: float
    max_participations: int
    most_participations: int
    epsilon: float | None
    delta: float
    sums: tuple[dict[str, Any], ...]
    guarantee: tuple[str, ...]


@dataclass(frozen=True)
class PopulationReport:
    """The account of a population. `problem` says why the chain does not verify; empty if it does."""

    population: PopulationId
    verifies: bool
    problem: str
    head: str
    num_sums: int
    num_sums_without_noise: int
    num_rounds_without_event: int
    budgets: tuple[BudgetReport, ...] = ()
    tasks: tuple[TaskReport, ...] = field(default=())

    def to_mapping(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class BudgetNow:
    """Spent part of one budget of a population; infinite once a sum was opened without noise."""

    population: PopulationId
    delta: float
    epsilon: float
    spent: float


class Budgets:
    """Remembers what each population's ledger came to, for monitoring; computes again only where a ledger grew.

    For one thread.
    """

    def __init__(self) -> None:
        self._known: dict[PopulationId, tuple[int, tuple[BudgetNow, ...]]] = {}

    def __call__(self, db: sa.Connection) -> tuple[BudgetNow, ...]:
        """Return every budget in force and what is spent of it."""
        events = PRIVACY_EVENTS.c
        counts = sa.select(events.population, sa.func.count()).group_by(events.population).order_by(events.population)
        told: list[BudgetNow] = []
        for name, count in db.execute(counts).all():
            population = PopulationId(name)
            if self._known.get(population, (0, ()))[0] != count:
                ledger = read(db, population)
                spent = [
                    BudgetNow(population, delta, epsilon, ledger.epsilon(delta)) for epsilon, delta in ledger.budgets
                ]
                self._known[population] = count, tuple(spent)
            told += self._known[population][1]
        return tuple(told)


def report(db: sa.Connection) -> list[PopulationReport]:
    """Return the account of every population that has opened a sum."""
    return [_population(db, name) for name in populations(db)]


def _population(db: sa.Connection, name: PopulationId) -> PopulationReport:
    try:
        ledger = read(db, name)
        ledger.verify()
    except CorruptDataError as error:
        return PopulationReport(name, False, error.message, "", 0, 0, unrecorded_rounds(db, name))
    releases = ledger.composition()
    task_ids = dict.fromkeys(event.task_id for event in ledger.events)
    return PopulationReport(
        population=name,
        verifies=True,
        problem="",
        head=ledger.head,
        num_sums=len(ledger.events),
        num_sums_without_noise=sum(event.mechanism == "none" for event in ledger.events),
        num_rounds_without_event=unrecorded_rounds(db, name),
        budgets=tuple(_budget(ledger, releases, *budget) for budget in ledger.budgets),
        tasks=tuple(_task(db, ledger, task_id) for task_id in task_ids),
    )


def _budget(ledger: Ledger, releases: Composition, epsilon: float, delta: float) -> BudgetReport:
    if not ledger.is_bounded:
        return BudgetReport(epsilon, delta, None, None, None)
    replaced = [(release.replaced, times) for release, times in releases]
    return BudgetReport(
        epsilon,
        delta,
        spent_rdp=epsilon_rdp(releases, delta),
        spent_pld=epsilon_pld(releases, delta),
        epsilon_replace=epsilon_rdp(replaced, delta),
    )


def _task(db: sa.Connection, ledger: Ledger, task_id: TaskId) -> TaskReport:
    events = [event for event in ledger.events if event.task_id == task_id]
    first = events[0]
    task_json = db.scalar(sa.select(TASKS.c.task_json).where(TASKS.c.task_id == task_id))
    task = task_from_json(task_json or b"")
    is_noised = first.mechanism != "none"
    return TaskReport(
        task_id=task_id,
        name=task.name,
        mechanism=first.mechanism,
        noise_multiplier=first.noise_multiplier,
        max_participations=first.max_participations,
        most_participations=_most_participations(db, task_id),
        epsilon=epsilon_rdp(ledger.composition(of_task=task_id), first.delta) if is_noised else None,
        delta=first.delta,
        sums=tuple(_sum(event) for event in events),
        guarantee=tuple(guarantee(task)),
    )


def _sum(event: Event) -> dict[str, Any]:
    return {
        "round": event.round,
        "attempt": event.attempt,
        "devices": event.num_survivors,
        "l2_clip": event.l2_clip,
        "effective_multiplier": event.effective_multiplier,
        "epsilon_before": event.epsilon_before,
        "epsilon_after": event.epsilon_after,
        "sha256": event.sha256,
    }


def _most_participations(db: sa.Connection, task_id: TaskId) -> int:
    """Return in how many sums of a task its busiest device was."""
    taken = PRIVACY_PARTICIPATIONS.c
    counts = sa.select(sa.func.count().label("sums")).where(taken.task_id == task_id).group_by(taken.device_id)
    return db.scalar(sa.select(sa.func.max(counts.subquery().c.sums))) or 0
