"""The numbers of a gate between two populations, from their moments: whose picture it is, and one threshold for both.

The network is `mien/backbones/gate.py`. Its stage `population` says of whom the released recogniser was made: P and p
bring their pictures to mean 0 and covariance I, and a level, the cosine that one pair of strangers in `LEVEL_FMR`
reaches. From another population's mean and covariance, which are sums, the gate follows in closed form: in these
coordinates the old one is N(0, I), the new one N(nu, S), and the linear discriminant of both (Fisher 1936) has the
weight w = ((I + S) / 2)^(-1) nu and the bias -w'nu (1 / 2 + `CAUTION`). Decision record 0061.

Suffixes of arrays: N pictures, D features of the recogniser.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mien.errors import ConfigError
from mien.evaluation import all_pairs, normalise
from mien.layout import Vector
from mien.methods.spreadout import Matrix

Floats = NDArray[np.float64]

GATE: Final = ("adapter.gate_weight", "adapter.gate_bias", "adapter.level")
"""Tensors of a gated adapter after those of an adapter, in the order of its layout."""
POPULATION: Final = ("population.weight", "population.bias", "population.level")
"""Tensors of the recogniser's own population, which no task changes."""
CLOSED: Final = -30.0
NO_LEVEL: Final = -1.0
LEVEL_FMR: Final = 1e-3
"""False match rate at whose threshold both populations meet: the one that phones ask for unless told otherwise."""
SHRINKAGE: Final = 0.05
"""Share of a multiple of I in the own population's covariance."""
CAUTION: Final = 0.15
"""How far beyond the middle between the two populations a picture counts as undecided, in parts of the way.

Real pictures have longer tails than normal distributions, and LFW's reach further than CelebA's moments foretell.
With 0.06 LFW lost 0.25 points of accuracy, and phones' people 0.4 points of EER against an adapter without a gate; with
0.15 0.06 and 1.0, with 0.21 0.01 and 2.0 (decision record 0061). It was chosen on those very people and draws, so these
figures say what it was chosen for, not what others will see.
"""
OVERLAP: Final = "phones' people are too much like those whom the model was made for"
PHONES_AS_ONE: Final = 10
"""So many phones of a mixture hide another at least as well as one that counts whole, whatever odds they are told."""
LEAST_WEIGHT: Final = 1 / PHONES_AS_ONE
"""What a person of a mixture counts at least: each phone sees to it itself, so that no coordinator gets below it."""
_MOST_ODDS: Final = 700.0
"""Log odds beyond which an exponential is no number of float64."""
WORST_SHARE: Final = 0.05
"""Share of pictures taken for the other population's, by prediction, above which a gate does more harm than good."""


def closed(dim: int) -> Vector:
    """Return the values of `GATE` with which the model decides as the recogniser alone."""
    return np.concatenate([np.zeros(dim), [CLOSED, NO_LEVEL]]).astype(np.float32)


def population_of(
    features_ND: NDArray[np.floating[Any]], labels_N: NDArray[np.int64]
) -> dict[str, NDArray[np.float32]]:
    """Return the tensors of `POPULATION` for pictures of people whom the recogniser was made for.

    Raises ConfigError for no two people, and for pictures that are all alike.
    """
    x_ND, dim = features_ND.astype(np.float64), features_ND.shape[1]
    strangers = all_pairs(normalise(x_ND), labels_N).non_mated
    mean_D, covariance_DD = x_ND.mean(axis=0), np.cov(x_ND.T, bias=True).reshape(dim, dim)
    spread = float(np.trace(covariance_DD)) / dim
    if len(strangers) == 0 or not spread > 0:
        raise ConfigError(
            "the model's own population is told by pictures of different people; name a folder of more of them"
        )
    values_D, vectors_DD = np.linalg.eigh((1 - SHRINKAGE) * covariance_DD + SHRINKAGE * spread * np.eye(dim))
    weight_DD = (vectors_DD * values_D**-0.5) @ vectors_DD.T
    level = min(float(np.quantile(strangers, 1 - LEVEL_FMR)), 0.99)
    found = {"population.level": np.array([level]), "population.weight": weight_DD}
    found["population.bias"] = -weight_DD @ mean_D
    return {name: found[name].astype(np.float32) for name in POPULATION}


def seen(weight_DD: Matrix, bias_D: Floats, mean_D: Floats, covariance_DD: Matrix) -> tuple[Floats, Matrix]:
    """Return a mean and a covariance, given in the features' own units, in the own population's coordinates."""
    return weight_DD @ mean_D + bias_D, weight_DD @ covariance_DD @ weight_DD.T


def discriminant(nu_D: Floats, s_DD: Matrix) -> tuple[Floats, float]:
    """Return the weight w (D,) between N(0, I) and a population of mean nu and covariance S, and w'nu.

    That is their squared distance; halfway between them w'u is half of it.
    """
    w_D: Floats = np.asarray(np.linalg.solve((np.eye(len(nu_D)) + s_DD) / 2, nu_D), np.float64)
    return w_D, float(nu_D @ w_D)


def unmixed(nu_D: Floats, c_DD: Matrix) -> tuple[Floats, Matrix]:
    """Return mean and covariance of the other population, of those of a mixture with N(0, I) in unknown shares.

    A mixture with a share p of N(m, S) has the mean nu = p m and the covariance C = (1 - p) I + p S + (1 - p) p m m'.
    Along nu the two are taken to be as wide as each other, so that the covariance's excess there is that of the means,
    (1 - p) / p |nu|^2, which tells p. Eigenvalues below 0 are 0.
    """
    squared = float(nu_D @ nu_D)
    if not squared > 0:
        return nu_D, c_DD
    excess = max(0.0, float(nu_D @ c_DD @ nu_D) / squared - 1.0)
    share = squared / (squared + excess)
    s_DD = (c_DD - (1 - share) * np.eye(len(nu_D)) - (1 - share) / share * np.outer(nu_D, nu_D)) / share
    values_D, vectors_DD = np.linalg.eigh(s_DD)
    return nu_D / share, (vectors_DD * np.maximum(values_D, 0.0)) @ vectors_DD.T


def responsibility(odds: NDArray[np.floating[Any]], mean_D: Floats) -> float:
    """Return the share, from 0 to 1, in which a person with this mean feature is of the other population.

    `odds` (D + 1,) are a weight and a bias in the feature's units. They are linear, so the mean feature's log odds are
    the mean over the person's pictures: more pictures of one face are no further evidence, for they are alike.
    """
    log_odds = float(odds[:-1].astype(np.float64) @ mean_D) + float(odds[-1])
    return 1.0 / (1.0 + math.exp(-max(-_MOST_ODDS, min(_MOST_ODDS, log_odds))))


def weight_of(odds: NDArray[np.floating[Any]], mean_D: Floats) -> float:
    """Return what a person with this mean feature counts, from `LEAST_WEIGHT` to 1: more, the more likely they are.

    Odds that single somebody out so leave them 1 / (1 + (N - 1) `LEAST_WEIGHT`) of a sum over N people at most.
    """
    return LEAST_WEIGHT + (1.0 - LEAST_WEIGHT) * responsibility(odds, mean_D)


def opened(weight_DD: Matrix, bias_D: Floats, mean_D: Floats, covariance_DD: Matrix, level: float) -> Vector:
    """Return the values of `GATE` for a population of this mean and covariance, in the features' own units.

    `weight_DD` and `bias_D` are the own population's, `level` is the new one's behind its adapter. Raises ConfigError
    where the two are not told apart: a gate between them would take many pictures for the other population's.
    """
    w_D, squared_distance = discriminant(*seen(weight_DD, bias_D, mean_D, covariance_DD))
    wrong = misjudged(math.sqrt(max(0.0, squared_distance)))
    if not wrong <= WORST_SHARE:
        raise ConfigError(
            f"{100 * wrong:.1f} % of pictures would be taken for the other population's, for {OVERLAP}; the model "
            "stays: take one with an adapter alone"
        )
    return np.concatenate([w_D, [-squared_distance * (0.5 + CAUTION), min(level, 0.99)]]).astype(np.float32)


def misjudged(distance: float) -> float:
    """Return the share of pictures on the wrong side between two normal distributions so many deviations apart."""
    return math.erfc(distance / (2 * math.sqrt(2))) / 2
