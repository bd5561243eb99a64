"""Steps that a device takes by itself: away from public people, and against a sum of second moments."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mien.errors import ConfigError
from mien.methods.spreadout import (
    MomentSpec,
    SpreadOutSpec,
    device_moment,
    moment_step,
    normalise,
    others_moment,
    pack_symmetric,
    packed_size,
    push_away,
    shrink_noise,
    unpack_symmetric,
)

pytestmark = pytest.mark.numerics

Matrix = NDArray[np.float64]


def people(num: int, dim: int, seed: int, crowding: float = 1.0) -> Matrix:
    """Return class vectors that share a direction, as a shifted population's do."""
    return normalise(np.random.default_rng(seed).normal(size=(num, dim)) + crowding)


def test_packing_by_hand() -> None:
    packed = pack_symmetric(np.array([[1.0, 2.0], [2.0, 5.0]]))
    np.testing.assert_allclose(packed, [1.0, 2.0 * math.sqrt(2.0), 5.0])
    assert packed_size(128) == 8256
    with pytest.raises(ConfigError, match="3 elements"):
        unpack_symmetric(np.zeros(4), 2)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(0, 10_000))
def test_packing_keeps_a_matrix_and_its_length(dim: int, seed: int) -> None:
    half = np.random.default_rng(seed).normal(size=(dim, dim))
    matrix = half + half.T
    packed = pack_symmetric(matrix)
    assert np.linalg.norm(packed) == pytest.approx(np.linalg.norm(matrix))
    np.testing.assert_allclose(unpack_symmetric(packed, dim), matrix, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(2, 9), st.integers(0, 10_000))
def test_a_device_changes_a_sum_by_at_most_one(num: int, dim: int, seed: int) -> None:
    w = np.random.default_rng(seed).normal(size=(num, dim)) * 7
    moment = device_moment(w)
    assert np.linalg.norm(moment) <= 1 + 1e-6
    by_loops = sum(np.outer(v, v) / (v @ v) for v in w) / num
    np.testing.assert_allclose(unpack_symmetric(moment, dim), by_loops, atol=1e-6)
    if num == 1:
        assert np.linalg.norm(moment) == pytest.approx(1.0, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 12), st.integers(0, 10_000), st.randoms())
def test_the_own_term_comes_out_whatever_the_order_of_the_sum(num: int, seed: int, random: object) -> None:
    addends = [device_moment(w[None]) for w in people(num, 8, seed)]
    own = addends[seed % num]
    rest = np.sum([a.astype(np.float64) for a in addends if a is not own], axis=0)
    random.shuffle(addends)  # type: ignore[attr-defined]
    total = np.sum([a.astype(np.float64) for a in addends], axis=0)
    found = others_moment(total, own, num, 8) * (num - 1)
    np.testing.assert_allclose(pack_symmetric(found), rest, rtol=0, atol=1e-13 * num)
    np.testing.assert_allclose(others_moment(total, None, num, 8), unpack_symmetric(total, 8) / num)


def test_addends_on_a_grid_come_out_exactly() -> None:
    """Masked sums are whole steps of 2^-16: nothing is rounded, so nothing of the own term is left."""
    addends = [np.rint(device_moment(w[None]) * 2**16) / 2**16 for w in people(50, 16, 3)]
    total = np.sum(addends, axis=0)
    rest = np.sum(addends[1:], axis=0)
    np.testing.assert_array_equal(others_moment(total, addends[0], 50, 16), unpack_symmetric(rest, 16) / 49)


def test_nobody_else_is_nobody_to_step_from() -> None:
    w = people(1, 5, 0)
    own = device_moment(w)
    alone = others_moment(own, own, 1, 5)
    np.testing.assert_array_equal(alone, 0.0)
    np.testing.assert_allclose(moment_step(w, alone, lr=1.0, steps=3), w, atol=1e-7)


def test_one_moment_step_by_hand() -> None:
    """M = diag(0.5, 0.1), w = (0.6, 0.8), lr 1: (0.6 x 0.5, 0.8 x 0.9), at length 1."""
    step = moment_step(np.array([[0.6, 0.8]]), np.diag([0.5, 0.1]), lr=1.0, steps=1)
    np.testing.assert_allclose(step, [np.array([0.3, 0.72]) / math.hypot(0.3, 0.72)], rtol=1e-6)
    largest = moment_step(np.array([[0.6, 0.8]]), np.diag([0.5, 0.1]), lr=100.0, steps=1)
    cut = np.array([0.6 * 0.1, 0.8 * (1 - 0.18)])  # rate 0.9 / 0.5
    np.testing.assert_allclose(largest, [cut / np.linalg.norm(cut)], rtol=1e-6)


def test_a_moment_step_descends_and_spreads_a_crowd() -> None:
    w = people(60, 16, 1)
    moment = w.T @ w / 60
    moved = normalise(moment_step(w, moment, lr=1.0, steps=2))
    assert np.einsum("kd,de,ke->", moved, moment, moved) < np.einsum("kd,de,ke->", w, moment, w)
    assert (w @ w.T).mean() > 0.4
    assert (moved @ moved.T).mean() < 0.1


def test_even_people_of_one_direction_survive_a_step() -> None:
    w = np.tile([[0.0, 1.0, 0.0]], (4, 1))
    np.testing.assert_allclose(moment_step(w, w.T @ w / 4, lr=1.0, steps=5), w)


def test_a_push_from_one_public_person_by_hand() -> None:
    """cos 0.6 exceeds 0.3 by 0.3; gradient 2 x 0.3 (1, 0); lr 0.5: (0.6 - 0.3, 0.8), at length 1; the other stays."""
    spec = SpreadOutSpec(margin=0.3, lr=0.5, steps=1, momentum=0.0, reduction="sum")
    others = np.array([[1.0, 0.0], [-1.0, 0.0]])
    pushed = push_away(np.array([[0.6, 0.8]]), others, spec)
    np.testing.assert_allclose(pushed, [np.array([0.3, 0.8]) / math.hypot(0.3, 0.8)], rtol=1e-6)
    halved = push_away(np.array([[0.6, 0.8]]), others, SpreadOutSpec(0.3, 1.0, 1, 0.0, "mean"))
    np.testing.assert_allclose(halved, pushed)
    np.testing.assert_array_equal(others, [[1.0, 0.0], [-1.0, 0.0]])


def test_who_is_far_from_all_public_people_stays() -> None:
    w = np.array([[0.0, 1.0]])
    np.testing.assert_allclose(push_away(w, np.array([[1.0, 0.0]]), SpreadOutSpec()), w)


def test_noise_alone_shrinks_to_almost_nothing_and_a_strong_direction_stays() -> None:
    rng, dim, sigma = np.random.default_rng(5), 64, 0.01
    noise = unpack_symmetric(sigma * rng.standard_normal(packed_size(dim)), dim)
    edge = np.abs(np.linalg.eigvalsh(noise)).max()
    assert edge == pytest.approx(sigma * math.sqrt(2 * dim), rel=0.15)
    assert np.linalg.norm(shrink_noise(noise, sigma)) < 0.2 * np.linalg.norm(noise)
    u = normalise(rng.normal(size=(1, dim)))[0]
    shrunk = shrink_noise(noise + np.outer(u, u), sigma)
    assert u @ shrunk @ u == pytest.approx(1 - sigma * math.sqrt(2 * dim), abs=0.05)
    np.testing.assert_array_equal(shrink_noise(noise, 0.0), noise)


@pytest.mark.parametrize("wrong", [{"every": -1}, {"steps": 0}, {"lr": math.inf}, {"noise": -1.0}])
def test_a_moment_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"options\.moment"):
        MomentSpec(**wrong)  # type: ignore[arg-type]
