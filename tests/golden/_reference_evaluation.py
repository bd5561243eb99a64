"""Slow reference for mien.evaluation: plain loops and fractions, written from the definitions, nothing shared."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction


def fmr(non_mated: Sequence[float], threshold: float) -> Fraction:
    accepted = 0
    for score in non_mated:
        if score >= threshold:
            accepted += 1
    return Fraction(accepted, len(non_mated))


def fnmr(mated: Sequence[float], threshold: float) -> Fraction:
    rejected = 0
    for score in mated:
        if not score >= threshold:
            rejected += 1
    return Fraction(rejected, len(mated))


def threshold_at_fmr(mated: Sequence[float], non_mated: Sequence[float], target: Fraction) -> float | None:
    """Smallest observed score with FMR <= target, None if no score has it."""
    best = None
    for score in list(mated) + list(non_mated):
        if fmr(non_mated, score) <= target and (best is None or score < best):
            best = score
    return best


def eer(mated: Sequence[float], non_mated: Sequence[float]) -> Fraction:
    """Crossing of the polyline through (FMR, FNMR) at every observed score and the reject-all end with FMR = FNMR."""
    corners = [(fmr(non_mated, t), fnmr(mated, t)) for t in sorted(set(mated) | set(non_mated))]
    corners.append((Fraction(0), Fraction(1)))
    for (f0, m0), (f1, m1) in itertools.pairwise(corners):
        gap0, gap1 = f0 - m0, f1 - m1
        if gap0 > 0 >= gap1:
            share = gap0 / (gap0 - gap1)
            return f0 + share * (f1 - f0)
    raise AssertionError("FMR and FNMR always cross")


def kfold(distances: Sequence[float], mated: Sequence[bool], folds: Sequence[int]) -> tuple[list[float], list[float]]:
    """Accuracy and threshold of each fold; the threshold is the first of 0.00, 0.01 .. 3.99 best on the others."""
    grid = [0.01 * i for i in range(400)]
    accuracies, thresholds = [], []
    for fold in sorted(set(folds)):
        best_count, best_threshold = -1, 0.0
        for threshold in grid:
            count = 0
            for d, same, f in zip(distances, mated, folds, strict=True):
                if f != fold and (d < threshold) == same:
                    count += 1
            if count > best_count:
                best_count, best_threshold = count, threshold
        inside = [(d, same) for d, same, f in zip(distances, mated, folds, strict=True) if f == fold]
        accuracies.append(sum((d < best_threshold) == same for d, same in inside) / len(inside))
        thresholds.append(best_threshold)
    return accuracies, thresholds


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    dot = math.fsum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(math.fsum(x * x for x in a)) / math.sqrt(math.fsum(y * y for y in b))


def search(
    scores: Sequence[Sequence[float]], probe_labels: Sequence[str], gallery_labels: Sequence[str]
) -> tuple[list[tuple[float, int]], list[float]]:
    """((mate score, rank) of mated probes, best score of non-mated probes) from a probe x template score matrix."""
    mated, tops = [], []
    for row, label in zip(scores, probe_labels, strict=True):
        best: dict[str, float] = {}
        for score, owner in zip(row, gallery_labels, strict=True):
            best[owner] = max(score, best.get(owner, -2.0))
        if label in best:
            others_at_least = [s for owner, s in best.items() if owner != label and s >= best[label]]
            mated.append((best[label], 1 + len(others_at_least)))
        else:
            tops.append(max(best.values()))
    return mated, tops
