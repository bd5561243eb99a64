"""Several sums of one cohort, and a mean of them that a few devices cannot carry away.

Under secure aggregation nobody can look for an outlier among devices. A cohort that is dealt into groups has one sum
for each, and outliers among *sums* can be set aside: with a trimmed mean over g groups, floor(g / 4) groups (at least
one) may hold liars without carrying an element beyond what the other groups say; with a median fewer than g / 2. What
that does not do: one liar spoils its whole group's share, liars in more groups than that win, and a lie within the
honest groups' range passes. Each group's sum covers fewer devices, so it tells more of each of them; every group keeps
the devices' own floor. (Sums by group under secure aggregation: So, Guler, Avestimehr 2020; the trimmed mean is Yin et
al. 2018, there over devices.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from mien.contribution import Total
from mien.errors import CohortError
from mien.protocol.ids import DeviceId

GroupMean = Literal["mean", "trimmed_mean", "median"]
TRIMMED_SHARE: Final = 0.25
MIN_ROBUST_GROUPS: Final = 3
"""Fewest groups among which one can be told to lie."""

_BLOCK: Final = 65536


def deal(devices: Iterable[DeviceId], groups: int, seed: int) -> tuple[frozenset[DeviceId], ...]:
    """Return the devices dealt into groups of equal size but for one, in an order that only `seed` settles.

    A device's place depends on its id and the seed alone relative to the others', so that both survive a restart.
    """
    order = sorted(devices, key=lambda device: hashlib.sha256(f"{seed}/{device}".encode()).digest())
    return tuple(frozenset(order[start::groups]) for start in range(groups))


def combine(totals: Sequence[Total], how: GroupMean) -> Total:
    """Return one total for the groups' totals: counts and weights added, other lanes by `how` over the groups' means.

    "mean" is the plain sum. The others take each lane's weighted mean in each group, then the trimmed mean or median
    over groups element by element, all groups alike, and scale it back by the weight of all. Raises CohortError for no
    total, or fewer than 3 groups where liars are to be set aside.
    """
    fewest = 1 if how == "mean" else MIN_ROBUST_GROUPS
    if len(totals) < fewest:
        raise CohortError(f"{len(totals)} groups are left, {fewest} are needed for their {how}")
    merged = totals[0]
    for total in totals[1:]:
        merged = merged.merge(total)
    if how == "mean":
        return merged
    weights = np.array([float(total["weight"][0]) for total in totals])
    weight = float(weights.sum())
    head = merged.layout.slices["weight"].stop
    for start in range(head, len(merged.vector), _BLOCK):
        block = np.stack([total.vector[start : start + _BLOCK] for total in totals]) / weights[:, None]
        merged.vector[start : start + _BLOCK] = weight * _centre(block, how)
    return merged


def _centre(means_GD: NDArray[np.float64], how: GroupMean) -> NDArray[np.float64]:
    if how == "median":
        middle: NDArray[np.float64] = np.median(means_GD, axis=0)
        return middle
    cut = max(1, int(len(means_GD) * TRIMMED_SHARE))
    kept: NDArray[np.float64] = np.sort(means_GD, axis=0)[cut : len(means_GD) - cut].mean(axis=0)
    return kept
