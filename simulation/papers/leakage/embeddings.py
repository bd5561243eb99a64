"""Leakage of class embeddings, one by one and in a summed second moment.

A class embedding begins as the mean feature of a phone's photos; that is what a task in FedFace's or FedGC's published
form shows the server, and what the attacks here take. Suffixes: N phones, C candidates, D embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from mien.secagg.masks import WordStream
from mien.secagg.quantise import to_signed
from simulation.papers.leakage.scores import Matrix, cosines, linkage

NOISE: Final = (0.0, 1.0, 3.0)
MAX_COHORTS: Final = 8
SPREAD: Final = 0.1
SPREAD_OF_NOISE: Final = 4.0


@dataclass(frozen=True)
class _Shown:
    """The moments of all cohorts as the server sees them, under noise z or behind a pad."""

    name: str
    z: float
    moments: Sequence[Matrix] = field(repr=False)


def measure_revealed(w_ND: Matrix, gallery_CD: Matrix, mean_D: Matrix, rng: np.random.Generator) -> dict[str, float]:
    """Return how well a revealed class embedding finds its person in a gallery of other photos.

    The first N of the C candidates are the phones' people; both sides are centred on the public mean.
    """
    found = linkage(
        cosines(w_ND - mean_D, gallery_CD - mean_D), np.eye(len(w_ND), len(gallery_CD), dtype=np.bool_), rng
    )
    return {f"revealed_{key}": value for key, value in found.items()}


def measure_moments(
    w_ND: Matrix,
    known_CD: Matrix,
    gallery_CD: Matrix,
    public_PD: Matrix,
    sizes: Sequence[int],
    rng: np.random.Generator,
) -> dict[str, float]:
    """Return how well M = sum w w^T over cohorts of each size tells who is in it.

    `known_CD` are templates that equal a phone's w where the person has one, `gallery_CD` those of other photos. With
    noise z, M is shown with Gaussian noise of z times its L2 sensitivity, 1; behind a pad it is uniform words.
    """
    figures: dict[str, float] = {}
    expected_DD = public_PD.T @ public_PD / len(public_PD)
    for size in [size for size in sizes if size <= len(w_ND)]:
        cohorts = [range(start, start + size) for start in range(0, len(w_ND) - size + 1, size)][:MAX_COHORTS]
        member_SC = np.stack([np.isin(np.arange(len(gallery_CD)), cohort) for cohort in cohorts])
        moments = [w_ND[list(cohort)].T @ w_ND[list(cohort)] for cohort in cohorts]
        shown = [_Shown(f"z{z:g}", z, [moment + _noise(len(moment), z, rng) for moment in moments]) for z in NOISE]
        shown.append(_Shown("padded", 0.0, [_padded(moment, rng) for moment in moments]))
        for one in shown:
            for name, templates_CD in (("known", known_CD), ("gallery", gallery_CD)):
                spread = SPREAD + SPREAD_OF_NOISE * one.z
                scores_SC = np.stack([_in_moment(m, size * expected_DD, templates_CD, spread) for m in one.moments])
                found = linkage(scores_SC, member_SC, rng)
                figures |= {f"moment{size}_{one.name}_{name}_{key}": value for key, value in found.items()}
    return figures


def _in_moment(seen_DD: Matrix, expected_DD: Matrix, templates_CD: Matrix, spread: float) -> Matrix:
    """Return how much better a moment explains each template than the moment of as many strangers would, (C,).

    t'(E + sI)^-1 t - t'(M + sI)^-1 t: low residual in what is seen, high in what was expected; `spread` s stands for
    the photos of one person that differ, and for noise.
    """
    values, vectors = np.linalg.eigh(seen_DD)
    positive_DD = (vectors * np.maximum(values, 0.0)) @ vectors.T  # noise makes some eigenvalues negative
    return _residual(expected_DD, templates_CD, spread) - _residual(positive_DD, templates_CD, spread)


def _residual(moment_DD: Matrix, templates_CD: Matrix, spread: float) -> Matrix:
    solved_DC = np.linalg.solve(moment_DD + spread * np.eye(len(moment_DD)), templates_CD.T)
    residual: Matrix = np.einsum("cd,dc->c", templates_CD, solved_DC)
    return residual


def _noise(dim: int, z: float, rng: np.random.Generator) -> Matrix:
    """Return Gaussian noise on the packed upper triangle, whose off-diagonals carry sqrt(2): symmetric, (D, D)."""
    upper = np.triu(rng.normal(size=(dim, dim)), 1) * (z / np.sqrt(2.0))
    noise: Matrix = upper + upper.T + np.diag(z * rng.normal(size=dim))
    return noise


def _padded(moment: Matrix, rng: np.random.Generator) -> Matrix:
    """Return a moment's words under a pad that the server does not know, read as numbers."""
    triangle = np.triu_indices(len(moment))
    words = np.round(moment[triangle] * 2.0**20).astype(np.int64).astype(np.uint32)
    words += WordStream(rng.bytes(32)).take(len(words))
    seen = np.zeros_like(moment)
    seen[triangle] = to_signed(words, 32) * 2.0**-20
    symmetric: Matrix = np.triu(seen, 1).T + seen
    return symmetric
