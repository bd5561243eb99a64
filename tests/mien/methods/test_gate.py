"""The gate's numbers: by hand in one dimension, the share of pictures on either side, and populations that overlap."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mien.errors import ConfigError
from mien.evaluation import all_pairs
from mien.methods.gate import (
    CAUTION,
    CLOSED,
    LEVEL_FMR,
    NO_LEVEL,
    POPULATION,
    SHRINKAGE,
    closed,
    discriminant,
    misjudged,
    opened,
    population_of,
    responsibility,
    unmixed,
    weight_of,
)

pytestmark = pytest.mark.numerics


def test_a_closed_gate() -> None:
    np.testing.assert_array_equal(closed(2), np.array([0, 0, CLOSED, NO_LEVEL], np.float32))
    assert math.exp(CLOSED) < np.finfo(np.float32).eps ** 1.5


def test_the_own_population_has_mean_0_and_covariance_near_1_in_its_own_coordinates() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(100), 4)
    features = (rng.normal(0, 2, (100, 9))[labels] + rng.normal(0, 1, (400, 9))) @ np.diag([3, 1, 0.5] * 3) + 0.5
    found = population_of(features, labels)
    assert tuple(found) == POPULATION
    u = features @ found["population.weight"].T + found["population.bias"]
    np.testing.assert_allclose(u.mean(axis=0), 0, atol=1e-5)
    covariance = np.cov(features.T, bias=True)
    shrunk = (1 - SHRINKAGE) * covariance + SHRINKAGE * np.trace(covariance) / 9 * np.eye(9)
    weight = found["population.weight"].astype(np.float64)
    np.testing.assert_allclose(weight @ shrunk @ weight.T, np.eye(9), atol=1e-5)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    strangers = all_pairs(unit, labels).non_mated
    assert np.mean(strangers >= found["population.level"]) == pytest.approx(LEVEL_FMR, rel=0.05)


@pytest.mark.parametrize("labels", [np.zeros(6, np.int64), np.arange(6)])
def test_people_who_cannot_be_told_apart_say_nothing_of_a_population(labels: np.ndarray) -> None:  # type: ignore[type-arg]
    features = np.ones((6, 2)) if labels.any() else np.random.default_rng(0).normal(size=(6, 2))
    with pytest.raises(ConfigError, match="pictures of different people"):
        population_of(features, labels)


def test_the_discriminant_by_hand() -> None:
    """P = 1/2 and p = -1 make N(2, 4) the standard normal; N(12, 4) has nu = 5 and S = 1: w = 5, w'nu = 25."""
    found = opened(np.array([[0.5]]), np.array([-1.0]), np.array([12.0]), np.array([[4.0]]), 0.4)
    np.testing.assert_allclose(found, [5.0, -25 * (0.5 + CAUTION), 0.4], rtol=1e-6)


def test_the_other_population_of_a_mixture_by_hand() -> None:
    """A quarter of N((4, 0), diag(1, 3)) among N(0, I): nu = (1, 0), C = diag(1 + 3/16 16, 3/4 + 3/4)."""
    nu, s = unmixed(np.array([1.0, 0.0]), np.diag([4.0, 1.5]))
    np.testing.assert_allclose(nu, [4.0, 0.0])
    np.testing.assert_allclose(s, np.diag([1.0, 3.0]), atol=1e-12)
    w, squared = discriminant(nu, s)
    np.testing.assert_allclose(w, [4.0, 0.0])
    assert squared == pytest.approx(16.0)


def test_one_population_alone_is_no_mixture() -> None:
    for nu, s in ((np.array([5.0, 0.0]), np.diag([1.0, 2.0])), (np.zeros(2), np.eye(2))):
        found = unmixed(nu, s)
        np.testing.assert_allclose(found[0], nu)
        np.testing.assert_allclose(found[1], s, atol=1e-12)


def test_a_responsibility_is_a_probability_whatever_the_odds() -> None:
    mean, odds = np.array([0.5, -0.5]), np.array([2.0, 0.0, math.log(3) - 1], np.float32)
    assert responsibility(odds, mean) == pytest.approx(0.75)
    assert responsibility(1e30 * odds, mean) == 1.0
    assert 0.0 <= responsibility(-1e30 * odds, mean) < 1e-300


def test_nobody_counts_less_than_a_tenth_whatever_the_odds() -> None:
    mean, odds = np.array([0.5, -0.5]), np.array([2.0, 0.0, math.log(3) - 1], np.float32)
    assert weight_of(odds, mean) == pytest.approx(0.1 + 0.9 * 0.75)
    assert weight_of(1e30 * odds, mean) == 1.0
    assert weight_of(-1e30 * odds, mean) == 0.1


def test_as_many_pictures_are_misjudged_as_predicted() -> None:
    rng, covariance = np.random.default_rng(1), np.array([[2.0, 0.5], [0.5, 1.0]])
    mean = np.array([4.0, 2.0])
    w0, w1, bias, _ = opened(np.eye(2), np.zeros(2), mean, covariance, 0.4)
    bias *= 0.5 / (0.5 + CAUTION)
    own = rng.standard_normal((200_000, 2))
    new = rng.multivariate_normal(mean, covariance, 200_000)
    wrong = [np.mean(own @ [w0, w1] + bias > 0), np.mean(new @ [w0, w1] + bias < 0)]
    distance = math.sqrt(mean @ np.linalg.solve((np.eye(2) + covariance) / 2, mean))
    assert np.mean(wrong) == pytest.approx(misjudged(distance), rel=0.1)
    assert misjudged(0) == 0.5


def test_populations_that_overlap_have_no_gate() -> None:
    with pytest.raises(ConfigError, match=r"15\.9 % of pictures would be taken for the other population's.*stays"):
        opened(np.eye(1), np.zeros(1), np.array([2.0]), np.eye(1), 0.4)


def test_a_level_at_which_all_are_alike_is_bounded() -> None:
    assert opened(np.eye(1), np.zeros(1), np.array([9.0]), np.eye(1), 1.0)[-1] == pytest.approx(0.99)
