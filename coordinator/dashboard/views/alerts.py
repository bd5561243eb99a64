"""Alerts for the operator, in words, the worst first, each with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import sqlalchemy as sa

from coordinator.dashboard.situation import Situation
from coordinator.dashboard.views.common import model_standings, offered_models
from coordinator.dashboard.views.rollouts import roll_out_alerts
from coordinator.dashboard.words import short
from coordinator.store.releases import all_candidates, history_of
from coordinator.store.tables import PRIVACY_EVENTS, TASKS
from mien.dp.ledger import Event
from mien.format import percent
from mien.rounds.records import CandidateState
from mien.rounds.releases import UNJUDGED, ModelState, in_force
from mien.shell.pages import Alert, Tone

_ORDER: Final[dict[Tone, int]] = {"bad": 0, "warn": 1, "busy": 2, "good": 3, "plain": 4}
_WEEK_MS: Final = 7 * 86_400_000
_ABORTED_TWICE: Final = 2
_NEAR: Final = 0.8
_MAX_READY: Final = 3


def alerts(db: sa.Connection, situation: Situation) -> list[Alert]:
    """Return everything that wants an operator, the worst first."""
    found = [*_faults(situation), *_tasks(db, situation.now_ms), *_releases(db), *roll_out_alerts(db), *_budgets(db)]
    return sorted(found, key=lambda alert: _ORDER[alert.tone])


def _faults(situation: Situation) -> Iterator[Alert]:
    for check in situation.faults:
        yield Alert("bad", f"{check.name[0].upper()}{check.name[1:]}: {check.detail}.", href="/health", link="Health")


def _tasks(db: sa.Connection, now_ms: int) -> Iterator[Alert]:
    for task in db.execute(sa.select(TASKS).order_by(TASKS.c.created_ms.desc())):
        href = f"/tasks/{task.task_id}"
        if task.state == "paused":
            told = f"Task {task.name} is paused: {task.reason or 'an operator paused it'}."
            yield Alert("warn", told, f"mien-coordinator task resume {task.name}", href, "Task")
        elif task.state == "failed" and (task.ended_ms or 0) > now_ms - _WEEK_MS:
            yield Alert("bad", f"Task {task.name} failed: {task.reason}.", href=href, link="Task")
        elif task.state == "running" and task.aborted_in_a_row >= _ABORTED_TWICE:
            told = f"Task {task.name}: {task.aborted_in_a_row} attempts in a row were aborted."
            yield Alert("warn", told, href=href, link="Task")


def _releases(db: sa.Connection) -> Iterator[Alert]:
    models = offered_models(db)
    if in_force(history_of(db)) is None:
        command = "mien-coordinator model import FILE --release"
        if models:
            command = f"mien-coordinator model release {short(models[0].model_id)}"
        yield Alert(
            "warn", "No model is released to all, so some phones verify with none.", command, "/models", "Models"
        )
    standings, offered = model_standings(db, models), all_candidates(db)
    passed = {each.model_id for each in offered if each.state is CandidateState.PASSED}
    ready = [model for model in models if model.model_id in passed]
    waiting = [each for each in ready if standings[each.model_id].state is ModelState.CANDIDATE]
    for model in waiting[:_MAX_READY]:
        told = f"Model {short(model.model_id)} passed its gates and waits for its release."
        command = f"mien-coordinator model release {short(model.model_id)}"
        yield Alert("busy", told, command, f"/models/{model.model_id}", "Model")

    newest = {each.task_id: each for each in offered}  # of each task the last
    last_release_ms = max((release.released_ms for release in history_of(db)), default=0)
    for each in newest.values():
        if standings[each.model_id].reason == UNJUDGED and each.offered_ms >= last_release_ms:
            told = f"Model {short(each.model_id)} is not released, and {UNJUDGED}."
            command = f"mien-coordinator model evaluate {short(each.model_id)} --data FACES --keep-thresholds"
            yield Alert("busy", told, command, f"/models/{each.model_id}", "Model")


def _budgets(db: sa.Connection) -> Iterator[Alert]:
    newest = sa.select(sa.func.max(PRIVACY_EVENTS.c.id)).group_by(PRIVACY_EVENTS.c.population)
    rows = db.execute(sa.select(PRIVACY_EVENTS.c.event_json).where(PRIVACY_EVENTS.c.id.in_(newest)))
    for row in rows:
        event = Event.from_json(row.event_json)
        if event.epsilon_after is None or event.budget_epsilon <= 0:
            continue
        share = event.epsilon_after / event.budget_epsilon
        if share >= _NEAR:
            told = (
                f"Population {event.population} has spent {percent(share, 0)} of its privacy budget; a sum that would "
                "exceed it is not opened."
            )
            yield Alert("warn", told, href="/privacy", link="Privacy budget")
