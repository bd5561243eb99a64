"""What a task shows is said in words, and the most telling thing cannot be missed."""

from __future__ import annotations

import typing

from coordinator.disclosure import _REVEALED, UNMASKED, disclosures
from mien.specs import CohortSpec, PrivacySpec, TaskSpec

COHORT = CohortSpec(size=20, min_reports=16)


def test_every_task_says_that_sums_are_not_masked() -> None:
    shown = disclosures(TaskSpec("t", cohort=COHORT))
    assert UNMASKED in shown
    assert "at least 16 phones" in shown[0]
    assert len(shown) == 2


def test_what_is_revealed_comes_last() -> None:
    shown = disclosures(TaskSpec("t", cohort=COHORT, privacy=PrivacySpec(reveals=("class_embeddings",))))
    assert "class embedding in clear" in shown[-1]
    assert "deleted when the task ends" in shown[-1]


def test_everything_that_can_be_revealed_has_words() -> None:
    for name in typing.cast("tuple[str, ...]", ("class_embeddings",)):
        PrivacySpec(reveals=(name,))
        assert name in _REVEALED
