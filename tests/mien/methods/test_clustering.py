"""Clusterings and their scores on cases that can be checked by hand."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from mien.errors import ConfigError, NonFiniteError, UndefinedMetricError
from mien.methods.clustering import (
    bcubed_scores,
    c_finch,
    calibrated_distance,
    finch,
    nearest_neighbours,
    normalised_mutual_information,
    pairwise_scores,
    pure_distance,
    side_by_side,
)

pytestmark = pytest.mark.numerics


def on_circle(*degrees: float) -> np.ndarray:
    """Return unit vectors at these angles: the distance of two is 2 sin(difference / 2)."""
    angles = np.radians(np.array(degrees))
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


# Two tight groups of three and one far away; chords: 10 degrees 0.174, 50 degrees 0.845, 90 degrees 1.414.
SEVEN = on_circle(0, 10, 21, 70, 80, 91, 200)


def test_first_level_joins_first_neighbours_and_noise_too() -> None:
    # k = [1, 0, 1, 4, 3, 4, 5]: 200 degrees is nearest to 91, so FINCH never leaves it alone.
    assert nearest_neighbours(SEVEN).index.tolist() == [1, 0, 1, 4, 3, 4, 5]
    found = finch(SEVEN)
    assert found.at(0).tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert found.num_clusters == (2, 1)


def test_condition_leaves_noise_alone_and_stops_between_groups() -> None:
    assert c_finch(SEVEN, 0.3).tolist() == [0, 0, 0, 1, 1, 1, 2]
    # Centroids of the groups lie 70 degrees apart: a chord of 1.147.
    assert c_finch(SEVEN, 1.14).tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert c_finch(SEVEN, 1.16).tolist() == [0, 0, 0, 0, 0, 0, 1]
    assert c_finch(SEVEN, 2.0).tolist() == [0] * 7


def test_cosine_distance_is_half_the_squared_chord() -> None:
    chord = nearest_neighbours(SEVEN).distance
    cosine = nearest_neighbours(SEVEN, metric="cosine").distance
    np.testing.assert_allclose(cosine, chord**2 / 2, rtol=1e-12)
    np.testing.assert_allclose(chord[0], 2 * np.sin(np.radians(5)), rtol=1e-12)
    assert c_finch(SEVEN, 0.3**2 / 2, metric="cosine").tolist() == c_finch(SEVEN, 0.3).tolist()


def test_a_link_must_be_shorter_not_equal() -> None:
    square = np.eye(4)  # every chord is sqrt(2)
    assert c_finch(square, float(np.sqrt(2.0))).tolist() == [0, 1, 2, 3]
    assert c_finch(square, 1.4143).tolist() == [0, 0, 0, 0]


def test_ties_go_to_the_lowest_index() -> None:
    assert nearest_neighbours(np.eye(4)).index.tolist() == [1, 0, 0, 0]
    twins = np.repeat(on_circle(0, 90), 3, axis=0)
    assert nearest_neighbours(twins).index.tolist() == [1, 0, 0, 4, 3, 3]
    assert nearest_neighbours(twins).distance.tolist() == [0.0] * 6
    assert c_finch(twins, 1e-9).tolist() == [0, 0, 0, 1, 1, 1]


def test_neighbours_nearer_than_float32_can_tell_are_told_apart() -> None:
    base = on_circle(0.0)[0]
    near, nearer = on_circle(1.0)[0], on_circle(1.0 - 1e-7)[0]
    assert np.float32(base @ near) == np.float32(base @ nearer)
    found = nearest_neighbours(np.stack([base, near, nearer]))
    assert found.index.tolist() == [2, 2, 1]


def test_blocks_change_nothing() -> None:
    rng = np.random.default_rng(0)
    emb = rng.normal(size=(97, 6)).round(1)  # coarse, so that ties occur
    whole, small = nearest_neighbours(emb), nearest_neighbours(emb, block_bytes=4)
    assert whole.index.tolist() == small.index.tolist()
    assert whole.distance.tobytes() == small.distance.tobytes()


def test_centroids_are_means_of_all_members() -> None:
    # 0, 1 and 3, 3.5 join first; their means lie at 0.5 and 3.25 degrees, not where any member is.
    four = on_circle(0, 1, 3, 3.5)
    gap = 2 * np.sin(np.radians(2.75) / 2)
    assert c_finch(four, gap * 0.999).tolist() == [0, 0, 1, 1]
    assert c_finch(four, gap * 1.001).tolist() == [0, 0, 0, 0]


def test_one_embedding_is_one_cluster() -> None:
    assert c_finch(np.ones((1, 3)), 1.2).tolist() == [0]
    assert finch(np.ones((1, 3))).at(-1).tolist() == [0]


def test_levels() -> None:
    found = finch(SEVEN)
    assert found.nearest(3).tolist() == found.at(0).tolist()
    assert found.at(-1).tolist() == [0] * 7
    with pytest.raises(ConfigError, match="2 partitions, there is no level 2"):
        found.at(2)


@pytest.mark.parametrize(
    ("embeddings", "error", "says"),
    [
        (np.zeros((0, 3)), UndefinedMetricError, "nothing to cluster"),
        (np.array([[1.0, np.nan], [0, 1]]), NonFiniteError, "NaN"),
        (np.array([[0.0, 0], [0, 1]]), UndefinedMetricError, "zero vector"),
        (np.ones(3), ConfigError, "one row an image"),
    ],
)
def test_what_cannot_be_clustered_is_refused(embeddings: np.ndarray, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        c_finch(embeddings, 1.2)


@pytest.mark.parametrize("distance", [0.0, -1.0, float("nan")])
def test_a_distance_must_be_positive(distance: float) -> None:
    with pytest.raises(ConfigError, match="must be positive"):
        c_finch(SEVEN, distance)


# Six images, identities a a a b b c, clusters 0 0 1 1 1 2.
TRUTH, FOUND = list("aaabbc"), [0, 0, 1, 1, 1, 2]


def test_pairwise_scores_by_hand() -> None:
    # Joined pairs: 1 + 3 + 0 = 4, of which right: {a1 a2} and {b1 b2} = 2. True pairs: 3 + 1 + 0 = 4.
    scores = pairwise_scores(TRUTH, FOUND)
    assert (scores.precision, scores.recall, scores.f_score) == (0.5, 0.5, 0.5)


def test_bcubed_by_hand() -> None:
    # Precision by image: 1 1 1/3 2/3 2/3 1; recall: 2/3 2/3 1/3 1 1 1.
    scores = bcubed_scores(TRUTH, FOUND)
    assert scores.precision == pytest.approx((1 + 1 + 1 / 3 + 2 / 3 + 2 / 3 + 1) / 6)
    assert scores.recall == pytest.approx((2 / 3 + 2 / 3 + 1 / 3 + 1 + 1 + 1) / 6)


def test_mutual_information_by_hand() -> None:
    # p = 2/6 (a,0), 1/6 (a,1), 2/6 (b,1), 1/6 (c,2); both margins are 3/6 2/6 1/6 up to order.
    entropy = -(1 / 2 * np.log(1 / 2) + 1 / 3 * np.log(1 / 3) + 1 / 6 * np.log(1 / 6))
    information = (
        1 / 3 * np.log((1 / 3) / (1 / 2 * 1 / 3))
        + 1 / 6 * np.log((1 / 6) / (1 / 2 * 1 / 2))
        + 1 / 3 * np.log((1 / 3) / (1 / 3 * 1 / 2))
        + 1 / 6 * np.log((1 / 6) / (1 / 6 * 1 / 6))
    )
    assert normalised_mutual_information(TRUTH, FOUND) == pytest.approx(information / entropy)


def test_one_cluster_for_all() -> None:
    # 4 of 15 joined pairs are right, and none is missed.
    scores = pairwise_scores(TRUTH, [7] * 6)
    assert (scores.precision, scores.recall) == (4 / 15, 1.0)
    assert bcubed_scores(TRUTH, [7] * 6).precision == pytest.approx((3 * 3 + 2 * 2 + 1) / 36)
    assert normalised_mutual_information(TRUTH, [7] * 6) == 0.0
    assert normalised_mutual_information([1, 1], [5, 5]) == 1.0


def test_nobody_joined() -> None:
    scores = pairwise_scores(TRUTH, range(6))
    assert (scores.precision, scores.recall, scores.f_score) == (1.0, 0.0, 0.0)
    assert bcubed_scores(TRUTH, range(6)).recall == pytest.approx((3 * 1 / 3 + 2 * 1 / 2 + 1) / 6)
    alone = pairwise_scores(list("abc"), range(3))
    assert (alone.precision, alone.recall, alone.f_score) == (1.0, 1.0, 1.0)


def test_empty_and_unequal_are_refused() -> None:
    for score in (pairwise_scores, bcubed_scores, normalised_mutual_information):
        with pytest.raises(UndefinedMetricError, match="no images"):
            score([], [])
        with pytest.raises(ConfigError, match="2 identities but 1 clusters"):
            score([1, 2], [1])


def test_the_number_of_levels_is_a_setting() -> None:
    """Two levels of C-FINCH are FINCH's first two where every link is short enough; without end one cluster is left."""
    embeddings = np.random.default_rng(3).normal(size=(40, 6))
    hierarchy = finch(embeddings)
    assert len(hierarchy.partitions) > 2
    for levels in (1, 2):
        np.testing.assert_array_equal(c_finch(embeddings, 2.1, max_levels=levels), hierarchy.at(levels - 1))
    assert c_finch(embeddings, 2.1).max() == 0


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("spread", [0.05, 0.2])
def test_a_calibrated_distance_finds_the_people_whatever_the_model(
    metric: Literal["euclidean", "cosine"], spread: float
) -> None:
    """The constant 1.2 joins them all; what the source's people say does not, and it holds for others of that model."""
    rng = np.random.default_rng(5)

    def people(number: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        centres = np.ones((number, 24)) + rng.normal(size=(number, 24))  # a narrow cone, as of a model on strange faces
        labels = np.repeat(np.arange(number), 6)
        return centres[labels] + spread * rng.normal(size=(len(labels), 24)), labels

    source, target = people(20), people(20)
    found = calibrated_distance(*source, metric=metric)
    assert pairwise_scores(target[1], c_finch(target[0], found, metric=metric)).f_score > 0.95
    assert pairwise_scores(target[1], c_finch(target[0], 1.2, metric="euclidean")).f_score < 0.5


def test_a_distance_needs_two_people_and_two_images_of_one() -> None:
    for labels in ([0, 0], [0, 1]):
        with pytest.raises(UndefinedMetricError, match=r"calibrated.*give more labelled people"):
            calibrated_distance(np.eye(2), labels)


# Two pictures of each of four people, 4 degrees apart. Chords: 4 degrees 0.070, 20 degrees 0.347, 80 degrees 1.286.
FOUR = on_circle(0, 4, 120, 124, 20, 24, 200, 204)


def test_the_largest_pure_distance_by_hand() -> None:
    """Tried are steps of 0.05; 0 and 20 degrees are joined from 0.35 on, 120 and 200 from 1.3, all from 1.95."""
    labels = [0, 0, 1, 1, 2, 2, 3, 3]
    assert pure_distance(FOUR, labels, 1.0) == pytest.approx(0.30)
    # Joined pairs that are right: 4 of 8 up to 1.25, 4 of 12 up to 1.9, 4 of 28.
    assert pure_distance(FOUR, labels, 0.5) == pytest.approx(1.25)
    assert pure_distance(FOUR, labels, 0.3) == pytest.approx(1.90)
    assert pure_distance(FOUR, labels, 1 / 7) == 2.0
    # Linked once, everybody's first neighbour is their own other picture.
    assert pure_distance(FOUR, labels, 1.0, max_levels=1) == 2.0
    assert pure_distance(FOUR, labels, 1.0, metric="cosine") == pytest.approx(0.30**2 / 2)


def test_people_are_clustered_in_groups_as_large_as_a_client() -> None:
    """Those of 0 and 20 degrees are in groups of two people apart; 0 and 120 are joined from 1.75 on."""
    assert pure_distance(FOUR, [0, 0, 1, 1, 2, 2, 3, 3], 1.0, group_images=4) == pytest.approx(1.70)
    assert pure_distance(FOUR, [0, 0, 2, 2, 1, 1, 3, 3], 1.0, group_images=4) == pytest.approx(0.30)
    # One image would be no group: two people are. Of five images two people have too few, and four make a group.
    assert pure_distance(FOUR, [0, 0, 1, 1, 2, 2, 3, 3], 1.0, group_images=1) == pytest.approx(1.70)
    assert pure_distance(FOUR, [0, 0, 1, 1, 2, 2, 3, 3], 1.0, group_images=7) == pytest.approx(0.30)
    # With groups of three people the fourth is left out, and all are one group where there are fewer images.
    assert pure_distance(FOUR, [0, 0, 1, 1, 3, 3, 2, 2], 1.0, group_images=6) == pytest.approx(1.25)
    assert pure_distance(FOUR, [0, 0, 1, 1, 2, 2, 3, 3], 1.0, group_images=99) == pytest.approx(0.30)


def test_what_no_distance_keeps_pure_is_refused() -> None:
    """Each picture is nearest to another person's."""
    mixed = on_circle(0, 10, 1, 11)
    assert pure_distance(mixed, [0, 0, 1, 1], 0.3) == 2.0
    with pytest.raises(ConfigError, match=r"at no distance are 0\.5 .* lower the purity"):
        pure_distance(mixed, [0, 0, 1, 1], 0.5)
    for labels in ([0, 0], [0, 1]):
        with pytest.raises(UndefinedMetricError, match=r"calibrated.*give more labelled people"):
            pure_distance(np.eye(2), labels, 0.5)


def test_partitions_side_by_side_share_no_cluster() -> None:
    assert side_by_side([np.array([0, 1, 0]), np.array([0]), np.array([0, 1])]).tolist() == [0, 1, 0, 2, 3, 4]


def test_a_pure_distance_holds_for_others_where_an_f_score_joins_strangers() -> None:
    """In a narrow cone of faces F is best at a distance that joins people; a pure one joins next to none of them."""
    rng = np.random.default_rng(6)

    def people(number: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        centres = np.ones((number, 16)) + 0.5 * rng.normal(size=(number, 16))
        labels = np.repeat(np.arange(number), 8)
        return centres[labels] + 0.45 * rng.normal(size=(len(labels), 16)), labels

    source, target = people(60), people(20)
    best = calibrated_distance(*source)
    pure = pure_distance(*source, 0.95, group_images=160)
    assert pure < best
    precisions = [pairwise_scores(target[1], c_finch(target[0], each)).precision for each in (best, pure)]
    assert precisions[0] < 0.7
    assert precisions[1] > 0.95
