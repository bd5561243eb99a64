"""Verification metrics against hand-computed cases and a slow reference."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mien.errors import ConfigError, NonFiniteError, UndefinedMetricError
from mien.evaluation import (
    Comparisons,
    NotMeasurable,
    OperatingPoint,
    ScoreHistogram,
    all_pairs,
    all_pairs_histogram,
    bootstrap_by_identity,
    det_curve,
    equal_error_rate,
    normalise,
    pair_scores,
    point_at_fmr,
    rates_at,
    rule_of_three,
    tar_at_fmrs,
)
from mien.evaluation.verification import tar_at_fmr
from tests.golden import _reference_evaluation as slow

# Quarters make ties frequent and are exact in binary.
SCORES = st.lists(st.integers(-4, 4).map(lambda i: i / 4), min_size=1, max_size=12)


def comparisons(mated: list[float], non_mated: list[float]) -> Comparisons:
    return Comparisons(np.array(mated), np.array(non_mated))


# Mated   .9 .8 .6 .4 | non-mated .7 .5 .4 .2 .1 0 -.1 -.2 -.3 -.4: worked by hand below.
HAND = comparisons([0.9, 0.8, 0.6, 0.4], [0.7, 0.5, 0.4, 0.2, 0.1, 0.0, -0.1, -0.2, -0.3, -0.4])


def test_rates_at_a_fixed_threshold_accept_equal_scores() -> None:
    point = rates_at(HAND, 0.4)
    # >= 0.4: three of ten non-mated (the tie included); < 0.4: no mated.
    assert (point.num_false_matches, point.num_non_mated) == (3, 10)
    assert (point.num_false_non_matches, point.num_mated) == (0, 4)
    assert (point.fmr, point.fnmr, point.tar) == (0.3, 0.0, 1.0)


def test_fixed_threshold_is_not_rounded_to_float32_scores() -> None:
    score = np.float32(0.363)  # 0.36300000548362732
    point = rates_at(Comparisons(np.array([score]), np.array([score])), 0.363000005)
    assert point.num_false_matches == 1
    point = rates_at(Comparisons(np.array([score]), np.array([score])), 0.363000006)
    assert point.num_false_matches == 0


@pytest.mark.parametrize(
    ("target", "threshold", "false_matches", "false_non_matches"),
    [
        # FMR <= 0.1 allows one of ten: 0.6 (a mated score) lies above 0.5 and accepts only 0.7.
        (0.1, 0.6, 1, 1),
        (0.2, 0.5, 2, 1),
        (0.29, 0.5, 2, 1),
        (0.3, 0.4, 3, 0),
        (1.0, -0.4, 10, 0),
    ],
)
def test_threshold_at_fmr(target: float, threshold: float, false_matches: int, false_non_matches: int) -> None:
    point = point_at_fmr(det_curve(HAND), target)
    assert point == OperatingPoint(threshold, false_matches, 10, false_non_matches, 4, target)


def test_written_decimals_are_taken_exactly() -> None:
    # 0.3 is a little less than 3/10 in binary; three of ten must still be allowed.
    assert point_at_fmr(det_curve(HAND), 0.3).num_false_matches == 3
    many = comparisons([1.0], [i / 1000 for i in range(1000)])
    assert point_at_fmr(det_curve(many), 1e-3).num_false_matches == 1


def test_tied_group_is_left_out_whole() -> None:
    tied = comparisons([0.9, 0.2], [0.5, 0.5, 0.5, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1])
    # One or two of ten would split the tie at 0.5: the next observed score above it is 0.9.
    for target in (0.1, 0.2):
        point = point_at_fmr(det_curve(tied), target)
        assert (point.threshold, point.fmr, point.fnmr) == (0.9, 0.0, 0.5)
    # Three of ten take the whole tie, and the smallest observed score above 0.1 is the mated 0.2.
    assert point_at_fmr(det_curve(tied), 0.3) == OperatingPoint(0.2, 3, 10, 0, 2, 0.3)


def test_no_observed_threshold_qualifies() -> None:
    saturated = comparisons([0.2, 1.0], [1.0, 1.0, 0.0, 0.0])
    with pytest.raises(UndefinedMetricError, match="2 non-mated comparisons share the highest score"):
        point_at_fmr(det_curve(saturated), 0.25)


def test_where_no_observed_threshold_qualifies_nobody_is_accepted() -> None:
    """Two of ten strangers share the highest score: a rate of 1 in 10 asks for a threshold above it."""
    curve = det_curve(Comparisons(np.array([0.3, 0.9]), np.array([0.1] * 7 + [0.4] + [0.9] * 2)))
    assert tar_at_fmr(curve, 0.1) == 0.0
    assert tar_at_fmr(curve, 0.2) == point_at_fmr(curve, 0.2).tar == 0.5
    with pytest.raises(UndefinedMetricError, match="not measurable on 10"):
        tar_at_fmr(curve, 0.01)


def test_rate_below_resolution_is_not_measurable() -> None:
    curve = det_curve(HAND)
    with pytest.raises(UndefinedMetricError, match=r"0\.01 is not measurable on 10 .* at least 100"):
        point_at_fmr(curve, 0.01)
    measured, missing = tar_at_fmrs(curve, (0.1, 0.01))
    assert isinstance(measured, OperatingPoint)
    assert measured.tar == 0.75
    assert isinstance(missing, NotMeasurable)
    assert (missing.target_fmr, missing.num_non_mated) == (0.01, 10)


@pytest.mark.parametrize("target", [0.0, -0.1, 1.5, math.nan])
def test_impossible_target_is_refused(target: float) -> None:
    with pytest.raises(ConfigError, match="must lie above 0"):
        point_at_fmr(det_curve(HAND), target)


def test_curve_vertices_of_the_hand_case() -> None:
    curve = det_curve(HAND)
    fmr, fnmr = curve.vertices()
    # Thresholds -.4 -.3 -.2 -.1 0 .1 .2 .4 .5 .6 .7 .8 .9 and the end.
    assert fmr.tolist() == [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.1, 0.0, 0.0, 0.0]
    assert fnmr.tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 0.25, 0.25, 0.5, 0.5, 0.75, 1.0]


def test_equal_error_rate_of_the_hand_case() -> None:
    # Between 0.4 (FMR .3, FNMR 0) and 0.5 (.2, .25): gap falls from .3 to -.05, zero at 6/7 of the way: .3 - .6/7.
    eer = equal_error_rate(det_curve(HAND))
    assert eer.value == pytest.approx(0.3 - 0.1 * 6 / 7, abs=1e-15)
    assert eer.at.threshold == 0.5  # gap -.05, nearest to zero


def test_equal_error_rate_at_a_vertex_is_exact() -> None:
    eer = equal_error_rate(det_curve(comparisons([0.9, 0.8, 0.7, 0.3], [0.6, 0.2, 0.1, 0.0])))
    assert (eer.value, eer.at.threshold) == (0.25, 0.6)


def test_equal_error_rate_of_perfect_and_inverted_scores() -> None:
    assert equal_error_rate(det_curve(comparisons([0.9, 0.8], [0.1, 0.2]))).value == 0.0
    assert equal_error_rate(det_curve(comparisons([0.1, 0.2], [0.8, 0.9]))).value == 1.0


@pytest.mark.parametrize(("mated", "non_mated", "what"), [([], [0.1], "no mated"), ([0.1], [], "no non-mated")])
def test_empty_sets_are_errors(mated: list[float], non_mated: list[float], what: str) -> None:
    with pytest.raises(UndefinedMetricError, match=what):
        det_curve(comparisons(mated, non_mated))
    with pytest.raises(UndefinedMetricError, match=what):
        rates_at(comparisons(mated, non_mated), 0.5)
    with pytest.raises(UndefinedMetricError, match=what):
        det_curve(ScoreHistogram.of(comparisons(mated, non_mated), bins=16))


def test_equal_scores_are_an_error() -> None:
    with pytest.raises(UndefinedMetricError, match="all 5 scores are equal"):
        det_curve(comparisons([1.0, 1.0], [1.0, 1.0, 1.0]))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_scores_that_are_no_numbers_are_errors(bad: float) -> None:
    with pytest.raises(NonFiniteError):
        comparisons([0.5, bad], [0.1])
    with pytest.raises(NonFiniteError):
        comparisons([0.5], [bad])
    with pytest.raises(NonFiniteError):
        all_pairs(np.array([[1.0, 0.0], [bad, 1.0]]), ["a", "b"])


def test_repr_shows_no_scores() -> None:
    assert "0.9" not in repr(HAND)


@given(SCORES, SCORES, st.sampled_from(["0.05", "0.1", "0.2", "0.25", "0.5", "0.75", "1"]))
@settings(max_examples=300, deadline=None)
def test_agrees_with_the_slow_reference(mated: list[float], non_mated: list[float], written: str) -> None:
    if len(set(mated) | set(non_mated)) == 1:
        with pytest.raises(UndefinedMetricError):
            det_curve(comparisons(mated, non_mated))
        return
    curve, target = det_curve(comparisons(mated, non_mated)), Fraction(written)
    for k, t in enumerate(curve.thresholds):
        assert curve.fmr[k] == float(slow.fmr(non_mated, t))
        assert curve.fnmr[k] == float(slow.fnmr(mated, t))
    assert equal_error_rate(curve).value == pytest.approx(float(slow.eer(mated, non_mated)), abs=1e-12)
    expected = slow.threshold_at_fmr(mated, non_mated, target)
    if target * len(non_mated) < 1 or expected is None:
        with pytest.raises(UndefinedMetricError):
            point_at_fmr(curve, float(written))
    else:
        point = point_at_fmr(curve, float(written))
        assert point.threshold == expected
        assert Fraction(point.num_false_matches, point.num_non_mated) == slow.fmr(non_mated, expected) <= target
        assert Fraction(point.num_false_non_matches, point.num_mated) == slow.fnmr(mated, expected)


FLOATS = st.lists(st.floats(-1, 1, allow_nan=False), min_size=1, max_size=20)


@given(FLOATS, FLOATS, st.integers(2, 64))
@settings(max_examples=200, deadline=None)
def test_histogram_counts_are_exact_at_its_edges(mated: list[float], non_mated: list[float], bins: int) -> None:
    histogram = ScoreHistogram.of(comparisons(mated, non_mated), bins=bins)
    edges = histogram.edges
    for b in range(bins):
        assert int(histogram.non_mated[b:].sum()) == sum(s >= edges[b] for s in non_mated)
        assert int(histogram.mated[:b].sum()) == sum(s < edges[b] for s in mated)


@given(FLOATS, FLOATS, FLOATS)
@settings(max_examples=50, deadline=None)
def test_histograms_are_addends(mated: list[float], non_mated: list[float], more: list[float]) -> None:
    total = ScoreHistogram.of(comparisons(mated, non_mated), 32) + ScoreHistogram.of(comparisons(more, more), 32)
    whole = ScoreHistogram.of(comparisons(mated + more, non_mated + more), 32)
    assert np.array_equal(total.mated, whole.mated)
    assert np.array_equal(total.non_mated, whole.non_mated)


def test_histogram_threshold_is_conservative_and_near() -> None:
    rng = np.random.default_rng(1)
    scores = Comparisons(np.clip(rng.normal(0.5, 0.2, 4000), -1, 1), np.clip(rng.normal(0.0, 0.2, 20000), -1, 1))
    exact = point_at_fmr(det_curve(scores), 1e-3)
    coarse = point_at_fmr(det_curve(ScoreHistogram.of(scores)), 1e-3)
    assert coarse.fmr <= 1e-3
    assert exact.threshold - 2 / 2**20 <= coarse.threshold <= exact.threshold + 2 / 2**20
    assert abs(coarse.tar - exact.tar) < 1e-3


def test_histogram_refuses_what_does_not_belong() -> None:
    with pytest.raises(ConfigError, match="outside"):
        ScoreHistogram.of(comparisons([1.5], [0.0]), 8)
    with pytest.raises(ConfigError, match="equal bins"):
        ScoreHistogram.empty(8) + ScoreHistogram.empty(16)
    with pytest.raises(ConfigError, match="negative"):
        ScoreHistogram(np.array([1, -1]), np.array([0, 0]))


def test_normalise_and_pair_scores() -> None:
    assert normalise([[3.0, 4.0]]).tolist() == [[0.6, 0.8]]
    assert pair_scores([[1.0, 0.0], [2.0, 2.0]], [[0.0, 5.0], [1.0, 1.0]]) == pytest.approx([0.0, 1.0])
    with pytest.raises(UndefinedMetricError, match="zero vector"):
        normalise([[0.0, 0.0]])
    with pytest.raises(ConfigError, match="shape"):
        normalise([1.0, 2.0])


@pytest.mark.parametrize("block", [1, 2, 3, 1024])
def test_all_pairs_meets_every_pair_once(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr("mien.evaluation.scores._BLOCK", block)
    rng = np.random.default_rng(2)
    embeddings, labels = rng.normal(size=(9, 4)), list("abbacabcd")
    expected: dict[bool, list[tuple[float, frozenset[str]]]] = {True: [], False: []}
    for i in range(9):
        for j in range(i + 1, 9):
            same = labels[i] == labels[j]
            expected[same].append((slow.cosine(embeddings[i], embeddings[j]), frozenset((labels[i], labels[j]))))
    found = all_pairs(embeddings, labels, keep_subjects=True)
    assert (found.num_mated, found.num_non_mated) == (len(expected[True]), len(expected[False]))
    assert found.mated_subjects is not None
    assert found.non_mated_subjects is not None
    mated = sorted(zip(found.mated, (frozenset(("abcd"[s],)) for s in found.mated_subjects), strict=True))
    non_mated = sorted(
        zip(found.non_mated, (frozenset("abcd"[s] for s in p) for p in found.non_mated_subjects), strict=True)
    )
    for pairs, same in ((mated, True), (non_mated, False)):
        for (score, who), (want, whom) in zip(pairs, sorted(expected[same]), strict=True):
            assert score == pytest.approx(want, abs=1e-6)
            assert who == whom
    histogram = all_pairs_histogram(embeddings, labels, bins=256)
    reference = ScoreHistogram.of(found, 256)
    assert np.array_equal(histogram.mated, reference.mated)
    assert np.array_equal(histogram.non_mated, reference.non_mated)


def test_all_pairs_limits() -> None:
    with pytest.raises(ConfigError, match="use all_pairs_histogram"):
        all_pairs(np.eye(4), list("abcd"), max_comparisons=5)
    with pytest.raises(ConfigError, match="one label for each"):
        all_pairs(np.eye(3), ["a", "b"])


def test_bootstrap_by_identity_is_wider_than_by_pair() -> None:
    """Each identity's comparisons are copies: 50 times the pairs must not make the interval narrower."""
    rng = np.random.default_rng(3)
    mated_means, copies = rng.normal(0.5, 0.2, 20), 50
    mated = np.repeat(mated_means, copies)
    non_mated = rng.normal(0.0, 0.2, 190)
    pairs = np.array([(i, j) for i in range(20) for j in range(i + 1, 20)])
    many = Comparisons(mated, non_mated, np.repeat(np.arange(20), copies), pairs)
    once = Comparisons(mated_means, non_mated, np.arange(20), pairs)
    intervals = [
        bootstrap_by_identity(
            c, lambda curve: equal_error_rate(curve).value, rng=np.random.default_rng(4), num_replicates=200
        )
        for c in (many, once)
    ]
    assert intervals[0] == intervals[1]
    assert intervals[0].low < intervals[0].high
    assert intervals[0].method == "bootstrap by identity, 200 replicates"


def test_bootstrap_weights_are_those_of_a_drawn_multiset() -> None:
    """One replicate by hand: draw (a, a, c) of a, b, c gives a's mated pair twice and the pair a-c twice."""

    class Drawn(np.random.Generator):
        def integers(self, *args: object, **kwargs: object) -> np.ndarray:  # type: ignore[override, type-arg]
            return np.array([0, 0, 2])

    seen = []

    def statistic(curve: object) -> float:
        seen.append(curve)
        return 0.0

    three = Comparisons(
        np.array([0.9, 0.8, 0.7]), np.array([0.1, 0.2, 0.3]), np.arange(3), np.array([[0, 1], [0, 2], [1, 2]])
    )
    bootstrap_by_identity(three, statistic, rng=Drawn(np.random.PCG64(0)), num_replicates=100)  # type: ignore[arg-type]
    curve = seen[0]
    assert (curve.num_mated, curve.num_non_mated) == (3, 2)
    assert curve.thresholds.tolist() == [0.2, 0.7, 0.9]
    assert curve.num_false_matches.tolist() == [2, 0, 0]
    assert curve.num_false_non_matches.tolist() == [0, 0, 1]


def test_bootstrap_says_when_it_cannot() -> None:
    few = Comparisons(np.array([0.9]), np.array([0.1]), np.array([0]), np.array([[0, 1]]))
    with pytest.raises(UndefinedMetricError, match="not measurable on"):
        bootstrap_by_identity(few, lambda curve: 0.0, rng=np.random.default_rng(0), num_replicates=100)
    with pytest.raises(ConfigError, match="keep_subjects"):
        bootstrap_by_identity(HAND, lambda curve: 0.0, rng=np.random.default_rng(0))


def test_rule_of_three() -> None:
    assert rule_of_three(3000) == 1e-3
    assert rule_of_three(1) == 1.0
    with pytest.raises(UndefinedMetricError):
        rule_of_three(0)


def test_threshold_record_carries_provenance() -> None:
    record = point_at_fmr(det_curve(HAND), 0.1).as_threshold(dataset="hand", model_id="m", date="2026-01-01")
    assert (record.value, record.fmr, record.num_mated, record.num_non_mated) == (0.6, 0.1, 4, 10)
