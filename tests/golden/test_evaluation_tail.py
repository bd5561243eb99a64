"""Tails of non-mated scores: known laws are found again, and what is extrapolated errs on the strict side."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from mien.errors import UndefinedMetricError
from mien.evaluation.tail import _pareto, enrolled_against_strangers, tail_of

SPREAD = 0.12


def normal_scores(count: int) -> np.ndarray:
    return np.random.default_rng(0).normal(0, SPREAD, count)


@pytest.mark.parametrize("shape", [-0.2, 0.001, 0.3])
def test_a_pareto_laws_shape_and_scale_are_found_again(shape: float) -> None:
    uniform = np.random.default_rng(1).random(5000)
    excess = np.sort(0.05 / shape * (uniform**-shape - 1))
    found, scale = _pareto(excess)
    assert found == pytest.approx(shape, abs=0.06)
    assert scale == pytest.approx(0.05, rel=0.08)


def test_measured_thresholds_keep_their_rate_exactly() -> None:
    scores = normal_scores(100_000)
    for point in tail_of(scores, (0.01, 0.001, 0.0005)).points:
        assert point.is_measured
        share = (scores >= point.threshold).mean()
        assert share <= point.fmr < share + 2 / scores.size


def test_ties_count_against_the_threshold() -> None:
    scores = np.concatenate([np.linspace(-0.5, 0.4, 20_000), np.full(50, 0.5)])
    (point,) = tail_of(scores, (0.002,)).points
    assert point.threshold > 0.5, "50 of 20,050 scores are above the rate, so none of them may pass"


def test_beyond_the_data_a_threshold_is_stricter_than_the_law_asks_for() -> None:
    law, tail = NormalDist(0, SPREAD), tail_of(normal_scores(200_000), (1e-4, 1e-5, 1e-6, 1e-8))
    bounds = [point for point in tail.points if not point.is_measured]
    assert bounds
    for point in bounds:
        exact = law.inv_cdf(1 - point.fmr)
        assert exact < point.threshold < exact + 0.2
    assert all(point.fmr >= 30 / 200_000 / 100 for point in tail.points), "no further than 100 times"
    thresholds = [point.threshold for point in tail.points]
    assert thresholds == sorted(thresholds)


def test_a_heavy_tail_is_extrapolated_as_one() -> None:
    uniform = np.random.default_rng(2).random(100_000)
    heavy = tail_of(np.minimum(0.02 * uniform**-0.3, 1.0) - 0.5, (1e-3, 1e-4))
    assert heavy.shape_bound > heavy.shape > 0.15
    assert heavy.threshold(1e-5) > heavy.start + heavy.scale_bound * math.log(heavy.rate / 1e-5)


@pytest.mark.parametrize(
    ("scores", "why"),
    [(np.linspace(0, 1, 9999), "10000 are needed"), (np.full(20_000, 0.5), "are all one")],
    ids=["few", "one"],
)
def test_what_shows_no_tail_is_said(scores: np.ndarray, why: str) -> None:
    with pytest.raises(UndefinedMetricError, match=why):
        tail_of(scores)


def test_people_are_enrolled_as_on_a_phone_and_compared_with_strangers_alone() -> None:
    drawn = np.random.default_rng(3).normal(size=(25, 6, 8))
    counts = [6] * 20 + [4] * 3 + [3, 1]
    embeddings = np.concatenate([drawn[person, :count] for person, count in enumerate(counts)])
    labels = np.repeat(np.arange(25), counts)
    scores, enrolled = enrolled_against_strangers(embeddings, labels, at_least=3, at_most=4)
    assert (enrolled, scores.size) == (23, 23 * 24)
    unit = drawn / np.linalg.norm(drawn, axis=2, keepdims=True)
    template = unit[0, :4].mean(axis=0)
    expected = template @ unit[1, 5] / np.linalg.norm(template)
    assert scores[0] == pytest.approx(expected, abs=1e-6)
    with pytest.raises(UndefinedMetricError, match="20 are needed"):
        enrolled_against_strangers(embeddings[: 6 * 19], labels[: 6 * 19], at_least=3, at_most=4)
