"""Whose pictures train in a round, and how a phone knows them again."""

from __future__ import annotations

import numpy as np

from device_sdk.rounds.training_people import RoundFaces


def _pictures(crops: np.ndarray) -> bytes:
    return RoundFaces((), {}, False, crops, None, "", frozenset()).pictures


def test_the_same_pictures_are_known_in_any_order_and_no_others() -> None:
    crops = np.arange(4 * 6 * 6 * 3, dtype=np.uint8).reshape(4, 6, 6, 3)
    assert _pictures(crops[[2, 0, 3, 1]]) == _pictures(crops)  # two tasks number a phone's people differently
    assert _pictures(crops[:3]) != _pictures(crops)
    assert _pictures(crops[[0, 1, 2, 2]]) != _pictures(crops)
    assert _pictures(crops[:, ::-1]) != _pictures(crops)
