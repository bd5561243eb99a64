"""Monitors of collapse: whether embeddings still use many directions, and whether people became more alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from coordinator.dashboard.views.common import (
    MAX_ROWS,
    evaluations,
    model_link,
    model_standings,
    offered_models,
)
from coordinator.dashboard.views.measured import Measured, Monitors, Record, judged, measured
from coordinator.dashboard.views.quality import monitor_figure, most_common
from coordinator.dashboard.views.rollouts import fleet_monitors
from coordinator.dashboard.words import MODEL_TONES, ago
from mien.format import percent, score
from mien.shell.pages import Cell, Columns, Empty, Page, Section, Table, columns

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
    monitored = {model.model_id: _monitored(measured(records.get(model.model_id, []))) for model in models}
    sets = most_common(monitored.values())
    if not sets:
        told = "No model was measured yet. Measure the released one on people who agreed; gates measure candidates."
        command = "mien-coordinator model evaluate released --data ./public"
        empty = Empty("monitors", "Monitors", told, (command,))
        return Page("collapse", "Collapse monitors", _LEDE, (empty, *fleet_monitors(db, now_ms)))
    sections: list[Section] = []
    for index, name in enumerate(sets, 1):
        course = [
            (model.model_id, monitored[model.model_id][name]) for model in models if name in monitored[model.model_id]
        ]
        ranks = [(model_id, monitors.effective_rank) for model_id, (_, monitors) in course]
        alike = [(model_id, monitors.mean_non_mated) for model_id, (_, monitors) in course]
        figures = (
            monitor_figure(f"rank-{index}", "Effective rank", ranks, words=_RANK, zero=True),
            monitor_figure(f"alike-{index}", "Mean non-mated cosine", alike, words=_ALIKE),
        )
        sections.append(Columns(f"set-{index}", f"On {name}", figures))
    standings = model_standings(db, models)
    rows = []
    for model in reversed(models):
        state = standings[model.model_id].state.value
        for name, (made_ms, monitors) in monitored[model.model_id].items():
            rows.append(
                (
                    model_link(model.model_id),
                    Cell(state, tone=MODEL_TONES[state]),
                    name,
                    f"{monitors.effective_rank:.1f}",
                    score(monitors.mean_non_mated),
                    ago(made_ms, now_ms),
                )
            )
    heads = columns("Model", "State", "Set", "#Effective rank", "#Mean non-mated cosine", "Measured")
    table = Table(
        "monitors", "All measurements", "Monitors of every model that was measured", heads, tuple(rows[:MAX_ROWS])
    )
    return Page(
        "collapse", "Collapse monitors", _LEDE, (*sections, table, *fleet_monitors(db, now_ms), *_limits(records))
    )


def _monitored(found: Sequence[Measured]) -> dict[str, tuple[int, Monitors]]:
    """Return when a model's monitors were measured last, and what they said, for each data set."""
    return {each.dataset: (each.made_ms, each.monitors) for each in found if each.monitors is not None}


def _limits(records: Mapping[str, Sequence[Record]]) -> list[Section]:
    """Return the tolerances of the newest gates."""
    verdicts = [verdict for each in records.values() for verdict in judged(each)]
    newest = max(verdicts, key=lambda verdict: verdict.made_ms, default=None)
    if newest is None or newest.min_rank_share is None or newest.max_cosine_rise is None:
        return []
    rows = []
    for seen in newest.sets:
        if seen.reference is not None:
            least = newest.min_rank_share * seen.reference.effective_rank
            most = seen.reference.mean_non_mated + newest.max_cosine_rise
            rows.append((seen.name, f"{least:.1f}", score(most)))
    if not rows:
        return []
    heads = columns("Set", "#Least effective rank", "#Largest mean non-mated cosine")
    note = (
        f"gates.min_rank_share {percent(newest.min_rank_share, 0)} of the released model's rank, "
        f"gates.max_cosine_rise {newest.max_cosine_rise:g} above its cosine."
    )
    return [Table("limits", "What the gates put up with", "Limits of the newest verdict", heads, tuple(rows), note)]
