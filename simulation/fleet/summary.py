"""A fleet's history in figures: how fast rounds were, who was lost where, who took part, and what it cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulation.fleet.phones import Phones
from simulation.fleet.records import Attempt, Fate, History
from simulation.fleet.windows import DAY_S, HOUR_S


@dataclass(frozen=True)
class TierShare:
    """One tier's share of the phones, and of the contributions that counted."""

    name: str
    of_phones: float
    of_contributions: float


@dataclass(frozen=True)
class Summary:
    """Figures of a policy's effect on a fleet.

    `round_s` are median and 90th percentile of the time from the choice of a cohort to its model, `gathering_s` is the
    median of the time before. `chosen_share` and `counted_share` are of all phones. `lost` are shares of the phones
    that were chosen, by `Fate`; `wasted_share` is the share of phones' time at work whose result was not counted.
    `gini` is that of contributions over phones: 0 where all contribute alike. Bytes are per counted contribution, and
    of the whole fleet a day.
    """

    task: str
    state: str
    days: float
    phones: int
    rounds_closed: int
    rounds_per_day: float
    attempts: int
    aborted: int
    round_s: tuple[float, float]
    gathering_s: float
    lost: dict[str, float]
    wasted_share: float
    counted_mean: float
    chosen_share: float
    counted_share: float
    gini: float
    tiers: tuple[TierShare, ...]
    received_bytes: float
    sent_bytes: float
    gigabytes_per_day: float
    staleness: dict[int, int]
    there_by_hour: tuple[float, ...]
    check_ins_per_s: float
    busiest_check_ins_per_s: float
    pauses: tuple[tuple[float, str], ...] = ()
    reasons: dict[str, int] = field(default_factory=dict)


def summarise(history: History, phones: Phones) -> Summary:
    """Return a history in figures."""
    attempts = history.attempts
    closed = [each for each in attempts if each.is_closed]
    aborted = [each for each in attempts if each.ended_s is not None and not each.is_closed]
    fates = sum((each.fates for each in attempts), Counter[Fate]())
    days, num_fates = max(history.ended_s, 1e-9) / DAY_S, max(sum(fates.values()), 1)
    worked_s, counted = sum(each.worked_s for each in attempts), max(fates[Fate.COUNTED], 1)
    received = sum(each.received_bytes for each in attempts)
    sent = sum(each.sent_bytes for each in attempts)
    hours = max(math.ceil(history.ended_s / HOUR_S), 1)
    durations = [_duration(each) for each in closed]
    return Summary(
        task=history.task,
        state=history.state,
        days=days,
        phones=len(history.phones.seen_s),
        rounds_closed=history.rounds_closed,
        rounds_per_day=history.rounds_closed / days,
        attempts=len(attempts),
        aborted=len(aborted),
        round_s=(_percentile(durations, 50), _percentile(durations, 90)),
        gathering_s=_percentile(
            [each.selected_s - each.opened_s for each in closed if each.selected_s is not None], 50
        ),
        lost={str(fate): fates[fate] / num_fates for fate in Fate if fate is not Fate.COUNTED},
        wasted_share=sum(each.wasted_s for each in attempts) / worked_s if worked_s else 0.0,
        counted_mean=fates[Fate.COUNTED] / len(closed) if closed else 0.0,
        chosen_share=float(np.mean(history.phones.chosen > 0)),
        counted_share=float(np.mean(history.phones.counted > 0)),
        gini=gini(history.phones.counted),
        tiers=_tiers(history, phones),
        received_bytes=received / counted,
        sent_bytes=sent / counted,
        gigabytes_per_day=(received + sent) / 1e9 / days,
        staleness=dict(sorted(Counter(each.staleness for each in closed).items())),
        there_by_hour=_by_hour(history.there),
        check_ins_per_s=float(history.check_ins[:hours].sum()) / max(history.ended_s, 1.0),
        busiest_check_ins_per_s=float(history.check_ins[:hours].max()) / HOUR_S,
        pauses=history.pauses,
        reasons=dict(Counter(_kind(each.reason) for each in aborted).most_common(5)),
    )


def time_to(history: History, rounds: int) -> float | None:
    """Return the time, in seconds, at which so many rounds had closed; None for fewer."""
    ended = sorted(each.ended_s for each in history.attempts if each.is_closed and each.ended_s is not None)
    return ended[rounds - 1] if 0 < rounds <= len(ended) else None


def gini(counts: NDArray[np.int32]) -> float:
    """Return the Gini coefficient of counts: 0 where all are alike, towards 1 where one has everything."""
    total = float(counts.sum())
    if not total:
        return 0.0
    ordered, num = np.sort(counts).astype(np.float64), len(counts)
    ranks = np.arange(1, num + 1)
    return float((2 * (ranks * ordered).sum() / (num * total)) - (num + 1) / num)


def _duration(attempt: Attempt) -> float:
    """Return the time from the choice of a cohort to its model."""
    assert attempt.ended_s is not None
    assert attempt.selected_s is not None
    return attempt.ended_s - attempt.selected_s


def _percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent)) if values else math.nan


def _by_hour(there: NDArray[np.int64]) -> tuple[float, ...]:
    """Return the mean number of phones that are there at each hour of the day; those of hours that were there."""
    return tuple(float(there[hour::24].mean()) for hour in range(min(24, len(there))))


def _tiers(history: History, phones: Phones) -> tuple[TierShare, ...]:
    num = len(phones.tiers)
    of_phones = np.bincount(phones.tier_of, minlength=num) / len(phones.tier_of)
    counted = np.bincount(phones.tier_of, weights=history.phones.counted, minlength=num)
    shares = counted / max(counted.sum(), 1.0)
    return tuple(TierShare(name, float(of_phones[i]), float(shares[i])) for i, name in enumerate(phones.tiers))


def _kind(reason: str) -> str:
    """Return a reason without its numbers, by which reasons are counted."""
    return " ".join("N" if word.strip(";,").replace(".", "").isdigit() else word for word in reason.split())[:120]
