"""What happened in each of the last 24 hours: attempts that ended, phones in sums, phones that were lost and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa

from coordinator.store.tables import PARTICIPANTS, ROUNDS
from mien.format import count
from mien.shell.pages import Bars, Figure, Table, charts, columns

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
NUM_HOURS: Final = 24
_MAX_ERRORS: Final = 4


def first_hour(now_ms: int) -> int:
    """Return the first of the last 24 hours, in hours since 1970."""
    return now_ms // HOUR_MS - NUM_HOURS + 1


def hour_of(time_ms: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Return the hour of a column's times, in hours since 1970."""
    return time_ms.op("/")(sa.literal_column(str(HOUR_MS)))  # whole numbers: both databases drop the rest


def hour_names(now_ms: int) -> list[str]:
    """Return the last 24 hours as two digits, UTC."""
    first = first_hour(now_ms)
    return [f"{datetime.fromtimestamp((first + n) * 3600, UTC):%H}" for n in range(NUM_HOURS)]


def by_hour(
    anchor: str, title: str, counts: Mapping[str, Sequence[int]], unit: str, now_ms: int, *, caption: str, told: str,
    heads: Mapping[str, str] | None = None,
) -> Figure:  # fmt: skip
    """Return counts of the last 24 hours, oldest first, as bars by their names, with their table."""
    names = hour_names(now_ms)
    labels = tuple(name if index % 4 == 3 else "" for index, name in enumerate(names))
    series = tuple((name, tuple(map(float, values))) for name, values in counts.items())
    y = charts.counts([value for _, values in series for value in values])
    rows = tuple((f"{name}:00", *map(count, values)) for name, *values in zip(names, *counts.values(), strict=True))
    headed = [f"#{(heads or {}).get(name) or name.capitalize()}" for name in counts]
    table = Table(f"{anchor}-table", "By hour", f"{title}, by the hour", columns("Hour (UTC)", *headed), rows)
    return Figure(anchor, title, (Bars(labels, series, y, unit),), caption, told, table)


def figures(db: sa.Connection, now_ms: int) -> Iterator[Figure]:
    """Yield rounds, phones in sums, and phones that were lost, by the hour."""
    first = first_hour(now_ms)
    lately, hour = ROUNDS.c.ended_ms >= first * HOUR_MS, hour_of(ROUNDS.c.ended_ms)
    ended = sa.select(hour, ROUNDS.c.stage, sa.func.count(), sa.func.sum(ROUNDS.c.num_reports))
    rows = db.execute(ended.where(lately).group_by(hour, ROUNDS.c.stage)).all()
    rounds = {(str(stage), int(at)): int(number) for at, stage, number, _ in rows}
    summed = {int(at): int(phones) for at, stage, _, phones in rows if stage == "closed"}
    closed, aborted = ([rounds.get((stage, first + n), 0) for n in range(NUM_HOURS)] for stage in ("closed", "aborted"))
    yield by_hour(
        "rounds-by-hour", "Attempts that ended", {"closed": closed, "aborted": aborted}, "attempts", now_ms,
        caption="In the hour (UTC) in which they ended.",
        told=f"Within 24 hours: {_number(sum(closed), 'round')} closed, {_number(sum(aborted), 'attempt')} aborted.",
    )  # fmt: skip
    phones = [summed.get(first + n, 0) for n in range(NUM_HOURS)]
    yield by_hour(
        "phones-by-hour", "Phones in sums", {"": phones}, "phones", now_ms, heads={"": "Phones"},
        caption="A phone counts once for each round that closed with it.",
        told=f"Phones were in a sum {_number(sum(phones), 'time')} within 24 hours.",
    )  # fmt: skip
    yield _errors(db, now_ms)


def _number(number: int, what: str) -> str:
    return f"{count(number)} {what}" if number == 1 else f"{count(number)} {what}s"


def _errors(db: sa.Connection, now_ms: int) -> Figure:
    first, code, hour = first_hour(now_ms), PARTICIPANTS.c.error_code, hour_of(PARTICIPANTS.c.changed_ms)
    known = sa.and_(PARTICIPANTS.c.changed_ms >= first * HOUR_MS, code != "")
    rows = db.execute(sa.select(hour, code, sa.func.count()).where(known).group_by(hour, code)).all()
    totals = Counter[str]()
    for _, name, number in rows:
        totals[str(name)] += int(number)
    named = [name for name, _ in totals.most_common(_MAX_ERRORS)]
    counts = {name: [0] * NUM_HOURS for name in [*named, *(["other"] if len(totals) > len(named) else [])]}
    for at, name, number in rows:
        if 0 <= int(at) - first < NUM_HOURS:
            counts[name if name in named else "other"][int(at) - first] += int(number)
    told = ", ".join(f"{count(totals[name])} {name}" for name in named)
    return by_hour(
        "errors-by-hour", "Phones that were lost", counts or {"none": [0] * NUM_HOURS}, "phones", now_ms,
        caption="By the error that they left a round with; docs/errors.md says what each means.",
        told=f"Within 24 hours: {told}." if told else "No phone was lost within 24 hours.",
    )  # fmt: skip
