"""What a device says before it takes part, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from device_sdk.disclosure import check_agreed, disclosure
from mien.contribution import ContributionLayout, Lane
from mien.errors import ConfigError
from mien.specs import CohortSpec, PrivacySpec, TaskSpec

SUMS = ContributionLayout((Lane("count", 1), Lane("weight", 1), Lane("loss_before", 1), Lane("delta", 1_250_000)))
CLEAR = ContributionLayout(SUMS.summed, (Lane("class_embedding", 192),))


def task(*, min_cohort: int = 16, reveals: tuple[str, ...] = ()) -> TaskSpec:
    return TaskSpec(
        "study",
        cohort=CohortSpec(size=20, min_reports=max(16, min_cohort)),
        privacy=PrivacySpec(reveals=reveals, min_cohort=min_cohort, max_weight=5),
    )


def agree(spec: TaskSpec, layout: ContributionLayout = SUMS, *, floor: int = 16, reveal: Any = ()) -> None:
    check_agreed(spec, layout, min_cohort=floor, allow_reveal=frozenset(reveal))


def test_the_default_agreement_is_sums_over_sixteen() -> None:
    agree(task())
    with pytest.raises(ConfigError, match=r"15 devices; this device agrees to 16 or more.*--min-cohort 15"):
        agree(task(min_cohort=15))
    agree(task(min_cohort=15), floor=4)


def test_nothing_is_revealed_unless_the_owner_said_so() -> None:
    with pytest.raises(ConfigError, match=r"agrees to nothing of the kind.*--allow-reveal class_embeddings"):
        agree(task(reveals=("class_embeddings",)), CLEAR)
    agree(task(reveals=("class_embeddings",)), CLEAR, reveal=("class_embeddings",))


def test_a_task_that_hides_what_it_reveals_is_refused() -> None:
    with pytest.raises(ConfigError, match="class_embedding in clear without saying so"):
        agree(task(), CLEAR, reveal=("class_embeddings",))


def test_the_words_say_what_leaves_and_who_sees_it() -> None:
    text = " ".join(disclosure(task(), SUMS, num_images=9, min_cohort=4))
    assert "1,250,003 numbers (5.0 MB)" in text
    assert "on 9 images changed 1,250,000 parameters" in text
    assert "times 5" in text
    assert "loss before" in text
    assert "at least 16 devices (this device agrees to 4 or more)" in text
    assert "not yet masked: the coordinator can see this phone's update" in text
    assert "no embedding leaves it" in text


def test_the_words_say_what_is_revealed() -> None:
    text = " ".join(disclosure(task(reveals=("class_embeddings",)), CLEAR, num_images=9, min_cohort=4))
    assert "a template of their face" in text
    assert "no embedding" not in text
    assert "No photo and no crop leaves it." in text
