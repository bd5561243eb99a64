"""All tasks, and one: what it was told, what it shows, how its rounds went."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from coordinator.dashboard.views.common import MAX_ROWS, Row, attempt_page, listed, model_link
from coordinator.dashboard.words import ago, lasting, since, stage_badge, task_badge
from coordinator.operator.disclosure import disclosures, work_of
from coordinator.store.tables import CANDIDATES, ROUNDS, TASKS
from mien.errors import NotFoundError
from mien.format import count, moment, percent, several, size
from mien.protocol.canonical import task_from_json
from mien.rounds.records import TaskState
from mien.shell.pages import (
    NOTHING,
    Bar,
    Cell,
    Cells,
    Chart,
    Columns,
    Facts,
    Figure,
    Page,
    Prose,
    Section,
    Series,
    Table,
    charts,
    columns,
)
from mien.specs import LocalSpec, TaskSpec

_MAX_POINTS = 200


def task_list(db: sa.Connection, now_ms: int) -> Page:
    """Return all tasks, newest first."""
    rows = list(db.execute(sa.select(TASKS).order_by(TASKS.c.created_ms.desc()).limit(MAX_ROWS + 1)))
    lede = "A task is what phones are asked to train, over so many rounds."
    command = "mien-coordinator task submit spring.toml"
    note = f"The newest {MAX_ROWS}; mien-coordinator task list has all." if len(rows) > MAX_ROWS else ""
    heads = columns("Task", "State", "Progress", "Method", "Population", "Submitted", "Model")
    shown = [_row(row, now_ms) for row in rows[:MAX_ROWS]]
    nothing = "No task yet. Write a TOML file with a name, a method and a number of rounds, then submit it."
    table = listed("tasks", "All tasks", "Tasks, the newest first", heads, shown, nothing, command, note=note)
    return Page("tasks", "Tasks", lede, (table,), commands=(command,) if rows else ())


def _row(row: Row, now_ms: int) -> Cells:
    spec = task_from_json(row.task_json)
    return (
        Cell(row.name, href=f"/tasks/{row.task_id}"),
        Cell(row.state, tone=task_badge(row.state).tone, note=row.reason),
        progress_cell(row.rounds_closed, spec.rounds),
        spec.method,
        row.population,
        Cell(ago(row.created_ms, now_ms), note=f"by {row.submitted_by}"),
        model_link(row.model_id),
    )


def progress_cell(closed: int, rounds: int) -> Cell:
    """Return how many rounds have closed."""
    return Cell(
        f"{count(closed)} of {count(rounds)} round{'' if rounds == 1 else 's'}", bar=Bar(closed / max(rounds, 1))
    )


def find_task(db: sa.Connection, task_id: str) -> Row:
    """Return a task; raises NotFoundError."""
    row = db.execute(sa.select(TASKS).where(TASKS.c.task_id == task_id)).first()
    if row is None:
        raise NotFoundError("there is no such task; the list of tasks shows which there are")
    return row


def task_page(db: sa.Connection, task_id: str, now_ms: int) -> Page:
    """Return one task: its rounds, its settings, what it shows."""
    row = find_task(db, task_id)
    spec = task_from_json(row.task_json)
    attempts = _attempts(db, task_id)
    did = work_of(spec.method)
    sections: list[Section] = [_summary(row, spec, now_ms), _rounds(attempts, did, now_ms)]
    figures = [figure for figure in (_reports_figure(attempts, did), *_metric_figures(attempts)) if figure is not None]
    if figures:
        sections.append(Columns("course", "The course of its rounds", tuple(figures)))
    shows = Prose("shows", "What it shows, and to whom", tuple(disclosures(spec)), is_list=True)
    sections += [_candidates(db, task_id, now_ms), shows, _settings(spec)]
    return Page(
        "tasks",
        row.name,
        f"{spec.method} on population {row.population}, submitted by {row.submitted_by}, {moment(row.created_ms)} UTC.",
        tuple(sections),
        trail=(("Tasks", "/tasks"),),
        badge=task_badge(row.state),
        commands=_commands(row),
    )


def _commands(row: Row) -> tuple[str, ...]:
    verbs = {"running": ("pause", "cancel"), "checking": ("cancel",), "paused": ("resume", "cancel")}.get(row.state, ())
    return tuple(f"mien-coordinator task {verb} {said_as(row)}" for verb in ("watch", *verbs))


def said_as(row: Row) -> str:
    """Return the word by which commands find a task: a name is that of one task only while it goes on."""
    return str(row.task_id if TaskState(row.state).is_over else row.name)


def _summary(row: Row, spec: TaskSpec, now_ms: int) -> Facts:
    items: list[tuple[str, Cell | str]] = [
        ("State", Cell(row.state, tone=task_badge(row.state).tone, note=row.reason)),
        ("Progress", progress_cell(row.rounds_closed, spec.rounds)),
        ("Began with", model_link(row.base_model_id)),
        ("Model now", model_link(row.model_id)),
        ("Took", since(row.created_ms, row.ended_ms, now_ms)),
    ]
    if row.aborted_in_a_row:
        items.append(("Aborted in a row", Cell(count(row.aborted_in_a_row), tone="warn")))
    return Facts("summary", "Where it stands", tuple(items))


def _attempts(db: sa.Connection, task_id: str) -> list[Row]:
    """Return a task's newest attempts, newest first."""
    wanted = sa.select(ROUNDS).where(ROUNDS.c.task_id == task_id).order_by(ROUNDS.c.id.desc()).limit(MAX_ROWS)
    return list(db.execute(wanted))


def _rounds(attempts: Sequence[Row], did: str, now_ms: int) -> Section:
    """Return the attempts, whose phones all `did` one thing."""
    rows = (
        (
            Cell(f"Round {each.round}", href=attempt_page(each),
                 note=f"attempt {each.attempt}" + (", validators" if each.duty == "validate" else "")),
            stage_badge(each.stage, each.reason),
            count(each.num_selected),
            count(each.num_trained),
            count(each.num_reports),
            size(each.upload_bytes),
            since(each.started_ms, each.ended_ms, now_ms),
        )
        for each in attempts
    )  # fmt: skip
    heads = columns("Round", "Outcome", "#Chosen", f"#{did.capitalize()}", "#In the sum", "#Sent", "#Took")
    note = f"The newest {MAX_ROWS} attempts." if len(attempts) == MAX_ROWS else ""
    nothing = "No round has begun. The first one begins when enough phones of this population have checked in."
    command, caption = "mien-coordinator device invite", "Attempts of rounds, the newest first"
    return listed("rounds", "Rounds", caption, heads, rows, nothing, command, note=note)


def _closed(attempts: Sequence[Row]) -> list[Row]:
    """Return closed attempts, oldest first."""
    return [each for each in reversed(attempts) if each.stage == "closed"][-_MAX_POINTS:]


def _reports_figure(attempts: Sequence[Row], did: str) -> Figure | None:
    closed = _closed(attempts)
    kinds = {"num_selected": "chosen", "num_trained": did, "num_reports": "in the sum"}
    last = closed[-1] if closed else None
    told = "" if last is None else (
        f"In round {last.round}, of {several(last.num_selected, 'phone')} chosen {last.num_trained} {did} and "
        f"{last.num_reports} are in the sum."
    )  # fmt: skip
    counted = [(each.round, {field: getattr(each, field) for field in kinds}) for each in closed]
    return _course(
        "reports", "Phones in each round", kinds, counted, "{:,}", "Closed rounds only.", told, y_label="phones"
    )


def _metric_figures(attempts: Sequence[Row]) -> list[Figure | None]:
    """Return a figure of each kind of numbers that rounds tell: losses together, others by themselves."""
    closed = [(each.round, json.loads(each.metrics_json)) for each in _closed(attempts)]
    names = list(dict.fromkeys(name for _, metrics in closed for name in metrics if not name.endswith("_s")))
    losses = [name for name in names if name.startswith("loss")]
    groups = ([losses] if losses else []) + [[name] for name in names if name not in losses]
    return [_metric_figure(group[: charts.MAX_SERIES], closed) for group in groups[:3]]


def _metric_figure(names: Sequence[str], closed: Sequence[tuple[int, dict[str, float]]]) -> Figure | None:
    ends = [(name, [m[name] for _, m in closed if math.isfinite(m.get(name, math.nan))]) for name in names]
    told = ", ".join(f"{metric_words(name)} went from {v[0]:.4g} to {v[-1]:.4g}" for name, v in ends if v)
    title = "Loss on the phones" if names[0].startswith("loss") else metric_words(names[0]).capitalize()
    told = f"{told[:1].upper()}{told[1:]}, over rounds {closed[0][0]} to {closed[-1][0]}."
    is_total = all(name.endswith("_in_total") for name in names)
    caption = "Of all cohorts so far, which add up." if is_total else "Means over a round's cohort, out of its sum."
    anchor = f"metric-{names[0].replace('_', '-')}"
    return _course(anchor, title, {name: metric_words(name) for name in names}, closed, "{:.4g}", caption, told)


def _course(
    anchor: str, title: str, kinds: Mapping[str, str], rounds: Sequence[tuple[int, Mapping[str, float]]], form: str,
    caption: str, told: str, *, y_label: str = "",
) -> Figure | None:  # fmt: skip
    """Return how numbers, `kinds` by their names, went over rounds, with their table; None for a single round."""
    series = tuple(
        Series(words, tuple((float(at), float(m[name])) for at, m in rounds if math.isfinite(m.get(name, math.nan))))
        for name, words in kinds.items()
    )
    places = sorted({int(at) for each in series for at, _ in each.points})
    if len(places) < 2:  # one point is no course
        return None
    values = [value for each in series for _, value in each.points]
    y = charts.shares() if all(map(_is_share, kinds)) else charts.linear(values, zero=bool(y_label))
    chart = Chart(series, charts.whole_numbers(places[0], places[-1]), y, "round", y_label)
    heads = columns("Round", *(f"#{words[0].upper()}{words[1:]}" for words in kinds.values()))
    rows = tuple(
        (str(at), *(form.format(m[name]).replace(",", "\u202f") if name in m else NOTHING for name in kinds))
        for at, m in rounds
    )
    table = Table(f"{anchor}-table", "By round", title, heads, rows)
    return Figure(anchor, title, (chart,), caption, told, table)


def _is_share(metric: str) -> bool:
    """Return whether a metric is a share of a whole by its name."""
    return metric.startswith("share_")


def metric_words(name: str) -> str:
    """Return a metric's name in words."""
    known = {"loss_before": "loss before training", "loss_after": "loss after training",
             "moved_nothing": "warning: the model did not move",
             "share_clipped": "share of updates that were clipped", "unmask_s": "seconds to open the sum"}  # fmt: skip
    return known.get(name, name.replace("_", " "))


def _candidates(db: sa.Connection, task_id: str, now_ms: int) -> Section:
    wanted = sa.select(CANDIDATES).where(CANDIDATES.c.task_id == task_id).order_by(CANDIDATES.c.round.desc())
    rows = [
        (
            f"Round {each.round}",
            model_link(each.model_id),
            verdict_cell(each.state, each.reason),
            ago(each.decided_ms or each.offered_ms, now_ms),
        )
        for each in db.execute(wanted.limit(MAX_ROWS))
    ]
    heads, caption = columns("After", "Model", "Gates", "When"), "Models of this task that were offered"
    nothing = "No model of this task was offered for release yet. Its last one will be; gates.every offers more."
    return listed("candidates", "Candidates for release", caption, heads, rows, nothing)


def verdict_cell(state: str, reason: str) -> Cell:
    """Return the gates' verdict on a candidate."""
    words = {"unchecked": "no gates", "waiting": "being measured", "passed": "passed", "failed": "failed"}
    tones = {"passed": "good", "failed": "bad", "waiting": "busy"}
    return Cell(words.get(state, state), tone=tones.get(state, "plain"), note=reason)  # type: ignore[arg-type]


def _local(local: LocalSpec) -> str:
    passes = several(local.steps, "step") if local.steps else f"{local.epochs} pass{'es' if local.epochs > 1 else ''}"
    return (
        f"{passes} at rate {local.lr:g}, "
        f"{several(local.batch_size, 'image') if local.batch_size else 'all images'} a step"
    )


def _settings(spec: TaskSpec) -> Facts:
    cohort, deadlines, local, privacy, gates = spec.cohort, spec.deadlines, spec.local, spec.privacy, spec.gates
    masked = {"off": "off: sums are not masked", "malicious_server": "against a lying server",
              "honest_but_curious": "against a curious server"}  # fmt: skip
    included = f"; labelled sources among them: {cohort.min_labelled} or more" if cohort.min_labelled else ""
    dp, does_train = privacy.dp, work_of(spec.method) == "trained"
    noise = "none" if not dp.is_on else f"{dp.mechanism}, z {dp.noise_multiplier:g}, ε {dp.epsilon:g} at δ {dp.delta:g}"
    items: list[tuple[str, Cell | str]] = [
        ("Cohort", f"{several(cohort.size, 'phone')}, at least {cohort.min_reports}; "
                   f"asked: {cohort.num_selected}{included}"),
        ("On a phone", _local(local) if does_train else "nothing is trained: it adds up what it computed"),
        ("Time for that", f"{lasting(deadlines.training_s)} at most"),
        ("Secure aggregation", masked[privacy.secure_aggregation]),
        ("Differential privacy", noise),
        ("Shown in clear", ", ".join(privacy.reveals) or "nothing"),
        ("Trained part", ", ".join(spec.trainable) or "the model's own"),
        ("Gates", Cell(("every round" if gates.every == 1 else f"every {gates.every} rounds") if gates.every
                       else "the last model only",
                       note=f"TAR at FMR {gates.fmr:g}, released to {percent(gates.share, 0)}, {gates.release}")),
    ]  # fmt: skip
    if spec.options:
        items.append(("Options", Cell(json.dumps(dict(spec.options), sort_keys=True), is_code=True)))
    return Facts("settings", "Settings", tuple(items), note="The operator's guide has a reference of every field.")
