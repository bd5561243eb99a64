"""Choice of the form of an adapter without anybody's pictures: separation predicted from the moments of other people.

The two covariances of a cohort that a map was not made of are those of two normal distributions (Prince, Elder,
"Probabilistic linear discriminant analysis for inferences about identity", 2007): person's means of B around mu, their
pictures of W around the mean. Pairs of pictures are drawn of them, seen through the map and compared by cosine, as
phones do; the equal error rate of these scores is predicted. What phones' pictures are is not normal, so the rates are
no forecast; which of two maps separates better is what they are for. Decision record 0053 has what was measured.

Suffixes of arrays: N drawn people, D features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mien.evaluation import Comparisons, det_curve, equal_error_rate, normalise

Floats = NDArray[np.float64]

NUM_DRAWN: Final = 20_000
"""Drawn people, of two pictures each: an error rate of 1 % is known to 0.1 points."""
MARGIN: Final = 0.95
"""Share of the model's own predicted error rate that a form has to stay below to be chosen."""
OWN: Final = "own"
"""Name of the task's model as it is among the candidates."""
_SEED: Final = 53
_ROLLS: Final = 10
"""Comparisons of each drawn picture with another person's: at a rate of 1e-3 200 of them are false matches."""


def drawn_pairs(mean_D: Floats, within_DD: Floats, between_DD: Floats) -> tuple[Floats, Floats]:
    """Return two pictures' features (N, D) of each of `NUM_DRAWN` people; the same moments give the same."""
    rng, shape = np.random.default_rng(_SEED), (NUM_DRAWN, len(mean_D))
    person_ND = mean_D + rng.standard_normal(shape) @ _root(between_DD)
    within_root_DD = _root(within_DD)
    first, second = (person_ND + rng.standard_normal(shape) @ within_root_DD for _ in range(2))
    return first, second


def _root(covariance_DD: Floats) -> Floats:
    """Return the root of a covariance; directions in which few people leave none, or less, have none."""
    values_D, vectors_DD = np.linalg.eigh(covariance_DD)
    root: Floats = (vectors_DD * np.sqrt(np.maximum(values_D, 0.0))) @ vectors_DD.T
    return root


def predicted_eer(pairs: tuple[Floats, Floats], weight_DD: Floats, bias_D: Floats) -> float:
    """Return the equal error rate of drawn pairs' cosines behind an affine map, one person's against two people's."""
    first, second = (normalise(each @ weight_DD.T + bias_D) for each in pairs)
    mated, non_mated = ((first * other).sum(axis=1) for other in (second, np.roll(second, 1, axis=0)))
    return equal_error_rate(det_curve(Comparisons(mated, non_mated))).value


def predicted_level(pairs: tuple[Floats, Floats], weight_DD: Floats, bias_D: Floats, fmr: float) -> float:
    """Return the cosine that a share `fmr` of two people's drawn pictures reaches behind an affine map."""
    first, second = (normalise(each @ weight_DD.T + bias_D) for each in pairs)
    non_mated = np.concatenate([(first * np.roll(second, by, axis=0)).sum(axis=1) for by in range(1, _ROLLS + 1)])
    return float(np.quantile(non_mated, 1 - fmr))


def best_of(predicted: Mapping[str, float]) -> str:
    """Return the candidate with the least predicted error; `OWN` unless another is clearly better than that."""
    name = min(predicted, key=lambda each: (predicted[each], each))
    return name if predicted[name] < MARGIN * predicted[OWN] else OWN
