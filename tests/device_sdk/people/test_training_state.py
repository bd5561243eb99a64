"""Private state by person: what goes in by number comes out by number, whoever left, came or sat a round out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.people.training_state import Kept, by_person, for_round
from mien.errors import LayoutMismatchError

ADA, BO, CY = 3, 7, 9


def state(*values: float) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    """Return a row for each value, and something of all."""
    return {"w": np.array([[value, -value] for value in values], np.float32), "all": np.ones(4, np.float32)}


def test_rows_and_the_rest_come_back_as_they_were() -> None:
    kept = by_person(state(1, 2), (BO, ADA), ("w",))
    numbered = for_round(kept, (ADA, BO), ("w",))
    assert numbered.people == (BO, ADA)
    assert numbered.is_continued
    for name, values in state(1, 2).items():
        np.testing.assert_array_equal(numbered.private[name], values)


def test_who_is_new_comes_last_whatever_their_number_in_the_gallery() -> None:
    kept = by_person(state(1, 2), (BO, CY), ("w",))
    numbered = for_round(kept, (ADA, BO, CY), ("w",))
    assert numbered.people == (BO, CY, ADA)
    np.testing.assert_array_equal(numbered.private["w"], state(1, 2)["w"])
    assert "all" in numbered.private


def test_who_sits_out_keeps_their_row_and_breaks_what_was_together() -> None:
    kept = by_person(state(1, 2), (ADA, BO), ("w",))
    numbered = for_round(kept, (BO,), ("w",))
    assert (numbered.people, numbered.is_continued) == ((BO,), False)
    np.testing.assert_array_equal(numbered.private["w"], state(2)["w"])
    assert "all" not in numbered.private


def test_after_somebody_left_the_others_rows_stay() -> None:
    kept = by_person(state(1, 2, 3), (ADA, BO, CY), ("w",))
    left = Kept({person: rows for person, rows in kept.own.items() if person != ADA})
    numbered = for_round(left, (BO, CY), ("w",))
    assert (numbered.people, numbered.is_continued) == ((BO, CY), False)
    np.testing.assert_array_equal(numbered.private["w"], state(2, 3)["w"])


def test_the_first_round_begins_with_nothing() -> None:
    numbered = for_round(Kept(), (BO, ADA), ("w",))
    assert (numbered.people, numbered.private, numbered.is_continued) == ((ADA, BO), {}, True)


def test_a_method_without_rows_keeps_one_persons_state_with_them() -> None:
    private = {"w": np.ones(4, np.float32)}
    kept = by_person(private, (ADA,), ())
    assert kept.own == {ADA: private}
    assert for_round(kept, (ADA,), ()).private == private
    assert for_round(kept, (BO,), ()).private == {}
    assert for_round(kept, (ADA, BO), ()).private == {}


def test_one_identitys_vector_is_its_row() -> None:
    kept = by_person({"w": np.arange(4, dtype=np.float32)}, (ADA,), ("w",))
    np.testing.assert_array_equal(for_round(kept, (ADA,), ("w",)).private["w"], [np.arange(4)])


def test_rows_of_another_width_start_anew() -> None:
    kept = Kept({ADA: {"w": np.ones(4, np.float32)}, BO: {"w": np.ones(8, np.float32)}})
    assert for_round(kept, (ADA, BO), ("w",)).private == {}


def test_rows_for_other_numbers_are_an_error() -> None:
    with pytest.raises(LayoutMismatchError, match="3 rows for 2 people"):
        by_person(state(1, 2, 3), (ADA, BO), ("w",))


@given(st.lists(st.sets(st.integers(1, 6), min_size=1), min_size=1, max_size=8))
def test_a_row_always_belongs_to_the_person_whom_it_was_made_of(rounds: list[set[int]]) -> None:
    kept = Kept()
    for people in rounds:
        numbered = for_round(kept, sorted(people), ("w",))
        known = numbered.private.get("w", np.zeros((0, 1), np.float32))
        assert [int(row[0]) for row in known] == list(numbered.people[: len(known)])
        made = by_person({"w": np.array([[person] for person in numbered.people], np.float32)}, numbered.people, ("w",))
        kept = Kept({**kept.own, **made.own}, made.together, made.members)
