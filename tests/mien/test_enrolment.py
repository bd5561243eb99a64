"""The enrolment sweep: same probes for every row, templates of the first pictures, figures by hand."""

from __future__ import annotations

import numpy as np
import pytest

from mien.errors import ConfigError, UndefinedMetricError
from mien.evaluation.enrolment import enrolment_sweep
from mien.evaluation.scores import Labels, rows_of_each


def faces(people: int, each: int, noise: float = 0.9, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    centres = np.repeat(rng.standard_normal((people, 16)), each, axis=0)
    return centres + noise * rng.standard_normal(centres.shape), np.repeat(np.arange(people), each)


def test_more_pictures_make_better_templates_of_the_same_people_on_the_same_probes() -> None:
    embeddings, labels = faces(40, 10)
    points = enrolment_sweep(embeddings, labels, (8, 1, 3), target_fmr=0.01)
    assert [point.num_images for point in points] == [1, 3, 8]
    assert {(point.num_people, point.at_fmr.num_mated, point.at_fmr.num_non_mated) for point in points} == {
        (40, 80, 80 * 39)
    }
    assert points[0].at_fmr.fnmr > points[1].at_fmr.fnmr > points[2].at_fmr.fnmr
    assert points[0].eer > points[2].eer


def test_two_people_by_hand() -> None:
    """Whatever the order: each template is one of two equal pictures, each probe is the third one."""
    a, b = [1.0, 0.0], [0.0, 1.0]
    (point,) = enrolment_sweep([a, a, a, b, b, b], [0, 0, 0, 1, 1, 1], (2,), target_fmr=0.5)
    assert (point.at_fmr.threshold, point.at_fmr.num_mated, point.at_fmr.num_non_mated) == (1.0, 2, 2)
    assert (point.at_fmr.fnmr, point.at_fmr.fmr, point.eer) == (0.0, 0.0, 0.0)


def test_people_with_too_few_pictures_are_left_out() -> None:
    embeddings, labels = faces(6, 4)
    labels[-3:] = 99  # the last person has one picture, and a seventh three
    (point,) = enrolment_sweep(embeddings, labels, (3,), target_fmr=0.1)
    assert point.num_people == 5


def test_the_seed_chooses_the_pictures() -> None:
    embeddings, labels = faces(20, 6)
    first, again, other = (enrolment_sweep(embeddings, labels, (1,), target_fmr=0.05, seed=s) for s in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("counts", [(), (0,), (2, -1)])
def test_numbers_that_cannot_be_are_refused(counts: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="at least"):
        enrolment_sweep(*faces(3, 4), counts)


def test_a_set_that_is_too_small_says_so() -> None:
    with pytest.raises(ConfigError, match="0 people have more than 4 pictures"):
        enrolment_sweep(*faces(3, 4), (4,))
    with pytest.raises(UndefinedMetricError, match="not measurable"):
        enrolment_sweep(*faces(3, 4), (2,))


def test_people_are_found_without_comparing_every_picture_with_everybody() -> None:
    compared = 0

    class Name:
        def __init__(self, number: int) -> None:
            self.number = number

        def __lt__(self, other: Name) -> bool:
            nonlocal compared
            compared += 1
            return self.number < other.number

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return isinstance(other, Name) and self.number == other.number

        __hash__ = None  # type: ignore[assignment]

    embeddings, labels = faces(200, 3)
    (point,) = enrolment_sweep(embeddings, np.array([Name(label) for label in labels]), (2,), target_fmr=0.1)
    assert point.num_people == 200
    assert compared < 20 * len(labels)  # sorting takes their logarithm of each; 200 of each by comparing with everybody


@pytest.mark.parametrize("labels", [["b", "a", "b", "c", "a"], [7, -1, 7, 9, -1], np.array([3, 1, 3, 4, 1], np.uint8)])
def test_rows_of_each_identity_keep_their_order(labels: Labels) -> None:
    assert [rows.tolist() for rows in rows_of_each(labels)] == [[1, 4], [0, 2], [3]]
    assert rows_of_each([]) == []
