"""Contributions: packing, parsing what strangers send, and the laws of sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mien.contribution import Contribution, ContributionLayout, Lane, Total
from mien.errors import CorruptDataError, NonFiniteError

LANES = (Lane("count", 1), Lane("weight", 1), Lane("delta", 3))
LAYOUT = ContributionLayout(LANES)
SHOWING = ContributionLayout(LANES, (Lane("class_embedding", 2),))


def contribution(weight: float, delta: list[float]) -> Contribution:
    arrays = {"count": [1.0], "weight": [weight], "delta": weight * np.array(delta)}
    return LAYOUT.pack({name: np.array(values, np.float32) for name, values in arrays.items()})


def test_lanes_lie_end_to_end_with_what_is_revealed_last() -> None:
    assert SHOWING.slices == {
        "count": slice(0, 1),
        "weight": slice(1, 2),
        "delta": slice(2, 5),
        "class_embedding": slice(5, 7),
    }
    assert (SHOWING.summed_size, SHOWING.size, SHOWING.size_bytes) == (5, 7, 28)


def test_the_hash_tells_apart_names_sizes_order_and_what_is_revealed() -> None:
    layouts = [
        LAYOUT,
        SHOWING,
        ContributionLayout((*LANES, Lane("class_embedding", 2))),
        ContributionLayout(LANES[::-1]),
        ContributionLayout((*LANES[:2], Lane("delta", 4))),
        ContributionLayout((*LANES[:2], Lane("update", 3))),
    ]
    assert len({layout.sha256 for layout in layouts}) == len(layouts)
    assert ContributionLayout(LANES).sha256 == LAYOUT.sha256


def test_bytes_come_back_as_they_went() -> None:
    sent = SHOWING.pack(
        {
            "count": np.ones(1, np.float32),
            "weight": np.array([3.0], np.float32),
            "delta": np.array([1.0, -2.0, 0.5], np.float32),
            "class_embedding": np.array([0.6, 0.8], np.float32),
        }
    )
    data = sent.to_bytes()
    assert data[:8] == b"\x00\x00\x80\x3f\x00\x00\x40\x40"  # 1.0 and 3.0, little-endian
    received = SHOWING.parse(data)
    np.testing.assert_array_equal(received.vector, sent.vector)
    np.testing.assert_array_equal(received.revealed()["class_embedding"], np.array([0.6, 0.8], np.float32))
    assert received.summed.shape == (5,)
    assert "0.6" not in repr(received)


@pytest.mark.parametrize("length", [0, 19, 21, 40])
def test_parse_refuses_another_length(length: int) -> None:
    with pytest.raises(CorruptDataError, match=f"{length} bytes"):
        LAYOUT.parse(bytes(length))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nothing_that_is_not_finite_is_packed_or_parsed(bad: float) -> None:
    with pytest.raises(NonFiniteError, match="delta"):
        contribution(1.0, [0.0, bad, 0.0])
    vector = np.array([1, 1, 0, 0, bad], "<f4")
    with pytest.raises(NonFiniteError):
        LAYOUT.parse(vector.tobytes())


def test_pack_wants_every_lane_in_its_size() -> None:
    lanes = {"count": np.ones(1, np.float32), "weight": np.ones(1, np.float32)}
    with pytest.raises(CorruptDataError, match="delta"):
        LAYOUT.pack(lanes)
    with pytest.raises(CorruptDataError, match="needs 3"):
        LAYOUT.pack({**lanes, "delta": np.ones(2, np.float32)})
    with pytest.raises(CorruptDataError, match="stranger"):
        LAYOUT.pack({**lanes, "delta": np.ones(3, np.float32), "stranger": np.ones(1, np.float32)})


def test_the_mean_is_weighted_by_hand() -> None:
    """Weights 1 and 3 on updates 4 and 8: (4 + 24) / 4 = 7."""
    total = Total.empty(LAYOUT).plus(contribution(1.0, [4.0, 0.0, 1.0])).plus(contribution(3.0, [8.0, 0.0, 1.0]))
    np.testing.assert_array_equal(total.mean("delta"), [7.0, 0.0, 1.0])
    assert total.num_reports == 2
    assert total["count"][0] == 2.0


def test_what_is_revealed_is_no_part_of_the_sum() -> None:
    lanes = {
        "count": np.ones(1, np.float32),
        "weight": np.ones(1, np.float32),
        "delta": np.zeros(3, np.float32),
        "class_embedding": np.ones(2, np.float32),
    }
    total = Total.empty(SHOWING).plus(SHOWING.pack(lanes))
    assert total.vector.shape == (5,)


def test_a_sum_over_nobody_has_no_mean() -> None:
    with pytest.raises(NonFiniteError, match="zero"):
        Total.empty(LAYOUT).mean("delta")


vectors = st.lists(st.floats(-1e3, 1e3, width=32), min_size=5, max_size=5)


@given(st.lists(vectors, min_size=1, max_size=6), st.randoms())
def test_sums_commute_and_merge(rows: list[list[float]], random: object) -> None:
    contributions = [Contribution(LAYOUT, np.array(row, np.float32)) for row in rows]
    shuffled = sorted(contributions, key=lambda _: random.random())  # type: ignore[attr-defined]
    one, other = Total.empty(LAYOUT), Total.empty(LAYOUT)
    for c in contributions:
        one = one.plus(c)
    for c in shuffled:
        other = other.plus(c)
    np.testing.assert_allclose(one.vector, other.vector, rtol=1e-12, atol=1e-9)
    left, right = Total.empty(LAYOUT), Total.empty(LAYOUT)
    for i, c in enumerate(contributions):
        left, right = (left.plus(c), right) if i % 2 else (left, right.plus(c))
    merged = left.merge(right)
    np.testing.assert_allclose(merged.vector, one.vector, rtol=1e-12, atol=1e-9)
    assert merged.num_reports == len(rows)
