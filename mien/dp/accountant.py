"""Privacy accounting: the loss of one device through noised sums, as epsilon at a delta.

The unit is a device with all that it ever adds. Neighbours are "zero-out": a device takes part as it did, but with
nothing in its update, so a sum moves by at most its clip S and the number of survivors stays what it is (Ponomareva et
al. 2023, "How to DP-fy ML", section 2.1). Replacing a device's data by any other moves it by 2 S: `replaced`.

Rounding at random can lengthen an update: each of d elements moves by less than a step, so the integer vector has a
norm of at most S 2^f + sqrt(d) steps. That is the sensitivity here, whatever the draw of the rounding.

Two accountants. Renyi (RDP) is proved for the discrete laws that are drawn, so budgets are kept by it. Privacy loss
distributions (PLD) are tighter, but dp-accounting computes them for continuous Gaussian noise: reported beside, for
Gaussian noise, which the discrete law with a thousand steps or more follows closer than any digit shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from mien.errors import ConfigError, MissingDependencyError

ORDERS: Final = np.array([*(1 + i / 10 for i in range(1, 100)), *range(11, 64), 128, 256, 512, 1024], np.float64)
_INTEGER: Final = np.floor(ORDERS) == ORDERS
_FAR: Final = 30.0
_PLD_STEPS: Final = 20_000
_MOST_PLD: Final = 1e6


@dataclass(frozen=True)
class Release:
    """One noised sum, as an accountant sees it.

    `noise_multiplier` is the noise's standard deviation over the sensitivity, both in steps: `l2_steps` of an integer
    vector of `size` elements. `sampling_probability` below 1 claims that each device took part by a coin of its own.
    """

    mechanism: Literal["central_gaussian", "skellam"]
    noise_multiplier: float
    l2_steps: float
    size: int
    sampling_probability: float = 1.0

    def __post_init__(self) -> None:
        if not (0 < self.noise_multiplier < math.inf and 0 < self.l2_steps < math.inf and self.size >= 1):
            raise ConfigError("a release needs a positive noise multiplier, sensitivity and size")
        if not 0 < self.sampling_probability <= 1:
            raise ConfigError(f"sampling probability is {self.sampling_probability}; it must lie in (0, 1]")
        if self.mechanism == "skellam" and self.sampling_probability < 1:
            raise ConfigError("no amplification by sampling is known here for skellam; use accounting 'participations'")

    @property
    def replaced(self) -> Release:
        """The same sum against replacing a device's data: twice the sensitivity, the same noise."""
        return replace(self, noise_multiplier=self.noise_multiplier / 2, l2_steps=2 * self.l2_steps)


Composition = Sequence[tuple[Release, int]]
"""Releases that one device is in, and how many times each."""


@dataclass(frozen=True)
class Spent:
    """Privacy cost of a composition at `delta`; `epsilon_pld` is None where it is not defined (Skellam)."""

    delta: float
    epsilon_rdp: float
    epsilon_pld: float | None


def rdp(release: Release) -> NDArray[np.float64]:
    """Return the Renyi divergence bound of an unsampled release at each of ORDERS; infinite where none is proved.

    Gaussian: alpha / 2 z^2 (Mironov 2017; for the discrete law Canonne, Kamath, Steinke 2020). Skellam, integer alpha:
    Agarwal, Kairouz, Liu 2021, theorem 3.5, with variance s^2 and sensitivities D1, D2 of an integer vector:
    alpha D2^2 / 2 s^2 + min(((2 alpha - 1) D2^2 + 6 D1) / 4 s^4, 3 D1 / 2 s^2).
    """
    gaussian = ORDERS / (2 * release.noise_multiplier**2)
    if release.mechanism == "central_gaussian":
        return gaussian
    l2 = release.l2_steps
    l1 = min(math.sqrt(release.size) * l2, l2 * l2)
    variance = (release.noise_multiplier * l2) ** 2
    extra = np.minimum(((2 * ORDERS - 1) * l2**2 + 6 * l1) / (4 * variance**2), 3 * l1 / (2 * variance))
    return np.where(_INTEGER, gaussian + extra, np.inf)


def epsilon_of_rdp(divergence: NDArray[np.float64], delta: float) -> float:
    """Return epsilon at `delta` for Renyi divergences at ORDERS, not below 0.

    min over alpha of R + ln(1 - 1/alpha) - ln(delta alpha) / (alpha - 1): Canonne, Kamath, Steinke 2020, prop. 12.
    """
    _check_delta(delta)
    epsilons = divergence + np.log1p(-1 / ORDERS) - np.log(delta * ORDERS) / (ORDERS - 1)
    return max(0.0, float(epsilons.min()))


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ConfigError(f"delta is {delta}; it must lie between 0 and 1")


def epsilon_rdp(releases: Composition, delta: float) -> float:
    """Return epsilon of a composition by Renyi accounting; 0 for none. Sampled releases need dp-accounting."""
    releases = [(release, times) for release, times in releases if times > 0]
    if not releases:
        return 0.0
    if any(release.sampling_probability < 1 for release, _ in releases):
        dp = _dp_accounting()
        accountant = dp.rdp.RdpAccountant(ORDERS[_INTEGER])  # its series does not converge at all fractions
        accountant.compose(_event(dp, releases))
        return float(accountant.get_epsilon(delta))
    return epsilon_of_rdp(sum((times * rdp(release) for release, times in releases), np.zeros(len(ORDERS))), delta)


def epsilon_pld(releases: Composition, delta: float) -> float | None:
    """Return epsilon of a composition by privacy loss distributions, None where a release is Skellam.

    Unsampled Gaussian releases compose to one Gaussian of multiplier (sum z^-2)^-1/2 exactly, whose figure has a closed
    form. Sampled ones need dp-accounting (raises MissingDependencyError without it), in steps as coarse as the figure
    is large, so that what is held does not grow with it; beyond a million, where no digit matters, it is Renyi's.
    """
    releases = [(release, times) for release, times in releases if times > 0]
    if not releases:
        return 0.0
    if any(release.mechanism == "skellam" for release, _ in releases):
        return None
    if all(release.sampling_probability == 1 for release, _ in releases):
        return gaussian_epsilon(
            math.sqrt(sum(times / release.noise_multiplier**2 for release, times in releases)), delta
        )
    bound = epsilon_rdp(releases, delta)
    if bound > _MOST_PLD:
        return bound
    dp = _dp_accounting()
    accountant = dp.pld.PLDAccountant(value_discretization_interval=max(2e-4, bound / _PLD_STEPS))
    accountant.compose(_event(dp, releases))
    return min(bound, float(accountant.get_epsilon(delta)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return epsilon at `delta` of a Gaussian whose noise is 1/mu of its sensitivity: Balle, Wang 2018, theorem 8.

    delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), which falls with eps; 0 where eps = 0 has less already.
    """
    _check_delta(delta)

    def is_more(epsilon: float) -> bool:
        above = _log_tail(epsilon / mu - mu / 2)
        below = epsilon + _log_tail(epsilon / mu + mu / 2)
        return below < above and above + math.log1p(-math.exp(below - above)) > math.log(delta)

    if not is_more(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while is_more(high):
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if is_more(middle) else (low, middle)
    return high


def _log_tail(x: float) -> float:
    """Return ln P[N(0, 1) > x], by the asymptotic series where the probability itself is no number any more."""
    if x < _FAR:
        return math.log(0.5 * math.erfc(x / math.sqrt(2)))
    inverse = 1 / (x * x)
    return -x * x / 2 - math.log(x * math.sqrt(2 * math.pi)) + math.log1p(inverse * (-1 + 3 * inverse))


def spent(releases: Composition, delta: float) -> Spent:
    """Return the cost of a composition, by both accountants."""
    return Spent(delta, epsilon_rdp(releases, delta), epsilon_pld(releases, delta))


def noise_multiplier_for(epsilon: float, delta: float, participations: int) -> float:
    """Return the smallest z (to 0.1 %) with which `participations` Gaussian sums cost at most `epsilon` at `delta`."""
    if not (epsilon > 0 and participations >= 1):
        raise ConfigError("a budget needs a positive epsilon and at least one participation")
    low, high = 1e-3, 1e6
    while high / low > 1.001:
        z = math.sqrt(low * high)
        fits = epsilon_of_rdp(participations * ORDERS / (2 * z * z), delta) <= epsilon
        low, high = (low, z) if fits else (z, high)
    return high


def _event(dp: Any, releases: Composition) -> Any:
    """Return a composition as dp-accounting's event."""
    events = []
    for release, times in releases:
        event = dp.GaussianDpEvent(release.noise_multiplier)
        if release.sampling_probability < 1:
            event = dp.PoissonSampledDpEvent(release.sampling_probability, event)
        events.append(dp.SelfComposedDpEvent(event, times))
    return dp.ComposedDpEvent(events)


def _dp_accounting() -> Any:
    """Return the library, loaded only where it is needed: it takes longer to load than the coordinator to start."""
    try:
        import dp_accounting
        import dp_accounting.pld
        import dp_accounting.rdp
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "dp-accounting is not installed; run pip install '.[coordinator]' in Mien's folder"
        ) from error
    return dp_accounting
