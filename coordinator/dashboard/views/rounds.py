"""One attempt of a round: its stages on a time line, who took part, who was lost and why."""

from __future__ import annotations

import json
from collections import Counter

import sqlalchemy as sa

from coordinator.dashboard.views.common import Row, attempt_page, model_link
from coordinator.dashboard.views.tasks import find_task, metric_words, said_as
from coordinator.dashboard.words import STAGE_WORDS, STEP_WORDS, phone, since, stage_badge
from coordinator.store.tables import AUDIT, PARTICIPANTS, ROUNDS
from mien.errors import NotFoundError
from mien.format import count, duration, moment, percent, several, size
from mien.protocol.canonical import task_from_json
from mien.protocol.rounds import Stage
from mien.rounds.machine import ORDER, PATHS, STEP_OF, Step
from mien.shell.pages import Bar, Cell, Empty, Facts, Page, Section, Table, columns
from mien.specs import TaskSpec

_MAX_LOST = 50
_LOST = (Step.LATE, Step.LEFT, Step.GONE)


def round_page(db: sa.Connection, task_id: str, round_number: int, attempt: int, now_ms: int) -> Page:
    """Return one attempt of a round; raises NotFoundError."""
    task = find_task(db, task_id)
    wanted = sa.and_(ROUNDS.c.task_id == task_id, ROUNDS.c.round == round_number, ROUNDS.c.attempt == attempt)
    row = db.execute(sa.select(ROUNDS).where(wanted)).first()
    if row is None:
        raise NotFoundError("there is no such attempt; the task's page shows which there are")
    spec = task_from_json(task.task_json)
    sections = (_summary(db, row, now_ms), _stages(db, row, spec, now_ms), _funnel(db, row, spec),
                *_lost(db, row), *_attempts(db, row, now_ms), *_metrics(row))  # fmt: skip
    validates = " Validators judge the candidates that this round's trainers made." if row.duty == "validate" else ""
    return Page(
        "tasks",
        f"Round {row.round}",
        f"Attempt {row.attempt} of round {row.round}, task {task.name}. Began {moment(row.started_ms)} UTC.{validates}",
        sections,
        trail=(("Tasks", "/tasks"), (task.name, f"/tasks/{task_id}")),
        badge=stage_badge(row.stage),
        commands=(f"mien-coordinator task watch {said_as(task)}",),
    )


def _summary(db: sa.Connection, row: Row, now_ms: int) -> Facts:
    outcome = Cell(STAGE_WORDS.get(row.stage, row.stage), tone=stage_badge(row.stage).tone, note=row.reason)
    items: list[tuple[str, Cell | str]] = [
        ("Outcome" if row.ended_ms else "Stage", outcome),
        ("Took", since(row.started_ms, row.ended_ms, now_ms)),
    ]
    if row.deadline_ms and not row.ended_ms:
        left = duration(max(row.deadline_ms - now_ms, 0) / 1000)
        items.append(("This stage ends", Cell(f"in {left} at the latest", note=f"{moment(row.deadline_ms)} UTC")))
    each = f"{size(round(row.upload_bytes / row.num_reports))} from each phone" if row.num_reports else ""
    items += [
        ("Updates received", Cell(size(row.upload_bytes), note=each)),
        ("Trained on", model_link(row.base_model_id)),
        ("Made", model_link(row.model_id)),
    ]
    return Facts("summary", "In short", tuple(items))


def _stages(db: sa.Connection, row: Row, spec: TaskSpec, now_ms: int) -> Table:
    """Return the stages on a common time line, out of the audit log's entries of their beginnings."""
    log = AUDIT.entries.c
    subject = f"{row.task_id}/{row.round}/{row.attempt}"
    entries = sa.select(log.at_ms, log.action).where(log.subject == subject, log.action.startswith("round."))
    begun = [(Stage.SELECTING.value, row.started_ms)]
    begun += [(e.action.removeprefix("round."), e.at_ms) for e in db.execute(entries.order_by(log.position))]
    end = row.ended_ms or now_ms
    whole = max(end - row.started_ms, 1)
    rows = []
    for index, (stage, start) in enumerate(begun):
        if stage in ("closed", "aborted"):
            continue
        until = begun[index + 1][1] if index + 1 < len(begun) else end
        is_open = index + 1 == len(begun) and not row.ended_ms
        tone = "busy" if is_open else "bad" if row.stage == "aborted" and index + 2 == len(begun) else "good"
        bar = Bar(max(until - start, 0) / whole, (start - row.started_ms) / whole, tone)  # type: ignore[arg-type]
        rows.append(
            (
                Cell(stage, note=STAGE_WORDS.get(stage, "")),
                Cell("", bar=bar),
                duration(max(until - start, 0) / 1000) + (" so far" if is_open else ""),
                percent(max(until - start, 0) / whole, 0),
                moment(start)[11:],
            )
        )
    heads = columns("Stage", "On the time line", "#Took", "#Share", "#Began (UTC)")
    path = PATHS[spec.privacy.secure_aggregation]
    note = "" if len(path) > 2 else "This task's sums are not masked, so there are no stages for keys and shares."
    return Table("stages", "Stages", "The attempt's stages in order, with how long each took", heads, tuple(rows), note)


def _funnel(db: sa.Connection, row: Row, spec: TaskSpec) -> Section:
    """Return how many phones did each stage's part, those who left before it not counted."""
    counts = sa.select(PARTICIPANTS.c.step, sa.func.count()).where(PARTICIPANTS.c.round_id == row.id)
    steps = Counter({str(step): int(number) for step, number in db.execute(counts.group_by(PARTICIPANTS.c.step))})
    if not row.num_selected:
        told = f"Wanted: {several(spec.cohort.num_selected, 'phone')}; chance chooses among those that have checked in."
        if fewest := spec.cohort.min_labelled:
            told += f" It does not begin without {fewest} or more with labelled faces."
        return Empty("phones", "Phones", told, ("mien-coordinator device list",))
    wanted = [Step.SELECTED, *(STEP_OF[stage] for stage in PATHS[spec.privacy.secure_aggregation])]
    known = {Step.SELECTED: row.num_selected, Step.TRAINED: row.num_trained, Step.UPLOADED: row.num_reports}
    rows = []
    for step in wanted:
        beyond = ORDER[ORDER.index(step) :]
        number = known.get(step)
        if number is None:
            number = sum(steps[each.value] for each in beyond) + steps[Step.GONE.value]
        share = number / row.num_selected
        rows.append((STEP_WORDS[step.value], Cell("", bar=Bar(share)), count(number), percent(share, 0)))
    dropped = sum(steps[step.value] for step in (Step.LATE, Step.LEFT))
    note = f"{count(dropped)} were late or left before their update counted." if dropped else "Nobody was lost."
    if steps[Step.GONE.value]:
        note += f" {count(steps[Step.GONE.value])} were lost after it counted, which takes nothing out of the sum."
    heads = columns("A phone", "Of those chosen", "#Phones", "#Share")
    return Table("phones", "Phones", "How many of the chosen phones did each part", heads, tuple(rows), note)


def _lost(db: sa.Connection, row: Row) -> list[Section]:
    """Return the phones that were lost, and why where they or the server said so."""
    mine = sa.and_(PARTICIPANTS.c.round_id == row.id, PARTICIPANTS.c.step.in_([step.value for step in _LOST]))
    lost = list(
        db.execute(sa.select(PARTICIPANTS).where(mine).order_by(PARTICIPANTS.c.changed_ms).limit(_MAX_LOST + 1))
    )
    if not lost:
        return []
    rows = tuple(
        (phone(each.device_id), STEP_WORDS[each.step], _why(each), moment(each.changed_ms)[11:])
        for each in lost[:_MAX_LOST]
    )
    heads = columns("Phone", "What happened", "Why", "#When (UTC)")
    reasons = Counter(map(_why, lost))
    told = ", ".join(f"{number} × {reason}" for reason, number in reasons.most_common())
    more = f" Only the first {_MAX_LOST} are listed." if len(lost) > _MAX_LOST else ""
    return [
        Table("lost", "Phones that were lost", "Phones that did not stay to the end", heads, rows, f"{told}.{more}")
    ]


def _why(lost: Row) -> str:
    if lost.error_code:
        return str(lost.error_code).replace("_", " ")
    return "enough had trained before" if lost.step == Step.LATE.value else "no reason given"


def _attempts(db: sa.Connection, row: Row, now_ms: int) -> list[Section]:
    """Return the other attempts of the same round."""
    same = sa.and_(ROUNDS.c.task_id == row.task_id, ROUNDS.c.round == row.round)
    attempts = list(db.execute(sa.select(ROUNDS).where(same).order_by(ROUNDS.c.attempt)))
    if len(attempts) < 2:  # this one alone
        return []
    rows = tuple(
        (
            Cell(f"Attempt {each.attempt}", href=attempt_page(each),
                 note="this page" if each.attempt == row.attempt else ""),
            stage_badge(each.stage, each.reason),
            count(each.num_reports),
            since(each.started_ms, each.ended_ms, now_ms),
        )
        for each in attempts
    )  # fmt: skip
    heads = columns("Attempt", "Outcome", "#In the sum", "#Took")
    return [Table("attempts", "Attempts of this round", "All attempts of this round", heads, rows)]


def _metrics(row: Row) -> list[Section]:
    metrics: dict[str, float] = json.loads(row.metrics_json)
    if not metrics:
        return []
    rows = [(metric_words(k).capitalize(), f"{v:.5g}") for k, v in metrics.items()]
    return [
        Facts(
            "metrics",
            "What the sum told",
            tuple(rows),
            note="Of the cohort, or all so far; no phone's own.",
        )
    ]
