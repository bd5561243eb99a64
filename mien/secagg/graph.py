"""Neighbourhood graphs: random k-regular ones, and the k and t that are safe for a cohort of n.

Devices share masks and shares with k neighbours only (Bell et al., CCS 2020). The graph follows from R, the hash of
roster and configuration, so the server cannot choose it except by trying rosters: 2^x tries cost x bits of `sigma`.
Up to 97 devices everybody is everybody's neighbour and nothing can be tried.

With c corrupt neighbours of k, a server that lies to the others about one device collects h1 + c shares of one secret
and h2 + c of the other, h1 + h2 <= k - c. Both reach t only if 2 t <= k + c. The malicious profile therefore needs
c < 2 t - k; the honest-but-curious one, whose server does not lie, c < t.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Final

from mien.errors import CohortError, ConfigError
from mien.secagg.masks import WordStream

MAX_NEIGHBOURS: Final = 254
MAX_DEVICES: Final = 5000
SIGMA: Final = 40.0
"""A safety bound holds except with probability 2^-SIGMA."""
CORRUPT: Final = 0.1
"""The share of a cohort that may work together with the server."""


class Profile(enum.IntEnum):
    """Threat model of the server; one byte of the configuration, named in task, device log and dashboard."""

    MALICIOUS_SERVER = 1
    HONEST_BUT_CURIOUS = 2

    @property
    def has_consistency_round(self) -> bool:
        """True if devices prove to one another that they were told of the same survivors."""
        return self is Profile.MALICIOUS_SERVER


@dataclass(frozen=True)
class Neighbourhood:
    """Number of a device's neighbours (k), and of their shares that give a secret (t)."""

    k: int
    t: int


# (largest n, k, t): the fewest neighbours, and their lowest threshold, that keep the largest n of each row safe
# (CORRUPT, SIGMA) and its rounds alive, except with probability 2^-20, when a tenth of the cohort vanishes.
_MALICIOUS_SPARSE: Final = ((1000, 96, 67), (5000, 116, 81))
_CURIOUS_SPARSE: Final = ((1000, 46, 26), (5000, 52, 30))
_MALICIOUS_COMPLETE_MAX: Final = 97
_CURIOUS_COMPLETE_MAX: Final = 47


def default_neighbourhood(profile: Profile, n: int) -> Neighbourhood:
    """Return k and t of a profile for a roster of n; raises CohortError below 3 devices, ConfigError above 5000."""
    if n < 3:
        raise CohortError(f"{n} devices cannot hide one another; wait until at least 3 take part")
    malicious = profile is Profile.MALICIOUS_SERVER
    if n <= (_MALICIOUS_COMPLETE_MAX if malicious else _CURIOUS_COMPLETE_MAX):
        return Neighbourhood(n - 1, complete_threshold(profile, n))
    for largest, k, t in _MALICIOUS_SPARSE if malicious else _CURIOUS_SPARSE:
        if n <= largest:
            return Neighbourhood(k, t)
    raise ConfigError(f"a cohort of {n} is too large for one sum; plan at most {MAX_DEVICES}")


def complete_threshold(profile: Profile, n: int) -> int:
    """Return t where everybody is everybody's neighbour: 2 n / 3 rounded up, or more than half of k."""
    return -(-2 * n // 3) if profile is Profile.MALICIOUS_SERVER else (n - 1) // 2 + 1


def resolve(profile: Profile, n: int, k: int, t: int) -> Neighbourhood:
    """Return k and t for a roster of n where the configuration asks for `k`, `t` (0, 0: the profile's own).

    A `k` that reaches everybody means the complete graph with the profile's threshold, or `t` if that is higher.
    Raises CohortError where the roster is too small for its threshold.
    """
    if k == 0:
        return default_neighbourhood(profile, n)
    if k < n - 1:
        return Neighbourhood(k, t)
    threshold = max(t, complete_threshold(profile, n))
    if n < 3 or threshold > n - 1:
        raise CohortError(f"{n} devices cannot give {threshold} shares of each secret; nothing was released")
    return Neighbourhood(n - 1, threshold)


def check_neighbourhood(
    profile: Profile, n: int, hood: Neighbourhood, *, corrupt: float = CORRUPT, sigma: float = SIGMA
) -> None:
    """Raise ConfigError unless k and t keep `corrupt` times n devices from learning one device's input.

    The profile's own values pass; others are bounded by hypergeometric tails.
    """
    if n >= 3 and hood == default_neighbourhood(profile, n) and corrupt <= CORRUPT and sigma <= SIGMA:
        return
    is_complete = hood.k == n - 1
    possible = 1 <= hood.t <= hood.k <= min(n - 1, MAX_NEIGHBOURS) and (is_complete or hood.k % 2 == 0)
    if not possible or 2 * hood.t <= hood.k or (is_complete and hood.t < complete_threshold(profile, n)):
        raise ConfigError(f"{hood.k} neighbours and threshold {hood.t} are not safe for {n} devices; leave both at 0")
    if log2_exposure(profile, n, hood, corrupt) > -sigma:
        raise ConfigError(
            f"{hood.k} neighbours and threshold {hood.t} do not protect {n} devices of which {corrupt:.0%} may help "
            "the server; raise both, or leave both at 0"
        )


# Bounds


def log2_exposure(profile: Profile, n: int, hood: Neighbourhood, corrupt: float) -> float:
    """Return log2 of a bound on the chance that some device has too many corrupt neighbours (union over devices)."""
    least = 2 * hood.t - hood.k if profile is Profile.MALICIOUS_SERVER else hood.t
    return math.log2(n) + log2_tail(n - 1, int(corrupt * n), hood.k, least, hood.k)


@cache
def log2_tail(population: int, marked: int, drawn: int, low: int, high: int) -> float:
    """Return log2 P[low <= X <= high], X the marked ones among `drawn` of `population`; exact integer sums."""
    low, high = max(low, 0), min(high, drawn, marked)
    ways = sum(math.comb(marked, i) * math.comb(population - marked, drawn - i) for i in range(low, high + 1))
    return math.log2(ways) - math.log2(math.comb(population, drawn)) if ways else -math.inf


# The graph itself


def permutation(seed: bytes, n: int) -> list[int]:
    """Return 0..n-1 shuffled by the words of `seed`: Fisher-Yates from the end, words beyond a multiple rejected."""
    order = list(range(n))
    stream = WordStream(seed)
    for last in range(n - 1, 0, -1):
        size = last + 1
        limit = (1 << 32) // size * size
        while (word := int(stream.take(1)[0])) >= limit:
            pass
        order[last], order[word % size] = order[word % size], order[last]
    return order


@dataclass(frozen=True)
class Graph:
    """A graph over roster indices 0..n-1: complete, or each next to k / 2 on either side of a shuffled ring."""

    n: int
    k: int
    seed: bytes

    @cached_property
    def _ring(self) -> tuple[list[int], list[int]]:
        order = permutation(self.seed, self.n)
        position = [0] * self.n
        for place, index in enumerate(order):
            position[index] = place
        return order, position

    @cached_property
    def _known(self) -> dict[int, tuple[int, ...]]:
        return {}

    def neighbours(self, index: int) -> tuple[int, ...]:
        """Return the neighbours of a member, ascending (which is the order of their ids)."""
        if index not in self._known:
            self._known[index] = self._find_neighbours(index)
        return self._known[index]

    def _find_neighbours(self, index: int) -> tuple[int, ...]:
        if self.k == self.n - 1:
            return (*range(index), *range(index + 1, self.n))
        order, position = self._ring
        place, half = position[index], self.k // 2
        steps = [*range(-half, 0), *range(1, half + 1)]
        return tuple(sorted(order[(place + step) % self.n] for step in steps))

    def share_index(self, owner: int, holder: int) -> int:
        """Return x of the share of `owner` that `holder` has: 1 + its place among the owner's neighbours."""
        neighbours = self.neighbours(owner)
        place = bisect_left(neighbours, holder)
        if place == len(neighbours) or neighbours[place] != holder:
            raise ConfigError(f"members {owner} and {holder} are no neighbours; ask for a neighbour's share")
        return place + 1
