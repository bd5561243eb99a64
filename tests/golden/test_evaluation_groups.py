"""Errors by group against slow loops, and the verdicts on groups that are too small or too high."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from mien.errors import ConfigError
from mien.evaluation.fairness import (
    Differential,
    GroupErrors,
    Grouping,
    Rate,
    differential,
)
from mien.evaluation.scores import all_pairs, all_pairs_among, errors_by_person
from mien.models.unmeasured import SUBJECTS, never_measured
from mien.specs import GroupRate

NONE_FAILED = np.zeros(12, np.int64)
GROUPS: Grouping = {"age": {"0-12": [0, 1, 2, 3], "20-39": [4, 5, 6, 7, 8]}, "sex": {"f": [0, 4, 5, 9], "m": [1, 6]}}


def people(seed: int, *, num_people: int = 12, images: int = 3) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return embeddings of people in four dimensions, where strangers are often alike, and whose they are."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((num_people, 4))
    labels = np.repeat(np.arange(num_people), images)
    return (centres[labels] + 0.6 * rng.standard_normal((labels.size, 4))).astype(np.float32), labels


def slow_counts(
    embeddings: NDArray[np.float32], labels: NDArray[np.int64], threshold: float, first: set[int], second: set[int]
) -> tuple[int, int, int, int]:
    """Return false matches, non-mated, false non-matches and mated comparisons, by a loop over pairs of samples."""
    unit = embeddings / np.linalg.norm(embeddings.astype(np.float64), axis=1, keepdims=True)
    counts = [0, 0, 0, 0]
    for i, j in combinations(range(len(labels)), 2):
        a, b = int(labels[i]), int(labels[j])
        if not ((a in first and b in second) or (a in second and b in first)):
            continue
        accepted = float(unit[i] @ unit[j]) >= threshold
        at = 2 if a == b else 0
        counts[at] += (not accepted) if a == b else accepted
        counts[at + 1] += 1
    return counts[0], counts[1], counts[2], counts[3]


def found(seed: int, threshold: float = 0.51234, target_fmr: float = 0.1) -> Differential:
    embeddings, labels = people(seed)
    return differential(embeddings, labels, GROUPS, threshold=threshold, target_fmr=target_fmr, num_failed=NONE_FAILED)


@pytest.mark.parametrize("seed", [1, 2])
def test_counts_within_and_between_groups_are_those_of_plain_loops(seed: int) -> None:
    embeddings, labels = people(seed)
    told = found(seed)
    assert [(each.attribute, each.group) for each in told.groups] == [
        (attribute, group) for attribute, groups in GROUPS.items() for group in groups
    ]
    for each in told.groups:
        own = set(GROUPS[each.attribute][each.group])
        expected = slow_counts(embeddings, labels, 0.51234, own, own)
        assert each.fmr is not None
        assert each.fnmr is not None
        assert (each.fmr.num_errors, each.fmr.num_trials, each.fnmr.num_errors, each.fnmr.num_trials) == expected
        assert each.num_people == len(own)
    for cross in told.between:
        groups = GROUPS[cross.attribute]
        expected = slow_counts(embeddings, labels, 0.51234, set(groups[cross.first]), set(groups[cross.second]))
        assert (cross.fmr.num_errors, cross.fmr.num_trials, 0, 0) == expected
    assert len(told.between) == 2


def test_an_interval_holds_the_rate_and_is_the_same_again() -> None:
    first, again = found(1), found(1)
    assert first == again
    rates = [rate for each in first.groups for rate in (each.fmr, each.fnmr, each.fte) if rate is not None]
    rates += [each.fmr for each in first.between]
    told = [rate for rate in rates if rate.interval is not None]
    assert len(told) > 8
    for rate in told:
        assert rate.interval is not None
        assert rate.interval.low <= rate.value <= rate.interval.high


def test_an_interval_is_as_wide_as_the_people_warrant_not_the_pictures() -> None:
    """Ten times the pictures of the same people tell a little more; ten times the people do."""

    def width(num_people: int, images: int) -> float:
        embeddings, labels = people(5, num_people=num_people, images=images)
        groups = {"all": {"everybody": range(num_people)}}
        told = differential(
            embeddings, labels, groups, threshold=0.6, target_fmr=0.1, num_failed=np.zeros(num_people, np.int64)
        )
        rate = told.groups[0].fmr
        assert rate is not None
        assert rate.interval is not None
        return rate.interval.high - rate.interval.low

    few, more_pictures, more_people = width(12, 2), width(12, 20), width(120, 2)
    assert more_pictures > 0.4 * few  # independent comparisons would leave a tenth
    assert more_people < 0.5 * few


def apart(num_people: int, images: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return embeddings without an error: everybody a direction of their own."""
    labels = np.repeat(np.arange(num_people), images)
    return np.eye(num_people, dtype=np.float32)[labels], labels


def judged(num_people: int, images: int, target_fmr: float) -> GroupErrors:
    embeddings, labels = apart(num_people, images)
    groups = {"age": {"0-12": range(num_people)}}
    told = differential(
        embeddings, labels, groups, threshold=0.5, target_fmr=target_fmr, num_failed=np.zeros(num_people, np.int64)
    )
    return told.groups[0]


def test_without_an_error_the_rate_may_be_three_by_the_pairs_of_people() -> None:
    """26 people are 325 pairs: 3 / 325 lies below 10 x 0.001. Pictures of two people, however many, prove one pair."""
    each = judged(26, 2, 1e-3)
    assert each.fmr is not None
    assert each.fmr.interval is not None
    assert (each.fmr.interval.low, each.fmr.interval.high) == (0.0, pytest.approx(3 / 325))
    assert each.verdict == "measured"
    assert judged(24, 2, 1e-3).verdict == "too_small"
    two = judged(2, 60, 1e-3)
    assert two.verdict == "too_small"
    assert two.reason == (
        "0 false matches in 3600 comparisons of 2 people tell nothing at FMR 0.001: it may be 1; add people"
    )


def test_a_group_of_one_person_has_no_strangers() -> None:
    each = judged(1, 4, 1e-3)
    assert (each.fmr, each.verdict) == (None, "too_small")
    assert "one person has no strangers" in each.reason
    assert each.fnmr is not None
    assert each.fnmr.num_trials == 6


def test_ten_times_the_target_is_warned_of_within_and_between() -> None:
    """Two of the pairs of people are one face: 4 of 24 comparisons in the group, none of the other group's."""
    embeddings, labels = apart(8, 1)
    embeddings[1], embeddings[7] = embeddings[0], embeddings[3]
    groups = {"age": {"0-12": [0, 1, 2, 3], "20-39": [4, 5, 6, 7]}}
    told = differential(embeddings, labels, groups, threshold=0.5, target_fmr=1e-3, num_failed=np.zeros(8, np.int64))
    assert [each.verdict for each in told.groups] == ["exceeds", "too_small"]
    assert told.warnings() == [
        "age 0-12: FMR 0.17 (1 of 6 comparisons) is 167 times the target, 0.001",
        "age 0-12 with 20-39: FMR 0.062 (1 of 16 comparisons) is 62 times the target, 0.001",
    ]


def test_failures_to_enrol_count_for_their_group_and_for_nothing_else() -> None:
    embeddings, labels = people(3)
    failed = NONE_FAILED.copy()
    failed[[0, 1]] = (2, 1)
    told = differential(embeddings, labels, GROUPS, threshold=0.5, target_fmr=0.1, num_failed=failed)
    children, adults = told.groups[:2]
    assert (children.fte.num_errors, children.fte.num_trials) == (3, 15)
    assert (adults.fte.num_errors, adults.fte.num_trials) == (0, 15)
    assert adults.fte.interval is not None
    assert adults.fte.interval.high == pytest.approx(3 / 5)
    assert children.fmr == found(3, 0.5).groups[0].fmr


def test_somebody_whose_every_picture_failed_is_counted_too() -> None:
    embeddings, labels = people(3, num_people=3)
    told = differential(
        embeddings,
        labels,
        {"age": {"a": [0, 3], "b": [1, 2]}},
        threshold=0.5,
        target_fmr=0.1,
        num_failed=np.array([0, 0, 0, 4]),
    )
    assert (told.groups[0].fte, told.groups[0].verdict) == (Rate(4, 7, told.groups[0].fte.interval), "too_small")


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"age": {"a": [0, 1], "b": [1]}}, "in two groups of age"),
        ({"age": {"a": []}}, "empty"),
        ({"age": {"a": [12]}}, "beyond the 12"),
        ({"age": {"a": [-1]}}, "beyond the 12"),
    ],
    ids=["twice", "empty", "too many", "negative"],
)
def test_groups_that_cannot_be_are_refused(groups: Grouping, message: str) -> None:
    embeddings, labels = people(1)
    with pytest.raises(ConfigError, match=message):
        differential(embeddings, labels, groups, threshold=0.5, target_fmr=0.1, num_failed=NONE_FAILED)


def test_scores_among_chosen_samples_are_those_of_the_whole_set() -> None:
    embeddings, labels = people(2, num_people=400)
    chosen = labels % 3 == 0
    among = all_pairs_among(embeddings, labels, chosen)
    whole = all_pairs(embeddings, labels)
    assert np.isin(among.non_mated, whole.non_mated).all()
    num = int(chosen.sum())
    assert among.num_mated + among.num_non_mated == num * (num - 1) // 2
    everybody = all_pairs_among(embeddings, labels, np.ones(labels.size, np.bool_))
    assert np.array_equal(np.sort(everybody.mated), np.sort(whole.mated))
    with pytest.raises(ConfigError, match="one bool"):
        all_pairs_among(embeddings, labels, chosen[1:])


def test_errors_by_person_name_each_pair_once_and_take_the_threshold_exactly() -> None:
    embeddings = np.array([[1, 0], [0.6, 0.8], [1, 0], [0, 1]], np.float32)
    errors = errors_by_person(embeddings, np.array([2, 2, 0, 0]), float(np.float32(0.6)), num_people=4)
    assert errors.num_samples.tolist() == [2, 0, 2, 0]
    assert errors.num_missed.tolist() == [1, 0, 0, 0]  # 0.6 itself is accepted
    assert errors.pairs.tolist() == [[0, 2]]
    assert errors.num_false_matches.tolist() == [3]
    with pytest.raises(ConfigError, match="between 0 and 1"):
        errors_by_person(embeddings, np.array([2, 2, 0, 0]), 0.5, num_people=2)


def group_rate(attribute: str, group: str, verdict: str = "measured") -> GroupRate:
    return GroupRate(
        attribute=attribute,
        group=group,
        verdict=verdict,  # type: ignore[arg-type]
        target_fmr=1e-3,
        threshold=0.4,
        num_people=30,
        num_false_matches=1,
        num_non_mated=400,
        dataset="faces",
        model_id="a" * 64,
        date="2026-01-01",
    )


def test_what_was_never_measured_is_all_that_no_group_is_about() -> None:
    assert never_measured([]) == list(SUBJECTS)
    children, masks = "children up to 12 years", "faces with masks or other covers"
    assert children not in never_measured([group_rate("age", "0-12")])
    assert children not in never_measured([group_rate("group", "Children")])
    assert children in never_measured([group_rate("age", "0-12", "too_small")])
    assert children in never_measured([group_rate("age", "20-39"), group_rate("age", "10-12 months ago")])
    assert children not in never_measured([group_rate("age", "0-12", "exceeds")])
    assert masks not in never_measured([group_rate("worn", "mask")])
    assert never_measured([group_rate("sex", "f")]) == [each for each in SUBJECTS if each != "women and men apart"]
