"""Separation predicted from moments: against closed forms, against real draws, and what is chosen by it."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from mien.methods.form_choice import MARGIN, NUM_DRAWN, OWN, best_of, drawn_pairs, predicted_eer

pytestmark = pytest.mark.numerics

DIM = 8
NORMAL = statistics.NormalDist()


def test_drawn_pictures_have_the_moments_that_they_are_drawn_of() -> None:
    mean, within, between = np.arange(DIM) / 4, np.diag(np.linspace(0.1, 0.5, DIM)), np.diag(np.linspace(2.0, 1.0, DIM))
    first, second = drawn_pairs(mean, within, between)
    np.testing.assert_allclose(first.mean(axis=0), mean, atol=0.05)
    np.testing.assert_allclose(np.cov(first.T), within + between, atol=0.08)
    cross = (first - first.mean(axis=0)).T @ (second - second.mean(axis=0)) / NUM_DRAWN
    np.testing.assert_allclose(cross, between, atol=0.08)
    again, _ = drawn_pairs(mean, within, between)
    np.testing.assert_array_equal(again, first)


def test_the_error_rate_is_that_of_two_normal_distributions() -> None:
    """In many directions a cosine is nearly normal, about r for one person and about 0 for two."""
    dim, share = 400, 0.2
    pairs = drawn_pairs(np.zeros(dim), (1 - share) * np.eye(dim), share * np.eye(dim))
    deviation = 1 / math.sqrt(dim)
    mated = deviation * (1 - share**2)  # of a correlation, as Fisher gives it
    expected = NORMAL.cdf(-share / (deviation + mated))
    assert predicted_eer(pairs, np.eye(dim), np.zeros(dim)) == pytest.approx(expected, rel=0.15)


def test_a_map_that_takes_out_the_scatter_is_predicted_to_separate_better() -> None:
    within, between = np.diag([4.0] * 4 + [0.05] * 4), np.eye(DIM)
    pairs = drawn_pairs(np.full(DIM, 3.0), within, between)
    own = predicted_eer(pairs, np.eye(DIM), np.zeros(DIM))
    centred = predicted_eer(pairs, np.eye(DIM), np.full(DIM, -3.0))
    root = np.diag(np.diag(within) ** -0.5)
    whitened = predicted_eer(pairs, root, root @ np.full(DIM, -3.0))
    assert whitened < 0.6 * centred < 0.6 * own


def test_covariances_of_few_people_have_directions_without_anybody() -> None:
    """A covariance that subtraction left indefinite is one of fewer directions, and no NaN."""
    pairs = drawn_pairs(np.zeros(DIM), np.eye(DIM) * 0.1, np.diag([1.0] * 4 + [-0.5] * 4))
    assert 0 < predicted_eer(pairs, np.eye(DIM), np.zeros(DIM)) < 0.5


def test_only_what_is_clearly_better_than_the_model_is_chosen() -> None:
    assert best_of({OWN: 0.10, "a": 0.08, "b": 0.05}) == "b"
    assert best_of({OWN: 0.10, "b": 0.05, "a": 0.05}) == "a"
    assert best_of({OWN: 0.10, "a": 0.10 * MARGIN + 1e-6}) == OWN
    assert best_of({OWN: 0.0, "a": 0.0}) == OWN
    assert best_of({OWN: 0.1}) == OWN
