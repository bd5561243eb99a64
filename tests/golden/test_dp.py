"""Privacy accounting against figures that do not come from it: closed formulas, sums over probabilities, published
tables."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from mien.dp.accountant import ORDERS, Release, epsilon_pld, epsilon_rdp, rdp

DELTA = 1e-5


def gaussian(z: float, sampling: float = 1.0) -> Release:
    return Release("central_gaussian", z, 2.0**16, 10**6, sampling)


def normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def exact_gaussian_epsilon(z: float, times: int, delta: float) -> float:
    """Balle and Wang 2018, theorem 8, with mu = sqrt(times) / z; epsilon by bisection."""
    mu = math.sqrt(times) / z

    def excess(epsilon: float) -> float:
        return normal_cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * normal_cdf(-mu / 2 - epsilon / mu) - delta

    low, high = 0.0, 500.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high


def renyi(p: NDArray[np.float64], q: NDArray[np.float64], alpha: float) -> float:
    """1 / (alpha - 1) ln sum p^alpha q^(1 - alpha)."""
    return float(np.log(np.sum(np.exp(alpha * np.log(p) + (1 - alpha) * np.log(q)))) / (alpha - 1))


def test_gaussian_rdp_is_alpha_over_two_z_squared() -> None:
    """Mironov 2017, corollary 3."""
    np.testing.assert_allclose(rdp(gaussian(1.7)), ORDERS / (2 * 1.7**2))


@pytest.mark.parametrize("shift", [1, 4])
def test_the_discrete_gaussian_diverges_no_more_than_the_continuous_one(shift: int) -> None:
    k, sigma = np.arange(-100.0, 101.0), 3.0
    p, q = np.exp(-(k**2) / (2 * sigma**2)), np.exp(-((k - shift) ** 2) / (2 * sigma**2))
    p, q = p / p.sum(), q / q.sum()
    for alpha in (1.5, 2.0, 8.0):
        assert renyi(p, q, alpha) <= alpha * shift**2 / (2 * sigma**2) * (1 + 1e-9)


@pytest.mark.parametrize("shift", [1, 3])
@pytest.mark.parametrize("variance", [20.0, 80.0])
def test_the_skellam_bound_holds_and_is_sharp(shift: int, variance: float) -> None:
    """Exact divergence of two shifted Skellam laws in one dimension, from the convolution of Poisson probabilities."""
    j = np.arange(700)
    log_factorial = np.cumsum(np.log(np.maximum(j, 1)))
    poisson = np.exp(j * math.log(variance / 2) - variance / 2 - log_factorial)
    skellam = np.convolve(poisson, poisson[::-1])[600:799]  # offsets -99..99
    p, q = skellam[10:-10], skellam[10 - shift : -10 - shift]
    release = Release("skellam", math.sqrt(variance) / shift, float(shift), 1)
    bounds = dict(zip(ORDERS.tolist(), rdp(release).tolist(), strict=True))
    for alpha in (2.0, 4.0):
        exact = renyi(p, q, alpha)
        assert exact <= bounds[alpha]
        assert bounds[alpha] <= exact * 1.25
    assert bounds[1.5] == math.inf  # proved for whole alpha only


@pytest.mark.parametrize(("z", "times"), [(0.8, 1), (1.0, 10), (2.0, 30), (10.0, 100)])
def test_pld_is_the_exact_figure_and_rdp_bounds_it(z: float, times: int) -> None:
    composition = [(gaussian(z), times)]
    exact, pld = exact_gaussian_epsilon(z, times, DELTA), epsilon_pld(composition, DELTA)
    assert pld == pytest.approx(exact, rel=2e-3)
    assert exact <= epsilon_rdp(composition, DELTA) <= 1.15 * exact


def test_composition_adds_what_the_hand_adds() -> None:
    """Three sums at z = 1 and four at z = 2: 3/2 + 4/8 = 2 times alpha, at whichever order is best."""
    orders = np.arange(1.1, 40, 0.1)
    expected = min(2 * a + math.log1p(-1 / a) - math.log(DELTA * a) / (a - 1) for a in orders)
    mixed = epsilon_rdp([(gaussian(1.0), 3), (gaussian(2.0), 4)], DELTA)
    assert mixed == pytest.approx(expected, rel=1e-3)
    assert mixed == pytest.approx(epsilon_rdp([(gaussian(0.5), 1)], DELTA), rel=1e-12)  # 1 / (2 0.5^2) = 2 as well


def test_sampled_figures_are_those_of_the_library_at_known_points() -> None:
    """N = 1000, cohort 100, 100 rounds, delta = N^-1.1: 5.15 by PLD and 6.02 by RDP at z = 1."""
    composition, delta = [(gaussian(1.0, 0.1), 100)], 1000**-1.1
    pld, renyi_epsilon = epsilon_pld(composition, delta), epsilon_rdp(composition, delta)
    assert pld == pytest.approx(5.15, abs=0.01)
    assert renyi_epsilon == pytest.approx(6.02, abs=0.01)
