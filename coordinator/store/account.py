"""The account of a population in the database: asked before an attempt, written before a sum is opened.

Every function takes the connection of the caller's transaction, so that an event and the transition of the round that
it belongs to are committed together or not at all. What these functions read they verify: a ledger that does not hold
stops every round of its population.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import sqlalchemy as sa

from coordinator.store.tables import PARTICIPANTS, PRIVACY_CLIPS, PRIVACY_EVENTS, PRIVACY_PARTICIPATIONS, ROUNDS, TASKS
from mien.dp.ledger import Event, Ledger, Opening, may_take_part
from mien.errors import BudgetExceededError, CorruptDataError, ReplayError
from mien.protocol.ids import DeviceId, PopulationId, RoundNumber, TaskId
from mien.protocol.rounds import Stage
from mien.specs import DpSpec, TaskSpec

_FEW: Final = 400
"""Devices that one statement names; of more the whole task's are read."""


def load(db: sa.Connection, population: PopulationId) -> Ledger:
    """Return the ledger of a population, verified; raises CorruptDataError if it was changed."""
    ledger = read(db, population)
    ledger.verify()
    return ledger


def read(db: sa.Connection, population: PopulationId) -> Ledger:
    """Return the ledger of a population as it is stored: each event intact, the chain not yet verified."""
    mine = sa.select(PRIVACY_EVENTS).where(PRIVACY_EVENTS.c.population == population)
    events = []
    for row in db.execute(mine.order_by(PRIVACY_EVENTS.c.position)):
        event = Event.from_json(row.event_json)
        if event.sha256 != row.sha256 or (event.position, *event.key) != (
            row.position,
            row.task_id,
            row.round,
            row.attempt,
        ):
            raise CorruptDataError(
                f"event {row.position} of the privacy ledger of population {population} is not what its hash says: the "
                "ledger was changed; restore the database, and open no more sums until it verifies"
            )
        events.append(event)
    return Ledger(population, tuple(events))


def populations(db: sa.Connection) -> list[PopulationId]:
    """Return the populations that have events, by name."""
    names = sa.select(PRIVACY_EVENTS.c.population).distinct().order_by(PRIVACY_EVENTS.c.population)
    return [PopulationId(name) for name in db.scalars(names)]


def before_attempt(db: sa.Connection, population: PopulationId, opening: Opening) -> None:
    """Raise BudgetExceededError unless the sum of the attempt that is about to begin may be opened."""
    _checked(db, load(db, population), opening)


def unrecorded_rounds(db: sa.Connection, population: PopulationId) -> int:
    """Return how many rounds of a population closed without an event: older than the ledger, or an event was lost."""
    same = sa.and_(
        PRIVACY_EVENTS.c.task_id == ROUNDS.c.task_id,
        PRIVACY_EVENTS.c.round == ROUNDS.c.round,
        PRIVACY_EVENTS.c.attempt == ROUNDS.c.attempt,
    )
    joined = ROUNDS.join(TASKS, TASKS.c.task_id == ROUNDS.c.task_id).outerjoin(PRIVACY_EVENTS, same)
    lacking = sa.select(sa.func.count()).select_from(joined).where(TASKS.c.population == population)
    return db.scalar(lacking.where(ROUNDS.c.stage == Stage.CLOSED.value, PRIVACY_EVENTS.c.id.is_(None))) or 0


def _checked(db: sa.Connection, ledger: Ledger, opening: Opening) -> Event:
    """Return the event that an opening will be; raises BudgetExceededError also where the ledger is not complete."""
    event = ledger.check(opening)
    lacking = unrecorded_rounds(db, ledger.population) if opening.dp.is_on else 0
    if lacking:
        raise BudgetExceededError(
            f"{lacking} rounds of population {ledger.population} closed without an event in its privacy ledger, so its "
            "epsilon is unknown; promise differential privacy to a population that starts with it"
        )
    return event


def record_opening(
    db: sa.Connection,
    population: PopulationId,
    opening: Opening,
    device_ids: Collection[DeviceId],
    *,
    counts_once: bool = False,
) -> Event:
    """Return the event of a sum that will be opened once the caller's transaction is committed.

    Call it in the transaction that moves an attempt to its unmask stage (without masks: to closing), with the devices
    whose updates are in the sum; the same attempt again returns the event that is there. Raises BudgetExceededError if
    the budget or a device's cap would be exceeded: the attempt must then be aborted, unopened. Raises ReplayError for
    the same attempt under other terms.
    """
    ledger = load(db, population)
    there = next((event for event in ledger.events if event.key == opening.key), None)
    if there is not None:
        if (there.config_sha256, there.num_survivors) != (opening.config_sha256, opening.num_survivors):
            raise ReplayError("this attempt is in the privacy ledger with another sum; begin a new attempt")
        return there
    capped = barred(db, opening.task_id, opening.dp, opening.round, among=device_ids, counts_once=counts_once)
    if capped:
        most = (
            "once, as its sums add up"
            if counts_once
            else ("as often as privacy.dp.max_participations and min_separation permit")
        )
        raise BudgetExceededError(f"{len(capped)} devices of this sum took part {most}; the attempt is aborted")
    event = _checked(db, ledger, opening)
    values = {name: getattr(event, name) for name in ("position", "task_id", "round", "attempt", "sha256")}
    db.execute(sa.insert(PRIVACY_EVENTS).values(population=population, event_json=event.to_json(), **values))
    rows = [
        {"task_id": event.task_id, "device_id": device_id, "round": event.round, "attempt": event.attempt}
        for device_id in sorted(device_ids)
    ]
    if rows and (opening.dp.is_on or counts_once):
        db.execute(sa.insert(PRIVACY_PARTICIPATIONS), rows)
    return event


# Caps of one device


def barred(
    db: sa.Connection,
    task_id: TaskId,
    dp: DpSpec,
    round_: RoundNumber,
    *,
    among: Collection[DeviceId] | None = None,
    counts_once: bool = False,
) -> frozenset[DeviceId]:
    """Return the devices that a task's caps keep out of round `round_`, of `among` or of all: one query for a round.

    Where a device counts once, whoever is in an opened sum is kept out, and whoever said that it is: its own log
    outlives a coordinator that was restored from a backup.
    """
    if not (dp.is_on or counts_once):
        return frozenset()
    taken, rounds = PRIVACY_PARTICIPATIONS.c, dict[DeviceId, list[RoundNumber]]()
    if counts_once:
        said = sa.select(PARTICIPANTS.c.device_id).join(ROUNDS, ROUNDS.c.id == PARTICIPANTS.c.round_id)
        told = said.where(ROUNDS.c.task_id == task_id, PARTICIPANTS.c.error_code == BudgetExceededError.code)
        in_sums = sa.select(taken.device_id).where(taken.task_id == task_id)
        if among is not None and len(among) <= _FEW:
            told, in_sums = told.where(PARTICIPANTS.c.device_id.in_(among)), in_sums.where(taken.device_id.in_(among))
        counted = {DeviceId(device_id) for device_id in db.scalars(sa.union(in_sums, told))}
        return frozenset(counted if among is None else counted.intersection(among))
    for device_id, past in db.execute(sa.select(taken.device_id, taken.round).where(taken.task_id == task_id)):
        rounds.setdefault(DeviceId(device_id), []).append(RoundNumber(past))
    return frozenset(
        device_id
        for device_id, past in rounds.items()
        if (among is None or device_id in among) and not may_take_part(dp, past, round_)
    )


# Adaptive clips


def clip_for(db: sa.Connection, task_id: TaskId, task: TaskSpec, round_: RoundNumber) -> float:
    """Return the L2 clip of a round: the task's own, or what the newest round before it left."""
    clips = PRIVACY_CLIPS.c
    before = sa.select(clips.l2_clip).where(clips.task_id == task_id, clips.round < round_)
    kept = db.scalar(before.order_by(clips.round.desc()).limit(1)) if task.privacy.dp.is_adaptive else None
    return task.privacy.l2_clip if kept is None else kept


def keep_clip(db: sa.Connection, task_id: TaskId, round_: RoundNumber, l2_clip: float) -> None:
    """Keep what a round leaves to the next one (`mien.secagg.noise.clip_after`), in the transaction that closes it."""
    here = sa.and_(PRIVACY_CLIPS.c.task_id == task_id, PRIVACY_CLIPS.c.round == round_)
    if db.execute(sa.update(PRIVACY_CLIPS).where(here).values(l2_clip=l2_clip)).rowcount == 0:
        db.execute(sa.insert(PRIVACY_CLIPS).values(task_id=task_id, round=round_, l2_clip=l2_clip))
