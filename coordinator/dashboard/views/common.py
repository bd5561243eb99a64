"""Look-ups that several pages share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import sqlalchemy as sa

from coordinator.dashboard.words import short
from coordinator.store.releases import all_candidates, history_of
from coordinator.store.tables import CANDIDATES, EVALUATIONS, MODELS, RELEASES, TASKS
from mien.log.audit import Entry
from mien.protocol.canonical import parse_json
from mien.protocol.ids import ModelId
from mien.protocol.rounds import BlobId
from mien.rounds.records import ModelRecord
from mien.rounds.releases import Standing, standings
from mien.shell.pages import Cell, Cells, Column, Empty, Table

Row = sa.Row[Any]

MAX_ROWS: Final = 200
"""Most rows of a table that is not paged."""


def listed(
    anchor: str,
    title: str,
    caption: str,
    heads: tuple[Column, ...],
    rows: Iterable[Cells],
    nothing: str,
    *commands: str,
    note: str = "",
) -> Table | Empty:
    """Return rows as a table; without one why there is `nothing` yet, and the commands that change that."""
    found = tuple(rows)
    return Table(anchor, title, caption, heads, found, note) if found else Empty(anchor, title, nothing, commands)


def task_names(db: sa.Connection) -> dict[str, str]:
    """Return the tasks' names by id."""
    return {row.task_id: row.name for row in db.execute(sa.select(TASKS.c.task_id, TASKS.c.name))}


def model_link(model_id: str | None, note: str = "") -> Cell:
    """Return a model's id, which leads to its page."""
    return Cell("–") if model_id is None else Cell(short(model_id), f"/models/{model_id}", is_code=True, note=note)


def beside(found: float | None, other: float | None, whose: str, words: Callable[[float], str]) -> Cell:
    """Return a model's figure with another model's below it."""
    text = "–" if found is None else words(found)
    return Cell(text, note="" if other is None else f"{whose} {words(other)}")


def task_link(names: Mapping[str, str], task_id: str, round_number: int) -> Cell:
    """Return the name of a task with a round of it, which leads to the task's page."""
    return Cell(names.get(task_id, short(task_id)), href=f"/tasks/{task_id}", note=f"round {round_number}")


def attempt_page(row: Row) -> str:
    """Return the address of an attempt's page."""
    return f"/tasks/{row.task_id}/rounds/{row.round}/{row.attempt}"


def entry_page(entry: Entry) -> str:
    """Return the address of the page of what an entry of the audit log is about; nothing where there is none."""
    parts = entry.subject.split("/")
    if entry.action.startswith(("round.", "ledger.")) and len(parts) == 3:
        return f"/tasks/{parts[0]}/rounds/{parts[1]}/{parts[2]}"
    if entry.action.startswith("task."):
        return f"/tasks/{entry.subject}"
    if entry.action.startswith(("model.", "gates.", "rollout.")):
        return f"/models/{entry.subject}"
    return ""


def offered_models(db: sa.Connection) -> list[Row]:
    """Return the models that are more than a round's by-product, newest first, without their descriptions."""
    named = sa.union(sa.select(RELEASES.c.model_id), sa.select(CANDIDATES.c.model_id))
    held = sa.or_(MODELS.c.task_id.is_(None), MODELS.c.model_id.in_(named))
    wanted = [column for column in MODELS.c if column.name != "spec_json"]
    return list(db.execute(sa.select(*wanted).where(held).order_by(MODELS.c.created_ms.desc(), MODELS.c.model_id)))


def model_standings(db: sa.Connection, models: Iterable[Row]) -> dict[ModelId, Standing]:
    """Return models' standings, by id."""
    records = [
        ModelRecord(
            row.model_id, b"", row.layout_sha256, BlobId(row.theta_sha256, row.theta_bytes), 0, task_id=row.task_id
        )
        for row in models
    ]
    return standings(records, history_of(db), all_candidates(db))


def evaluations(db: sa.Connection, model_ids: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the records of measurements by model, oldest first; `made_ms` and `made_by` are added to each."""
    wanted = sa.select(EVALUATIONS).where(EVALUATIONS.c.model_id.in_(list(model_ids))).order_by(EVALUATIONS.c.id)
    found: dict[str, list[dict[str, Any]]] = {}
    for row in db.execute(wanted):
        record = parse_json(row.record_json, what="a measurement")
        known = record if isinstance(record, dict) else {}
        found.setdefault(row.model_id, []).append({**known, "made_ms": row.made_ms, "made_by": row.made_by})
    return found
