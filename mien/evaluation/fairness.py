"""Demographic differentials: accuracy per group, and error rates within and between groups at one threshold for all.

A false match rate holds for people like those it was measured on. `differential` sums the errors of one set by any
grouping of its people (ISO/IEC 19795-10): FMR, FNMR and FTE within groups, FMR between them.

Legend: I people, R replicates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mien.errors import ConfigError, UndefinedMetricError
from mien.evaluation.intervals import Interval, percentile_interval, rule_of_three
from mien.evaluation.kfold import FoldAccuracy
from mien.evaluation.scores import Comparisons, ErrorsByPerson, errors_by_person
from mien.evaluation.verification import OperatingPoint, rates_at

MAX_FMR_RATIO: Final = 10.0
"""A group whose false match rate is above this many times the target is warned of."""

Verdict = Literal["measured", "exceeds", "too_small"]
Grouping = Mapping[str, Mapping[str, Sequence[int]]]
"""Attribute (age), group of it (0-12), and the numbers of the people in that; whoever is in none was not stated."""

_REPLICATES: Final = 1000
_PAIRS_AT_ONCE: Final = 4096


@dataclass(frozen=True)
class GroupAccuracy:
    """K-fold accuracy of each group (RFW style) and how far the groups lie apart.

    Group thresholds differ, so this view hides differences of FMR at the one threshold that a product uses: report
    `rates_by_group` with it.
    """

    groups: Mapping[str, FoldAccuracy]

    def __post_init__(self) -> None:
        if len(self.groups) < 2:
            raise ConfigError("a differential needs at least two groups")

    @property
    def mean(self) -> float:
        """Mean accuracy over groups."""
        return math.fsum(g.mean for g in self.groups.values()) / len(self.groups)

    @property
    def std_over_groups(self) -> float:
        """Population standard deviation of the groups' accuracies."""
        return math.sqrt(math.fsum((g.mean - self.mean) ** 2 for g in self.groups.values()) / len(self.groups))

    @property
    def skewed_error_ratio(self) -> float:
        """Largest error / smallest error over groups; UndefinedMetricError if some group has no error at all."""
        errors = [1.0 - g.mean for g in self.groups.values()]
        if min(errors) <= 0:
            raise UndefinedMetricError("a group has no errors, so the ratio of errors is undefined; use more pairs")
        return max(errors) / min(errors)


def rates_by_group(groups: Mapping[str, Comparisons], threshold: float) -> dict[str, OperatingPoint]:
    """Return FMR and FNMR of each group at one global threshold, with counts; non-mated pairs are within the group."""
    if len(groups) < 2:
        raise ConfigError("a differential needs at least two groups")
    return {name: rates_at(comparisons, threshold) for name, comparisons in groups.items()}


@dataclass(frozen=True)
class Rate:
    """An error rate with its counts; `interval` (95 %) is None where the people are too few for one.

    Identities are drawn again, not comparisons. Without an error the interval ends at 3 / N, where N counts the pairs
    of people compared (for FMR) or the people (for FNMR and FTE): comparisons of the same two people prove one thing.
    """

    num_errors: int
    num_trials: int
    interval: Interval | None

    @property
    def value(self) -> float:
        """The rate."""
        return self.num_errors / self.num_trials


@dataclass(frozen=True)
class GroupErrors:
    """Errors among the people of one group; a rate is None where nothing was compared.

    `verdict` is "exceeds" where FMR is above `MAX_FMR_RATIO` times the target, "too_small" where its interval does not
    exclude that, "measured" otherwise. `reason` says in one sentence what the first two rest on.
    """

    attribute: str
    group: str
    num_people: int
    fmr: Rate | None
    fnmr: Rate | None
    fte: Rate
    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True)
class ErrorsBetween:
    """False matches of the people of one group with those of another."""

    attribute: str
    first: str
    second: str
    fmr: Rate


@dataclass(frozen=True)
class Differential:
    """Errors within and between groups at one threshold, which was set for `target_fmr` over all people or a group."""

    threshold: float
    target_fmr: float
    groups: tuple[GroupErrors, ...]
    between: tuple[ErrorsBetween, ...]

    def warnings(self) -> list[str]:
        """Return a sentence for each group whose FMR, or FMR with another group, is too high."""
        told = [f"{each.attribute} {each.group}: {each.reason}" for each in self.groups if each.verdict == "exceeds"]
        return told + [
            f"{each.attribute} {each.first} with {each.second}: {_exceeding(each.fmr, self.target_fmr)}"
            for each in self.between
            if each.fmr.value > MAX_FMR_RATIO * self.target_fmr
        ]


def differential(
    embeddings: ArrayLike,
    labels: NDArray[np.int64],
    groups: Grouping,
    *,
    threshold: float,
    target_fmr: float,
    num_failed: NDArray[np.int64],
    seed: int = 0,
) -> Differential:
    """Return the errors within and between groups of people at a threshold.

    `embeddings` is (N, D), `labels` (N,) number its people below I; `num_failed` (I,) counts each person's samples that
    gave no template. Raises ConfigError for a person in two groups of one attribute and for numbers beyond I.
    """
    errors = errors_by_person(embeddings, labels, threshold, num_people=num_failed.size)
    within: list[GroupErrors] = []
    between: list[ErrorsBetween] = []
    rng = np.random.default_rng(seed)
    for attribute, members in groups.items():
        drawn = {name: _drawn(numbers, num_failed.size, rng) for name, numbers in members.items()}
        _check_apart(attribute, drawn)
        for name in members:
            within.append(_within(attribute, name, errors, num_failed, drawn[name], target_fmr))
        for first, second in combinations(members, 2):
            fmr = _between(errors, drawn[first], drawn[second])
            if fmr is not None:
                between.append(ErrorsBetween(attribute, first, second, fmr))
    return Differential(threshold, target_fmr, tuple(within), tuple(between))


@dataclass(frozen=True, eq=False)
class _Drawn:
    """Members of a group (I,) among all people, and how often each was drawn in each replicate (R, members)."""

    is_member: NDArray[np.bool_]
    position: NDArray[np.int64]
    times: NDArray[np.int64]

    @property
    def size(self) -> int:
        return int(self.times.shape[1])


def _drawn(numbers: Sequence[int], num_people: int, rng: np.random.Generator) -> _Drawn:
    own = np.unique(np.asarray(numbers, np.int64))
    if own.size == 0 or own[0] < 0 or own[-1] >= num_people:
        raise ConfigError(f"a group is empty, or names people beyond the {num_people} that there are")
    is_member, position = np.zeros(num_people, np.bool_), np.full(num_people, -1, np.int64)
    is_member[own], position[own] = True, np.arange(own.size)
    times = rng.multinomial(own.size, np.full(own.size, 1 / own.size), size=_REPLICATES)
    return _Drawn(is_member, position, times.astype(np.int64))


def _check_apart(attribute: str, drawn: Mapping[str, _Drawn]) -> None:
    counted = sum(each.is_member.astype(np.int64) for each in drawn.values())
    if np.any(np.asarray(counted) > 1):
        raise ConfigError(f"somebody is in two groups of {attribute}; give each person one")


def _within(
    attribute: str,
    group: str,
    errors: ErrorsByPerson,
    num_failed: NDArray[np.int64],
    drawn: _Drawn,
    target_fmr: float,
) -> GroupErrors:
    samples, failed = errors.num_samples[drawn.is_member], num_failed[drawn.is_member]
    fmr = _false_matches(errors, drawn, samples)
    fnmr = _by_person(errors.num_missed[drawn.is_member], samples * (samples - 1) // 2, drawn)
    fte = _by_person(failed, samples + failed, drawn)
    if fte is None:
        raise ConfigError(f"nobody of {attribute} {group} has a sample; leave the group out")
    verdict, reason = _judged(fmr, target_fmr, num_people=int((samples > 0).sum()))
    return GroupErrors(attribute, group, drawn.size, fmr, fnmr, fte, verdict, reason)


def _judged(fmr: Rate | None, target_fmr: float, *, num_people: int) -> tuple[Verdict, str]:
    """Return what a group's false match rate tells, and what that rests on."""
    if fmr is None:
        people = "nobody of it has a picture with a face" if num_people == 0 else "one person has no strangers in it"
        return "too_small", f"{people}; add people"
    if fmr.value > MAX_FMR_RATIO * target_fmr:
        return "exceeds", _exceeding(fmr, target_fmr)
    high = 1.0 if fmr.interval is None else fmr.interval.high
    if high > MAX_FMR_RATIO * target_fmr:
        told = f"{fmr.num_errors} false matches in {fmr.num_trials} comparisons of {num_people} people"
        return "too_small", f"{told} tell nothing at FMR {target_fmr:g}: it may be {high:.2g}; add people"
    return "measured", ""


def _exceeding(fmr: Rate, target_fmr: float) -> str:
    counts = f"{fmr.num_errors} of {fmr.num_trials} comparisons"
    return f"FMR {fmr.value:.2g} ({counts}) is {fmr.value / target_fmr:.0f} times the target, {target_fmr:g}"


def _false_matches(errors: ErrorsByPerson, drawn: _Drawn, samples: NDArray[np.int64]) -> Rate | None:
    """Return the false match rate among the members of a group; a person is never compared with another copy of it."""
    inside = drawn.is_member[errors.pairs].all(axis=1)
    places, matches = drawn.position[errors.pairs[inside]], errors.num_false_matches[inside]
    num_trials = int(samples.sum() ** 2 - (samples**2).sum()) // 2
    weighed = drawn.times * samples
    trials_R = (weighed.sum(axis=1) ** 2 - (weighed**2).sum(axis=1)) / 2
    errors_R = _summed(drawn.times, places[:, 0], drawn.times, places[:, 1], matches)
    num_people = int((samples > 0).sum())
    return _rate(int(matches.sum()), num_trials, errors_R, trials_R, num_independent=num_people * (num_people - 1) // 2)


def _between(errors: ErrorsByPerson, first: _Drawn, second: _Drawn) -> Rate | None:
    """Return the false match rate of the people of one group with those of another."""
    one, two = errors.pairs[:, 0], errors.pairs[:, 1]
    ahead = first.is_member[one] & second.is_member[two]
    behind = second.is_member[one] & first.is_member[two]
    ours = np.concatenate([one[ahead], two[behind]])
    theirs = np.concatenate([two[ahead], one[behind]])
    matches = np.concatenate([errors.num_false_matches[ahead], errors.num_false_matches[behind]])
    sides = [errors.num_samples[each.is_member] for each in (first, second)]
    trials_R = (first.times @ sides[0]) * (second.times @ sides[1])
    errors_R = _summed(first.times, first.position[ours], second.times, second.position[theirs], matches)
    people = [int((side > 0).sum()) for side in sides]
    num_independent = people[0] * people[1] if min(people) > 1 else min(people)
    return _rate(
        int(matches.sum()), int(sides[0].sum() * sides[1].sum()), errors_R, trials_R, num_independent=num_independent
    )


def _summed(
    first_times: NDArray[np.int64],
    first_at: NDArray[np.int64],
    second_times: NDArray[np.int64],
    second_at: NDArray[np.int64],
    matches: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the false matches of each replicate (R,): a pair's count as often as its two people were drawn."""
    total = np.zeros(len(first_times), np.int64)
    for start in range(0, matches.size, _PAIRS_AT_ONCE):
        part = slice(start, start + _PAIRS_AT_ONCE)
        total += (first_times[:, first_at[part]] * second_times[:, second_at[part]]) @ matches[part]
    return total


def _by_person(errors_I: NDArray[np.int64], trials_I: NDArray[np.int64], drawn: _Drawn) -> Rate | None:
    """Return a rate of errors that one person's samples make by themselves, over the members of a group."""
    return _rate(
        int(errors_I.sum()),
        int(trials_I.sum()),
        drawn.times @ errors_I,
        drawn.times @ trials_I,
        num_independent=int((trials_I > 0).sum()),
    )


def _rate(
    num_errors: int,
    num_trials: int,
    errors_R: NDArray[np.int64],
    trials_R: NDArray[np.int64] | NDArray[np.float64],
    *,
    num_independent: int,
) -> Rate | None:
    """Return a rate with its interval from replicates; None where there were no trials."""
    if num_trials == 0:
        return None
    if num_errors == 0:
        method = f"rule of three, {num_independent} independent"
        return Rate(0, num_trials, Interval(0.0, rule_of_three(num_independent), 0.95, method))
    if num_independent < 2:
        return Rate(num_errors, num_trials, None)
    told = trials_R > 0
    try:
        interval = percentile_interval(errors_R[told] / trials_R[told], num_replicates=_REPLICATES)
    except UndefinedMetricError:
        return Rate(num_errors, num_trials, None)
    return Rate(num_errors, num_trials, interval)
