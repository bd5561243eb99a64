"""Policies that were tried on one fleet, side by side: the rows of their table, and what to say of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from simulation.fleet.policies import Policy
from simulation.fleet.records import Fate, History
from simulation.fleet.summary import Summary, time_to
from simulation.fleet.training import Point
from simulation.fleet.windows import DAY_S


@dataclass(frozen=True)
class Tried:
    """A policy, and what it did."""

    policy: Policy
    summary: Summary
    history: History
    points: tuple[Point, ...] = ()


@dataclass(frozen=True)
class Row:
    """One line of the table: what it shows, how, and whether it is compared by its ratio."""

    name: str
    value: Callable[[Summary], float]
    form: str
    has_ratio: bool = True


def lost_by(fate: Fate) -> Callable[[Summary], float]:
    """Return what gives the share of chosen phones that were lost in one way."""
    return lambda summary: summary.lost[str(fate)]


def mean_staleness(summary: Summary) -> float:
    """Return the mean staleness of the cohorts that made a model."""
    closed = sum(summary.staleness.values())
    return sum(tau * number for tau, number in summary.staleness.items()) / closed if closed else 0.0


ROWS: Final = (
    Row("rounds a day", lambda s: s.rounds_per_day, "{:,.1f}"),
    Row("round, median (s)", lambda s: s.round_s[0], "{:,.0f}"),
    Row("round, 90 % (s)", lambda s: s.round_s[1], "{:,.0f}"),
    Row("gathering, median (s)", lambda s: s.gathering_s, "{:,.0f}"),
    Row("attempts aborted", lambda s: s.aborted / max(s.attempts, 1), "{:.1%}", has_ratio=False),
    Row("phones in a sum", lambda s: s.counted_mean, "{:,.1f}"),
    Row("work wasted", lambda s: s.wasted_share, "{:.1%}"),
    *(Row(f"lost: {fate}", lost_by(fate), "{:.1%}", has_ratio=False) for fate in Fate if fate is not Fate.COUNTED),
    Row("phones ever chosen", lambda s: s.chosen_share, "{:.1%}"),
    Row("phones ever counted", lambda s: s.counted_share, "{:.1%}"),
    Row("Gini of contributions", lambda s: s.gini, "{:.3f}"),
    Row("received per contribution (MB)", lambda s: s.received_bytes / 1e6, "{:,.2f}"),
    Row("sent per contribution (MB)", lambda s: s.sent_bytes / 1e6, "{:,.2f}"),
    Row("traffic a day (GB)", lambda s: s.gigabytes_per_day, "{:,.2f}"),
    Row("staleness, mean", mean_staleness, "{:.2f}", has_ratio=False),
    Row("check-ins a second", lambda s: s.check_ins_per_s, "{:,.1f}"),
)


def cell(row: Row, summary: Summary, first: Summary) -> str:
    """Return a policy's value, with its ratio to the first policy's."""
    value, base = row.value(summary), row.value(first)
    if not math.isfinite(value):
        return "-"
    text = row.form.format(value)
    if row.has_ratio and summary is not first and math.isfinite(base) and base:
        text += f" ({value / base:.2f}x)"
    return text


def verdict(tried: Tried) -> str:
    """Return how a task stood at the end, in words, and when the rounds that it asks for were over."""
    summary, rounds = tried.summary, tried.policy.task.rounds
    over_s = time_to(tried.history, rounds)
    over = f"; the {rounds:,} of the task were over after {over_s / DAY_S:.2f} days" if over_s is not None else ""
    text = f"{summary.state} after {summary.days:.2f} days, {summary.rounds_closed:,} rounds{over}"
    return (
        f"{text}; last paused after {summary.pauses[-1][0] / DAY_S:.2f} days: {summary.pauses[-1][1]}"
        if summary.pauses
        else text
    )
