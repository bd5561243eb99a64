"""A fleet's page: rounds over the clock, phones that are there, how long rounds were, who was lost, who took part."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go

from simulation.fleet.comparison import ROWS, Tried, cell, verdict
from simulation.fleet.records import Fate, History
from simulation.fleet.windows import HOUR_S
from simulation.pages.figures import DASHES, Role
from simulation.pages.html import Column, Facts, Figure, Headline, Headlines, Prose, Report, Section, Table, render

_ROLES: Final[tuple[Role, ...]] = ("after", "before", "mated", "non_mated", "guide")
_MAX_POINTS: Final = 400


def fleet_page(tried: Sequence[Tried], about: Mapping[str, Any]) -> str:
    """Return a self-contained HTML page of policies that were tried on one fleet."""
    first = tried[0].summary
    rows = tuple((row.name, *(cell(row, each.summary, first) for each in tried)) for row in ROWS)
    names = tuple(each.policy.name for each in tried)
    sections: list[Section] = [
        _headlines(tried[0]),
        Prose(
            "What this rests on",
            (
                "Phones are emulated: drawn from a profile or a trace, not measured. Stages, choices, deadlines and "
                "pauses are the coordinator's own code. Compare policies; measure phones before you count on a figure.",
            ),
            notice=True,
        ),
        Table(
            "Policies",
            f"Ratios are to {names[0]}. All were measured for equally long, also beyond a task's rounds.",
            (Column("", numeric=False), *(Column(name) for name in names)),
            rows,
            command=str(about["command"]),
        ),
        Facts("How each ended", tuple((each.policy.name, verdict(each)) for each in tried)),
        _figure("Rounds over the clock", _closed(tried), "Rounds that closed, over hours of the virtual clock."),
        _figure("Phones that are there", _there(tried), "Phones that are idle, charging and unmetered, by hour."),
        _figure(
            "How long rounds take", _durations(tried), "Share of rounds that took no longer, from choice to model."
        ),
        _figure("Who is lost where", _lost(tried), "Phones that were chosen and not counted, by cause."),
        _figure("Who takes part", _tiers(tried[0]), f"Tiers' shares of phones and of contributions under {names[0]}."),
        *_staleness(tried),
        *_accuracy(tried),
        Facts("The run", tuple((name, str(about[name])) for name in ("command", "commit", "phones", "days", "seed"))),
    ]
    lede = f"{about['phones']:,} emulated phones for {about['days']:g} days under {len(tried)} policies."
    return render(Report("Fleet", lede, tuple(sections)))


def _headlines(tried: Tried) -> Headlines:
    summary = tried.summary
    return Headlines(
        (
            Headline("Rounds a day", f"{summary.rounds_per_day:,.1f}", tried.policy.name),
            Headline("Round, median", f"{summary.round_s[0]:,.0f} s", f"90 % within {summary.round_s[1]:,.0f} s"),
            Headline("Work wasted", f"{summary.wasted_share:.1%}", "of phones' time at work"),
        )
    )


def _figure(title: str, figure: go.Figure, caption: str) -> Figure:
    return Figure(title, figure, caption, caption)


def _closed(tried: Sequence[Tried]) -> go.Figure:
    lines = []
    for each in tried:
        ended = sorted(a.ended_s for a in each.history.attempts if a.is_closed and a.ended_s is not None)
        index = _thin(len(ended))
        lines.append((each.policy.name, [ended[i] / HOUR_S for i in index], [i + 1 for i in index]))
    return _lines(lines, "Hour", "Rounds closed")


def _there(tried: Sequence[Tried]) -> go.Figure:
    there = max((each.history.there for each in tried), key=len)
    return _lines([("there", list(range(len(there))), there.tolist())], "Hour", "Phones")


def _durations(tried: Sequence[Tried]) -> go.Figure:
    lines = []
    for each in tried:
        took = np.sort(_durations_s(each.history))
        index = _thin(len(took))
        lines.append((each.policy.name, [float(took[i]) for i in index], [100 * (i + 1) / len(took) for i in index]))
    return _lines(lines, "Seconds", "Rounds, %")


def _durations_s(history: History) -> list[float]:
    return [
        a.ended_s - a.selected_s
        for a in history.attempts
        if a.is_closed and a.ended_s is not None and a.selected_s is not None
    ]


def _lost(tried: Sequence[Tried]) -> go.Figure:
    fates = [str(fate) for fate in Fate if fate is not Fate.COUNTED]
    bars = [(each.policy.name, fates, [100 * each.summary.lost[fate] for fate in fates]) for each in tried]
    return _bars(bars, "Chosen phones, %")


def _tiers(tried: Tried) -> go.Figure:
    tiers = tried.summary.tiers
    names = [tier.name for tier in tiers]
    bars = [
        ("phones", names, [100 * tier.of_phones for tier in tiers]),
        ("contributions", names, [100 * tier.of_contributions for tier in tiers]),
    ]
    return _bars(bars, "Share, %")


def _staleness(tried: Sequence[Tried]) -> list[Section]:
    """Return how stale cohorts were, where any was."""
    if not any(tau for each in tried for tau in each.summary.staleness):
        return []
    bars = [
        (each.policy.name, [str(tau) for tau in each.summary.staleness], list(each.summary.staleness.values()))
        for each in tried
    ]
    return [_figure("Staleness", _bars(bars, "Cohorts"), "Models that were made since the one a cohort trained on.")]


def _accuracy(tried: Sequence[Tried]) -> list[Section]:
    """Return what the cohorts learnt, where they trained."""
    if not any(each.points for each in tried):
        return []
    lines = [
        (each.policy.name, [point.hours for point in each.points], [100 * point.eer for point in each.points])
        for each in tried
    ]
    caption = "Equal error rate on the experiment's test people, over hours of the virtual clock."
    return [_figure("Accuracy over the clock", _lines(lines, "Hour", "Equal error rate, %"), caption)]


def _thin(num: int) -> list[int]:
    return sorted({*np.linspace(0, num - 1, min(num, _MAX_POINTS)).astype(int).tolist()}) if num else []


def _role(number: int) -> Role:
    return _ROLES[number % len(_ROLES)]


def _lines(lines: Sequence[tuple[str, Sequence[float], Sequence[float]]], x: str, y: str) -> go.Figure:
    figure = go.Figure()
    for number, (name, xs, ys) in enumerate(lines):
        role = _role(number)
        figure.add_scatter(
            x=list(xs),
            y=list(ys),
            name=html.escape(name),
            mode="lines",
            line={"width": 2.25, "dash": DASHES[role]},
            meta={"role": role},
        )
    figure.update_xaxes(title=x)
    return _finished(figure, y)


def _bars(bars: Sequence[tuple[str, Sequence[str], Sequence[float]]], y: str) -> go.Figure:
    figure = go.Figure()
    for number, (name, labels, values) in enumerate(bars):
        labels = [html.escape(label) for label in labels]
        figure.add_bar(x=labels, y=list(values), name=html.escape(name), meta={"role": _role(number)})
    figure.update_xaxes(type="category")
    return _finished(figure, y)


def _finished(figure: go.Figure, y: str) -> go.Figure:
    figure.update_yaxes(title=y, rangemode="tozero")
    figure.update_layout(
        template="none",
        height=380,
        margin={"l": 56, "r": 12, "t": 40, "b": 48},
        legend={"orientation": "h", "x": 0, "y": 1.02, "xanchor": "left", "yanchor": "bottom"},
        dragmode=False,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
    )
    return figure
