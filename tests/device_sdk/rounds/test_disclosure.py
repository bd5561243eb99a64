"""What a device says before it takes part, and what it refuses."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from coordinator.operator.disclosure import disclosures
from device_sdk.rounds.disclosure import (
    Agreement,
    check_agreed,
    check_kind,
    disclosure,
    is_agreed,
    measuring_disclosure,
    summing_disclosure,
)
from device_sdk.rounds.work import JUDGING, MEASURING, SUMMING, TRAINING, work_of
from mien.contribution import ContributionLayout, Lane
from mien.errors import ConfigError
from mien.layout import ParameterEntry, ParameterLayout
from mien.methods.fedavg import FEDAVG
from mien.methods.federated_evaluation import FEDERATED_EVALUATION, privacy_of
from mien.methods.statistics import STATISTICS
from mien.protocol.rounds import Role
from mien.specs import CohortSpec, DpSpec, MustInclude, PrivacySpec, TaskSpec
from tests.examples.by_path import example

SUMS = ContributionLayout((Lane("count", 1), Lane("weight", 1), Lane("loss_before", 1), Lane("delta", 1_250_000)))
CLEAR = ContributionLayout(SUMS.summed, (Lane("class_embedding", 192),))
NOISE = DpSpec("skellam", noise_multiplier=1.0, epsilon=8.0, delta=1e-6, max_participations=10)


def task(*, min_cohort: int = 16, size: int = 20, reveals: tuple[str, ...] = (), **privacy: Any) -> TaskSpec:
    return TaskSpec(
        "study",
        trainable=("block13.*",),
        cohort=CohortSpec(size=size, min_reports=min_cohort),
        privacy=PrivacySpec(**{"reveals": reveals, "min_cohort": min_cohort, "max_weight": 5, **privacy}),
    )


def agree(spec: TaskSpec, layout: ContributionLayout = SUMS, **agreed: Any) -> None:
    check_agreed(spec, layout, Agreement(**agreed))


def words(spec: TaskSpec, layout: ContributionLayout = SUMS, *, min_cohort: int = 4) -> str:
    return " ".join(disclosure(spec, layout, num_images=9, min_cohort=min_cohort))


def test_the_default_agreement_is_masked_sums_over_sixteen() -> None:
    agree(task())
    with pytest.raises(ConfigError, match=r"15 devices; this device agrees to 16 or more.*min_cohort = 15`"):
        agree(task(min_cohort=15))
    agree(task(min_cohort=15), min_cohort=4)


def test_no_update_in_clear_is_within_an_owners_epsilon() -> None:
    plain = task(secure_aggregation="off")
    agree(plain, allow_plain_sums=True)
    with pytest.raises(ConfigError, match=r"more than any epsilon bounds.*participation\.max_epsilon is 8"):
        agree(plain, allow_plain_sums=True, max_epsilon=8.0)
    agree(task(), allow_plain_sums=True, max_epsilon=8.0)  # its log of sums keeps count of masked ones


@pytest.mark.parametrize("protection", ["malicious_server", "off"])
def test_a_phone_is_told_that_sources_do_not_hide_it(protection: str) -> None:
    """Whoever runs the source knows what it sent, and can take that out of the sum."""
    plain = task(secure_aggregation=protection)
    source = replace(plain, cohort=replace(plain.cohort, must_include=MustInclude(2)))
    sentence = "Each sum includes 2 or more devices with labelled faces"
    assert sentence not in words(plain)
    assert f"{sentence}, which an operator runs and can leave out of account: the others hide among 14." in words(
        source
    )


def test_sources_do_not_count_towards_an_owners_floor() -> None:
    source = task()
    source = replace(source, cohort=replace(source.cohort, min_reports=16, must_include=MustInclude(2)))
    with pytest.raises(
        ConfigError, match=r"sums over 14 devices besides its sources; this device agrees to 16 or more"
    ):
        agree(source)
    agree(source, min_cohort=14)
    agree(replace(source, cohort=replace(source.cohort, size=20, min_reports=18)))


def test_plain_sums_need_the_owners_word() -> None:
    with pytest.raises(ConfigError, match=r"would see this phone's own update.*allow_plain_sums = true`"):
        agree(task(secure_aggregation="off"))
    agree(task(secure_aggregation="off"), allow_plain_sums=True)


def test_a_weaker_profile_needs_the_owners_word_and_plain_sums_are_no_word_for_it() -> None:
    curious = task(secure_aggregation="honest_but_curious")
    with pytest.raises(ConfigError, match=r'keeps to the rules.*allow_profiles = \["honest_but_curious"\]`'):
        agree(curious, allow_plain_sums=True)
    agree(curious, allow_profiles=("honest_but_curious",))


def test_nothing_is_revealed_unless_the_owner_said_so() -> None:
    with pytest.raises(ConfigError, match=r'agrees to nothing of the kind.*allow_reveal = \["class_embeddings"\]`'):
        agree(task(reveals=("class_embeddings",)), CLEAR)
    agree(task(reveals=("class_embeddings",)), CLEAR, allow_reveal=("class_embeddings",))


def test_a_task_that_hides_what_it_reveals_is_refused() -> None:
    with pytest.raises(ConfigError, match="class_embedding in clear without saying so"):
        agree(task(), CLEAR, allow_reveal=("class_embeddings",))


def test_the_words_say_what_leaves_and_who_sees_it() -> None:
    text = words(task())
    assert "1,250,003 numbers (5.0 MB)" in text
    assert "on 9 images changed 1,250,000 parameters" in text
    assert "times 5" in text
    assert "loss before; all of it under masks" in text
    assert "the sum over at least 16 phones (this device agrees to 4 or more)" in text
    assert "also if it breaks the rules" in text
    assert "Of 20 phones that begin, 16 must stay to the end" in text
    assert "no embedding leaves it" in text
    assert "not masked" not in text


def test_the_words_of_a_packed_ring_name_its_size() -> None:
    assert "(3.8 MB)" in words(task(ring_bits=24))  # 1,250,000 numbers of 3 bytes


@pytest.mark.parametrize(("size", "stay"), [(3, "all"), (4, "all"), (5, "all"), (6, "5"), (9, "7")])
def test_the_words_say_how_fragile_small_cohorts_are(size: int, stay: str) -> None:
    assert f"Of {size} phones that begin, {stay} must stay to the end" in words(task(min_cohort=3, size=size))


def test_the_words_of_the_weaker_profile_say_what_it_rests_on() -> None:
    text = words(task(secure_aggregation="honest_but_curious"))
    assert "as long as it keeps to the rules" in text
    assert "one that lies about which phones are left could see this phone's update" in text


def test_the_words_of_plain_sums_say_that_the_coordinator_sees_this_phone() -> None:
    text = words(task(secure_aggregation="off"))
    assert "Sums of this task are not masked: the coordinator sees this phone's update" in text
    assert "at least 16 devices (this device agrees to 4 or more)" in text
    assert "under masks" not in text


def test_the_words_say_what_is_revealed() -> None:
    text = words(task(reveals=("class_embeddings",)), CLEAR)
    assert "all but what is shown in clear under masks" in text
    assert "a template of their face" in text
    assert "no embedding" not in text
    assert "No photo and no crop leaves it." in text


def test_the_words_say_who_adds_noise_and_that_no_loss_is_sent_with_it() -> None:
    text = words(task(max_weight=1, dp=NOISE))
    assert "Each phone adds its share of noise" in text
    assert "epsilon 8 at delta 1e-06" in text
    assert "loss before" not in text
    central = DpSpec("central_gaussian", noise_multiplier=1.0, epsilon=8.0, delta=1e-6, max_participations=10)
    assert "this phone cannot see whether it does" in words(task(max_weight=1, dp=central))


class TestMeasuringModels:
    measuring = TaskSpec(
        "roll-out",
        method="federated_evaluation",
        privacy=privacy_of(min_cohort=16, is_paired=False),
        options={"threshold": 0.5},
    )
    part = ParameterLayout((ParameterEntry("a", (4,)),)).part(("*",))
    layout = FEDERATED_EVALUATION.contribution_layout(measuring, part, 4)

    def test_what_leaves_is_said(self) -> None:
        said = " ".join(measuring_disclosure(self.measuring, self.layout, num_images=9, min_cohort=16, num_people=2))
        assert (
            "1,610 numbers (6 KB): which share of its comparisons gave which score, with 9 images of 2 people" in said
        )
        assert "under masks that are random" in said
        assert "sum over at least 16 phones" in said
        assert "no score of a picture leaves it, and nothing is trained" in said

    def test_an_owner_may_keep_the_phone_out(self) -> None:
        check_kind(FEDERATED_EVALUATION, self.measuring, Agreement())
        with pytest.raises(ConfigError, match=r"measures models on the pictures here.*allow_evaluation = true`"):
            check_kind(FEDERATED_EVALUATION, self.measuring, Agreement(allow_evaluation=False))
        check_kind(FEDAVG, task(), Agreement(allow_evaluation=False))


class TestSummingStatistics:
    """What leaves is a mean feature and its square: the words say so, and that no phone trains."""

    summing = TaskSpec(
        "sums",
        method="statistics",
        rounds=1,
        cohort=CohortSpec(size=40, min_reports=20),
        privacy=PrivacySpec(max_weight=1, reveals=("class_moment",)),
    )
    part = ParameterLayout((ParameterEntry("adapter.weight", (4, 4)), ParameterEntry("adapter.bias", (4,)))).part(
        ("*",)
    )
    layout = STATISTICS.contribution_layout(summing, part, 4)

    def test_what_leaves_is_said(self) -> None:
        said = " ".join(summing_disclosure(self.summing, self.layout, num_images=9, min_cohort=16, num_people=2))
        assert "29 numbers (0 KB): the mean of what the model makes of 9 images of 2 people" in said
        assert "that mean multiplied with itself" in said
        assert "whether somebody whose face is known took part" in said
        assert "sums over 16 phones, of one person" in said
        assert "no embedding but in a sum, and nothing is trained on them" in said
        assert "by how much training" not in said
        told = " ".join(disclosures(self.summing))
        assert "No phone trains." in told
        assert "Nothing is trained." not in told

    def mixture(self, *, min_cohort: int) -> TaskSpec:
        return replace(
            self.summing,
            rounds=2,
            cohort=CohortSpec(size=min_cohort, min_reports=min_cohort),
            privacy=replace(self.summing.privacy, min_cohort=min_cohort),
            options={"mixture": True},
        )

    def test_a_mixtures_weights_are_said_to_be_the_coordinators(self) -> None:
        """And what they can do at most; a sum of it tells who is in it like one of as many as it is worth."""
        told = "160 phones hide this one at least as well as 16 of which all count alike"
        for task, is_said in ((self.summing, False), (self.mixture(min_cohort=160), True)):
            said = " ".join(summing_disclosure(task, self.layout, num_images=9, min_cohort=16, num_people=2))
            assert (told in said) == is_said
            assert "In trials on such sums over 16 phones" in said

    def test_a_mixture_in_which_phones_may_count_a_tenth_needs_ten_times_the_floor(self) -> None:
        """Whatever odds it is told, such a phone is no larger a part of the sum than the owner's floor allows."""
        reveals = frozenset({"class_moment"})
        check_agreed(self.mixture(min_cohort=160), self.layout, Agreement(allow_reveal=reveals))
        with pytest.raises(
            ConfigError,
            match=r"over 159 devices; .*agrees to 16 or more, which takes 160.*min_cohort = 15`$",
        ):
            check_agreed(self.mixture(min_cohort=159), self.layout, Agreement(allow_reveal=reveals))
        with pytest.raises(ConfigError, match=r"2 or more, which takes 20.*as one\. Tell the operator$"):
            check_agreed(self.mixture(min_cohort=19), self.layout, Agreement(min_cohort=2, allow_reveal=reveals))
        check_agreed(self.mixture(min_cohort=20), self.layout, Agreement(min_cohort=2, allow_reveal=reveals))

    @pytest.mark.parametrize(
        ("fewest", "told"),
        [
            (
                3,
                "sums over 4 phones, of one person who was in the sum and one who was not, a server with other photos "
                "of both told which was which 99 times in 100",
            ),
            (1023, "over 256 phones.* 93 times"),
            (1024, "over 1,024 phones.* 77 times"),
            (5000, "over 4,096 phones.* 65 times"),
        ],
    )
    def test_how_well_a_sum_tells_its_members_is_said_before_an_owner_agrees(self, fewest: int, told: str) -> None:
        """Of the size that was measured next below the task's own; with noise, which needs no agreement, of none."""
        cohort, privacy = CohortSpec(size=fewest, min_reports=fewest), replace(self.summing.privacy, min_cohort=3)
        task = replace(self.summing, cohort=cohort, privacy=privacy)
        with pytest.raises(ConfigError, match=told + r'.*If that is your wish: .*allow_reveal = \["class_moment"\]`'):
            check_agreed(task, self.layout, Agreement(min_cohort=3))
        for disclose in (summing_disclosure, disclosure):
            assert re.search(told, " ".join(disclose(task, self.layout, num_images=9, min_cohort=3, num_people=1)))
        hidden = replace(task, privacy=replace(privacy, reveals=()))
        said = summing_disclosure(hidden, self.layout, num_images=9, min_cohort=3, num_people=1)
        assert "which was which" not in " ".join(said)

    def test_it_is_the_work_of_a_method_that_embeds_only(self) -> None:
        assert work_of(Role.TRAIN, STATISTICS) is SUMMING
        assert work_of(Role.TRAIN, FEDAVG) is TRAINING
        assert work_of(Role.TRAIN, FEDERATED_EVALUATION) is MEASURING
        assert work_of(Role.VALIDATE, FEDAVG) is JUDGING

    def test_an_owner_who_did_not_agree_to_summed_moments_stays_out(self) -> None:
        with pytest.raises(ConfigError, match=r'allow_reveal = \["class_moment"\]'):
            check_agreed(self.summing, self.layout, Agreement())
        check_agreed(self.summing, self.layout, Agreement(allow_reveal=frozenset({"class_moment"})))

    def test_a_cohort_below_the_owners_floor_is_refused(self) -> None:
        small = replace(self.summing, privacy=replace(self.summing.privacy, min_cohort=8))
        with pytest.raises(ConfigError, match="sums over 8 devices; this device agrees to 16 or more"):
            check_agreed(small, self.layout, Agreement(allow_reveal=frozenset({"class_moment"})))


def test_another_packages_method_needs_the_owners_word() -> None:
    method = example("my_method").FEDADAM
    with pytest.raises(ConfigError, match=r"another package brought.*outside_methods = \[\"fedadam\"\]"):
        check_kind(method, task(), Agreement())
    named = Agreement(outside_methods=("fedadam",))
    check_kind(method, task(), named)
    assert (is_agreed(method, named), is_agreed(method, Agreement()), is_agreed(FEDAVG, Agreement())) == (
        True,
        False,
        True,
    )
