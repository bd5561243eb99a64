"""Models: what is released to whom, how quality went over releases, and one model with all that is known of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from coordinator.dashboard.views.common import (
    MAX_ROWS,
    Row,
    beside,
    evaluations,
    listed,
    model_link,
    model_standings,
    offered_models,
    task_link,
    task_names,
)
from coordinator.dashboard.views.measured import Compared, Judged, Measured, Monitors, judged, measured
from coordinator.dashboard.views.quality import det_figure, newest_by_set, number, tar_figures
from coordinator.dashboard.views.rollouts import roll_out_table
from coordinator.dashboard.views.tasks import verdict_cell
from coordinator.dashboard.words import MODEL_TONES, ago, rate, short
from coordinator.store.releases import all_candidates, history_of
from coordinator.store.tables import MODELS
from mien.errors import NotFoundError
from mien.format import count, moment, percent, score, size
from mien.protocol.canonical import model_from_json
from mien.protocol.ids import ModelId
from mien.rounds.records import ReleaseRecord
from mien.rounds.releases import Standing, before, in_force, in_force_everywhere
from mien.shell.pages import Bar, Cell, Cells, Columns, Empty, Facts, Figure, Page, Section, Table, Tone, columns
from mien.specs import ModelSpec

_DET_MODELS = 3
_VERDICTS: Mapping[bool | None, tuple[str, Tone]] = {
    True: ("passed", "good"),
    False: ("failed", "bad"),
    None: ("unknown", "warn"),
}


def model_list(db: sa.Connection, now_ms: int) -> Page:
    """Return models, releases, verdicts and quality."""
    models = offered_models(db)
    lede = "Phones verify with a released model. A candidate is released once its gates have measured it."
    if not models:
        told = "No model yet. Import a recogniser that Mien knows, measure it, and release it."
        commands = ("mien-coordinator model import FILE --release",
                    "mien-coordinator model evaluate released --data ./public --keep-thresholds")  # fmt: skip
        return Page("models", "Models and releases", lede, (Empty("models", "Models", told, commands),))
    releases, standings = history_of(db), model_standings(db, models)
    kept = evaluations(db, [model.model_id for model in models])
    records = {each: measured(found) for each, found in kept.items()}
    sections: list[Section] = [_in_force(releases, now_ms), *roll_out_table(db, now_ms)]
    figures: list[Figure] = list(tar_figures(releases, records))
    det = det_figure("det", _compared(releases, models), records)
    if det is not None:
        figures.append(det)
    if figures:
        sections.append(Columns("quality", "Quality", tuple(figures)))
    else:
        sections.append(
            Empty("quality", "Quality", "No measurement has an error rate to draw yet.",
                  ("mien-coordinator model evaluate released --data ./public --keep-thresholds",))
        )  # fmt: skip
    sections += [_verdicts(db, now_ms), _history(list(enumerate(releases, 1)), now_ms), _all(models, standings, now_ms)]
    commands = ("mien-coordinator model release ID --share 10%", "mien-coordinator model rollback")
    return Page("models", "Models and releases", lede, tuple(sections), commands=commands)


def _compared(releases: Sequence[ReleaseRecord], models: Sequence[Row]) -> list[tuple[str, str]]:
    """Return the models whose DET curves stand side by side: in force, before, and the newest other one."""
    base, earlier = in_force(releases), before(releases)
    found: dict[str, str] = {}
    if releases and base is not None and releases[-1].model_id != base.model_id:
        found[releases[-1].model_id] = f"rolling out ({short(releases[-1].model_id, 8)})"
    if base is not None:
        found.setdefault(base.model_id, f"released ({short(base.model_id, 8)})")
    if earlier is not None:
        found.setdefault(earlier, f"before ({short(earlier, 8)})")
    for model in models:
        found.setdefault(model.model_id, short(model.model_id, 8))
    return list(found.items())[:_DET_MODELS]


def _in_force(releases: Sequence[ReleaseRecord], now_ms: int) -> Section:
    rows = (
        (
            population or "all populations",
            model_link(release.model_id),
            Cell(percent(share, 0), bar=Bar(share, tone="good")),
            Cell("rolled back" if release.is_rollback else "released", tone="good"),
            Cell(ago(release.released_ms, now_ms), note=f"by {release.released_by}"),
        )
        for population, release, share in in_force_everywhere(releases)
    )
    heads = columns("Phones of", "Model", "Share of phones", "State", "Since")
    nothing, command = "No model is released, so phones verify with none.", "mien-coordinator model release ID"
    return listed("in-force", "In force", "The models that phones get now", heads, rows, nothing, command)


def _history(releases: Sequence[tuple[int, ReleaseRecord]], now_ms: int) -> Section:
    rows = (
        (
            str(number),
            model_link(release.model_id),
            Cell("rolled back to", tone="warn") if release.is_rollback else Cell("released", tone="plain"),
            percent(release.share, 0),
            release.population or "all",
            Cell(ago(release.released_ms, now_ms), note=f"{moment(release.released_ms)} by {release.released_by}"),
        )
        for number, release in releases[::-1][:MAX_ROWS]
    )
    heads = columns("Release", "Model", "What", "#Share", "Population", "When")
    caption, nothing = "Releases and roll-backs, the newest first", "Nothing was released yet."
    command = "mien-coordinator model release ID"
    return listed("history", "History of releases", caption, heads, rows, nothing, command)


def _verdicts(db: sa.Connection, now_ms: int) -> Section:
    names = task_names(db)
    rows = (
        (
            model_link(each.model_id),
            verdict_cell(each.state.value, each.reason),
            task_link(names, each.task_id, each.round),
            ago(each.decided_ms or each.offered_ms, now_ms),
        )
        for each in all_candidates(db)[::-1][:MAX_ROWS]
    )
    heads = columns("Candidate", "Verdict", "Task", "When")
    caption = "What the gates said of candidates, the newest first"
    nothing = "No candidate yet. With evaluation_sets in coordinator.toml, gates judge each task's candidates."
    return listed("gates", "Verdicts of the gates", caption, heads, rows, nothing)


def _all(models: Sequence[Row], standings: Mapping[ModelId, Standing], now_ms: int) -> Table:
    rows = tuple(
        (
            model_link(model.model_id),
            _state_cell(standings[model.model_id]),
            size(model.theta_bytes),
            Cell("imported" if model.task_id is None else f"round {model.round}",
                 href="" if model.task_id is None else f"/tasks/{model.task_id}"),
            Cell(ago(model.created_ms, now_ms), note=moment(model.created_ms)),
        )
        for model in models[:MAX_ROWS]
    )  # fmt: skip
    heads = columns("Model", "State", "#Size", "From", "Made")
    note = "Rounds' own models are not listed; mien-coordinator model list --all shows them."
    return Table("models", "Models", "Imported models, candidates and releases, the newest first", heads, rows, note)


def _state_cell(standing: Standing) -> Cell:
    words = standing.state.value
    if standing.state.value == "released" and standing.share < 1:
        words = f"released to {percent(standing.share, 0)}"
    return Cell(words, tone=MODEL_TONES[standing.state.value], note=standing.reason)


def model_page(db: sa.Connection, model_id: str, now_ms: int) -> Page:
    """Return one model: where it is from, its thresholds with provenance, all its measurements and its gates."""
    row = db.execute(sa.select(MODELS).where(MODELS.c.model_id == model_id)).first()
    if row is None:
        raise NotFoundError("there is no such model; the list of models shows which there are")
    spec, _ = model_from_json(row.spec_json)
    standing = model_standings(db, [row])[ModelId(model_id)]
    releases = history_of(db)
    base = in_force(releases)
    shown = {model_id: "this model"}
    if base is not None:
        shown.setdefault(base.model_id, f"released ({short(base.model_id, 8)})")
    kept = evaluations(db, list(shown))
    records = {each: measured(found) for each, found in kept.items()}
    mine = records.get(model_id, [])
    sections: list[Section] = [_facts(db, row, spec, standing), _thresholds(spec, model_id)]
    det = det_figure("det", list(shown.items()), records)
    if det is not None and newest_by_set(mine):
        sections.append(Columns("quality", "Quality", (det,)))
    sections.append(_measurements(mine, now_ms, model_id))
    sections += _gates(judged(kept.get(model_id, [])), now_ms)
    numbered = [(number, release) for number, release in enumerate(releases, 1) if release.model_id == model_id]
    if numbered:
        sections.append(_history(numbered, now_ms))
    name = short(model_id)
    commands = (
        f"mien-coordinator model show {name} --json",
        f"mien-coordinator model card {name} --out card.html",
        f"mien-coordinator model release {name}",
    )
    lede = f"{spec.backbone}, {size(row.theta_bytes)} of parameters."
    return Page(
        "models",
        f"Model {name}",
        lede,
        tuple(sections),
        trail=(("Models and releases", "/models"),),
        badge=_state_cell(standing),
        commands=commands,
    )


def _facts(db: sa.Connection, row: Row, spec: ModelSpec, standing: Standing) -> Facts:
    made = Cell("imported") if row.task_id is None else task_link(task_names(db), row.task_id, row.round)
    items = (
        ("Id", Cell(row.model_id, is_code=True)),
        ("State", _state_cell(standing)),
        ("Made by", made),
        ("Made of", model_link(row.parent_model_id)),
        ("Population", row.population or "all"),
        ("Made on", f"{moment(row.created_ms)} UTC"),
        (
            "Parameters",
            Cell(count(row.theta_bytes // 4), note="removed: only the record is kept" if row.removed_ms else ""),
        ),
        ("Source", spec.source),
        ("Terms", spec.terms),
    )
    return Facts("facts", "What it is", items)


def _thresholds(spec: ModelSpec, model_id: str) -> Section:
    rows = (
        (
            rate(float(f"{each.fmr:.2g}")),
            score(each.value),
            each.dataset,
            count(each.num_mated),
            count(each.num_non_mated),
            Cell(each.date, note="" if each.model_id == model_id else f"measured on {short(each.model_id)}"),
        )
        for each in spec.thresholds
    )
    heads = columns("At FMR", "#Threshold", "Measured on", "#Mated", "#Non-mated", "Date")
    note = (
        "A phone accepts two faces whose cosine is at least the threshold. Each was measured on enough pairs of "
        "different people to expect 30 false matches or more at its FMR."
    )
    nothing = "It has no threshold, so phones that have it decide nothing until their owner gives one by hand."
    command = f"mien-coordinator model evaluate {short(model_id)} --data ./public --keep-thresholds"
    caption = "Thresholds with where they come from"
    return listed("thresholds", "Thresholds", caption, heads, rows, nothing, command, note=note)


def _measurements(records: Sequence[Measured], now_ms: int, model_id: str) -> Table | Empty:
    rows = (
        (
            Cell(record.dataset, note=record.protocol),
            _result(record),
            f"{number(record.mated)} / {number(record.non_mated)}",
            number(record.failures),
            Cell(ago(record.made_ms, now_ms), note=f"by {record.made_by}"),
        )
        for record in reversed(records)
    )
    heads = columns("Data set", "Result", "#Mated / non-mated", "#No face found", "When")
    caption, nothing = "Measurements of this model, the newest first", "It was not measured yet."
    command = f"mien-coordinator model evaluate {short(model_id)} --data ./public"
    return listed("measurements", "Measurements", caption, heads, rows, nothing, command)


def _result(record: Measured) -> str:
    points = ", ".join(f"{percent(point.tar, 1)} at {rate(point.target_fmr)}" for point in record.points)
    parts = (
        "" if record.accuracy is None else f"accuracy {percent(record.accuracy)}",
        "" if record.eer is None else f"EER {percent(record.eer)}",
        f"TAR {points}" if points else "",
    )
    unknown = "in a form that this dashboard does not know; model show --json has it"
    return "; ".join(filter(None, parts)) if record.is_known else unknown


def _gates(verdicts: Sequence[Judged], now_ms: int) -> list[Section]:
    """Return the gates' measurements, newest verdict first: one table over all verdicts and sets."""
    nothing = (Compared("no set", None, None, None, None),)
    rows = tuple(
        _evidence_row(verdict, seen, now_ms) for verdict in reversed(verdicts) for seen in verdict.sets or nothing
    )
    if not rows:
        return []
    heads = columns("Set", "Verdict", "#TAR", "#Effective rank", "#Mean non-mated cosine")
    return [Table("verdicts", "What its gates measured", "Evidence of the gates, the newest first", heads, rows)]


def _evidence_row(verdict: Judged, seen: Compared, now_ms: int) -> Cells:
    state, tone = _VERDICTS[verdict.passed]
    (rank, alike), (rank_before, alike_before) = _figures(seen.monitors), _figures(seen.reference)
    return (
        Cell(seen.name, note=ago(verdict.made_ms, now_ms)),
        Cell(state, tone=tone, note="; ".join(verdict.reasons)),
        beside(seen.tar, seen.reference_tar, "released", percent),
        beside(rank, rank_before, "released", "{:.1f}".format),
        beside(alike, alike_before, "released", score),
    )


def _figures(monitors: Monitors | None) -> tuple[float | None, float | None]:
    return (None, None) if monitors is None else (monitors.effective_rank, monitors.mean_non_mated)
