"""K-fold verification accuracy: each fold is judged by the threshold that the other folds chose.

Legend: P pairs, F folds, T grid thresholds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mien.errors import ConfigError, NonFiniteError, UndefinedMetricError

# Squared distances of unit vectors lie in [0, 4]; 400 thresholds, as the protocol's usual implementations have it.
GRID: Final[NDArray[np.float64]] = np.arange(0, 4, 0.01)


@dataclass(frozen=True)
class FoldAccuracy:
    """Accuracies (F,) and distance thresholds (F,) of the folds, with counts; the mean never hides the spread."""

    accuracies: tuple[float, ...]
    thresholds: tuple[float, ...]
    num_mated: int
    num_non_mated: int
    fold_sizes: tuple[int, ...] = field(repr=False)

    @property
    def mean(self) -> float:
        """Mean of the folds' accuracies, each fold counting once."""
        return math.fsum(self.accuracies) / len(self.accuracies)

    @property
    def std_population(self) -> float:
        """Population standard deviation over folds (divides by F), as face-verification code usually prints."""
        return math.sqrt(math.fsum((a - self.mean) ** 2 for a in self.accuracies) / len(self.accuracies))

    @property
    def standard_error(self) -> float:
        """Standard error of the mean: sample standard deviation / sqrt(F), as the LFW result pages print."""
        folds = len(self.accuracies)
        if folds < 2:
            raise UndefinedMetricError("one fold has no standard error; use at least two")
        return self.std_population * math.sqrt(folds / (folds - 1)) / math.sqrt(folds)

    @property
    def mean_threshold(self) -> float:
        """Mean of the folds' distance thresholds."""
        return math.fsum(self.thresholds) / len(self.thresholds)


def best_threshold(distances: NDArray[np.float64], mated: NDArray[np.bool_]) -> float:
    """Return the first grid threshold with the highest accuracy on these pairs (accept iff distance < threshold)."""
    _check(distances, mated)
    if distances.size == 0:
        raise UndefinedMetricError("there are no pairs to choose a threshold on; give more")
    return float(GRID[int(np.argmax(_num_correct(distances, mated)))])


def accuracy_at(distances: NDArray[np.float64], mated: NDArray[np.bool_], threshold: float) -> float:
    """Return the share of pairs decided rightly at a distance threshold (accept iff distance < threshold)."""
    _check(distances, mated)
    if distances.size == 0:
        raise UndefinedMetricError("there are no pairs to measure accuracy on; give more")
    return float(((distances < threshold) == mated).mean())


def kfold_accuracy(distances: NDArray[np.float64], mated: NDArray[np.bool_], folds: NDArray[np.int64]) -> FoldAccuracy:
    """Return the accuracy of each fold at the threshold that is best on all the others.

    `distances` (P,) are squared Euclidean distances of unit embeddings, `folds` (P,) numbers each pair's fold from 0.
    The threshold is the first of arange(0, 4, 0.01) with the highest accuracy on the other folds; accept iff
    distance < threshold. Raises UndefinedMetricError for an empty fold or a single one, NonFiniteError for NaN.
    """
    _check(distances, mated)
    if folds.shape != distances.shape or folds.min(initial=0) < 0:
        raise ConfigError("folds must number the fold of every pair from 0")
    num_folds = int(folds.max(initial=-1)) + 1
    sizes = np.bincount(folds, minlength=num_folds)
    if num_folds < 2 or (sizes == 0).any():
        raise UndefinedMetricError("k-fold accuracy needs at least two folds, each with at least one pair")
    correct_FT = np.stack([_num_correct(distances[folds == f], mated[folds == f]) for f in range(num_folds)])
    chosen = np.argmax(correct_FT.sum(axis=0) - correct_FT, axis=1)
    accuracies = correct_FT[np.arange(num_folds), chosen] / sizes
    return FoldAccuracy(
        tuple(map(float, accuracies)),
        tuple(map(float, GRID[chosen])),
        int(mated.sum()),
        int((~mated).sum()),
        tuple(map(int, sizes)),
    )


def _num_correct(distances: NDArray[np.float64], mated: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the number of right decisions at each grid threshold, (T,)."""
    accepted_PT = distances[:, None] < GRID[None, :]
    return np.asarray((accepted_PT == mated[:, None]).sum(axis=0), dtype=np.int64)


def _check(distances: NDArray[np.float64], mated: NDArray[np.bool_]) -> None:
    if distances.ndim != 1 or distances.shape != mated.shape or mated.dtype != np.bool_:
        raise ConfigError("give one distance and one mated flag (bool) for each pair")
    if not np.isfinite(distances).all():
        raise NonFiniteError("a distance is NaN or infinite; count failed samples instead of scoring them")
