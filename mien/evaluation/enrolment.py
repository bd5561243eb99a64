"""Error rates over the number of pictures that a template is made of: the number that an enrolment needs.

The same probes are compared for every number, so that rows differ by their templates alone. Legend: N images, D
dimensions, P people.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mien.errors import ConfigError
from mien.evaluation.scores import Comparisons, Labels, normalise, rows_of_each
from mien.evaluation.verification import OperatingPoint, det_curve, equal_error_rate, point_at_fmr


@dataclass(frozen=True)
class EnrolmentPoint:
    """Error rates with templates of `num_images` pictures each: FNMR at the target FMR, and the EER."""

    num_images: int
    num_people: int
    at_fmr: OperatingPoint
    eer: float


def enrolment_sweep(
    embeddings: ArrayLike, labels: Labels, counts: Sequence[int], *, target_fmr: float = 1e-3, seed: int = 0
) -> tuple[EnrolmentPoint, ...]:
    """Return a point for each number of pictures, least first; `embeddings` (N, D) have the identities `labels` (N,).

    Everybody with more pictures than the highest number takes part. Their pictures are put in an order by chance; the
    first ones enrol, those after the highest number are probes, each compared with every template. Raises ConfigError
    where fewer than two people have enough pictures, UndefinedMetricError where the FMR cannot be measured.
    """
    unit_ND, label_N = normalise(embeddings), np.asarray(labels)
    numbers = sorted(set(counts))
    if not numbers or numbers[0] < 1:
        raise ConfigError(f"numbers of pictures are {list(counts)}; name at least one, each at least 1")
    order = np.random.default_rng(seed).permutation(len(label_N))
    rows = [order[of_one] for of_one in rows_of_each(label_N[order])]
    enough = [of_one for of_one in rows if len(of_one) > numbers[-1]]
    if len(enough) < 2:
        raise ConfigError(
            f"{len(enough)} people have more than {numbers[-1]} pictures; give a larger set, or ask for fewer"
        )
    probes = np.concatenate([of_one[numbers[-1] :] for of_one in enough])
    owner = np.repeat(np.arange(len(enough)), [len(of_one) - numbers[-1] for of_one in enough])
    return tuple(_point(unit_ND, enough, unit_ND[probes], owner, number, target_fmr) for number in numbers)


def _point(
    unit_ND: NDArray[np.float64],
    people: Sequence[NDArray[np.int64]],
    probe_MD: NDArray[np.float64],
    owner_M: NDArray[np.int64],
    number: int,
    target_fmr: float,
) -> EnrolmentPoint:
    template_PD = normalise(np.stack([unit_ND[of_one[:number]].mean(axis=0) for of_one in people]))
    score_MP = probe_MD @ template_PD.T
    own_MP = owner_M[:, None] == np.arange(len(people))[None]
    curve = det_curve(Comparisons(score_MP[own_MP], score_MP[~own_MP]))
    return EnrolmentPoint(number, len(people), point_at_fmr(curve, target_fmr), equal_error_rate(curve).value)
