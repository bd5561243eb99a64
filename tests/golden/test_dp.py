"""Privacy accounting against figures that do not come from it: closed formulas, sums over probabilities, published
tables."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from numpy.typing import NDArray

from mien.dp.accountant import ORDERS, Release, epsilon_pld, epsilon_rdp, gaussian_epsilon, rdp
from mien.dp.clipping import bit_noise, update_multiplier
from mien.secagg.masks import WordStream
from mien.secagg.pipeline import encode
from mien.secagg.planner import plan_numbers
from mien.secagg.vector import Addends, VectorLayout
from tests.golden._reference_accountant import pld_epsilon, sampled_gaussian_epsilon, skellam_epsilon

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


# --- over a grid with extremes, against an accountant of another making ---


@pytest.mark.parametrize("delta", [0.5, 1e-5, 1e-15, 1e-300])
@pytest.mark.parametrize("times", [1, 1_000, 1_000_000])
@pytest.mark.parametrize("z", [1e-3, 0.03, 1.0, 40.0, 1e4, 1e6])
def test_gaussian_figures_hold_from_next_to_no_noise_to_far_too_much(z: float, times: int, delta: float) -> None:
    """Closed form below Renyi; Renyi within its orders (1.1 to 1024), and both between bounds that hands work out."""
    mu = math.sqrt(times) / z
    exact, bound = epsilon_pld([(gaussian(z), times)], delta), epsilon_rdp([(gaussian(z), times)], delta)
    assert exact is not None
    assert exact <= bound * (1 + 1e-9)
    finest = (math.log(1 / delta) + 1) / (ORDERS[-1] - 1)
    assert bound <= 1.25 * exact + ORDERS[-1] * mu * mu / 2 * (exact == 0) + finest + 2.5
    # The loss is N(mu^2/2, mu^2) (Mironov 2017); all of delta is its tail, at the most.
    assert exact <= mu * mu / 2 + mu * (math.sqrt(2 * math.log(1 / delta)) + 1e-6)
    if mu > 30 and delta < 0.5:
        assert exact >= mu * mu / 2


def test_the_closed_form_is_the_reference_accountants_figure() -> None:
    edges = np.linspace(-14.0, 15.0, 60_001)
    p, q = (np.diff([normal_cdf(x - mean) for x in edges]) for mean in (0.0, 1.0))
    assert gaussian_epsilon(math.sqrt(3), 1e-6) == pytest.approx(pld_epsilon(p, q, 3, 1e-6), rel=1e-3)


@pytest.mark.parametrize(
    ("share", "z", "times", "delta"),
    [
        *((1e-6, 1.0, 50_000, 1e-5), (1e-3, 0.6, 10_000, 1e-6), (0.01, 50.0, 20_000, 1e-5), (0.1, 0.3, 10, 1e-5)),
        *((0.05, 1.0, 50_000, 1e-10), (0.5, 5.0, 100, 1e-9), (1 - 1e-9, 3.0, 50, 1e-5)),
    ],
)
def test_sampled_figures_hold_as_the_share_goes_to_0_and_to_1(share: float, z: float, times: int, delta: float) -> None:
    composition = [(gaussian(z, share), times)]
    exact = sampled_gaussian_epsilon(z, share, times, delta)
    bound, pld = epsilon_rdp(composition, delta), epsilon_pld(composition, delta)
    assert exact * 0.99 <= bound <= 2.2 * exact + 0.3
    assert pld == pytest.approx(exact, rel=0.02, abs=0.05)


@pytest.mark.parametrize(
    ("variance", "shift", "num_elements", "times", "delta"),
    [
        *((0.5, 1, 1, 1, 1e-5), (2.0, 1, 64, 1, 1e-5), (20.0, 3, 1, 10, 1e-9), (80.0, 1, 16, 1_000, 1e-6)),
        *((1e4, 100, 1, 1, 1e-12), (1e6, 100, 4, 20_000, 1e-5), (1e6, 1, 1, 1, 1e-5)),
    ],
)
def test_skellam_figures_hold_for_one_element_and_for_many(
    variance: float, shift: int, num_elements: int, times: int, delta: float
) -> None:
    l2 = shift * math.sqrt(num_elements)
    bound = epsilon_rdp([(Release("skellam", math.sqrt(variance) / l2, l2, num_elements), times)], delta)
    exact = skellam_epsilon(variance, shift, num_elements, times, delta)
    most = 1.6 if variance >= 20 else 4.0  # noise of a step or two: what is proved is far from sharp
    assert exact * 0.99 <= bound <= most * exact + 0.1


@pytest.mark.parametrize("z", [0.05, 1.0, 2.1, 100.0])
@pytest.mark.parametrize("num_devices", [3, 16, 100, 5000])
def test_an_adaptive_clip_costs_no_more_than_it_is_charged_for(num_devices: int, z: float) -> None:
    """Between an update beyond the clip and an empty one both move: the update by S, the bit by all of its range."""
    numbers, layout = plan_numbers(num_devices, l2_clip=1.0, max_weight=1), VectorLayout(64, 0)

    def bit(update: NDArray[np.float32]) -> int:
        return int(encode(Addends(1, update, ()), layout, numbers, bytes(32), WordStream(bytes(32)))[2])

    beyond, empty = np.full(64, 5.0, np.float32), np.zeros(64, np.float32)
    sigma_b = bit_noise(num_devices, z)
    moved_by = 2 * abs(bit(beyond) - bit(empty)) / (2 * sigma_b)  # of unclipped less clipped, with noise of 2 sigma_b
    assert moved_by > 0
    real = math.hypot(1 / update_multiplier(z, sigma_b), moved_by)
    for times in (1, 10, 50_000):
        charged = epsilon_rdp([(gaussian(z), times)], DELTA)
        assert gaussian_epsilon(math.sqrt(times) * real, DELTA) <= charged * (1 + 1e-9)


@pytest.mark.parametrize("composition", [[(gaussian(1e-4), 10**6)], [(gaussian(0.01, 0.2), 10**6)]])
def test_accounting_takes_bounded_memory(composition: list[tuple[Release, int]]) -> None:
    tracemalloc.start()
    figures = epsilon_rdp(composition, 1e-30), epsilon_pld(composition, 1e-30)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 200 << 20
    assert figures[1] is not None
    assert 1e6 < figures[1] <= figures[0]
