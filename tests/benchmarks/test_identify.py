"""The benchmark of searches: who is found, who is named by mistake, and sizes with too few strangers to tell."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.identify import STRANGERS, Half, _searched

pytestmark = pytest.mark.numerics


def half(num_people: int) -> Half:
    """Return people with three pictures each around a direction of their own."""
    rng = np.random.default_rng(0)
    people = rng.normal(size=(num_people, 64)).repeat(3, axis=0)
    embeddings = people + 0.3 * rng.normal(size=people.shape)
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    return Half(unit.astype(np.float32), np.arange(num_people).repeat(3))


def test_people_are_found_and_strangers_are_named_at_a_low_threshold_alone() -> None:
    found = _searched(half(STRANGERS + 20), 20, (0.7, 0.1), np.random.default_rng(1))
    assert (found["strangers"], found["fpir"], found["tpir"]) == (STRANGERS, 0.0, 1.0)
    assert found["fpir_comparison"] > 0.9
    assert "not_measured" not in found


@pytest.mark.parametrize(("size", "left"), [(101, STRANGERS - 1), (5000, 0)])
def test_a_gallery_that_leaves_too_few_strangers_is_said_not_to_be_measured(size: int, left: int) -> None:
    people = 100 + STRANGERS
    found = _searched(half(people), size, (0.7, 0.1), np.random.default_rng(1))
    assert found["fpir"] is found["tpir"] is None
    assert found["not_measured"] == (
        f"{left} strangers are left of the {people} people searched, {STRANGERS} are needed"
    )
