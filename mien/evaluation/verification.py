"""One-to-one comparison errors: false matches and false non-matches, their curve, and operating points on it.

A comparison is accepted iff its score is at least the threshold t, so
`FMR(t) = #(non-mated >= t) / #non-mated` and `FNMR(t) = #(mated < t) / #mated` (ISO/IEC 19795-1).
Every function raises UndefinedMetricError instead of returning a number that the scores do not support, and never
returns NaN. Legend: K candidate thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mien.errors import ConfigError, UndefinedMetricError
from mien.evaluation.scores import Comparisons, ScoreHistogram, Scores
from mien.specs import Threshold

DEFAULT_TARGETS: Final = (1e-1, 1e-2, 1e-3, 1e-4)


@dataclass(frozen=True)
class OperatingPoint:
    """Error counts and rates at one threshold; `target_fmr` is the FMR that was asked for, if one was."""

    threshold: float
    num_false_matches: int
    num_non_mated: int
    num_false_non_matches: int
    num_mated: int
    target_fmr: float | None = None

    @property
    def fmr(self) -> float:
        """Achieved false match rate."""
        return self.num_false_matches / self.num_non_mated

    @property
    def fnmr(self) -> float:
        """False non-match rate."""
        return self.num_false_non_matches / self.num_mated

    @property
    def tar(self) -> float:
        """True accept rate, 1 - FNMR, from the count of accepted mated comparisons."""
        return (self.num_mated - self.num_false_non_matches) / self.num_mated

    def as_threshold(self, *, dataset: str, model_id: str, date: str) -> Threshold:
        """Return this point as the threshold record that travels with a model."""
        return Threshold(self.threshold, self.fmr, dataset, self.num_mated, self.num_non_mated, model_id, date)


@dataclass(frozen=True)
class NotMeasurable:
    """An operating point that these scores cannot give, and why: stands in a table where a number would."""

    target_fmr: float
    num_non_mated: int
    reason: str


@dataclass(frozen=True)
class EqualErrorRate:
    """Crossing of FMR and FNMR (`value`), and the observed score whose two rates are nearest (`at`)."""

    value: float
    at: OperatingPoint


@dataclass(frozen=True, eq=False)
class DetCurve:
    """Error counts at each candidate threshold: `thresholds` (K,) ascends, false matches fall, false non-matches rise.

    The first threshold accepts everything that has a score: FMR 1, and FNMR 0 unless samples failed. The end where
    nothing is accepted (FMR 0, FNMR 1) lies above the last threshold and has no observed score; `vertices` adds it.
    """

    thresholds: NDArray[np.float64] = field(repr=False)
    num_false_matches: NDArray[np.int64] = field(repr=False)
    num_false_non_matches: NDArray[np.int64] = field(repr=False)
    num_mated: int
    num_non_mated: int

    @classmethod
    def from_counts(
        cls,
        thresholds: NDArray[np.float64],
        mated_at: NDArray[np.int64],
        non_mated_at: NDArray[np.int64],
        *,
        num_lost: int = 0,
    ) -> DetCurve:
        """Return the curve of scores counted at (or in the bin that starts at) each ascending threshold.

        `num_lost` mated comparisons count as false non-matches at every threshold: a sample that failed, or a mate that
        was not ranked first. Raises UndefinedMetricError if there are no mated or no non-mated scores, or if all scores
        are equal.
        """
        num_mated, num_non_mated = int(mated_at.sum()) + num_lost, int(non_mated_at.sum())
        _need(num_mated, num_non_mated)
        seen = (mated_at > 0) | (non_mated_at > 0)
        thresholds, mated_at, non_mated_at = thresholds[seen], mated_at[seen], non_mated_at[seen]
        if thresholds.size == 1 and num_lost == 0:
            raise UndefinedMetricError(
                f"all {num_mated + num_non_mated} scores are equal, so no threshold separates anything; "
                "the model has collapsed, or all embeddings are one reused buffer"
            )
        false_matches = non_mated_at[::-1].cumsum()[::-1]
        false_non_matches = mated_at.cumsum() - mated_at + num_lost
        return cls(thresholds, false_matches, false_non_matches, num_mated, num_non_mated)

    @property
    def fmr(self) -> NDArray[np.float64]:
        """FMR at each threshold, (K,), not rising."""
        return np.asarray(self.num_false_matches / self.num_non_mated, dtype=np.float64)

    @property
    def fnmr(self) -> NDArray[np.float64]:
        """FNMR at each threshold, (K,), not falling."""
        return np.asarray(self.num_false_non_matches / self.num_mated, dtype=np.float64)

    def vertices(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return (FMR, FNMR), each (K + 1,), from accept-all (1, 0) to accept-none (0, 1).

        The ROC's points are the same with TAR = 1 - FNMR.
        """
        return np.append(self.fmr, 0.0), np.append(self.fnmr, 1.0)

    def point(self, index: int, target_fmr: float | None = None) -> OperatingPoint:
        """Return the operating point at candidate threshold `index`."""
        return OperatingPoint(
            float(self.thresholds[index]),
            int(self.num_false_matches[index]),
            self.num_non_mated,
            int(self.num_false_non_matches[index]),
            self.num_mated,
            target_fmr,
        )


def det_curve(scores: Comparisons | ScoreHistogram, *, num_lost: int = 0) -> DetCurve:
    """Return the error curve over every observed score, or over the lower edges of a histogram's filled bins.

    On a histogram the counts are exact at each edge; only thresholds between edges are lost. `num_lost` further mated
    comparisons are accepted at no threshold.
    Raises UndefinedMetricError for an empty set of mated or non-mated scores, and if all scores are equal.
    """
    if isinstance(scores, ScoreHistogram):
        return DetCurve.from_counts(scores.edges[:-1], scores.mated, scores.non_mated, num_lost=num_lost)
    _need(scores.num_mated + num_lost, scores.num_non_mated)
    thresholds = np.unique(np.concatenate([scores.mated, scores.non_mated]))
    at = (_tally(np.sort(side), thresholds) for side in (scores.mated, scores.non_mated))
    return DetCurve.from_counts(thresholds.astype(np.float64), *at, num_lost=num_lost)


def rates_at(comparisons: Comparisons, threshold: float) -> OperatingPoint:
    """Return errors at a threshold that was fixed elsewhere, on other data.

    Raises UndefinedMetricError for an empty set and ConfigError for a threshold that is not finite.
    """
    if not math.isfinite(threshold):
        raise ConfigError(f"threshold is {threshold}; give a finite cosine")
    _need(comparisons.num_mated, comparisons.num_non_mated)
    exact = np.float64(threshold)  # a plain float would be rounded to the scores' own precision first
    return OperatingPoint(
        float(threshold),
        int((comparisons.non_mated >= exact).sum()),
        comparisons.num_non_mated,
        int((comparisons.mated < exact).sum()),
        comparisons.num_mated,
    )


def point_at_fmr(curve: DetCurve, target_fmr: float) -> OperatingPoint:
    """Return the operating point at FMR `target_fmr` by the conservative rule.

    The threshold is the smallest observed score, mated or non-mated, with FMR <= target: no interpolation, so the
    achieved FMR never exceeds the target. Tied scores fall on one side together: if accepting a tied group would exceed
    the target, the threshold is the next observed score above the group. If there is no such score (the highest score
    is a tie of too many non-mated ones) no observed threshold qualifies and UndefinedMetricError is raised. So it is
    if target * non-mated < 1: fewer than one false match would be allowed, and the rate is below the set's resolution.
    """
    index = _index_at(curve, target_fmr)
    if index == curve.thresholds.size:
        raise UndefinedMetricError(
            f"no observed score has FMR <= {target_fmr:g}: {int(curve.num_false_matches[-1])} non-mated comparisons "
            "share the highest score; look for duplicate samples or a saturated model"
        )
    return curve.point(index, float(target_fmr))


def tar_at_fmr(curve: DetCurve, target_fmr: float) -> float:
    """Return the TAR of `point_at_fmr`, and 0 where no observed score keeps the rate: a higher threshold accepts none.

    For means over models, which would else be means over those that have not collapsed. Raises UndefinedMetricError if
    target * non-mated < 1.
    """
    index = _index_at(curve, target_fmr)
    return 0.0 if index == curve.thresholds.size else curve.point(index).tar


def tar_at_fmrs(
    curve: DetCurve, targets: Sequence[float] = DEFAULT_TARGETS
) -> tuple[OperatingPoint | NotMeasurable, ...]:
    """Return one row per target FMR: the operating point, or the reason why these scores cannot give it."""
    rows: list[OperatingPoint | NotMeasurable] = []
    for target in targets:
        try:
            rows.append(point_at_fmr(curve, target))
        except UndefinedMetricError as error:
            rows.append(NotMeasurable(float(target), curve.num_non_mated, error.message))
    return tuple(rows)


def equal_error_rate(curve: DetCurve) -> EqualErrorRate:
    """Return the EER: where the polyline through the curve's vertices crosses FMR = FNMR.

    Vertices are the observed thresholds and the accept-none end, joined by straight lines (a tie of mated and non-mated
    scores is one slanted line). FMR - FNMR falls along it to -1, so it crosses 0 once; a vertex on the crossing gives
    its own rates exactly. `at` is the observed score at
    which FMR and FNMR differ least, the lowest of several.
    """
    fmr, fnmr = curve.vertices()
    nearest = curve.point(int(np.argmin(np.abs(curve.fmr - curve.fnmr))))
    after = int(np.argmax(fnmr >= fmr))
    below = fnmr[after] - fmr[after]
    if below == 0:
        return EqualErrorRate(float(fmr[after]), nearest)
    above = fmr[after - 1] - fnmr[after - 1]
    share = above / (above + below)
    return EqualErrorRate(float(fmr[after - 1] + share * (fmr[after] - fmr[after - 1])), nearest)


def _index_at(curve: DetCurve, target_fmr: float) -> int:
    """Return the place of the smallest threshold with FMR <= target, K for none; raises below the set's resolution."""
    allowed = _allowed(target_fmr, curve.num_non_mated)
    if allowed < 1:
        raise UndefinedMetricError(
            f"FMR {target_fmr:g} is not measurable on {curve.num_non_mated} non-mated comparisons; "
            f"it needs at least {math.ceil(1 / _exact(target_fmr))}"
        )
    return int(np.searchsorted(-curve.num_false_matches, -allowed, side="left"))


def _tally(ascending: Scores, values: Scores) -> NDArray[np.int64]:
    """Return the number of sorted scores equal to each of the ascending values; no score lies between two values."""
    return np.diff(np.searchsorted(ascending, values, side="left"), append=ascending.size).astype(np.int64)


def _need(num_mated: int, num_non_mated: int) -> None:
    for count, what in ((num_mated, "mated"), (num_non_mated, "non-mated")):
        if count == 0:
            raise UndefinedMetricError(f"there are no {what} comparisons; add samples so that both kinds exist")


def _exact(rate: float) -> Fraction:
    """Return a rate as the decimal that was written: 0.001 is 1/1000, not the nearest binary number."""
    if not 0.0 < rate <= 1.0:
        raise ConfigError(f"target FMR is {rate}; it must lie above 0 and not above 1")
    return Fraction(repr(float(rate)))


def _allowed(target_fmr: float, num_non_mated: int) -> int:
    """Return the largest number of false matches with FMR <= target."""
    return int(_exact(target_fmr) * num_non_mated)
