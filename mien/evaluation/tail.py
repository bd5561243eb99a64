"""Thresholds for galleries of many people: the tail of non-mated scores, measured, and a bounded way beyond.

A stranger is named as one of N people with a probability of at most N times the false match rate (the union bound,
whatever depends on whatever), so a false positive identification rate of p asks for an FMR of p / N. Such rates are
rarer than data show. Beyond what was measured the tail is taken for a generalised Pareto law (Pickands 1975), whose
shape and scale are the upper ends of one-sided 95 % intervals, the shape no less than 0: cosines end at 1, and tails
that end are lighter.

Legend: I identities, P probes, N scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mien.errors import UndefinedMetricError
from mien.evaluation.scores import Labels, normalise, rows_of_each

FMRS: Final = tuple(step * 10.0**-decade for decade in range(4, 9) for step in (5.0, 2.0, 1.0))
"""Rates at which a threshold is wanted: the gallery's size chooses among them."""

MIN_TEMPLATES: Final = 20
"""Fewer people tell nothing of strangers' rarest scores."""
_MEASURED: Final = 30
"""Errors to be expected where a rate counts as measured: the rule of 30."""
_BEYOND: Final = 100
"""How many times rarer than what was measured a threshold is extrapolated to."""
_EXCEEDANCES: Final = 1000
_Z: Final = 1.645


@dataclass(frozen=True)
class TailPoint:
    """A threshold for a false match rate: the smallest score that keeps it, or (not `is_measured`) a bound on that."""

    fmr: float
    threshold: float
    is_measured: bool


@dataclass(frozen=True)
class Tail:
    """The tail of N non-mated scores: a generalised Pareto law above `start`, which a share of `rate` exceeds.

    `shape` is as estimated, `shape_bound` and `scale_bound` are what extrapolates. Scores share people: intervals
    that take them for independent are too narrow, which the bound on the shape is to make good.
    """

    points: tuple[TailPoint, ...]
    num_scores: int
    start: float
    rate: float
    shape: float
    shape_bound: float
    scale_bound: float

    def threshold(self, fmr: float) -> float:
        """Return the extrapolated threshold for a rate below `rate`; it may lie above 1, where no score is."""
        times = self.rate / fmr
        if self.shape_bound == 0:
            return self.start + self.scale_bound * math.log(times)
        return self.start + self.scale_bound * math.expm1(self.shape_bound * math.log(times)) / self.shape_bound


def tail_of(non_mated: ArrayLike, fmrs: tuple[float, ...] = FMRS) -> Tail:
    """Return the tail of non-mated scores with a threshold for each rate that it reaches.

    Left out are rates more than 100 times rarer than what was measured, and those that only a score above 1 keeps.
    Raises UndefinedMetricError for fewer than 10,000 scores, or where the largest are all one.
    """
    scores = np.asarray(non_mated, np.float64).ravel()
    if scores.size < 10_000:
        raise UndefinedMetricError(f"{scores.size} non-mated scores show no tail; 10000 are needed: add people")
    descending = np.sort(scores)[::-1]
    count = min(_EXCEEDANCES, scores.size // 100)
    start = float(descending[count])
    excess = descending[:count][::-1] - start
    excess = excess[excess > 0]
    if excess.size < count // 2:
        raise UndefinedMetricError("the largest non-mated scores are all one; use other images")
    shape, scale = _pareto(excess)
    bound = max(0.0, shape + _Z * (1 + shape) / math.sqrt(excess.size))
    scale_bound = scale * (1 + _Z * math.sqrt(2 / excess.size))
    tail = Tail((), scores.size, start, excess.size / scores.size, shape, bound, scale_bound)
    points = []
    for fmr in fmrs:
        allowed = math.floor(fmr * scores.size)
        if allowed >= _MEASURED and descending[allowed] < 1:
            # Scores equal to the first that is too many are too many as well.
            points.append(TailPoint(fmr, float(np.nextafter(descending[allowed], np.inf)), is_measured=True))
        elif fmr * scores.size * _BEYOND >= _MEASURED and tail.threshold(fmr) <= 1:
            points.append(TailPoint(fmr, tail.threshold(fmr), is_measured=False))
    return replace(tail, points=tuple(points))


def enrolled_against_strangers(
    embeddings: ArrayLike, labels: Labels, *, at_least: int, at_most: int
) -> tuple[NDArray[np.float32], int]:
    """Return scores of people enrolled as a phone does with strangers' single pictures (N,), and how many are enrolled.

    Everybody with `at_least` images and one more has a template of the first `at_most` of the others; everybody's last
    image is the probe. A mean of several pictures scores higher than one of them, with strangers too. With `at_least` 0
    people with one image are enrolled with it, which is also the probe that strangers are compared with.
    Raises UndefinedMetricError for fewer than `MIN_TEMPLATES` people who can be enrolled.
    """
    unit, rows = normalise(embeddings), rows_of_each(labels)
    enrolled = [index for index, own in enumerate(rows) if len(own) > at_least]
    if len(enrolled) < MIN_TEMPLATES:
        raise UndefinedMetricError(
            f"{len(enrolled)} people have the {at_least + 1} images that enrolling and comparing take; "
            f"{MIN_TEMPLATES} are needed"
        )
    means = np.stack(
        [unit[(rows[index][:-1] if len(rows[index]) > 1 else rows[index])[:at_most]].mean(axis=0) for index in enrolled]
    )
    templates_ID = (means / np.linalg.norm(means, axis=1, keepdims=True)).astype(np.float32)
    probes_PD = unit[[own[-1] for own in rows]].astype(np.float32)
    scores_IP = templates_ID @ probes_PD.T
    is_stranger = np.ones(scores_IP.shape, bool)
    is_stranger[np.arange(len(enrolled)), enrolled] = False
    return scores_IP[is_stranger], len(enrolled)


def _pareto(ascending: NDArray[np.float64]) -> tuple[float, float]:
    """Return shape and scale of a generalised Pareto law for excesses: Zhang and Stephens 2009, section 4."""
    n = ascending.size
    m = 20 + math.floor(math.sqrt(n))
    quartile = ascending[math.floor(n / 4 + 0.5) - 1]
    theta_M = 1 / ascending[-1] + (1 - np.sqrt(m / (np.arange(1, m + 1) - 0.5))) / (3 * quartile)
    k_M = -np.log1p(-theta_M[:, None] * ascending).mean(axis=1)
    likelihood_M = n * (np.log(theta_M / k_M) + k_M - 1)
    weight_M = np.exp(likelihood_M - likelihood_M.max())
    theta = float((theta_M * weight_M).sum() / weight_M.sum())
    shape = float(np.log1p(-theta * ascending).mean())
    return shape, -shape / theta
