"""Whose pictures train in a round, and how a phone knows them again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from device_sdk.faces.source import SourceFaces
from device_sdk.people.enrolled import Person
from device_sdk.people.trained import TrainingFaces
from device_sdk.rounds.training_people import Pool, RoundFaces
from mien.methods import METHODS
from simulation.phones.holdings import MemoryGallery


class _Gallery(MemoryGallery):
    """Two people, of three and two pictures."""

    two = (Person(4, "Bo", 0, 0, 2), Person(2, "Ada", 0, 0, 3))

    def training_faces(self, people: Sequence[int], task_id: str, per_identity: Sequence[str] = ()) -> TrainingFaces:
        assert task_id == "", "of no task: nothing that one left is looked at"
        parts = {2: self.crops[:3], 4: self.crops[3:]}
        return TrainingFaces(tuple(people), {}, False, np.concatenate([parts[each] for each in people]), None)


@pytest.mark.parametrize(
    ("methods", "parts"),
    [
        (("fedavg",), (slice(None),)),
        (("fedface",), (slice(3),)),
        (("fedavg", "fedface", "fedprox"), (slice(None), slice(3))),
        ((), ()),
    ],
)
def test_pictures_of_rounds_to_come_are_those_that_their_methods_would_train_on(
    methods: tuple[str, ...], parts: tuple[slice, ...]
) -> None:
    crops = np.arange(5 * 6 * 6 * 3, dtype=np.uint16).astype(np.uint8).reshape(5, 6, 6, 3)
    found = Pool(_Gallery.two).pictures(_Gallery(crops), [METHODS[name] for name in methods])
    assert found == {_pictures(crops[part]) for part in parts}


def test_a_source_has_the_same_pictures_for_every_method() -> None:
    crops = np.arange(5 * 6 * 6 * 3, dtype=np.uint16).astype(np.uint8).reshape(5, 6, 6, 3)
    pool = Pool(source=SourceFaces("s", crops, np.zeros(5, np.int64)))
    assert pool.pictures(_Gallery(crops[:0]), [METHODS["fedavg"], METHODS["fedface"]]) == {_pictures(crops)}


def _pictures(crops: np.ndarray) -> bytes:
    return RoundFaces((), {}, False, crops, None, "", frozenset()).pictures


def test_the_same_pictures_are_known_in_any_order_and_no_others() -> None:
    crops = np.arange(4 * 6 * 6 * 3, dtype=np.uint8).reshape(4, 6, 6, 3)
    assert _pictures(crops[[2, 0, 3, 1]]) == _pictures(crops)  # two tasks number a phone's people differently
    assert _pictures(crops[:3]) != _pictures(crops)
    assert _pictures(crops[[0, 1, 2, 2]]) != _pictures(crops)
    assert _pictures(crops[:, ::-1]) != _pictures(crops)
