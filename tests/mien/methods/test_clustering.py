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
        with pytest.raises(UndefinedMetricError, match="calibrated"):
            calibrated_distance(np.eye(2), labels)
