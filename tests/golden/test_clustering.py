"""FINCH and C-FINCH replayed by loops over float64, and the scores beside scikit-learn's: no arithmetic is shared.

Sarfraz, Sharma, Stiefelhagen 2019, eq 1: A(i, j) = 1 if j = k_i or k_j = i or k_i = k_j. Zhuang et al. 2021, section
3.3: the same, where the first neighbour is nearer than d.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import normalized_mutual_info_score, pair_confusion_matrix

from mien.methods.clustering import bcubed_scores, c_finch, finch, normalised_mutual_information, pairwise_scores

pytestmark = pytest.mark.numerics


def direction(vector: list[float]) -> list[float]:
    length = math.sqrt(math.fsum(x * x for x in vector))
    return [x / length for x in vector]


def chord(a: list[float], b: list[float]) -> float:
    return math.sqrt(math.fsum((x - y) ** 2 for x, y in zip(direction(a), direction(b), strict=True)))


def one_level(centroids: list[list[float]], d: float) -> list[set[int]]:
    """Return the clusters of clusters that the adjacency of eq 1 joins, each first neighbour nearer than d."""
    num = len(centroids)
    first: list[int | None] = []
    for i in range(num):
        gap, j = min((chord(centroids[i], centroids[j]), j) for j in range(num) if j != i)
        first.append(j if gap < d else None)

    def linked(i: int, j: int) -> bool:
        return first[i] == j or first[j] == i or (first[i] is not None and first[i] == first[j])

    groups: list[set[int]] = []
    left = set(range(num))
    while left:
        group, edge = set(), {min(left)}
        while edge:
            group |= edge
            edge = {j for j in left - group for i in edge if linked(i, j)}
        groups.append(group)
        left -= group
    return groups


def replay(points: list[list[float]], d: float) -> list[list[int]]:
    """Return the labels after every level."""
    members = [{i} for i in range(len(points))]
    levels = []
    while len(members) > 1:
        centroids = [[math.fsum(points[i][k] for i in m) / len(m) for k in range(len(points[0]))] for m in members]
        joined = one_level(centroids, d)
        if len(joined) == len(members):
            break
        members = sorted((set().union(*(members[i] for i in group)) for group in joined), key=min)
        levels.append([next(c for c, m in enumerate(members) if i in m) for i in range(len(points))])
    return levels


def blobs(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(5, 4))
    return np.concatenate([c + 0.35 * rng.normal(size=(n, 4)) for c, n in zip(centres, (9, 6, 4, 2, 1), strict=True)])


@pytest.mark.parametrize("seed", range(4))
def test_every_level_of_finch(seed: int) -> None:
    points = blobs(seed)
    assert [p.tolist() for p in finch(points).partitions] == replay(points.tolist(), math.inf)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("d", [0.2, 0.45, 0.9, 1.2])
def test_c_finch(seed: int, d: float) -> None:
    points = blobs(seed)
    levels = replay(points.tolist(), d)
    assert c_finch(points, d).tolist() == (levels[-1] if levels else list(range(len(points))))


def test_scores_beside_scikit_learn() -> None:
    rng = np.random.default_rng(5)
    truth, found = rng.integers(0, 7, 80), rng.integers(0, 9, 80)
    (_, wrong), (missed, right) = pair_confusion_matrix(truth, found)
    scores = pairwise_scores(truth, found)
    assert scores.precision == pytest.approx(right / (right + wrong))
    assert scores.recall == pytest.approx(right / (right + missed))
    assert normalised_mutual_information(truth, found) == pytest.approx(normalized_mutual_info_score(truth, found))
    shares = [np.mean(truth[found == found[i]] == truth[i]) for i in range(80)]
    assert bcubed_scores(truth, found).precision == pytest.approx(np.mean(shares))
