"""A model on an experiment's test people: error rates with intervals over identities, and a curve to draw."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mien.errors import UndefinedMetricError
from mien.evaluation import (
    Comparisons,
    DetCurve,
    NotMeasurable,
    bootstrap_by_identity,
    det_curve,
    equal_error_rate,
    tar_at_fmrs,
)
from simulation.runs.experiment import EvaluationSpec

LEVEL: Final = 0.95
GRID: Final = 4096
"""Steps of a cosine to which replicates' scores are rounded."""

_CURVE_POINTS: Final = 600
_BAND_POINTS: Final = 60


@dataclass(frozen=True)
class Measured:
    """A model's errors on the test people, as records hold them.

    `band` is the interval of the false non-match rate at some false match rates, from the EER's own replicates.
    """

    eer: float
    eer_low: float
    eer_high: float
    num_mated: int
    num_non_mated: int
    points: tuple[Mapping[str, Any], ...]
    curve: Mapping[str, Any] = field(repr=False)
    band: Mapping[str, list[float]] = field(default_factory=dict, repr=False)


def measured(scores: Comparisons, spec: EvaluationSpec) -> Measured:
    """Return a model's errors; raises UndefinedMetricError where the scores cannot give them."""
    curve, coarse = det_curve(scores), _rounded(scores)
    grid = _grid(curve)
    rows: list[NDArray[np.float64]] = []

    def eer_and_row(drawn: DetCurve) -> float:
        rows.append(_fnmr_at(drawn, grid))
        return equal_error_rate(drawn).value

    interval = bootstrap_by_identity(
        coarse, eer_and_row, rng=np.random.default_rng(0), num_replicates=spec.replicates, level=LEVEL
    )
    low, high = np.quantile(np.stack(rows), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    points = tuple(
        {"target_fmr": p.target_fmr, "not_measurable": p.reason}
        if isinstance(p, NotMeasurable)
        else {**dataclasses.asdict(p), "fmr": p.fmr, "tar": p.tar}
        for p in tar_at_fmrs(curve, spec.targets)
    )
    return Measured(
        equal_error_rate(curve).value,
        interval.low,
        interval.high,
        scores.num_mated,
        scores.num_non_mated,
        points,
        _thinned(curve),
        {"fmr": grid.tolist(), "low": low.tolist(), "high": high.tolist()},
    )


def eer_of(scores: Comparisons) -> float:
    """Return the equal error rate; one half where every score is the same, which is what its ties amount to."""
    try:
        return equal_error_rate(det_curve(scores)).value
    except UndefinedMetricError:
        return 0.5


def _rounded(scores: Comparisons) -> Comparisons:
    """Return the scores on a grid fine beside any interval: replicates count some thousand scores, not millions."""
    mated, non_mated = (np.round(side * GRID) / GRID for side in (scores.mated, scores.non_mated))
    if np.unique(np.concatenate([mated, non_mated])).size < 2:  # nearly collapsed: only the exact scores differ
        return scores
    return dataclasses.replace(scores, mated=mated, non_mated=non_mated)


def _grid(curve: DetCurve) -> NDArray[np.float64]:
    """Return the false match rates at which a band is drawn: from ten false matches on, where draws vary little."""
    return np.geomspace(min(0.5, 10 / curve.num_non_mated), 0.8, _BAND_POINTS)


def _fnmr_at(curve: DetCurve, fmrs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the false non-match rate at the smallest threshold that keeps each false match rate."""
    index = np.searchsorted(-curve.fmr, -fmrs, side="left")
    found: NDArray[np.float64] = curve.fnmr[np.minimum(index, curve.thresholds.size - 1)]
    return found


def _thinned(curve: DetCurve) -> dict[str, list[float]]:
    """Return at most some hundred points of a curve, dense at both ends, where one of the errors is rare."""
    last = curve.thresholds.size - 1
    steps = np.unique(np.geomspace(1, last + 1, _CURVE_POINTS // 2).astype(np.int64)) - 1
    rows = np.unique(np.concatenate([steps, last - steps, [last]]))
    return {
        "thresholds": curve.thresholds[rows].tolist(),
        "num_false_matches": curve.num_false_matches[rows].tolist(),
        "num_false_non_matches": curve.num_false_non_matches[rows].tolist(),
    }
