"""Staged roll-outs: how far each is, and what phones say of the new model beside the one before, in sums only."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import sqlalchemy as sa

from coordinator.dashboard.views.common import MAX_ROWS, Row, beside, model_link
from coordinator.dashboard.words import ago, short
from coordinator.store.tables import REPLICAS, ROLL_OUTS
from mien.format import count, percent, score
from mien.rounds.rollouts import spec_from_json
from mien.shell.pages import NOTHING, Alert, Bar, Cell, Cells, Section, Table, Tone, columns

_TONES: Mapping[str, Tone] = {
    "evaluating": "busy",
    "passed": "busy",
    "held": "warn",
    "done": "good",
    "rolled_back": "bad",
}
_WORDS = {"rolled_back": "rolled back", "passed": "passed, waits for you", "held": "held, waits for you"}


def newest(db: sa.Connection) -> list[Row]:
    """Return the newest roll-outs, newest first."""
    return list(db.execute(sa.select(ROLL_OUTS).order_by(ROLL_OUTS.c.id.desc()).limit(MAX_ROWS)))


def roll_out_table(db: sa.Connection, now_ms: int) -> list[Section]:
    """Return the staged roll-outs, nothing where there never was one."""
    rows = tuple(_row(each, now_ms) for each in newest(db))
    if not rows:
        return []
    heads = columns("Roll-out", "Model", "State", "Stage", "#Phones asked", "#TAR, as phones say", "Changed")
    note = "Phones answer in sums over many of them; no phone's own scores are seen."
    return [Table("roll-outs", "Staged roll-outs", "Staged roll-outs, the newest first", heads, rows, note)]


def _row(each: Row, now_ms: int) -> Cells:
    stages, figures = spec_from_json(each.spec_json).stages, json.loads(each.figures_json)
    share = stages[min(each.stage, len(stages) - 1)]
    return (
        Cell(str(each.id), note=f"population {each.population}"),
        model_link(each.model_id),
        Cell(_WORDS.get(each.state, each.state), tone=_TONES.get(each.state, "plain"), note=each.reason),
        Cell(f"{each.stage + 1} of {len(stages)}, {percent(share, 0)} of phones", bar=Bar(share, tone="good")),
        count(round(figures["phones"])) if "phones" in figures else NOTHING,
        beside(figures.get("tar"), figures.get("reference_tar"), "before", percent),
        Cell(ago(each.changed_ms, now_ms), note=f"started by {each.started_by}"),
    )


def fleet_monitors(db: sa.Connection, now_ms: int) -> list[Section]:
    """Return the monitors of collapse as phones see them, nothing where none was asked."""
    told = [(each, figures) for each in newest(db) if "mean_non_mated" in (figures := json.loads(each.figures_json))]
    if not told:
        return []
    rows = tuple(
        (
            model_link(each.model_id),
            each.population,
            count(round(figures["phones"])),
            beside(
                figures["effective_dimension"], figures.get("reference_effective_dimension"), "before", "{:.1f}".format
            ),
            beside(figures["mean_non_mated"], figures.get("reference_mean_non_mated"), "before", score),
            ago(each.changed_ms, now_ms),
        )
        for each, figures in told
    )
    heads = columns("Model", "Population", "#Phones", "#Effective dimension", "#Mean non-mated cosine", "Measured")
    note = "Out of summed histograms of scores: no face, embedding or score of one phone is seen."
    return [Table("fleet", "As phones see it", "Monitors of collapse, measured on phones", heads, rows, note)]


def roll_out_alerts(db: sa.Connection) -> Iterator[Alert]:
    """Yield the roll-outs that wait for an operator."""
    waiting = sa.select(ROLL_OUTS).where(ROLL_OUTS.c.state.in_(["held", "passed"])).order_by(ROLL_OUTS.c.id)
    for each in db.execute(waiting):
        held = each.state == "held"
        told = f"The roll-out of model {short(each.model_id)} {'is held' if held else 'passed its stage'}"
        why = f": {each.reason}" if each.reason else ""
        yield Alert("warn" if held else "busy", f"{told}{why}.", f"mien-coordinator fleet continue {each.id}",
                    f"/models/{each.model_id}", "Model")  # fmt: skip


def replica_table(db: sa.Connection, now_ms: int) -> list[Section]:
    """Return the coordinators that share this database, nothing where there is one alone."""
    found = list(db.execute(sa.select(REPLICAS).order_by(REPLICAS.c.seen_ms.desc()).limit(MAX_ROWS)))
    if len(found) < 2:  # one alone is no replica of anything
        return []
    rows = tuple(
        (
            Cell(each.name, note=short(each.replica_id, 8)),
            each.address,
            ago(each.seen_ms, now_ms),
            Cell(ago(each.started_ms, now_ms), note=each.software),
        )
        for each in found
    )
    heads = columns("Replica", "Address", "Seen", "Started")
    return [Table("replicas", "Replicas", "Coordinators that share this database", heads, rows)]
