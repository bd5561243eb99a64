"""Integer noise has the promised distribution, not a rounding of it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mien.dp import mechanisms
from mien.dp.mechanisms import discrete_gaussian, discrete_laplace, local_statistics, poisson, skellam, skellam_share
from mien.errors import ConfigError


def source(seed: int) -> Callable[[int], bytes]:
    """Return bytes that repeat: tests must not depend on luck, noise in use must."""
    return np.random.default_rng(seed).bytes


def chi_square(draws: NDArray[np.int64], pmf: Callable[[int], float], low: int, high: int) -> float:
    """Return the statistic over low..high and both tails, in standard deviations from its mean."""
    expected = np.array([pmf(k) for k in range(low, high + 1)])
    rest = 1 - expected.sum()
    counts = np.array([(draws == k).sum() for k in range(low, high + 1)])
    expected, counts = np.append(expected, rest) * len(draws), np.append(counts, len(draws) - counts.sum())
    keep = expected > 5
    statistic = ((counts - expected)[keep] ** 2 / expected[keep]).sum()
    freedom = keep.sum() - 1
    return float((statistic - freedom) / math.sqrt(2 * freedom))


@pytest.mark.parametrize("sigma", [0.4, 1.0, 3.7, 20.0])
def test_discrete_gaussian_has_its_probabilities(sigma: float) -> None:
    reach = math.ceil(12 * sigma) + 2
    total = sum(math.exp(-k * k / (2 * sigma**2)) for k in range(-reach, reach + 1))
    draws = discrete_gaussian(200_000, sigma, source(1))
    bound = math.ceil(3 * sigma)
    assert chi_square(draws, lambda k: math.exp(-k * k / (2 * sigma**2)) / total, -bound, bound) < 4


@pytest.mark.parametrize("mean", [0.3, 2.0, 17.6, 300.25])
def test_poisson_has_its_probabilities(mean: float) -> None:
    draws = poisson(200_000, mean, source(2))
    low, high = max(0, math.floor(mean - 3 * mean**0.5)), math.ceil(mean + 3 * mean**0.5)
    assert chi_square(draws, lambda k: math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)), low, high) < 4


def test_discrete_laplace_has_its_probabilities() -> None:
    q = math.exp(-1 / 4.5)
    draws = discrete_laplace(200_000, 4.5, source(3))
    assert chi_square(draws, lambda k: (1 - q) / (1 + q) * q ** abs(k), -15, 15) < 4


@pytest.mark.parametrize("std", [1000.0, 2.0**20])
def test_large_noise_keeps_its_variance_and_shape(std: float) -> None:
    """A normal's fourth moment is three; the standard errors of 400 000 draws are 0.0022 and 0.0077."""
    for draws in (discrete_gaussian(400_000, std, source(4)), skellam(400_000, std**2, source(5))):
        x = draws / std
        assert abs(x.mean()) < 0.007
        assert abs((x**2).mean() - 1) < 0.009
        assert abs((x**4).mean() - 3) < 0.04


@pytest.mark.parametrize(
    "law",
    [
        mechanisms._Gaussian(0.7),
        mechanisms._Gaussian(2.0**20),
        mechanisms._Laplace(3.0),
        mechanisms._Poisson(0.4),
        mechanisms._Poisson(97.5),
    ],
)
def test_doubles_decide_as_decimals_do(law: mechanisms._Law) -> None:
    """The same bytes give the same draws when every single comparison is made in decimal arithmetic."""
    quick = mechanisms._sample(300, law, source(6))
    careful = mechanisms._sample(300, law, source(6), doubt=2.0)
    assert np.array_equal(quick, careful)


@given(st.floats(0.01, 1e12), st.integers(0, 40), st.floats(0, 1), st.booleans())
def test_no_acceptance_probability_exceeds_one(scale: float, block: int, within: float, is_negative: bool) -> None:
    """The bound that makes the sampler exact: 2^(V-1) w(y)/w(0) <= 1 all over block V."""
    for law in (mechanisms._Gaussian(scale), mechanisms._Laplace(scale), mechanisms._Poisson(scale)):
        distance = block * law.width + int(within * (law.width - 1))
        offset = np.array([-distance if is_negative else distance])
        assert (block - 1) * math.log(2) + law.log_weight(offset)[0] <= 1e-9


def test_blocks_go_on_in_new_words_where_one_is_empty() -> None:
    words = np.array([0, 1, 8, 1 << 63], np.uint64)
    following = iter([(0).to_bytes(8, "little"), (2).to_bytes(8, "little"), (1).to_bytes(8, "little")])
    assert mechanisms._blocks(words, lambda _: next(following)).tolist() == [127, 0, 3, 63]


@pytest.mark.parametrize("survivors", [5, 6, 9])
def test_shares_of_survivors_add_up_to_the_promised_variance(survivors: int) -> None:
    """Nine devices, five of whom are counted on: any five make the promise, more make more (90 000 draws: 0.5 %)."""
    sigma, size = 700.0, 90_000
    shares = [skellam_share(size, sigma, 5, source(seed)) for seed in range(9)]
    total = np.sum(shares[:survivors], axis=0)
    assert np.var(total) / sigma**2 == pytest.approx(survivors / 5, rel=0.02)
    assert abs(total.mean()) < 5 * sigma * math.sqrt(survivors / 5 / size)


def test_the_sum_of_shares_is_skellam() -> None:
    total = np.sum([skellam_share(60_000, 2.0, 4, source(seed)) for seed in range(4)], axis=0)
    log_half = [
        -2 + k * math.log(2.0) - math.lgamma(k + 1) for k in range(60)
    ]  # Poisson(2), both sides of the difference

    def pmf(k: int) -> float:
        return sum(math.exp(log_half[j] + log_half[j + abs(k)]) for j in range(60 - abs(k)))

    assert chi_square(total, pmf, -6, 6) < 4


def test_local_statistics_are_clipped_then_noised_by_their_l1_sensitivity() -> None:
    values, bounds = np.array([3, 900, -4] * 20_000), np.array([10, 10, 20] * 20_000)
    told = np.concatenate(
        [local_statistics(values[i : i + 3], bounds[i : i + 3], 1.5, source(i)) for i in range(0, 600, 3)]
    ).reshape(-1, 3)
    assert abs(told.mean(axis=0) - [3, 10, 0]).max() < 10  # 200 answers of standard deviation 38 have one of 2.7
    assert told.std() == pytest.approx(math.sqrt(2) * 40 / 1.5, rel=0.2)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: discrete_gaussian(3, 0.0, source(0)),
        lambda: discrete_gaussian(3, math.inf, source(0)),
        lambda: poisson(3, 2.0**51, source(0)),
        lambda: skellam_share(3, 10.0, 0, source(0)),
        lambda: local_statistics(np.array([1]), np.array([0]), 1.0, source(0)),
        lambda: local_statistics(np.array([1]), np.array([1]), 0.0, source(0)),
    ],
)
def test_noise_that_cannot_be_made_is_refused(draw: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        draw()
