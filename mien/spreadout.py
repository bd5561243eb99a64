"""Spread-out: class vectors that lie too near each other are pushed apart.

Class vectors have length 1 and their similarity is the cosine, so that a distance margin v on d = 1 - cos is the
similarity margin s = 1 - v. Suffixes of arrays: C and K classes, D embedding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from mien.errors import ConfigError, NonFiniteError
from mien.layout import Vector

Reduction = Literal["sum", "mean"]
Matrix = NDArray[np.float64]

CHUNK_ROWS: Final = 512


@dataclass(frozen=True)
class SpreadOutSpec:
    """How class vectors are pushed apart: `steps` steps of momentum SGD on the hinge over pairs, all at length 1.

    `margin` is the cosine from which a pair counts as too near, `lr` the step's size, and `reduction` says whether
    the hinge is summed over ordered pairs (FedFace eq 9) or averaged (FedFace's released code).
    """

    margin: float = 0.3
    lr: float = 1.0
    steps: int = 10
    momentum: float = 0.9
    reduction: Reduction = "mean"

    def __post_init__(self) -> None:
        if not -1.0 <= self.margin < 1.0:
            raise ConfigError(f"spread_out.margin is {self.margin}; it is a cosine and must lie in [-1, 1)")
        if not 0 <= self.lr < math.inf or self.steps < 1 or not 0 <= self.momentum < 1:
            raise ConfigError("spread_out needs lr >= 0, steps >= 1 and momentum in [0, 1)")


PAPER: Final = SpreadOutSpec(margin=0.3, lr=10.0, steps=1, momentum=0.0, reduction="sum")
"""Algorithm 1, line 10, with lambda = 10; v is not printed (0.7 is the released code's 0.3 as a cosine)."""

RELEASED_CODE: Final = SpreadOutSpec(margin=0.3, lr=0.01, steps=10, momentum=0.9, reduction="mean")
"""What FedFace's released code does: ten steps of momentum SGD on the mean over pairs."""


def normalise(vectors: NDArray[np.floating]) -> Matrix:
    """Return vectors (..., D) at length 1, in float64; raises NonFiniteError for one of length 0, NaN or infinity."""
    vectors = np.asarray(vectors, np.float64)
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    if not np.isfinite(norms).all() or (norms == 0).any():
        raise NonFiniteError("a class vector has no direction (zero, NaN or infinity); leave the round, check the data")
    unit: Matrix = vectors / norms
    return unit


def hinge_spread_out(w_CD: Matrix, margin: float, reduction: Reduction = "sum") -> tuple[float, Matrix]:
    """Return sum_c sum_(c' != c) max(0, w_c.w_c' - margin)^2 and its gradient (C, D).

    Each unordered pair counts twice, as in the sum; "mean" divides both by C (C - 1). The gradient is that of the inner
    product, not of the cosine: the caller renormalises. Memory is O(CHUNK_ROWS C). Source: FedFace eq 9.
    """
    num_classes = len(w_CD)
    loss, gradient_CD = 0.0, np.zeros_like(w_CD)
    for start in range(0, num_classes, CHUNK_ROWS):
        rows = slice(start, start + CHUNK_ROWS)
        excess_RC = np.maximum(w_CD[rows] @ w_CD.T - margin, 0.0)
        np.fill_diagonal(excess_RC[:, start:], 0.0)
        loss += float((excess_RC**2).sum())
        gradient_CD[rows] = 4.0 * excess_RC @ w_CD
    pairs = num_classes * (num_classes - 1)
    if reduction == "mean" and pairs:
        return loss / pairs, gradient_CD / pairs
    return loss, gradient_CD


def spread_out(w_CD: NDArray[np.floating], spec: SpreadOutSpec) -> Vector:
    """Return the class vectors (C, D) after `spec`'s steps, renormalised after each: needs all of them in clear.

    Source: FedFace Algorithm 1, line 10.
    """
    vectors_CD = normalise(w_CD)
    velocity_CD = np.zeros_like(vectors_CD)
    for _ in range(spec.steps):
        _, gradient_CD = hinge_spread_out(vectors_CD, spec.margin, spec.reduction)
        velocity_CD = spec.momentum * velocity_CD + gradient_CD
        vectors_CD = normalise(vectors_CD - spec.lr * velocity_CD)
    return vectors_CD.astype(np.float32)
