"""What a task shows is said in words, and the most telling thing cannot be missed."""

from __future__ import annotations

import typing
from typing import Any

from coordinator.operator.disclosure import _REVEALED, UNMASKED, disclosures
from mien.specs import CohortSpec, DpSpec, MustInclude, PrivacySpec, TaskSpec

COHORT = CohortSpec(size=20, min_reports=16)


def shown(**privacy: Any) -> list[str]:
    return disclosures(TaskSpec("t", cohort=COHORT, privacy=PrivacySpec(**privacy)))


def test_every_task_says_what_the_server_learns() -> None:
    masked = shown()
    assert "at least 16 phones" in masked[0]
    assert "nothing of any single phone, even if it lies" in masked[1]
    assert len(masked) == 2
    assert "keeps to the protocol" in shown(secure_aggregation="honest_but_curious")[1]
    assert shown(secure_aggregation="off")[1] == UNMASKED


def test_an_operator_is_told_what_a_source_in_each_cohort_means() -> None:
    cohort = CohortSpec(size=20, min_reports=16, must_include=MustInclude())
    told = disclosures(TaskSpec("t", method="fedfr_uda", cohort=cohort))
    assert "1 or more devices that say at check-in that they hold labelled faces" in told[0]
    assert "the other phones hide among 15" in told[0]
    assert "labelled" not in shown()[0]


def test_sums_of_groups_are_smaller_and_it_says_so() -> None:
    grouped = shown(groups=3, min_cohort=5, group_mean="median")
    assert "at least 5 phones" in grouped[0]
    assert "3 groups" in grouped[2]
    assert "median" in grouped[2]


def test_of_few_phones_none_may_help_and_a_sum_over_them_tells_much() -> None:
    for smallest in (3, 4, 9, 10, 15, 16, 40):
        cohort = CohortSpec(size=smallest, min_reports=smallest)
        told = disclosures(TaskSpec("t", cohort=cohort, privacy=PrivacySpec(min_cohort=smallest)))
        assert ("up to one phone in ten may help it" in told[1]) == (smallest >= 10)
        assert ("to the phones, but not if one of these few phones helps it" in told[1]) == (smallest < 10)
        assert ("so few tells much of each" in told[0]) == (smallest < 16)
    assert "one phone in ten" not in shown(groups=3, min_cohort=5, group_mean="median")[1]  # counts in each sum


def test_differential_privacy_is_said_with_what_it_rests_on() -> None:
    dp = DpSpec("central_gaussian", 2.0, epsilon=8.0, delta=1e-5, max_participations=4)
    task = TaskSpec("t", trainable=("head*",), cohort=COHORT, privacy=PrivacySpec(max_weight=1, dp=dp))
    told = " ".join(disclosures(task))
    for words in ("epsilon 8 at delta 1e-05", "trusted to add the noise", "at most 4 sums", "Nothing is claimed"):
        assert words in told


def test_what_is_revealed_comes_last() -> None:
    told = shown(reveals=("class_embeddings",))
    assert "class embedding in clear" in told[-1]
    assert "deleted when the task ends" in told[-1]


def test_everything_that_can_be_revealed_has_words() -> None:
    for name in typing.cast("tuple[str, ...]", ("class_embeddings",)):
        PrivacySpec(reveals=(name,))
        assert name in _REVEALED


def test_that_validators_see_candidates_is_said() -> None:
    validators = CohortSpec(size=18, min_reports=17)
    told = disclosures(TaskSpec("t", method="pfm_fv", cohort=COHORT, validators=validators))
    assert "17 validators or more also download the candidates" in told[-1]


def test_a_mixtures_operator_is_told_which_phones_take_part() -> None:
    """Those for whom a tenth of its smallest sum is enough, for so little may others count."""
    privacy, cohort = PrivacySpec(min_cohort=165, max_weight=1, reveals=("class_moment",)), CohortSpec(200, 165)
    for options, is_said in (({}, False), ({"mixture": True}, True)):
        task = TaskSpec("t", method="statistics", rounds=2, cohort=cohort, privacy=privacy, options=options)
        assert ("privacy.min_cohort 165 those take part whose floor is 16 or less" in disclosures(task)[0]) == is_said
