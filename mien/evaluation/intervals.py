"""Confidence intervals: bootstrap by identity, and the bound that zero errors prove."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mien.errors import ConfigError, UndefinedMetricError
from mien.evaluation.scores import Comparisons
from mien.evaluation.verification import DetCurve

_MAX_UNDEFINED_SHARE: Final = 0.05
_Z: Final = 1.959963984540054


@dataclass(frozen=True)
class Interval:
    """An interval [low, high] at confidence `level`, and how it was made."""

    low: float
    high: float
    level: float
    method: str

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise ConfigError(f"interval [{self.low}, {self.high}] is not a finite range")
        if not 0.0 < self.level < 1.0:
            raise ConfigError(f"interval level is {self.level}; it must lie between 0 and 1, such as 0.95")


def rule_of_three(num_comparisons: int) -> float:
    """Return the upper 95 % bound of an error rate of which no error was seen in `num_comparisons`: 3 / N.

    It takes the comparisons as independent; comparisons that share identities prove less.
    """
    if num_comparisons < 1:
        raise UndefinedMetricError("no comparisons bound no rate; measure first")
    return min(1.0, 3.0 / num_comparisons)


def upper_bound(num_errors: int, num_trials: int) -> float:
    """Return the upper 95 % bound of a rate: the rule of three without errors, else Wilson's."""
    if num_errors == 0:
        return rule_of_three(num_trials)
    z, rate = 1.645, num_errors / num_trials
    middle = rate + z * z / (2 * num_trials)
    half = z * math.sqrt(rate * (1 - rate) / num_trials + (z / (2 * num_trials)) ** 2)
    return min(1.0, (middle + half) / (1 + z * z / num_trials))


def student_t(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t: exact for 1 and 2, else Cornish and Fisher's expansion (to 1.2 %)."""
    if freedom == 1:
        return math.tan(math.pi * 0.475)
    if freedom == 2:
        return 0.95 * math.sqrt(2 / (1 - 0.95**2))
    z, v = _Z, float(freedom)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / v + second / v**2 + third / v**3


def bootstrap_by_identity(
    comparisons: Comparisons,
    statistic: Callable[[DetCurve], float],
    *,
    rng: np.random.Generator,
    num_replicates: int = 1000,
    level: float = 0.95,
) -> Interval:
    """Return the percentile interval of `statistic` when identities, not comparisons, are drawn again.

    Each replicate draws as many identities as there are, with replacement. A mated comparison of identity a counts w_a
    times, a non-mated one of a and b w_a * w_b times, where w is how often each was drawn: comparisons that share a
    person stay together, so the interval is as wide as the number of people warrants. Replicates on which the statistic
    is not measurable are left out; more than 5 % of them raise UndefinedMetricError, as does a set of fewer than two
    identities. Needs `mated_subjects` and `non_mated_subjects`.
    """
    drawing = _Drawing(comparisons, num_replicates=num_replicates, level=level)
    values: list[float] = []
    for drawn in drawing.identities(rng):
        try:
            values.append(statistic(drawing.tally.curve(drawn)))
        except UndefinedMetricError:
            continue
    return drawing.interval(values)


def bootstrap_difference(
    first: Comparisons,
    second: Comparisons,
    statistic: Callable[[DetCurve], float],
    *,
    rng: np.random.Generator,
    num_replicates: int = 1000,
    level: float = 0.95,
) -> tuple[float, Interval]:
    """Return by how much `statistic` is higher on `second`, and the percentile interval of that difference.

    Both hold the scores of the same comparisons in the same order, by two models. As `bootstrap_by_identity`, but each
    draw of identities counts for both, so that what they have in common cancels. Raises as it does.
    """
    drawing = _Drawing(first, num_replicates=num_replicates, level=level)
    other = _Drawing(second, num_replicates=num_replicates, level=level)
    if not np.array_equal(drawing.numbers, other.numbers):
        raise ConfigError("the two sets do not compare the same people in the same order; embed the same samples")

    def difference(drawn: NDArray[np.int64]) -> float:
        return statistic(other.tally.curve(drawn)) - statistic(drawing.tally.curve(drawn))

    values: list[float] = []
    for drawn in drawing.identities(rng):
        try:
            values.append(difference(drawn))
        except UndefinedMetricError:
            continue
    return difference(np.ones(drawing.num_identities, np.int64)), drawing.interval(values)


def percentile_interval(values: ArrayLike, *, num_replicates: int, level: float = 0.95) -> Interval:
    """Return the percentile interval of what replicates of a bootstrap by identity gave, where they gave something.

    Raises UndefinedMetricError where more than 5 % of `num_replicates` gave nothing.
    """
    measured = np.asarray(values, np.float64)
    undefined = num_replicates - measured.size
    if undefined > _MAX_UNDEFINED_SHARE * num_replicates:
        raise UndefinedMetricError(
            f"the metric is not measurable on {undefined} of {num_replicates} replicates; "
            "the set has too few people for an interval"
        )
    tail = (1.0 - level) / 2
    low, high = np.quantile(measured, [tail, 1.0 - tail])
    return Interval(float(low), float(high), level, f"bootstrap by identity, {num_replicates} replicates")


class _Drawing:
    """Checked comparisons, ready to have their identities drawn again."""

    def __init__(self, comparisons: Comparisons, *, num_replicates: int, level: float) -> None:
        if comparisons.mated_subjects is None or comparisons.non_mated_subjects is None:
            raise ConfigError("comparisons do not say whom they compare; make them with keep_subjects=True")
        if num_replicates < 100 or not 0.0 < level < 1.0:
            raise ConfigError("an interval needs at least 100 replicates and a level between 0 and 1")
        _, self.numbers = np.unique(
            np.concatenate([comparisons.mated_subjects, comparisons.non_mated_subjects.ravel()]), return_inverse=True
        )
        self.num_identities = int(self.numbers.max()) + 1 if self.numbers.size else 0
        if self.num_identities < 2:
            raise UndefinedMetricError("fewer than two identities give no interval; add people")
        self.tally = _Tally.of(comparisons, self.numbers)
        self._num_replicates, self._level = num_replicates, level

    def identities(self, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Yield how often each identity is drawn, once for each replicate."""
        for _ in range(self._num_replicates):
            yield np.bincount(
                rng.integers(self.num_identities, size=self.num_identities), minlength=self.num_identities
            )

    def interval(self, values: list[float]) -> Interval:
        """Return the percentile interval of the replicates on which the statistic was measurable."""
        return percentile_interval(values, num_replicates=self._num_replicates, level=self._level)


@dataclass(frozen=True, eq=False)
class _Tally:
    """Comparisons sorted into their distinct scores once, so that a replicate is two weighted counts."""

    thresholds: NDArray[np.float64]
    mated_at: NDArray[np.int64]
    non_mated_at: NDArray[np.int64]
    mated_numbers: NDArray[np.int64]
    non_mated_numbers: NDArray[np.int64]

    @classmethod
    def of(cls, comparisons: Comparisons, numbers: NDArray[np.int64]) -> _Tally:
        num = comparisons.num_mated
        thresholds, at = np.unique(np.concatenate([comparisons.mated, comparisons.non_mated]), return_inverse=True)
        return cls(
            thresholds.astype(np.float64), at[:num], at[num:], numbers[:num], numbers[num:].reshape(-1, 2).T.copy()
        )

    def curve(self, drawn: NDArray[np.int64]) -> DetCurve:
        """Return the curve in which each identity counts as often as it was drawn."""
        size = self.thresholds.size
        mated_weight = drawn[self.mated_numbers]
        non_mated_weight = drawn[self.non_mated_numbers[0]] * drawn[self.non_mated_numbers[1]]
        # bincount adds in float64, which is exact for these whole numbers (below 2**53).
        return DetCurve.from_counts(
            self.thresholds,
            np.bincount(self.mated_at, weights=mated_weight, minlength=size).astype(np.int64),
            np.bincount(self.non_mated_at, weights=non_mated_weight, minlength=size).astype(np.int64),
        )
