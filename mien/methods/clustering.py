"""Pseudo labels without labels: FINCH and C-FINCH over embeddings, and how good a clustering is against the truth.

Written from the papers' text, not from FINCH's released code (decision record 0012). Everything is exact and
deterministic: nearest neighbours are found by blocks of float32 products, and what lies within their rounding error of
the best is decided in float64, ties by the lowest index. Legend: N embeddings or centroids, D dimensions, C clusters.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mien.errors import ConfigError, NonFiniteError, UndefinedMetricError
from mien.evaluation.scores import Labels, rows_of_each

Metric = Literal["euclidean", "cosine"]
Partition = NDArray[np.int64]

# One block of float32 products, and one of the differences that are decided in float64.
BLOCK_BYTES: Final = 128 * 2**20

CALIBRATION_STEPS: Final = 40
"""Distances that a calibration tries: steps of 0.05 between unit vectors."""


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The nearest other embedding of each one, (N,), and how far it is, (N,)."""

    index: NDArray[np.int64]
    distance: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """FINCH's partitions, finest first: each (N,), clusters numbered by their first member."""

    partitions: tuple[Partition, ...] = field(repr=False)

    @property
    def num_clusters(self) -> tuple[int, ...]:
        """Clusters of each partition, falling."""
        return tuple(_count(partition) for partition in self.partitions)

    def at(self, level: int) -> Partition:
        """Return the partition at `level`, 0 the finest and -1 the coarsest; ConfigError beyond what was found."""
        if not -len(self.partitions) <= level < len(self.partitions):
            raise ConfigError(f"FINCH found {len(self.partitions)} partitions, there is no level {level}; lower it")
        return self.partitions[level]

    def nearest(self, num_clusters: int) -> Partition:
        """Return the partition whose number of clusters is nearest to `num_clusters`, the finer of two."""
        gaps = [abs(found - num_clusters) for found in self.num_clusters]
        return self.partitions[gaps.index(min(gaps))]


def finch(embeddings: ArrayLike, *, metric: Metric = "euclidean") -> Hierarchy:
    """Return FINCH's hierarchy: link every cluster to its first neighbour, join what is linked, repeat on centroids.

    The last partition has one cluster unless there is none left to join. A level never holds a singleton (N > 1), so
    noise is always joined to somebody. All of the paper's links (j = k_i, i = k_j, k_i = k_j) follow from i - k_i.
    Source: Sarfraz, Sharma, Stiefelhagen 2019, eq 1 and Algorithm 1; no early exit, which is the released code's own.
    Errors, memory and `metric` as in `c_finch`.
    """
    partitions = _levels(_checked(embeddings), math.inf, metric)
    return Hierarchy(tuple(partitions) or (np.zeros(1, np.int64),))


def c_finch(embeddings: ArrayLike, distance: float, *, metric: Metric = "euclidean", max_levels: int = 0) -> Partition:
    """Return pseudo labels (N,) by Conditional FINCH: first neighbours are linked only where nearer than `distance`.

    Repeats on centroids until no link is shorter, or `max_levels` times (0: without end). Embeddings (N, D) need no
    unit length; a centroid is their mean, and distances are between normalised centroids: `metric` "euclidean" in
    [0, 2], or "cosine" 1 - cos in [0, 2], which is half its square and gives the same neighbours. Clusters are numbered
    by their first member; singletons are clusters.
    Memory: 28 N D bytes for embeddings, centroids and their directions, and two blocks of 128 MiB: 1.7 GB at 100,000 x
    512, where the products take minutes.
    Raises NonFiniteError for NaN, UndefinedMetricError for a zero vector or no embeddings, ConfigError for a distance
    that is not positive. Source: Zhuang et al. 2021 (FedFR-UDA), section 3.3.
    """
    if not distance > 0 or math.isnan(distance):
        raise ConfigError(f"distance is {distance}; it must be positive, such as 1.2 between unit vectors")
    emb_ND = _checked(embeddings)
    partitions = _levels(emb_ND, distance, metric, max_levels)
    return partitions[-1] if partitions else np.arange(len(emb_ND))


def calibrated_distance(
    embeddings: ArrayLike, labels: Labels, *, metric: Metric = "euclidean", max_levels: int = 0
) -> float:
    """Return the distance at which C-FINCH finds labelled people again best, by pairwise F-score.

    How far apart people lie depends on the model, so a constant that fits one joins everybody under another. Of several
    distances that are equally good it is the middle one. Takes `CALIBRATION_STEPS` clusterings of all N embeddings.
    Raises as `c_finch`, and UndefinedMetricError where nobody has two images, or all are of one person.
    """
    emb_ND, truth = _labelled(embeddings, labels)
    tried = _tried(metric)
    scores = np.array(
        [pairwise_scores(truth, c_finch(emb_ND, each, metric=metric, max_levels=max_levels)).f_score for each in tried]
    )
    best = np.flatnonzero(scores >= scores.max() - 1e-12)
    return tried[int(best[len(best) // 2])]


def pure_distance(
    embeddings: ArrayLike,
    labels: Labels,
    purity: float,
    *,
    group_images: int = 0,
    metric: Metric = "euclidean",
    max_levels: int = 0,
) -> float:
    """Return the largest distance at which C-FINCH hardly joins labelled people: `purity` of joined pairs are of one.

    Images of several people under one label harm what is trained on them, images of one under several hardly do, and
    an F-score weighs both alike (decision record 0123). People are clustered in groups, in the order of their labels,
    of `group_images` or just above and of two people at least (0: all together), because more people hold more that
    look alike. A rest that fills no group is left out. Takes `CALIBRATION_STEPS` clusterings of all N at most.
    Raises as `calibrated_distance`, and ConfigError where no distance that joins anything is as pure.
    """
    emb_ND, truth = _labelled(embeddings, labels)
    groups = _groups(truth, group_images)
    used_N = np.concatenate(groups)
    for distance in reversed(_tried(metric)):
        found = side_by_side(
            [c_finch(emb_ND[group], distance, metric=metric, max_levels=max_levels) for group in groups]
        )
        if _count(found) < len(found) and pairwise_scores(truth[used_N], found).precision >= purity:
            return distance
    raise ConfigError(
        f"at no distance are {purity:g} of the pairs that C-FINCH joins of one person; lower the purity, name a "
        "distance, or give labelled people of whom the model tells more apart"
    )


def side_by_side(partitions: Sequence[Partition]) -> Partition:
    """Return partitions of several sets as one of them all, one after another, no cluster shared."""
    starts = itertools.accumulate((_count(each) for each in partitions), initial=0)
    return np.concatenate([each + start for each, start in zip(partitions, starts, strict=False)])


def _labelled(embeddings: ArrayLike, labels: Labels) -> tuple[NDArray[np.float64], NDArray[np.generic]]:
    emb_ND, truth = _checked(embeddings), np.asarray(labels)
    counts = np.unique(truth, return_counts=True)[1]
    if len(counts) < 2 or counts.max() < 2:
        raise UndefinedMetricError(
            "a distance is calibrated on two people or more, one of them with two images or more; give more labelled "
            "people (a task: the model's public faces; an experiment: partition.public), or name a distance"
        )
    return emb_ND, truth


def _tried(metric: Metric) -> list[float]:
    chords = np.linspace(0.0, 2.0, CALIBRATION_STEPS + 1)[1:]
    return [float(each) for each in (chords**2 / 2 if metric == "cosine" else chords)]


def _groups(truth: NDArray[np.generic], group_images: int) -> list[NDArray[np.int64]]:
    """Return the indices of each group of whole people, of at least so many images and two people."""
    by_person = rows_of_each(truth)
    groups, group = list[NDArray[np.int64]](), list[NDArray[np.int64]]()
    for images in by_person if group_images else ():
        group.append(images)
        if len(group) > 1 and sum(map(len, group)) >= group_images:
            groups.append(np.concatenate(group))
            group = []
    return groups or [np.concatenate(by_person)]


def nearest_neighbours(
    embeddings: ArrayLike, *, metric: Metric = "euclidean", block_bytes: int = BLOCK_BYTES
) -> Neighbours:
    """Return the nearest other embedding of each of N >= 2, exact in float64, the lowest index among equals.

    Memory beside a float32 and a float64 copy is two blocks of `block_bytes`, whatever N is, down to one row.
    """
    unit_ND = _unit(_checked(embeddings))
    if len(unit_ND) < 2:
        raise UndefinedMetricError("one embedding has no neighbour; give at least two")
    if metric not in ("euclidean", "cosine"):
        raise ConfigError(f"metric is {metric!r}; use euclidean or cosine")
    single_ND = unit_ND.astype(np.float32)
    num, dim = unit_ND.shape
    # A float32 product of two unit vectors is off by at most (D + 2) roundings, at both ends of a comparison.
    slack = np.float32(2 * (dim + 2) * np.finfo(np.float32).eps)
    rows = max(1, block_bytes // (4 * num))
    index, squared = np.empty(num, np.int64), np.empty(num)
    for start in range(0, num, rows):
        cos_BN = single_ND[start : start + rows] @ single_ND.T
        cos_BN[np.arange(len(cos_BN)), np.arange(start, start + len(cos_BN))] = -np.inf
        near_B = cos_BN.max(axis=1) - slack
        for b in range(len(cos_BN)):
            candidates = np.flatnonzero(cos_BN[b] >= near_B[b])
            index[start + b], squared[start + b] = _first_nearest(unit_ND, start + b, candidates, block_bytes)
    return Neighbours(index, squared / 2 if metric == "cosine" else np.sqrt(squared))


def _first_nearest(
    unit_ND: NDArray[np.float64], row: int, candidates: NDArray[np.int64], block_bytes: int
) -> tuple[int, float]:
    """Return the candidate with the smallest squared distance to `row`, the first of several, and that distance."""
    step = max(1, block_bytes // (8 * unit_ND.shape[1]))
    best, smallest = -1, math.inf
    for start in range(0, len(candidates), step):
        some = candidates[start : start + step]
        gap = unit_ND[some] - unit_ND[row]
        squared: NDArray[np.float64] = np.einsum("cd,cd->c", gap, gap)
        nearest = int(squared.argmin())
        if squared[nearest] < smallest:
            best, smallest = int(some[nearest]), float(squared[nearest])
    return best, smallest


def _levels(emb_ND: NDArray[np.float64], distance: float, metric: Metric, most: int = 0) -> list[Partition]:
    """Return the partitions that joining linked first neighbours gives, at most so many (0: all that there are)."""
    partitions: list[Partition] = []
    sizes: NDArray[np.float64] = np.ones(len(emb_ND))
    sums_CD = emb_ND
    while len(sizes) > 1 and (len(partitions) < most or not most):
        found = nearest_neighbours(sums_CD / sizes[:, None], metric=metric)
        linked = np.flatnonzero(found.distance < distance)
        if linked.size == 0:
            break
        joined = _components(len(sizes), linked, found.index[linked])
        partitions.append(joined[partitions[-1]] if partitions else joined)
        sums_CD = _sums(sums_CD, joined)
        sizes = np.asarray(np.bincount(joined, weights=sizes), np.float64)
    return partitions


def _components(num: int, first: NDArray[np.int64], second: NDArray[np.int64]) -> Partition:
    """Return the connected components of a graph of `num` nodes, numbered by their first node."""
    parent = list(range(num))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for a, b in zip(first.tolist(), second.tolist(), strict=True):
        low, high = sorted((root(a), root(b)))
        parent[high] = low
    # The smaller root always wins, so a component's root is its first node and roots ascend with first members.
    return np.unique([root(node) for node in range(num)], return_inverse=True)[1].reshape(-1).astype(np.int64)


def _sums(values_ND: NDArray[np.float64], labels: Partition) -> NDArray[np.float64]:
    sums = np.zeros((_count(labels), values_ND.shape[1]))
    np.add.at(sums, labels, values_ND)
    return sums


def _count(labels: Partition) -> int:
    return int(labels.max(initial=-1)) + 1


def _checked(embeddings: ArrayLike) -> NDArray[np.float64]:
    emb_ND = np.asarray(embeddings, dtype=np.float64)
    if emb_ND.ndim != 2 or emb_ND.shape[1] == 0:
        raise ConfigError(f"embeddings have shape {emb_ND.shape}; give one row an image, (N, D)")
    if len(emb_ND) == 0:
        raise UndefinedMetricError("there is nothing to cluster; give at least one embedding")
    if not np.isfinite(emb_ND).all():
        raise NonFiniteError("an embedding holds NaN or infinity; check the model and its input before clustering")
    return emb_ND


def _unit(emb_ND: NDArray[np.float64]) -> NDArray[np.float64]:
    norms_N = np.linalg.norm(emb_ND, axis=1)
    if (norms_N == 0).any():
        raise UndefinedMetricError("an embedding or a centroid is the zero vector and has no direction; leave it out")
    unit: NDArray[np.float64] = emb_ND / norms_N[:, None]
    return unit


@dataclass(frozen=True)
class ClusterScores:
    """Agreement of clusters with identities: precision, recall and their harmonic mean, pairwise or BCubed."""

    precision: float
    recall: float

    @property
    def f_score(self) -> float:
        """Harmonic mean of precision and recall, 0 where both are 0."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0


def pairwise_scores(truth: Labels, clusters: Labels) -> ClusterScores:
    """Return precision and recall over unordered pairs of images: joined rightly / joined, and / of one identity.

    Without any joined pair precision is 1 (nothing was joined wrongly), without any true pair recall is 1, so that F is
    2 TP / (2 TP + FP + FN) wherever that is defined. Raises UndefinedMetricError for no images.
    """
    shared = _Shared.of(truth, clusters)
    right, true, joined = (_pairs(counts) for counts in (shared.counts, shared.of_identity, shared.of_cluster))
    return ClusterScores(right / joined if joined else 1.0, right / true if true else 1.0)


def bcubed_scores(truth: Labels, clusters: Labels) -> ClusterScores:
    """Return BCubed precision and recall: the mean over images of the share of their cluster that is of their identity,
    and of their identity that is in their cluster, themselves counted. Source: Bagga and Baldwin 1998.
    """
    shared = _Shared.of(truth, clusters)
    squared, num = shared.counts.astype(np.float64) ** 2, float(shared.counts.sum())
    return ClusterScores(
        float((squared / shared.of_cluster[shared.cluster]).sum()) / num,
        float((squared / shared.of_identity[shared.identity]).sum()) / num,
    )


def normalised_mutual_information(truth: Labels, clusters: Labels) -> float:
    """Return 2 I(T; C) / (H(T) + H(C)), in [0, 1]; two partitions of one cluster each agree fully: 1."""
    shared = _Shared.of(truth, clusters)
    joint, t, c = (n / shared.counts.sum() for n in (shared.counts, shared.of_identity, shared.of_cluster))
    entropies = -float((t * np.log(t)).sum()) - float((c * np.log(c)).sum())
    if entropies == 0:
        return 1.0
    information = float((joint * np.log(joint / (t[shared.identity] * c[shared.cluster]))).sum())
    return min(1.0, max(0.0, 2 * information / entropies))


@dataclass(frozen=True, eq=False)
class _Shared:
    """Number of images that each identity shares with each cluster, pairs without any left out, and both margins."""

    identity: NDArray[np.int64]
    cluster: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, truth: Labels, clusters: Labels) -> _Shared:
        t, c = (np.unique(np.asarray(labels), return_inverse=True)[1].reshape(-1) for labels in (truth, clusters))
        if t.shape != c.shape:
            raise ConfigError(f"{t.size} identities but {c.size} clusters; give one of each for every image")
        if t.size == 0:
            raise UndefinedMetricError("there are no images to judge a clustering on; give some")
        pairs, counts = np.unique(np.stack([t, c]), axis=1, return_counts=True)
        return cls(pairs[0].astype(np.int64), pairs[1].astype(np.int64), counts.astype(np.int64))

    @property
    def of_identity(self) -> NDArray[np.int64]:
        return np.bincount(self.identity, weights=self.counts).astype(np.int64)

    @property
    def of_cluster(self) -> NDArray[np.int64]:
        return np.bincount(self.cluster, weights=self.counts).astype(np.int64)


def _pairs(counts: NDArray[np.int64]) -> int:
    return int((counts * (counts - 1) // 2).sum())
