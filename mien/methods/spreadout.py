"""Spread-out: class vectors that lie too near each other are pushed apart.

Class vectors have length 1 and their similarity is the cosine, so that a distance margin v on d = 1 - cos is the
similarity margin s = 1 - v. Suffixes of arrays: C and K classes, D embedding, P = D (D + 1) / 2 packed elements.

The exact forms (`spread_out`, `softmax_regulariser`, `cosine_regulariser`) need all class vectors in clear. The private
ones are steps that a device takes by itself, on its own vectors: away from public people (`push_away`), or against the
second moment of a cohort's vectors (`moment_step`), of which a server needs only the sum.
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
Bools = NDArray[np.bool_]

CHUNK_ROWS: Final = 512


@dataclass(frozen=True)
class SpreadOutSpec:
    """Repulsion of class vectors: `steps` steps of momentum SGD on the hinge over pairs, all at length 1.

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
"""Step of FedFace's released code: ten steps of momentum SGD on the mean over pairs."""


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


# FedGC's regularisers: exact, over the class vectors of several clients.


def softmax_regulariser(
    w_CD: Matrix, anchor_AD: Matrix, exclusive_AC: Bools, *, scale: float = 1.0, margin: float = 0.0
) -> tuple[float, Matrix]:
    """Return FedGC's softmax regulariser over anchors w'_a, and its gradient (C, D) by the vectors w_c.

    Each anchor costs -log(e^(o_a) / (e^(o_a) + sum_c e^(s w_c.w'_a))) over the classes c that `exclusive_AC` lets it be
    pushed from: those of other clients. o_a = s (|w'_a|^2 - m) is the anchor's own logit. Anchors carry no gradient;
    s = 1 and m = 0 are eq 5 as it is printed. Memory is O(CHUNK_ROWS C). Source: FedGC eq 5.
    """
    loss, gradient_CD = 0.0, np.zeros_like(w_CD)
    for start in range(0, len(anchor_AD), CHUNK_ROWS):
        rows = slice(start, start + CHUNK_ROWS)
        anchor_RD = anchor_AD[rows]
        own_R1 = scale * ((anchor_RD**2).sum(axis=1, keepdims=True) - margin)
        logits_RC = np.where(exclusive_AC[rows], scale * anchor_RD @ w_CD.T, -np.inf)
        top_R1 = np.maximum(own_R1, logits_RC.max(axis=1, keepdims=True, initial=-np.inf))
        weight_RC = np.exp(logits_RC - top_R1)
        total_R1 = np.exp(own_R1 - top_R1) + weight_RC.sum(axis=1, keepdims=True)
        loss += float((np.log(total_R1) + top_R1 - own_R1).sum())
        gradient_CD += scale * (weight_RC / total_R1).T @ anchor_RD
    return loss, gradient_CD


def cosine_regulariser(w_CD: Matrix, anchor_AD: Matrix, exclusive_AC: Bools) -> tuple[float, Matrix]:
    """Return sum_a sum_c w_c.w'_a over exclusive pairs, and its gradient (C, D) by w_c; anchors carry none.

    Source: FedGC's ablation "Cosine v.s. Softmax Regularizer" (FedCos).
    """
    mask_AC = exclusive_AC.astype(np.float64)
    return float((mask_AC * (anchor_AD @ w_CD.T)).sum()), mask_AC.T @ anchor_AD


def moment_regulariser(
    w_KD: Matrix, num_others: float, mean_D: Matrix, covariance_DD: Matrix, *, scale: float = 1.0, margin: float = 0.0
) -> tuple[float, Matrix]:
    """Return FedGC's softmax regulariser against others who are known by two moments, and its gradient (K, D) by w.

    `num_others` vectors that are about Gaussian with `mean_D` mu and `covariance_DD` B, so that the sum of e^(s w.w_j)
    over them is about n e^(s w.mu + s^2/2 w'Bw). Each own vector costs -log(e^(o_k) / (e^(o_k) + that)), where its own
    logit o_k = s (|w_k|^2 - m) carries no gradient. Eq 5 weighs the push of a pair by the normaliser of the vector that
    pushes, this by that of the one that is pushed. Source: FedGC eq 5; the moments are this project's.
    """
    own_K = scale * ((w_KD**2).sum(axis=1) - margin)
    spread_KD = w_KD @ covariance_DD
    others_K = scale * w_KD @ mean_D + scale**2 / 2 * (spread_KD * w_KD).sum(axis=1) + math.log(num_others) - own_K
    share_K1 = np.exp(-np.logaddexp(0.0, -others_K))[:, None]
    return float(np.logaddexp(0.0, others_K).sum()), scale * share_K1 * (mean_D + scale * spread_KD)


# Private forms: what a device does with public people.


def push_away(w_KD: NDArray[np.floating], others_CD: NDArray[np.floating], spec: SpreadOutSpec) -> Vector:
    """Return a device's class vectors (K, D) after `spec`'s steps on the hinge over pairs of an own and another vector.

    The others, public people's, stay where they are. Each ordered pair counts once; "mean" divides by their number.
    """
    vectors_KD, fixed_CD = normalise(w_KD), normalise(others_CD)
    share = 1.0 / max(1, len(fixed_CD)) if spec.reduction == "mean" else 1.0
    velocity_KD = np.zeros_like(vectors_KD)
    for _ in range(spec.steps):
        excess_KC = np.maximum(vectors_KD @ fixed_CD.T - spec.margin, 0.0)
        velocity_KD = spec.momentum * velocity_KD + 2.0 * share * excess_KC @ fixed_CD
        vectors_KD = normalise(vectors_KD - spec.lr * velocity_KD)
    return vectors_KD.astype(np.float32)


# Private forms: the second moment of a cohort's class vectors, of which only the sum is needed.


@dataclass(frozen=True)
class MomentSpec:
    """Use of the cohort's second moment M = sum w w^T; `every` is the rounds between two sums of it, 0 is never.

    A device takes `steps` steps of size `lr` against the mean moment of the others. `noise` is the standard deviation z
    of the noise in an opened sum, in multiples of a device's largest contribution; eigenvalues below its edge are
    taken for noise. `emulate_noise` has a simulated server add it, from the task's seed: that protects nobody.
    """

    every: int = 0
    lr: float = 1.0
    steps: int = 2
    noise: float = 0.0
    emulate_noise: bool = False

    def __post_init__(self) -> None:
        if self.every < 0 or self.steps < 1:
            raise ConfigError("options.moment needs every >= 0 (rounds between two sums, 0: off) and steps >= 1")
        if not (0 <= self.lr < math.inf and 0 <= self.noise < math.inf):
            raise ConfigError("options.moment needs a finite lr >= 0 and noise >= 0")

    @property
    def is_on(self) -> bool:
        """True if devices add up their second moments."""
        return self.every > 0


def packed_size(dim: int) -> int:
    """Return P = D (D + 1) / 2, the elements of a packed symmetric matrix."""
    return dim * (dim + 1) // 2


def pack_symmetric(matrix_DD: Matrix) -> Matrix:
    """Return the upper triangle (P,) of a symmetric matrix, row by row, elements off the diagonal times sqrt(2).

    So the packed vector's length is the matrix's Frobenius norm.
    """
    row, column = np.triu_indices(len(matrix_DD))
    packed: Matrix = matrix_DD[row, column] * np.where(row == column, 1.0, math.sqrt(2.0))
    return packed


def unpack_symmetric(packed: NDArray[np.floating], dim: int) -> Matrix:
    """Return the symmetric matrix (D, D) of a packed vector (P,); the inverse of `pack_symmetric`."""
    if packed.shape != (packed_size(dim),):
        raise ConfigError(f"a packed moment of {dim} dimensions has {packed_size(dim)} elements, not {packed.shape}")
    row, column = np.triu_indices(dim)
    matrix_DD = np.zeros((dim, dim))
    matrix_DD[row, column] = packed / np.where(row == column, 1.0, math.sqrt(2.0))
    matrix_DD[column, row] = matrix_DD[row, column]
    return matrix_DD


def device_moment(w_KD: NDArray[np.floating]) -> Vector:
    """Return a device's addend (P,): the mean of w w^T over its identities (zeros for none), packed, at most 1 long.

    One device changes a sum of these by at most 1 in L2 norm, however many identities it holds.
    """
    vectors_KD = normalise(w_KD)
    return pack_symmetric(vectors_KD.T @ vectors_KD / max(1, len(vectors_KD))).astype(np.float32)


def others_moment(total: NDArray[np.floating], own: NDArray[np.floating] | None, num_devices: int, dim: int) -> Matrix:
    """Return the mean moment (D, D) of the other devices: the opened sum without what this device added to it.

    `own` is the addend as it was sent, None for a device that was not in the sum; of nobody else the mean is zero.
    """
    rest = np.asarray(total, np.float64)
    if own is not None:
        rest, num_devices = rest - own, num_devices - 1
    return unpack_symmetric(rest, dim) / max(1, num_devices)


def shrink_noise(moment_DD: Matrix, deviation: float) -> Matrix:
    """Return a noisy moment with its eigenvalues soft-thresholded at the edge of the noise, deviation sqrt(2 D).

    Packed noise of standard deviation sigma makes a symmetric matrix whose eigenvalues reach sigma sqrt(2 D) (the
    semicircle law; elements off the diagonal have variance sigma^2 / 2). What lies below is taken for noise.
    """
    if deviation == 0:
        return moment_DD
    value_D, vector_DD = np.linalg.eigh(moment_DD)
    kept_D = np.maximum(value_D - deviation * math.sqrt(2.0 * len(value_D)), 0.0)
    shrunk_DD: Matrix = (vector_DD * kept_D) @ vector_DD.T
    return shrunk_DD


def moment_step(w_KD: NDArray[np.floating], moment_DD: Matrix, *, lr: float, steps: int) -> Vector:
    """Return class vectors (K, D) after `steps` of w <- w - lr M w, renormalised after each.

    That is descent on w^T M w / 2, half the mean squared cosine with the others. lr is cut to 0.9 / (largest
    eigenvalue): at 1 a step takes the commonest direction away, which may be all there is; beyond, it turns it around.
    """
    vectors_KD = normalise(w_KD)
    largest = float(np.linalg.eigvalsh(moment_DD)[-1])
    if largest <= 0:
        return vectors_KD.astype(np.float32)
    rate = min(lr, 0.9 / largest)
    for _ in range(steps):
        vectors_KD = normalise(vectors_KD - rate * vectors_KD @ moment_DD)
    return vectors_KD.astype(np.float32)
