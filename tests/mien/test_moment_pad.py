"""The pad: exactly removed with drop-outs by whoever holds the key, and nothing without it."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mien.errors import ConfigError
from mien.moment_pad import add_pad, group_key, key_check, leaders, remove_pads
from mien.secagg.masks import Words
from mien.spreadout import device_moment, normalise, packed_size, unpack_symmetric

pytestmark = pytest.mark.numerics

R = hashlib.sha256(b"roster").digest()
FRACTION = 2.0**16


def member(i: int) -> bytes:
    return hashlib.sha256(b"device %d" % i).digest()[:16]


def key_of(num_leaders: int = 3) -> bytes:
    return group_key(R, {member(i): bytes([i + 1]) * 32 for i in range(num_leaders)})


def lane(vector: NDArray[np.float64]) -> Words:
    """Return a device's moment in steps of 2^-16, as ring elements."""
    steps: Words = np.rint(device_moment(vector[None]) * FRACTION).astype(np.int64).astype(np.uint32)
    return steps


def padded_sum(key: bytes, vectors: NDArray[np.float64], binding: bytes = R) -> tuple[Words, Words]:
    """Return what the server opens, and the sum that it must not see."""
    opened = clear = np.zeros(packed_size(vectors.shape[1]), np.uint32)
    for i, vector in enumerate(vectors):
        words = lane(vector)
        clear = clear + words
        add_pad(words, key, binding, member(i))
        opened = opened + words
    return opened, clear


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1))))
def test_pads_leave_the_exact_sum_of_whoever_survives(case: tuple[int, set[int]]) -> None:
    num, survivors = case
    vectors = normalise(np.random.default_rng(num).normal(size=(num, 6)))
    opened = clear = np.zeros(packed_size(6), np.uint32)
    for i in survivors:
        words = lane(vectors[i])
        clear = clear + words
        add_pad(words, key_of(), R, member(i))
        opened = opened + words
    assert not np.array_equal(opened, clear)
    remove_pads(opened, key_of(), R, [member(i) for i in survivors])
    np.testing.assert_array_equal(opened, clear)


def test_another_key_round_or_set_of_survivors_opens_nothing() -> None:
    vectors = normalise(np.random.default_rng(0).normal(size=(4, 16)))
    everyone = [member(i) for i in range(4)]
    other_round = hashlib.sha256(b"next roster").digest()
    for key, binding, survivors in (
        (key_of(2), R, everyone),
        (key_of(), other_round, everyone),
        (key_of(), R, everyone[:3]),
        (key_of(), R, []),
    ):
        opened, clear = padded_sum(key_of(), vectors)
        remove_pads(opened, key, binding, survivors)
        bits = np.unpackbits((opened ^ clear).view(np.uint8))
        assert abs(bits.mean() - 0.5) < 0.05  # 4,352 bits: one half +- 0.0076


def test_an_even_number_of_survivors_shows_no_low_bits() -> None:
    """One common pad P would leave |U3| P, whose lowest bit is 0 for an even |U3|."""
    opened, clear = padded_sum(key_of(), normalise(np.random.default_rng(1).normal(size=(4, 32))))
    low = (opened - clear) & 1
    assert 0.4 < low.mean() < 0.6


def membership_auc(scores: list[float], others: list[float]) -> float:
    greater = np.subtract.outer(scores, others)
    return float((greater > 0).mean() + (greater == 0).mean() / 2)


def test_the_server_cannot_tell_members_from_the_padded_lane() -> None:
    """20 sums of 100 people each: the attack that is nearly sure on the clear sum is a coin toss on the padded one."""
    rng, dim = np.random.default_rng(7), 24
    found: dict[str, tuple[list[float], list[float]]] = {"clear": ([], []), "padded": ([], [])}
    for repeat in range(20):
        people = normalise(rng.normal(size=(200, dim)))
        binding = hashlib.sha256(b"%d" % repeat).digest()
        opened, clear = padded_sum(key_of(), people[:100], binding)
        for name, words in (("clear", clear), ("padded", opened)):
            matrix = unpack_symmetric(words.view(np.int32) / FRACTION, dim)
            score = np.einsum("pd,de,pe->p", people, matrix, people).tolist()
            found[name][0].extend(score[:100])
            found[name][1].extend(score[100:])
    assert membership_auc(*found["clear"]) > 0.7
    assert membership_auc(*found["padded"]) == pytest.approx(0.5, abs=0.03)


def test_the_group_key_depends_on_every_piece_and_on_the_roster() -> None:
    pieces = {member(i): bytes([i]) * 32 for i in range(3)}
    keys = {group_key(R, pieces), group_key(bytes(32), pieces)}
    keys |= {group_key(R, {**pieces, leader: bytes(31) + b"\x09"}) for leader in pieces}
    assert len(keys) == 5
    assert group_key(R, dict(reversed(pieces.items()))) == group_key(R, pieces)
    assert key_check(group_key(R, pieces), R) != group_key(R, pieces)


def test_leaders_follow_from_the_roster() -> None:
    members = [member(i) for i in range(10)]
    chosen = leaders(R, members, 3)
    assert chosen == leaders(R, reversed(members), 3)
    assert len(set(chosen)) == 3
    assert chosen != leaders(hashlib.sha256(b"other").digest(), members, 3)
    with pytest.raises(ConfigError, match="11 leaders"):
        leaders(R, members, 11)


def test_bad_pieces_keys_and_survivors_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one piece"):
        group_key(R, {})
    with pytest.raises(ConfigError, match="32 bytes"):
        group_key(R, {member(0): b"short"})
    with pytest.raises(ConfigError, match="group key has 32"):
        add_pad(np.zeros(4, np.uint32), b"short", R, member(0))
    with pytest.raises(ConfigError, match="twice"):
        remove_pads(np.zeros(4, np.uint32), key_of(), R, [member(0), member(0)])
