"""Rounding against exact fractions, its bias and bounds, clipping, packing, and the rule against wraps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mien.errors import ConfigError, CorruptDataError, NonFiniteError
from mien.secagg.masks import BLOCK_WORDS, Words, WordStream
from mien.secagg.quantise import (
    NumberFormat,
    add_packed,
    l2_norm,
    pack,
    quantise_metrics,
    quantise_update,
    round_at_random,
    to_signed,
    unpack,
)
from tests.mien.secagg import reference

NUMBERS = NumberFormat(ring_bits=32, frac_bits=16, l2_clip=10.0, coordinate_clip=1.0, max_weight=64)


class Given:
    """Rounding words that a test chose."""

    def __init__(self, words: list[int]) -> None:
        self._words = words

    def take(self, size: int) -> Words:
        taken, self._words = self._words[:size], self._words[size:]
        return np.array(taken, np.uint32)


floats = st.floats(-2, 2, width=32)
word = st.integers(0, 2**32 - 1)


@given(st.lists(st.tuples(floats, word), min_size=1, max_size=20), st.sampled_from([0, 8, 16, 20]), st.integers(1, 64))
def test_elements_are_rounded_as_exact_fractions_are(pairs: list[tuple[float, int]], f: int, weight: int) -> None:
    numbers = replace(NUMBERS, frac_bits=f)
    update = np.array([x for x, _ in pairs], np.float32)
    out = np.empty(len(pairs), np.uint32)
    quantise_update(update, 1.0, numbers, weight, Given([r for _, r in pairs]), out)
    expected = [
        weight * reference.quantise(float(x), 1.0, f, r) for x, r in zip(update, (r for _, r in pairs), strict=True)
    ]
    assert [reference.signed(int(q), 32) for q in out] == expected


@given(st.floats(-1, 1, width=32), word, st.integers(0, 30))
def test_one_step_is_the_largest_error(x: float, r: int, f: int) -> None:
    numbers = NumberFormat(32, f, 10.0, 1.0)
    out = np.empty(1, np.uint32)
    quantise_update(np.array([x], np.float32), 1.0, numbers, 1, Given([r]), out)
    q = reference.signed(int(out[0]), 32)
    assert abs(q - x * 2**f) <= 1
    assert abs(q) <= numbers.largest_step


def test_at_large_scales_the_largest_step_is_reached() -> None:
    """1 - 2^-32 more than 2^30 is 2^30 + 1 in double precision: the planner counts that step."""
    q = round_at_random(np.array([1.0]), 30, np.array([2**32 - 1], np.uint32))
    assert q[0] == 2**30 + 1 == NumberFormat(32, 30, 1.0, 1.0).largest_step


def test_rounding_has_no_bias_and_at_most_a_quarter_of_variance() -> None:
    size, f = 200_000, 4
    numbers = replace(NUMBERS, frac_bits=f)
    for value in (0.3, -0.3, 1 / 32, -0.999):
        out = np.empty(size, np.uint32)
        quantise_update(np.full(size, value, np.float32), 1.0, numbers, 1, WordStream(bytes(32)), out)
        steps = to_signed(out, 32)
        exact = float(np.float32(value)) * 2**f
        fraction = exact % 1
        assert set(np.unique(steps)) <= {int(np.floor(exact)), int(np.floor(exact)) + 1}
        # Six standard errors of a coin with this bias.
        assert abs(steps.mean() - exact) < 6 * np.sqrt(fraction * (1 - fraction) / size)
        assert steps.var() <= 0.25


def test_the_factor_and_the_coordinate_clip_come_before_rounding() -> None:
    out = np.empty(3, np.uint32)
    quantise_update(np.array([4.0, -4.0, 1.0], np.float32), 0.5, NUMBERS, 3, Given([0, 0, 0]), out)
    assert to_signed(out, 32).tolist() == [3 * 65536, -3 * 65536, 3 * 32768]


def test_vectors_longer_than_a_block_take_their_words_in_order() -> None:
    size = BLOCK_WORDS + 5
    out = np.empty(size, np.uint32)
    quantise_update(np.zeros(size, np.float32), 1.0, replace(NUMBERS, frac_bits=0), 1, Given([2**31] * size), out)
    assert not out.any()
    quantise_update(np.full(size, 0.5, np.float32), 1.0, replace(NUMBERS, frac_bits=0), 1, WordStream(bytes(32)), out)
    assert np.array_equal(out, WordStream(bytes(32)).take(size) >> 31)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_leaves_the_round(bad: float) -> None:
    with pytest.raises(NonFiniteError):
        l2_norm(np.array([0.0, bad], np.float32))
    with pytest.raises(NonFiniteError):
        quantise_metrics((0.0, bad), NUMBERS, 1, Given([0, 0]))


def test_the_norm_of_huge_finite_values_is_finite() -> None:
    assert l2_norm(np.full(4, 3e38, np.float32)) == pytest.approx(6e38, rel=1e-6)


def test_metrics_are_clipped_to_their_bound() -> None:
    numbers = replace(NUMBERS, metric_bound=2.0, metric_frac_bits=3)
    assert quantise_metrics((1.5, 99.0, -99.0), numbers, 5, Given([0, 0, 0])).tolist() == [60, 80, -80]
    assert quantise_metrics((), numbers, 5, Given([])).tolist() == []


@pytest.mark.parametrize("bits", [24, 32])
@given(st.lists(word, max_size=9))
def test_packing_keeps_the_ring_element(bits: int, words: list[int]) -> None:
    vector = np.array(words, np.uint32)
    packed = pack(vector, bits)
    assert len(packed) == len(words) * bits // 8
    assert packed == b"".join((w % 2**bits).to_bytes(bits // 8, "little") for w in words)
    assert unpack(packed, bits).tolist() == [w % 2**bits for w in words]


@pytest.mark.parametrize("bits", [24, 32])
def test_packed_vectors_add_up_in_the_ring(bits: int) -> None:
    size = BLOCK_WORDS + 7
    a, b = (WordStream(bytes([i]) * 32).take(size) for i in (1, 2))
    total = np.zeros(size, np.uint32)
    for vector in (a, b):
        add_packed(total, pack(vector, bits), bits)
    assert np.array_equal(total & np.uint32(2**bits - 1), (a + b) & np.uint32(2**bits - 1))
    for wrong in (pack(a, bits)[:-1], pack(a, bits) + b"\0", b""):
        before = total.copy()
        with pytest.raises(CorruptDataError):
            add_packed(total, wrong, bits)
        assert np.array_equal(total, before)


def test_unpacking_needs_whole_words() -> None:
    with pytest.raises(CorruptDataError):
        unpack(b"\0\0\0\0", 24)


@pytest.mark.parametrize("bits", [24, 32])
def test_signed_values_are_those_of_the_ring(bits: int) -> None:
    words = np.array([0, 1, 2 ** (bits - 1) - 1, 2 ** (bits - 1), 2**bits - 1, 2**32 - 1], np.uint32)
    assert to_signed(words, bits).tolist() == [reference.signed(int(w), bits) for w in words]


def test_the_wrap_rule_counts_every_lane_and_noise() -> None:
    # 256 devices of weight 64 with 2^16 steps and one more: 2^30 + 2^14; twice the devices reach 2^31.
    NUMBERS.check_no_wrap(256)
    with pytest.raises(ConfigError, match="coordinate_clip"):
        NUMBERS.check_no_wrap(512)
    NUMBERS.check_no_wrap(256, noise_bound=2**31 - 1 - 256 * 64 * 65537)
    with pytest.raises(ConfigError):
        NUMBERS.check_no_wrap(256, noise_bound=2**31 - 256 * 64 * 65537)
    with pytest.raises(ConfigError, match="metric_bound"):
        replace(NUMBERS, metric_bound=2.0**17, metric_frac_bits=0).check_no_wrap(256)


@pytest.mark.parametrize(
    "changes",
    [
        {"ring_bits": 16},
        {"frac_bits": -1},
        {"frac_bits": 49},
        {"metric_frac_bits": 49},
        {"l2_clip": 0.0},
        {"l2_clip": float("nan")},
        {"l2_clip": 1e39},
        {"coordinate_clip": -1.0},
        {"metric_bound": float("inf")},
        {"max_weight": 0},
        {"max_weight": 65536},
    ],
)
def test_impossible_formats_are_refused_by_field(changes: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        replace(NUMBERS, **changes)  # type: ignore[arg-type]


def test_clips_are_what_the_wire_can_carry() -> None:
    assert replace(NUMBERS, l2_clip=0.1).l2_clip == float(np.float32(0.1)) != 0.1


def test_the_stated_bounds_of_the_mean() -> None:
    assert NUMBERS.max_error == 2**-16
    assert NUMBERS.norm_bound(7, 4) == pytest.approx(7 * (10 + 2 * 2**-16))
