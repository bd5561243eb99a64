"""A fleet's page: rounds over the clock, phones that are there, how long rounds were, who was lost, who took part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from mien.shell.pages import (
    Bars,
    Chart,
    Facts,
    Figure,
    Prose,
    Report,
    Section,
    Series,
    Table,
    Tile,
    Tiles,
    columns,
    render,
)
from mien.shell.pages.charts import linear
from simulation.fleet.comparison import ROWS, Tried, cell, verdict
from simulation.fleet.records import Fate, History
from simulation.fleet.windows import HOUR_S

_MAX_POINTS: Final = 400


def fleet_page(tried: Sequence[Tried], about: Mapping[str, Any]) -> str:
    """Return a self-contained HTML page of policies that were tried on one fleet."""
    first = tried[0].summary
    rows = tuple((row.name, *(cell(row, each.summary, first) for each in tried)) for row in ROWS)
    names = tuple(each.policy.name for each in tried)
    sections: list[Section] = [
        _headlines(tried[0]),
        Prose(
            "rests",
            "What this rests on",
            (
                "Phones are emulated: drawn from a profile or a trace, not measured. Stages, choices, deadlines and "
                "pauses are the coordinator's own code. Compare policies; measure phones before you count on a figure.",
            ),
            is_notice=True,
        ),
        Table(
            "policies",
            "Policies",
            f"Ratios are to {names[0]}. All were measured for equally long, also beyond a task's rounds.",
            columns("", *(f"#{name}" for name in names)),
            rows,
            command=str(about["command"]),
        ),
        Facts("ends", "How each ended", tuple((each.policy.name, verdict(each)) for each in tried)),
        _figure("Rounds over the clock", _closed(tried), "Rounds that closed, over hours of the virtual clock."),
        _figure("Phones that are there", _there(tried), "Phones that are idle, charging and unmetered, by hour."),
        _figure(
            "How long rounds take", _durations(tried), "Share of rounds that took no longer, from choice to model."
        ),
        _figure("Who is lost where", _lost(tried), "Phones that were chosen and not counted, by cause."),
        _figure("Who takes part", _tiers(tried[0]), f"Tiers' shares of phones and of contributions under {names[0]}."),
        *_staleness(tried),
        *_accuracy(tried),
        Facts(
            "made",
            "The run",
            tuple((name, str(about[name])) for name in ("command", "commit", "phones", "days", "seed")),
        ),
    ]
    lede = f"{about['phones']:,} emulated phones for {about['days']:g} days under {len(tried)} policies."
    return render(Report("Fleet", lede, tuple(sections)))


def _headlines(tried: Tried) -> Tiles:
    summary = tried.summary
    return Tiles(
        "headlines",
        "",
        (
            Tile("Rounds a day", f"{summary.rounds_per_day:,.1f}", tried.policy.name),
            Tile("Round, median", f"{summary.round_s[0]:,.0f} s", f"90 % within {summary.round_s[1]:,.0f} s"),
            Tile("Work wasted", f"{summary.wasted_share:.1%}", "of phones' time at work"),
        ),
    )


def _figure(title: str, chart: Chart | Bars, caption: str) -> Figure:
    return Figure(title.lower().replace(" ", "-"), title, (chart,), caption, caption)


def _closed(tried: Sequence[Tried]) -> Chart:
    lines = []
    for each in tried:
        ended = sorted(a.ended_s for a in each.history.attempts if a.is_closed and a.ended_s is not None)
        lines.append((each.policy.name, [(ended[i] / HOUR_S, i + 1) for i in _thin(len(ended))]))
    return _lines(lines, "Hour", "Rounds closed")


def _there(tried: Sequence[Tried]) -> Chart:
    there = max((each.history.there for each in tried), key=len)
    return _lines([("there", list(enumerate(there.tolist())))], "Hour", "Phones")


def _durations(tried: Sequence[Tried]) -> Chart:
    lines = []
    for each in tried:
        took = np.sort(_durations_s(each.history))
        points = [(float(took[i]), 100 * (i + 1) / len(took)) for i in _thin(len(took))]
        lines.append((each.policy.name, points))
    return _lines(lines, "Seconds", "Rounds, %")


def _durations_s(history: History) -> list[float]:
    return [
        a.ended_s - a.selected_s
        for a in history.attempts
        if a.is_closed and a.ended_s is not None and a.selected_s is not None
    ]


def _lost(tried: Sequence[Tried]) -> Bars:
    fates = [fate for fate in Fate if fate is not Fate.COUNTED]
    bars = [(each.policy.name, [100 * each.summary.lost[fate] for fate in fates]) for each in tried]
    return _bars([str(fate) for fate in fates], bars, "Chosen phones, %")


def _tiers(tried: Tried) -> Bars:
    tiers = tried.summary.tiers
    bars = [
        ("phones", [100 * tier.of_phones for tier in tiers]),
        ("contributions", [100 * tier.of_contributions for tier in tiers]),
    ]
    return _bars([tier.name for tier in tiers], bars, "Share, %")


def _staleness(tried: Sequence[Tried]) -> list[Section]:
    """Return how stale cohorts were, where any was."""
    taus = sorted({tau for each in tried for tau in each.summary.staleness})
    if not any(taus):
        return []
    bars = [(each.policy.name, [each.summary.staleness.get(tau, 0) for tau in taus]) for each in tried]
    chart = _bars(list(map(str, taus)), bars, "Cohorts")
    return [_figure("Staleness", chart, "Models that were made since the one a cohort trained on.")]


def _accuracy(tried: Sequence[Tried]) -> list[Section]:
    """Return the cohorts' accuracy, where they trained."""
    if not any(each.points for each in tried):
        return []
    lines = [(each.policy.name, [(point.hours, 100 * point.eer) for point in each.points]) for each in tried]
    caption = "Equal error rate on the experiment's test people, over hours of the virtual clock."
    return [_figure("Accuracy over the clock", _lines(lines, "Hour", "Equal error rate, %"), caption)]


def _thin(num: int) -> list[int]:
    return sorted({*np.linspace(0, num - 1, min(num, _MAX_POINTS)).astype(int).tolist()}) if num else []


def _lines(lines: Sequence[tuple[str, Sequence[tuple[float, float]]]], x: str, y: str) -> Chart:
    series = tuple(
        Series(name, tuple(points), told=tuple(f"{x} {a:.4g}: {b:.4g}" for a, b in points)) for name, points in lines
    )
    across, up = ([point[n] for each in series for point in each.points] for n in (0, 1))
    return Chart(series, linear(across, zero=True), linear(up, zero=True), x, y)


def _bars(labels: Sequence[str], bars: Sequence[tuple[str, Sequence[float]]], y: str) -> Bars:
    series = tuple((name, tuple(map(float, values))) for name, values in bars)
    return Bars(tuple(labels), series, linear([v for _, values in series for v in values], zero=True), y)
