"""One-to-many search: closed-set rank-k hit rates and open-set rates at a false positive rate.

A gallery identity's score is that of its best template. Ties count against the system: a mate that ties with another
identity is ranked below it. Legend: P probes, G gallery templates, I gallery identities, D dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mien.errors import ConfigError, UndefinedMetricError
from mien.evaluation.scores import Comparisons, Labels, normalise
from mien.evaluation.verification import DetCurve, det_curve, point_at_fmr, tar_at_fmr

_BLOCK: Final = 1024


@dataclass(frozen=True, eq=False)
class SearchResult:
    """Scores of one gallery: the mate's score and rank per mated probe, the best score per non-mated probe.

    `num_failed_mated` and `num_failed_non_mated` count probes that gave no template: the first are missed at every
    threshold and rank, the second never alarm; both stay in the denominators. `num_excluded` probes were left out
    because the same sample is enrolled.
    """

    mate_score: NDArray[np.float64] = field(repr=False)
    mate_rank: NDArray[np.int64] = field(repr=False)
    non_mated_top: NDArray[np.float64] = field(repr=False)
    num_identities: int
    num_failed_mated: int = 0
    num_failed_non_mated: int = 0
    num_excluded: int = 0

    @property
    def num_mated(self) -> int:
        """Probes whose identity is enrolled, failed ones included."""
        return int(self.mate_score.size) + self.num_failed_mated

    @property
    def num_non_mated(self) -> int:
        """Probes whose identity is not enrolled, failed ones included."""
        return int(self.non_mated_top.size) + self.num_failed_non_mated


@dataclass(frozen=True)
class OpenSetPoint:
    """Open-set rates at one threshold: a hit is a mate at rank 1 with score >= threshold.

    `num_false_positives` non-mated probes found somebody with score >= threshold.
    """

    threshold: float
    num_hits: int
    num_mated: int
    num_false_positives: int
    num_non_mated: int
    target_fpir: float | None = None

    @property
    def tpir(self) -> float:
        """True positive identification rate, 1 - FNIR."""
        return self.num_hits / self.num_mated

    @property
    def fpir(self) -> float:
        """Achieved false positive identification rate."""
        return self.num_false_positives / self.num_non_mated


def search(
    probes: ArrayLike,
    probe_labels: Labels,
    gallery: ArrayLike,
    gallery_labels: Labels,
    *,
    probe_ids: Sequence[str] | None = None,
    gallery_ids: Sequence[str] | None = None,
) -> SearchResult:
    """Return the search results of probes (P, D) in the gallery (G, D), computed in blocks of 1024 probes.

    A probe is mated iff its label is among the gallery's; an identity may have several templates. With sample ids for
    both sides, probes whose own sample is enrolled are excluded and counted.
    Raises UndefinedMetricError for an empty gallery or one without any probe.
    """
    probe_PD, gallery_GD = normalise(probes), normalise(gallery)
    label_P, label_G = np.asarray(probe_labels), np.asarray(gallery_labels)
    if label_P.shape != probe_PD.shape[:1] or label_G.shape != gallery_GD.shape[:1]:
        raise ConfigError("give one label for each probe and each gallery template")
    if not label_P.size or not label_G.size:
        raise UndefinedMetricError("search needs at least one probe and one enrolled template")
    keep = _not_enrolled(probe_ids, gallery_ids, label_P.size, label_G.size)
    owners = _Owners.of(label_G)
    scores, ranks, tops = [np.zeros(0)], [np.zeros(0, np.int64)], [np.zeros(0)]
    kept_PD, kept_labels = probe_PD[keep], label_P[keep]
    for start in range(0, len(kept_PD), _BLOCK):
        block = slice(start, start + _BLOCK)
        best_PI = owners.best(np.clip(kept_PD[block] @ gallery_GD.T, -1.0, 1.0))
        mate_P, is_mated = owners.positions(kept_labels[block])
        mate_score = best_PI[is_mated, mate_P[is_mated]]
        scores.append(mate_score)
        # The mate itself is one of those with score >= its own, so the count is its rank.
        ranks.append(np.count_nonzero(best_PI[is_mated] >= mate_score[:, None], axis=1))
        tops.append(best_PI[~is_mated].max(axis=1))
    return SearchResult(
        np.concatenate(scores),
        np.concatenate(ranks),
        np.concatenate(tops),
        owners.identities.size,
        num_excluded=int((~keep).sum()),
    )


def cmc(result: SearchResult, max_rank: int = 10) -> NDArray[np.float64]:
    """Return the closed-set hit rate at ranks 1..max_rank, over mated probes: share whose mate is ranked k or better.

    Raises UndefinedMetricError without mated probes. Beyond the gallery's size the rate is that of the last rank.
    """
    if max_rank < 1:
        raise ConfigError(f"max_rank is {max_rank}; ranks start at 1")
    if result.num_mated == 0:
        raise UndefinedMetricError("no probe has a mate in the gallery; closed-set rates need some")
    hits = np.bincount(np.minimum(result.mate_rank, max_rank + 1), minlength=max_rank + 2)[1 : max_rank + 1].cumsum()
    return np.asarray(hits / result.num_mated, dtype=np.float64)


def open_set_at_fpir(result: SearchResult, target_fpir: float) -> OpenSetPoint:
    """Return TPIR at a false positive identification rate, by the conservative rule of `point_at_fmr`.

    The threshold is the smallest observed score (of rank-1 mates and of best non-mated answers) with FPIR <= target.
    Raises UndefinedMetricError without mated or non-mated probes, or if target * non-mated < 1.
    """
    point = open_set_at(result, point_at_fmr(_curve(result), target_fpir).threshold)
    return replace(point, target_fpir=float(target_fpir))


def tpir_at_fpir(result: SearchResult, target_fpir: float) -> float:
    """Return the TPIR of `open_set_at_fpir`, and 0 where no observed score keeps the rate: a higher one names nobody.

    For means over models, which would else be means over those that have not collapsed. Raises as `open_set_at_fpir`
    for too few probes.
    """
    return tar_at_fmr(_curve(result), target_fpir)


def _curve(result: SearchResult) -> DetCurve:
    """Return the curve of mates at rank 1, all others lost, against the best score of every non-mated probe."""
    first = result.mate_rank == 1
    num_lost = int((~first).sum()) + result.num_failed_mated
    return det_curve(Comparisons(result.mate_score[first], _tops(result)), num_lost=num_lost)


def open_set_at(result: SearchResult, threshold: float) -> OpenSetPoint:
    """Return open-set rates at a threshold that was fixed elsewhere.

    Raises UndefinedMetricError without mated or non-mated probes.
    """
    if not math.isfinite(threshold):
        raise ConfigError(f"threshold is {threshold}; give a finite cosine")
    if result.num_mated == 0 or result.num_non_mated == 0:
        raise UndefinedMetricError(
            f"open-set rates need mated and non-mated probes; there are {result.num_mated} and {result.num_non_mated}"
        )
    hits = (result.mate_rank == 1) & (result.mate_score >= threshold)
    false_positives = _tops(result) >= threshold
    return OpenSetPoint(
        float(threshold), int(hits.sum()), result.num_mated, int(false_positives.sum()), result.num_non_mated
    )


def mean_tpir(points: Sequence[OpenSetPoint]) -> float:
    """Return the mean TPIR of galleries that were searched apart, as IJB-B and IJB-C ask: each gallery counts once."""
    if not points:
        raise UndefinedMetricError("no gallery was searched, so there is no mean")
    return sum(point.tpir for point in points) / len(points)


def _tops(result: SearchResult) -> NDArray[np.float64]:
    """Return the best score of every non-mated probe; a failed one answers -1, the lowest cosine."""
    return np.concatenate([result.non_mated_top, np.full(result.num_failed_non_mated, -1.0)])


def _not_enrolled(
    probe_ids: Sequence[str] | None, gallery_ids: Sequence[str] | None, num_probes: int, num_gallery: int
) -> NDArray[np.bool_]:
    """Return which probes are not themselves gallery samples."""
    if probe_ids is None or gallery_ids is None:
        if probe_ids is not gallery_ids:
            raise ConfigError("give sample ids for probes and gallery, or for neither")
        return np.ones(num_probes, dtype=np.bool_)
    if len(probe_ids) != num_probes or len(gallery_ids) != num_gallery:
        raise ConfigError("give one sample id for each probe and each gallery template")
    enrolled = set(gallery_ids)
    return np.array([sample not in enrolled for sample in probe_ids], dtype=np.bool_)


@dataclass(frozen=True, eq=False)
class _Owners:
    """Owner, an identity (I,), of each gallery template (G,), sorted so that one reduction finds each one's best."""

    identities: NDArray[Any]
    order: NDArray[np.int64]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, labels: NDArray[Any]) -> _Owners:
        identities, owner = np.unique(labels, return_inverse=True)
        order = np.argsort(owner, kind="stable")
        return cls(identities, order, np.searchsorted(owner[order], np.arange(identities.size)))

    def best(self, scores_PG: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return each probe's best score per identity, (P, I)."""
        return np.asarray(np.maximum.reduceat(scores_PG[:, self.order], self.starts, axis=1), dtype=np.float64)

    def positions(self, labels: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return each label's place among the identities, and whether it is there at all."""
        place = np.minimum(np.searchsorted(self.identities, labels), self.identities.size - 1)
        return place.astype(np.int64), np.asarray(self.identities[place] == labels, dtype=np.bool_)
