"""Monitors of collapse: whether embeddings still use many directions, and whether people became more alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from coordinator.dashboard.sections import Cell, Columns, Empty, Page, Section, Table
from coordinator.dashboard.views.common import (
    MAX_ROWS,
    columns,
    evaluations,
    model_link,
    model_standings,
    offered_models,
)
from coordinator.dashboard.views.quality import monitor_figure, newest_by_set, sets_measured
from coordinator.dashboard.views.rollouts import fleet_monitors
from coordinator.dashboard.words import MODEL_TONES, ago
from mien.format import percent, score

_LEDE = (
    "A recogniser collapses when it puts different people in one place: what was trained then tells nobody apart. Two "
    "numbers show it early, measured on the operator's public people, never on phones' faces."
)
_RANK = "How many directions embeddings spread over; a fall is a collapse."
_ALIKE = "How alike different people are on average; a rise means that they are told apart less well."


def collapse_page(db: sa.Connection, now_ms: int) -> Page:
    """Return the monitors of all models that were measured."""
    models = offered_models(db)[::-1]
    records = evaluations(db, [model.model_id for model in models])
    measured = {model.model_id: _monitored(records.get(model.model_id, [])) for model in models}
    sets = sets_measured({model_id: list(each.values()) for model_id, each in measured.items()})
    if not sets:
        told = "No model was measured yet. Measure the released one on people who agreed; gates measure candidates."
        command = "mien-coordinator model evaluate released --data ./public"
        empty = Empty("monitors", "Monitors", told, (command,))
        return Page("collapse", "Collapse monitors", _LEDE, (empty, *fleet_monitors(db, now_ms)))
    sections: list[Section] = []
    for index, name in enumerate(sets, 1):
        course = [
            (model.model_id, measured[model.model_id][name]) for model in models if name in measured[model.model_id]
        ]
        figures = (
            monitor_figure(f"rank-{index}", "Effective rank", "effective_rank", course, words=_RANK),
            monitor_figure(f"alike-{index}", "Mean non-mated cosine", "mean_non_mated", course, words=_ALIKE),
        )
        sections.append(Columns(f"set-{index}", f"On {name}", figures))
    standings = model_standings(db, models)
    rows = []
    for model in reversed(models):
        state = standings[model.model_id].state.value
        for name, record in measured[model.model_id].items():
            rows.append(
                (
                    model_link(model.model_id),
                    Cell(state, tone=MODEL_TONES[state]),
                    Cell(name),
                    Cell(f"{record['monitors']['effective_rank']:.1f}"),
                    Cell(score(record["monitors"]["mean_non_mated"])),
                    Cell(ago(record["made_ms"], now_ms)),
                )
            )
    heads = columns("Model", "State", "Set", "#Effective rank", "#Mean non-mated cosine", "Measured")
    table = Table(
        "monitors", "All measurements", "Monitors of every model that was measured", heads, tuple(rows[:MAX_ROWS])
    )
    return Page(
        "collapse", "Collapse monitors", _LEDE, (*sections, table, *fleet_monitors(db, now_ms), *_limits(records))
    )


def _monitored(records: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {name: record for name, record in newest_by_set(records).items() if "monitors" in record}


def _limits(records: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Section]:
    """Return what the newest gates put up with."""
    verdicts = [record for each in records.values() for record in each if record.get("protocol") == "gates"]
    if not verdicts:
        return []
    newest = max(verdicts, key=lambda record: record["made_ms"])
    rows = []
    for evidence in newest["evidence"]["sets"]:
        least = newest["gates"]["min_rank_share"] * evidence["reference"]["effective_rank"]
        most = evidence["reference"]["mean_non_mated"] + newest["gates"]["max_cosine_rise"]
        rows.append((Cell(evidence["name"]), Cell(f"{least:.1f}"), Cell(score(most))))
    heads = columns("Set", "#Least effective rank", "#Largest mean non-mated cosine")
    note = (
        f"gates.min_rank_share {percent(newest['gates']['min_rank_share'], 0)} of the released model's rank, "
        f"gates.max_cosine_rise {newest['gates']['max_cosine_rise']:g} above its cosine."
    )
    return [Table("limits", "What the gates put up with", "Limits of the newest verdict", heads, tuple(rows), note)]
