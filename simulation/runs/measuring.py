"""A model on an experiment's test people: error rates with intervals over identities, a curve, angles, and a map.

Angles are counted over all pairs of clients' classes; a map is two numbers an image, and only of people who do not
exist: neither says what a person's embedding is.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mien.errors import MissingDependencyError, UndefinedMetricError
from mien.evaluation import (
    Comparisons,
    DetCurve,
    NotMeasurable,
    bootstrap_by_identity,
    det_curve,
    equal_error_rate,
    tar_at_fmrs,
)
from mien.evaluation.verification import tar_at_fmr
from mien.methods import fedface, fedgc
from mien.methods.base import Embeddings, ServerState
from mien.methods.spreadout import normalise
from simulation.engines.base import Cohort
from simulation.runs.spec import EvaluationSpec, MapKind

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
        {"target_fmr": p.target_fmr, "not_measurable": p.reason, **_nobody(curve, p.target_fmr)}
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


def _nobody(curve: DetCurve, target_fmr: float) -> dict[str, float]:
    """Return the TAR of 0 where no score keeps a rate that could be measured: left out, it would flatter a mean."""
    with contextlib.suppress(UndefinedMetricError):
        return {"tar": tar_at_fmr(curve, target_fmr)}
    return {}


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
    fmr, fnmr = curve.vertices()
    found: NDArray[np.float64] = fnmr[np.searchsorted(-fmr, -fmrs, side="left")]
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


# Aggregates that a figure shows beside error rates.

ANGLE_EDGES: Final = tuple(float(angle) for angle in range(0, 181, 2))
"""Degrees at which an angle's bin begins and ends."""

MAX_CLASSES: Final = 4000
"""Classes whose pairs are counted: the first by client's name."""

MAP_PEOPLE: Final = 12
"""People whom a map shows: the first of the tests."""


def class_angles(state: ServerState, cohort: Cohort) -> dict[str, Any]:
    """Return how often each angle lies between class embeddings of different clients (FedGC, Figure 3).

    Empty for a method without class embeddings, or for fewer than two clients that have any.
    """
    owners, rows = [], []
    for name, kept in sorted(cohort.private.items()):
        arrays = {**kept, **state.revealed.get(name, {})}
        found = arrays.get(fedface.W, arrays.get(fedgc.W))
        if found is not None:
            rows.append(np.atleast_2d(found))
            owners += [name] * len(rows[-1])
    if len(set(owners)) < 2:
        return {}
    w_CD = normalise(np.concatenate(rows)[:MAX_CLASSES].astype(np.float32))
    owner_C = np.unique(owners[:MAX_CLASSES], return_inverse=True)[1]
    counts = np.zeros(len(ANGLE_EDGES) - 1, np.int64)
    for i in range(len(w_CD) - 1):
        others = w_CD[i + 1 :][owner_C[i + 1 :] != owner_C[i]]
        degrees = np.degrees(np.arccos(np.clip(others @ w_CD[i], -1, 1)))
        counts += np.histogram(degrees, ANGLE_EDGES)[0]
    return {"edges_deg": list(ANGLE_EDGES), "counts": counts.tolist(), "classes": len(w_CD)}


def embedding_map(embeddings: Embeddings, labels: np.ndarray[Any, Any], kind: MapKind) -> Mapping[str, Any]:
    """Return two coordinates and a person's number for each image: by PCA, or by t-SNE.

    Empty for `kind` "none". The caller answers for the faces being nobody's. Raises MissingDependencyError for t-SNE
    without scikit-learn.
    """
    if kind == "none":
        return {}
    emb_ND = embeddings.astype(np.float64)
    flat = _tsne(emb_ND) if kind == "tsne" else _pca(emb_ND)
    points = [[round(float(x), 4), round(float(y), 4)] for x, y in flat]
    return {"kind": kind, "people": labels.tolist(), "points": points}


def _pca(emb_ND: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return coordinates along the two directions of largest variance, each direction's largest part positive."""
    centred = emb_ND - emb_ND.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    two = directions[:2]
    two = two * np.sign(two[np.arange(len(two)), np.abs(two).argmax(axis=1)])[:, None]
    flat = centred @ two.T
    return flat if flat.shape[1] == 2 else np.pad(flat, ((0, 0), (0, 2 - flat.shape[1])))


def _tsne(emb_ND: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    try:
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise MissingDependencyError(
            "evaluation.map 'tsne' needs scikit-learn; pip install '.[simulation]' in Mien's folder"
        ) from error
    perplexity = min(30.0, max(2.0, (len(emb_ND) - 1) / 3))
    flat: np.ndarray[Any, Any] = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(emb_ND)
    return flat
