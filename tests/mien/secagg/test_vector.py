"""The vector: where lanes lie, that the checksum is linear, what a sum must pass, contributions there and back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mien.contribution import Contribution, ContributionLayout, Lane, Total
from mien.errors import ConfigError, CorruptDataError, LayoutMismatchError, NonFiniteError
from mien.secagg.masks import BLOCK_WORDS, Words, WordStream
from mien.secagg.pipeline import encode
from mien.secagg.quantise import NumberFormat
from mien.secagg.vector import Addends, ContributionMap, VectorLayout, check_norm, decode
from tests.mien.secagg import reference

R = bytes(range(32))
NUMBERS = NumberFormat(32, 16, 10.0, 1.0, max_weight=8, metric_bound=16.0, metric_frac_bits=4)
LAYOUT = VectorLayout(size=5, num_metrics=2)
UPDATE = np.array([0.5, -0.25, 2.0, 0.0, 1e-6], np.float32)


def vector_of(seed: int, weight: int = 3, layout: VectorLayout = LAYOUT, numbers: NumberFormat = NUMBERS) -> Words:
    rng = np.random.default_rng(seed)
    update = rng.uniform(-0.1, 0.1, layout.size).astype(np.float32)
    return encode(Addends(weight, update, (1.5, 4.0)), layout, numbers, R, WordStream(bytes([seed]) * 32))


def test_lanes_lie_where_they_are_said_to() -> None:
    vector = encode(Addends(3, UPDATE, (1.5, -20.0)), LAYOUT, NUMBERS, R, WordStream(bytes(32)))
    random = [int(r) for r in WordStream(bytes(32)).take(7)]
    metrics = [3 * reference.quantise(m, 16.0, 4, r) for m, r in zip((1.5, -20.0), random, strict=False)]
    update = [3 * reference.quantise(float(x), 1.0, 16, r) for x, r in zip(UPDATE, random[2:], strict=True)]
    lanes = [1, 3, 1, *metrics, 0, *update]
    coefficients = [int(r) for r in WordStream(reference.tagged_hash("checksum", R)).take(len(lanes))]
    lanes[5] = sum(r * x for r, x in zip(coefficients, lanes, strict=True)) % 2**32
    assert vector.tolist() == [x % 2**32 for x in lanes]


def test_an_update_beyond_the_l2_clip_is_scaled_and_says_so() -> None:
    update = np.array([30.0, 40.0, 0.0, 0.0, 0.0], np.float32)
    vector = encode(Addends(1, update, (0.0, 0.0)), LAYOUT, replace(NUMBERS, coordinate_clip=10.0), R, Zeros())
    assert vector[2] == 0
    assert vector[LAYOUT.update].tolist() == [6 * 65536, 8 * 65536, 0, 0, 0]


class Zeros:
    """Rounds down."""

    def take(self, size: int) -> Words:
        return np.zeros(size, np.uint32)


@pytest.mark.parametrize("bits", [24, 32])
@pytest.mark.parametrize("size", [5, BLOCK_WORDS + 1])
def test_sums_decode_to_the_sum_of_what_was_encoded(bits: int, size: int) -> None:
    numbers, layout = replace(NUMBERS, ring_bits=bits, frac_bits=12, l2_clip=99.0), VectorLayout(size, 2)
    vectors = [vector_of(seed, seed + 1, layout, numbers) for seed in range(4)]
    ring = np.uint32(2**bits - 1)
    opened = decode(sum_of(vectors) & ring, layout, numbers, R, 4)
    assert (opened.count, opened.weight, opened.num_unclipped) == (4, 1 + 2 + 3 + 4, 4)
    exact = sum(vector[layout.update].view(np.int32).astype(np.int64) for vector in vectors)
    assert np.array_equal(opened.update, exact * 2.0**-12)
    assert opened.metrics == pytest.approx((15.0, 40.0), abs=10 / 16)
    assert np.array_equal(opened.mean, opened.update / 10)
    check_norm(opened, numbers)


def sum_of(vectors: list[Words]) -> Words:
    total = np.zeros_like(vectors[0])
    for vector in vectors:
        total += vector
    return total


@pytest.mark.parametrize("lane", range(LAYOUT.num_words))
def test_a_change_of_any_lane_is_noticed(lane: int) -> None:
    total = sum_of([vector_of(seed) for seed in range(3)])
    total[lane] += np.uint32(1)
    with pytest.raises(CorruptDataError, match="checksum"):
        decode(total, LAYOUT, NUMBERS, R, 3)


def test_a_sum_of_another_number_of_devices_or_binding_is_refused() -> None:
    total = sum_of([vector_of(seed) for seed in range(3)])
    with pytest.raises(CorruptDataError, match="4 took part"):
        decode(total, LAYOUT, NUMBERS, R, 4)
    with pytest.raises(CorruptDataError, match="checksum"):
        decode(total, LAYOUT, NUMBERS, R[::-1], 3)


def forge(vector: Words, lane: int, value: int) -> Words:
    """A device that lies and makes its checksum fit."""
    coefficient = int(WordStream(reference.tagged_hash("checksum", R)).take(lane + 1)[lane])
    forged = vector.copy()
    forged[LAYOUT.checksum] = (int(forged[LAYOUT.checksum]) + coefficient * (value - int(forged[lane]))) % 2**32
    forged[lane] = value % 2**32
    return forged


@pytest.mark.parametrize(("lane", "value"), [(0, 0), (0, 2), (1, -4), (1, 1000)], ids=lambda v: str(v))
def test_lies_about_count_and_weight_do_not_pass(lane: int, value: int) -> None:
    vectors = [forge(vector_of(0), lane, value), vector_of(1), vector_of(2)]
    with pytest.raises(CorruptDataError, match="devices of weight"):
        decode(sum_of(vectors), LAYOUT, NUMBERS, R, 3)


def test_an_update_that_was_not_clipped_does_not_pass() -> None:
    numbers = replace(NUMBERS, l2_clip=0.5)
    vectors = [forge(vector_of(0, numbers=numbers), LAYOUT.num_words - 1, 20 * 65536), vector_of(1), vector_of(2)]
    opened = decode(sum_of(vectors), LAYOUT, numbers, R, 3)
    with pytest.raises(CorruptDataError, match="norm"):
        check_norm(opened, numbers)
    check_norm(opened, numbers, noise_allowance=20.0)


def test_noise_is_added_in_steps() -> None:
    noise = np.array([-3, 2, 0, -(2**20), 1], np.int64)
    quiet = encode(Addends(1, UPDATE, (0.0, 0.0)), LAYOUT, NUMBERS, R, WordStream(bytes(32)))
    noised = encode(Addends(1, UPDATE, (0.0, 0.0), noise), LAYOUT, NUMBERS, R, WordStream(bytes(32)))
    difference = noised[LAYOUT.update].view(np.int32).astype(np.int64) - quiet[LAYOUT.update].view(np.int32)
    assert difference.tolist() == noise.tolist()


@pytest.mark.parametrize("weight", [0, 9, -1])
def test_a_weight_is_never_capped_in_silence(weight: int) -> None:
    with pytest.raises(ConfigError, match="weight"):
        encode(Addends(weight, UPDATE, (0.0, 0.0)), LAYOUT, NUMBERS, R, Zeros())


def test_another_size_is_refused() -> None:
    for addends in (Addends(1, UPDATE[:4], (0.0, 0.0)), Addends(1, UPDATE, (0.0,))):
        with pytest.raises(LayoutMismatchError):
            encode(addends, LAYOUT, NUMBERS, R, Zeros())


def test_nan_is_refused_and_addends_do_not_show() -> None:
    update = UPDATE.copy()
    update[3] = np.nan
    with pytest.raises(NonFiniteError):
        encode(Addends(1, update, (0.0, 0.0)), LAYOUT, NUMBERS, R, Zeros())
    assert repr(Addends(1, UPDATE, (0.25, 0.0))) == "Addends(weight=1)"


# Contributions of `mien.methods`

LANES = ContributionLayout(
    summed=(Lane("count", 1), Lane("weight", 1), Lane("loss_before", 1), Lane("delta", 3), Lane("control", 2)),
    revealed=(Lane("class_embedding", 2),),
)


def contribution(weight: float, scale: float) -> Contribution:
    lanes = {
        "count": [1.0],
        "weight": [weight],
        "loss_before": [weight * 2.5],
        "delta": [weight * scale, -weight * scale, 0.0],
        "control": [weight * 0.5, 0.0],
        "class_embedding": [9.0, 9.0],
    }
    return LANES.pack({name: np.array(values, np.float32) for name, values in lanes.items()})


def test_contributions_add_up_to_the_total_of_plain_sums() -> None:
    mapped = ContributionMap(LANES)
    assert mapped.vector_layout == VectorLayout(5, 1)
    contributions = [contribution(3, 0.25), contribution(5, -0.125)]
    vectors = [
        encode(mapped.addends(c), mapped.vector_layout, NUMBERS, R, WordStream(bytes([i]) * 32))
        for i, c in enumerate(contributions)
    ]
    total = mapped.total(decode(sum_of(vectors), mapped.vector_layout, NUMBERS, R, 2))
    plain = Total.empty(LANES).plus(contributions[0]).plus(contributions[1])
    assert total.num_reports == plain.num_reports == 2
    assert total.layout is LANES
    # Weights, and values that lie on the grid, are exact; revealed lanes are not part of any sum.
    assert total.vector == pytest.approx(plain.vector, abs=8 * 2**-16)
    assert total["weight"][0] == 8
    assert total["loss_before"][0] == 20


@pytest.mark.parametrize("weight", [0.0, 2.5, -1.0, float("nan")])
def test_a_weight_that_is_no_number_of_images_is_refused(weight: float) -> None:
    vector = contribution(1, 0.5).vector.copy()
    vector[1] = weight
    with pytest.raises(NonFiniteError):
        ContributionMap(LANES).addends(Contribution(LANES, vector))


def test_a_contribution_without_count_and_weight_is_refused() -> None:
    with pytest.raises(LayoutMismatchError):
        ContributionMap(ContributionLayout((Lane("weight", 1), Lane("count", 1))))


@pytest.mark.parametrize(("bit", "counted"), [(-5, 0), (9, 3)])
def test_a_false_clip_bit_is_bounded_and_refuses_nothing(bit: int, counted: int) -> None:
    """Whether a sum is refused must not depend on an honest device's bit."""
    vectors = [forge(vector_of(0), 2, bit), vector_of(1), vector_of(2)]
    assert decode(sum_of(vectors), LAYOUT, NUMBERS, R, 3).num_unclipped == counted


def test_a_clip_bit_is_left_unsaid_where_nothing_hides_it() -> None:
    said = encode(Addends(1, UPDATE, (0.0, 0.0)), LAYOUT, NUMBERS, R, Zeros())
    unsaid = encode(Addends(1, UPDATE, (0.0, 0.0), tells_clip=False), LAYOUT, NUMBERS, R, Zeros())
    assert (said[2], unsaid[2]) == (1, 0)
