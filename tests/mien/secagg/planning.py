"""Derivation of the profiles' neighbourhoods: the fewest neighbours that keep a cohort safe and its rounds alive."""

from __future__ import annotations

import math
from typing import Final

from mien.errors import ConfigError
from mien.secagg.graph import (
    CORRUPT,
    MAX_NEIGHBOURS,
    SIGMA,
    Neighbourhood,
    Profile,
    log2_exposure,
    log2_tail,
)

ETA: Final = 20.0
"""A round survives its planned drop-outs except with probability 2^-ETA."""
DROPOUT: Final = 0.1
"""The share of a cohort that may vanish."""


def log2_cut(n: int, k: int, corrupt: float, dropout: float) -> float:
    """Return log2 of a bound on the chance that k / 2 devices in a row of the ring are corrupt or gone."""
    return math.log2(n) + k / 2 * math.log2(max(corrupt + dropout, 1e-9)) if k < n - 1 else -math.inf


def log2_failure(n: int, hood: Neighbourhood, dropout: float) -> float:
    """Return log2 of a bound on the chance that some device has fewer than t surviving neighbours."""
    survivors = n - int(dropout * n)
    if hood.k == n - 1:
        return -math.inf if survivors - 1 >= hood.t else 0.0
    return math.log2(n) + log2_tail(n - 1, survivors, hood.k, 0, hood.t - 1)


def plan_neighbourhood(
    profile: Profile,
    n: int,
    *,
    corrupt: float = CORRUPT,
    dropout: float = DROPOUT,
    sigma: float = SIGMA,
    eta: float = ETA,
) -> Neighbourhood:
    """Return the fewest neighbours, and the lowest threshold for them, that keep n devices safe and rounds alive.

    Safe except with probability 2^-sigma against `corrupt` n devices that help the server; alive except with 2^-eta
    when `dropout` n devices vanish. Raises ConfigError where no k <= 254 does both.
    """
    for k in [*range(4, min(n - 1, MAX_NEIGHBOURS + 1), 2), *([n - 1] if n - 1 <= MAX_NEIGHBOURS else [])]:
        if log2_cut(n, k, corrupt, dropout) > -sigma:
            continue
        for t in range(k // 2 + 1, k + 1):
            hood = Neighbourhood(k, t)
            if log2_exposure(profile, n, hood, corrupt) <= -sigma and log2_failure(n, hood, dropout) <= -eta:
                return hood
    raise ConfigError(
        f"no graph of {n} devices withstands {corrupt:.0%} helpers of the server and {dropout:.0%} drop-outs at once; "
        "plan for fewer of either, or for a larger cohort"
    )
