"""The first page: is all well, who is there, what runs, what happened last."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from coordinator.dashboard.situation import Situation
from coordinator.dashboard.views import fleet as fleets
from coordinator.dashboard.views import hours
from coordinator.dashboard.views.alerts import alerts
from coordinator.dashboard.views.common import Row, attempt_page, entry_page, listed, model_link, task_names
from coordinator.dashboard.views.rollouts import replica_table
from coordinator.dashboard.views.tasks import progress_cell
from coordinator.dashboard.words import NOTEWORTHY, ago, short, stage_badge, task_badge, told
from coordinator.store.releases import history_of
from coordinator.store.tables import AUDIT, ROUNDS, TASKS
from mien.format import count, gathered, moment, percent, several
from mien.log.audit import Entry
from mien.protocol.canonical import task_from_json
from mien.protocol.rounds import Stage
from mien.rounds.releases import in_force
from mien.shell.pages import Alerts, Cell, Cells, Columns, Page, Section, Tile, Tiles, columns
from mien.specs import TaskSpec

_GOING_ON = ("running", "checking", "paused")
_LATEST = 8


def overview(db: sa.Connection, situation: Situation, fleet: fleets.Fleet) -> Page:
    """Return the overview."""
    found = alerts(db, situation)
    all_well = "Nothing does. Rounds, releases and the account of what was shown are as they should be."
    sections: list[Section] = [
        Alerts("alerts", "Needs your attention", tuple(found), all_well),
        _tiles(db, fleet, situation),
        _running(db, situation),
        Columns("fleet", "Fleet", (fleets.population_table(fleet), fleets.hours_figure(fleet))),
        Columns("day", "The last 24 hours", tuple(hours.figures(db, situation.now_ms))),
        *replica_table(db, situation.now_ms),
        _latest(db, situation.now_ms),
    ]
    return Page("overview", "Overview", _lede(fleet, len(found)), tuple(sections))


def _lede(fleet: fleets.Fleet, num_alerts: int) -> str:
    wants = "Nothing needs you" if not num_alerts else f"{several(num_alerts, 'thing')} to look at"
    if not fleet.known:
        return f"{wants}; no phone has called yet."
    return f"{wants}. {count(fleet.day)} of {several(fleet.known, 'phone')} called within a day."


def _tiles(db: sa.Connection, fleet: fleets.Fleet, situation: Situation) -> Tiles:
    states = sa.select(TASKS.c.state, sa.func.count()).group_by(TASKS.c.state)
    by_state = {str(state): int(number) for state, number in db.execute(states)}
    day = situation.now_ms - hours.DAY_MS
    ended = sa.select(ROUNDS.c.stage, sa.func.count()).where(ROUNDS.c.ended_ms > day).group_by(ROUNDS.c.stage)
    rounds = {str(stage): int(number) for stage, number in db.execute(ended)}
    history = history_of(db)
    newest = history[-1] if history else None
    base = in_force(history)
    if newest is None:
        release = Tile("Released model", "none", "phones verify with none", tone="warn", href="/models")
    elif newest.share < 1 and base is not None:
        note = f"at {percent(newest.share, 0)} of phones, the others have {short(base.model_id, 8)}"
        release = Tile("Rolling out", short(newest.model_id, 8), note, tone="busy", href=f"/models/{newest.model_id}")
    else:
        note = f"{'rolled back' if newest.is_rollback else 'released'} {ago(newest.released_ms, situation.now_ms)}"
        release = Tile("Released model", short(newest.model_id, 8), note, href=f"/models/{newest.model_id}")
    running, closed, aborted = by_state.get("running", 0), rounds.get("closed", 0), rounds.get("aborted", 0)
    paused = by_state.get("paused", 0)
    return Tiles(
        "figures",
        "In figures",
        (
            Tile("Phones", count(fleet.known), _lately(fleet), href="#phones"),
            Tile("Revoked certificates", situation.revoked_words, situation.revocations_words, href="/health"),
            Tile("Running tasks", count(running), f"{count(paused)} paused" if paused else "none paused",
                 tone="warn" if paused else "plain", href="/tasks"),
            Tile("Rounds within a day", count(closed), f"{several(aborted, 'attempt')} aborted", href="/tasks"),
            release,
        ),
    )  # fmt: skip


def _lately(fleet: fleets.Fleet) -> str:
    stay_out = f", {count(fleet.staying_out)} left out of rounds" if fleet.staying_out else ""
    return f"{count(fleet.day)} called within a day{stay_out}"


def _running(db: sa.Connection, situation: Situation) -> Section:
    wanted = sa.select(TASKS).where(TASKS.c.state.in_(_GOING_ON)).order_by(TASKS.c.created_ms.desc())
    rows = [_task_row(db, task, situation) for task in db.execute(wanted).all()]
    heads = columns("Task", "State", "Round", "Progress", "Model")
    caption = "Tasks that are running, checked by their gates, or paused"
    nothing = "No task is under way. A task is a TOML file that names a method and how many rounds."
    command = "mien-coordinator task submit spring.toml"
    return listed("running", "Tasks under way", caption, heads, rows, nothing, command)


def _task_row(db: sa.Connection, task: Row, situation: Situation) -> Cells:
    spec = task_from_json(task.task_json)
    newest = sa.select(ROUNDS).where(ROUNDS.c.task_id == task.task_id).order_by(ROUNDS.c.id.desc()).limit(1)
    attempt = db.execute(newest).first()
    at = Cell("–")
    if attempt is not None:
        stage = stage_badge(attempt.stage)
        place = f"round {attempt.round}, attempt {attempt.attempt}"
        if attempt.stage == Stage.SELECTING:
            place += f"; {_gathering(task, spec, attempt, situation)}"
        at = Cell(stage.text, attempt_page(attempt), stage.tone, note=place)
    return (
        Cell(task.name, href=f"/tasks/{task.task_id}", note=f"{spec.method}, population {task.population}"),
        task_badge(task.state),
        at,
        progress_cell(task.rounds_closed, spec.rounds),
        model_link(task.model_id),
    )


def _gathering(task: Row, spec: TaskSpec, attempt: Row, situation: Situation) -> str:
    """Return how many phones wait for a round to begin, of how many, since when; the number where it is known."""
    cohort, waiting = spec.cohort, situation.waiting.get((task.name, task.population))
    if waiting is None:
        source = ", a labelled source among them" if cohort.min_labelled else ""
        return (
            f"gathering {several(cohort.num_selected, 'phone')}{source} (with metrics_port it says how many are there)"
        )
    lacks = max(cohort.min_labelled - waiting.labelled, 0)
    return f"gathering: {gathered(waiting.there, cohort.num_selected, attempt.started_ms, situation.now_ms, lacks)}"


def _latest(db: sa.Connection, now_ms: int) -> Section:
    entries, names = latest_entries(db, _LATEST), task_names(db)
    rows = [
        (Cell(ago(entry.at_ms, now_ms), note=moment(entry.at_ms)), Cell(told(entry, names), href=entry_page(entry)))
        for entry in entries
    ]
    heads, caption = columns("When", "What"), "The newest noteworthy entries of the audit log"
    note, command = "All of it is in the audit log.", "mien-coordinator serve"
    return listed("latest", "What happened last", caption, heads, rows, "Nothing yet.", command, note=note)


def latest_entries(db: sa.Connection, limit: int, *, after: int = 0) -> Sequence[Entry]:
    """Return the newest entries of the audit log that are worth telling, newest first."""
    log = AUDIT.entries.c
    return AUDIT.find(db, log.action.in_(sorted(NOTEWORTHY)), log.position > after, newest=limit)
