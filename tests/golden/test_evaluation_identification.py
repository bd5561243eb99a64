"""Identification, templates and fairness against hand-computed cases and a slow reference."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mien.errors import ConfigError, UndefinedMetricError
from mien.evaluation import (
    Comparisons,
    FoldAccuracy,
    GroupAccuracy,
    SearchResult,
    cmc,
    mean_templates,
    mean_tpir,
    open_set_at,
    open_set_at_fpir,
    pool_templates,
    rates_by_group,
    search,
)
from mien.evaluation.identification import tpir_at_fpir
from tests.golden import _reference_evaluation as slow


def on_circle(*degrees: float) -> np.ndarray:  # type: ignore[type-arg]
    return np.array([[math.cos(math.radians(d)), math.sin(math.radians(d))] for d in degrees])


# Gallery: a at 0 and 10 degrees, b at 60, c at 120. Cosine falls with the angle between.
GALLERY, OWNERS = on_circle(0, 10, 60, 120), list("aabc")


def test_search_by_hand() -> None:
    probes = on_circle(12, 40, 62, 100, 170, -80)
    result = search(probes, ["a", "a", "b", "b", "x", "y"], GALLERY, OWNERS)
    # 12: a (2 away) first. 40: b is 20 away, a 30: rank 2. 62: b first. 100: c 20 away, b 40: rank 2.
    assert result.mate_rank.tolist() == [1, 2, 1, 2]
    assert result.mate_score == pytest.approx([math.cos(math.radians(d)) for d in (2, 30, 2, 40)])
    # x is 50 from c; y is 80 from a.
    assert result.non_mated_top == pytest.approx([math.cos(math.radians(d)) for d in (50, 80)])
    assert cmc(result, 3).tolist() == [0.5, 1.0, 1.0]
    point = open_set_at(result, 0.5)
    assert (point.num_hits, point.num_mated, point.num_false_positives, point.num_non_mated) == (2, 4, 1, 2)
    assert (point.tpir, point.fpir) == (0.5, 0.5)


def test_tie_with_another_identity_is_not_rank_one() -> None:
    # Numbers that every processor multiplies and adds without rounding them apart.
    result = search(np.array([[1.0, 1.0]]), ["a"], np.eye(2), ["a", "b"])
    assert result.mate_rank.tolist() == [2]
    same = search(on_circle(0), ["a"], on_circle(0, 0), ["a", "b"])
    assert same.mate_rank.tolist() == [2]


def test_open_set_needs_rank_one() -> None:
    """A mate with a high score that is outranked is a miss at every threshold."""
    result = SearchResult(np.array([0.9, 0.8]), np.array([2, 1]), np.array([0.5, 0.4, 0.3, 0.2]), 3)
    point = open_set_at_fpir(result, 0.25)
    # FPIR <= 1/4 allows 0.5 only: the smallest observed score above 0.4 is 0.5.
    assert (point.threshold, point.fpir, point.tpir) == (0.5, 0.25, 0.5)
    assert point.target_fpir == 0.25
    with pytest.raises(UndefinedMetricError, match="not measurable on 4"):
        open_set_at_fpir(result, 0.2)


def test_failed_probes_stay_in_the_denominators() -> None:
    result = SearchResult(
        np.array([0.9]), np.array([1]), np.array([0.5]), 3, num_failed_mated=1, num_failed_non_mated=3
    )
    point = open_set_at(result, 0.4)
    assert (point.tpir, point.fpir) == (0.5, 0.25)
    assert cmc(result, 1).tolist() == [0.5]
    assert open_set_at_fpir(result, 0.25).tpir == 0.5


def test_all_mates_outranked_is_zero_not_an_error() -> None:
    result = SearchResult(np.array([0.9]), np.array([3]), np.array([0.5, 0.4]), 3)
    assert open_set_at_fpir(result, 0.5).tpir == 0.0
    assert open_set_at(result, 0.0).tpir == 0.0


def test_where_no_threshold_keeps_strangers_out_nobody_is_identified() -> None:
    """Two of four strangers share the highest score: a rate of 1 in 4 asks for a threshold above it."""
    result = SearchResult(np.array([0.9, 0.25]), np.array([1, 1]), np.array([0.9, 0.9, 0.3, 0.2]), 3)
    assert tpir_at_fpir(result, 0.25) == 0.0
    assert tpir_at_fpir(result, 0.5) == open_set_at_fpir(result, 0.5).tpir == 0.5
    collapsed = search(np.ones((4, 2)), ["a", "b", "x", "y"], np.ones((2, 2)), ["a", "b"])
    assert tpir_at_fpir(collapsed, 0.5) == 0.0
    with pytest.raises(UndefinedMetricError, match="not measurable on 4"):
        tpir_at_fpir(result, 0.2)


def test_probe_that_is_itself_enrolled_is_excluded() -> None:
    result = search(
        on_circle(0, 12), ["a", "a"], GALLERY, OWNERS, probe_ids=["g0", "p1"], gallery_ids=["g0", "g1", "g2", "g3"]
    )
    assert result.num_excluded == 1
    assert result.mate_rank.tolist() == [1]


def test_search_says_what_is_missing() -> None:
    with pytest.raises(UndefinedMetricError, match="at least one probe"):
        search(np.zeros((0, 2)), [], GALLERY, OWNERS)
    with pytest.raises(ConfigError, match="label"):
        search(on_circle(1), ["a", "b"], GALLERY, OWNERS)
    with pytest.raises(ConfigError, match="for neither"):
        search(on_circle(1), ["a"], GALLERY, OWNERS, probe_ids=["x"])
    strangers = search(on_circle(1), ["x"], GALLERY, OWNERS)
    with pytest.raises(UndefinedMetricError, match="closed-set"):
        cmc(strangers)
    with pytest.raises(UndefinedMetricError, match="0 and 1"):
        open_set_at(strangers, 0.5)
    with pytest.raises(UndefinedMetricError, match="no gallery"):
        mean_tpir([])


def test_galleries_apart_are_averaged() -> None:
    points = [
        open_set_at(SearchResult(np.array(scores), np.ones(2, int), np.array([0.1]), 2), 0.5)
        for scores in ([0.9, 0.8], [0.9, 0.2])
    ]
    assert mean_tpir(points) == 0.75


@given(
    st.lists(st.sampled_from("abcdx"), min_size=1, max_size=8),
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=8),
    st.integers(0, 10_000),
    st.sampled_from([1, 3, 1024]),
)
@settings(max_examples=100, deadline=None)
def test_search_agrees_with_the_slow_reference(probes: list[str], owners: list[str], seed: int, block: int) -> None:
    rng = np.random.default_rng(seed)
    # Few directions, so that ties across identities happen; they are axis-aligned, so equal cosines are equal.
    directions = np.vstack([np.eye(3), -np.eye(3)])
    probe, gallery = directions[rng.integers(6, size=len(probes))], directions[rng.integers(6, size=len(owners))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mien.evaluation.identification._BLOCK", block)
        found = search(probe, probes, gallery, owners)
    mated, tops = slow.search((probe @ gallery.T).tolist(), probes, owners)
    assert list(zip(found.mate_score.tolist(), found.mate_rank.tolist(), strict=True)) == mated
    assert found.non_mated_top.tolist() == tops
    if mated and tops:
        for t in {s for s, _ in mated} | set(tops):
            point = open_set_at(found, t)
            hits = sum(s >= t and rank == 1 for s, rank in mated)
            assert Fraction(point.num_hits, point.num_mated) == Fraction(hits, len(mated))
            assert point.num_false_positives == sum(s >= t for s in tops)


def test_mean_template_is_the_normalised_mean_of_unit_vectors() -> None:
    # Lengths 1 and 100 must not matter: mean of 0 and 90 degrees is 45.
    templates = mean_templates(np.array([[1.0, 0.0], [0.0, 100.0], [0.0, 2.0]]), ["b", "b", "a"])
    assert templates.ids.tolist() == ["a", "b"]
    assert templates.vectors == pytest.approx(np.array([[0.0, 1.0], [math.sqrt(0.5), math.sqrt(0.5)]]))
    with pytest.raises(UndefinedMetricError, match="cancel"):
        mean_templates(np.array([[1.0, 0.0], [-1.0, 0.0]]), ["a", "a"])


def test_pooling_means_within_media_and_sums_over_media() -> None:
    """Template 1: video of (2, 0), (4, 0) and a still (0, 3): mean (3, 0) + (0, 3) = (3, 3), not (6, 3)."""
    images = np.array([[2.0, 0.0], [4.0, 0.0], [0.0, 3.0], [0.0, 5.0]])
    pooled = pool_templates(images, [1, 1, 1, 2], [7, 7, 8, 7])
    assert pooled.ids.tolist() == [1, 2]
    assert pooled.vectors == pytest.approx(np.array([[math.sqrt(0.5), math.sqrt(0.5)], [0.0, 1.0]]))
    # Norms dropped: mean (1, 0) + (0, 1), the same direction here; detector weights 1, 0, .5: mean (1, 0) + (0, 1.5).
    weighted = pool_templates(images, [1, 1, 1, 2], [7, 7, 8, 7], detector_scores=[1.0, 0.0, 0.5, 1.0])
    assert weighted.vectors[0] == pytest.approx(np.array([1.0, 1.5]) / math.hypot(1.0, 1.5))
    unit = pool_templates(np.array([[2.0, 0.0], [0.0, 1.0]]), [1, 1], [1, 2], keep_norm=False)
    assert unit.vectors[0] == pytest.approx([math.sqrt(0.5), math.sqrt(0.5)])
    kept = pool_templates(np.array([[2.0, 0.0], [0.0, 1.0]]), [1, 1], [1, 2])
    assert kept.vectors[0] == pytest.approx(np.array([2.0, 1.0]) / math.sqrt(5))
    with pytest.raises(ConfigError, match="detector_scores"):
        pool_templates(images, [1, 1, 1, 2], [7, 7, 8, 7], detector_scores=[1.0, -1.0, 1.0, 1.0])


def test_a_template_in_which_the_detector_found_nothing_is_left_out_of_the_pool() -> None:
    """Its images have no weight, so that it has no direction; the others are pooled as without it."""
    images = np.array([[2.0, 0.0], [4.0, 1.0], [0.0, 3.0], [0.0, 5.0]])
    pooled = pool_templates(images, [3, 1, 1, 2], [7, 7, 8, 7], detector_scores=[1.0, 0.0, 0.0, 0.5])
    assert pooled.ids.tolist() == [2, 3]
    assert pooled.vectors == pytest.approx(np.array([[0.0, 1.0], [1.0, 0.0]]))
    with pytest.raises(UndefinedMetricError, match="cancel"):
        pool_templates(np.array([[1.0, 0.0], [-1.0, 0.0]]), [1, 1], [7, 8], detector_scores=[0.5, 0.5])


def test_group_accuracies() -> None:
    groups = {
        name: FoldAccuracy((a, a), (1.0, 1.0), 10, 10, (10, 10))
        for name, a in (("w", 0.96), ("x", 0.98), ("y", 0.92), ("z", 0.94))
    }
    summary = GroupAccuracy(groups)
    assert summary.mean == pytest.approx(0.95)
    assert summary.std_over_groups == pytest.approx(math.sqrt((0.01**2 + 0.03**2 + 0.03**2 + 0.01**2) / 4))
    assert summary.skewed_error_ratio == pytest.approx(4.0)
    perfect = GroupAccuracy({"w": groups["w"], "p": FoldAccuracy((1.0, 1.0), (1.0, 1.0), 1, 1, (1, 1))})
    with pytest.raises(UndefinedMetricError, match="no errors"):
        _ = perfect.skewed_error_ratio
    with pytest.raises(ConfigError, match="two groups"):
        GroupAccuracy({"w": groups["w"]})


def test_rates_by_group_use_one_threshold() -> None:
    rates = rates_by_group(
        {
            "x": Comparisons(np.array([0.9, 0.3]), np.array([0.1, 0.2])),
            "y": Comparisons(np.array([0.9, 0.8]), np.array([0.6, 0.2])),
        },
        0.5,
    )
    assert (rates["x"].fmr, rates["x"].fnmr, rates["y"].fmr, rates["y"].fnmr) == (0.0, 0.5, 0.5, 0.0)
