"""Rotations keep comparisons, and what ISO/IEC 24745 asks of protected templates holds as far as it is claimed."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from numpy.typing import NDArray

from mien.template_protection import rotate, unrotate

pytestmark = pytest.mark.numerics

Floats = NDArray[np.float32]


def key(number: int) -> bytes:
    return hashlib.sha256(b"key %d" % number).digest()


def faces(count: int, dim: int, seed: int = 0) -> Floats:
    """Return unit vectors of so many people."""
    vectors = np.random.default_rng(seed).standard_normal((count, dim))
    unit: Floats = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return unit


def another_picture(vectors: Floats, seed: int = 1) -> Floats:
    """Return other pictures of the same people, at a cosine of about 0.7 to the first."""
    noise = faces(len(vectors), vectors.shape[1], seed)
    other = 0.7 * vectors + np.sqrt(1 - 0.49) * noise
    unit: Floats = other / np.linalg.norm(other, axis=1, keepdims=True)
    return unit


@pytest.mark.parametrize("dim", [2, 7, 128, 192, 512])
def test_a_rotation_keeps_every_length_and_cosine_and_can_be_undone(dim: int) -> None:
    vectors = faces(9, dim)
    turned = rotate(vectors, [key(0)] * 9)
    np.testing.assert_allclose(turned @ turned.T, vectors @ vectors.T, atol=3e-6)
    np.testing.assert_allclose(unrotate(turned, [key(0)] * 9), vectors, atol=3e-6)


def test_each_reference_is_turned_by_its_own_key() -> None:
    vectors, keys = faces(4, 128), [key(k) for k in range(4)]
    turned = rotate(vectors, keys)
    for row in range(4):
        np.testing.assert_allclose(turned[row : row + 1], rotate(vectors[row : row + 1], [keys[row]]), atol=1e-6)
    np.testing.assert_allclose(unrotate(turned, keys), vectors, atol=3e-6)


def test_the_rotation_is_the_product_of_signs_and_cosine_transforms_written_out() -> None:
    """Golden: element by element from the definition, for D = 4."""
    stream = hashlib.shake_256(b"mien/template rotation/1" + (4).to_bytes(4, "big") + key(5)).digest(2)
    bits = [stream[i // 8] >> (7 - i % 8) & 1 for i in range(12)]
    expected = [0.1, -0.2, 0.3, 0.4]
    for at in range(3):
        signed = [-x if bits[4 * at + i] else x for i, x in enumerate(expected)]
        expected = [
            (0.5 if k == 0 else np.sqrt(0.5))
            * sum(x * np.cos(np.pi * (2 * n + 1) * k / 8) for n, x in enumerate(signed))
            for k in range(4)
        ]
    turned = rotate(np.array([[0.1, -0.2, 0.3, 0.4]], np.float32), [key(5)])
    np.testing.assert_allclose(turned[0], expected, atol=1e-6)


def test_comparison_is_as_good_as_before_under_the_same_key() -> None:
    people, keys = faces(300, 128), [key(k) for k in range(300)]
    probes = another_picture(people)
    plain = np.einsum("nd,nd->n", people, probes)
    protected = np.einsum("nd,nd->n", rotate(people, keys), rotate(probes, keys))
    np.testing.assert_allclose(protected, plain, atol=3e-6)


def test_a_revoked_reference_does_not_match_the_renewed_key() -> None:
    """Renewability: the same face under a new key; the stolen old reference is a stranger's to it."""
    people = faces(500, 128)
    old, new = [key(k) for k in range(500)], [key(1000 + k) for k in range(500)]
    probes = rotate(another_picture(people), new)
    assert np.einsum("nd,nd->n", rotate(people, new), probes).min() > 0.5
    assert np.abs(np.einsum("nd,nd->n", rotate(people, old), probes)).max() < 0.45  # 5 standard deviations of chance


def test_references_of_one_person_under_two_keys_are_no_more_alike_than_those_of_two_people() -> None:
    """Unlinkability: the global measure D_sys (Gomez-Barrero et al., IEEE TIFS 2018) of the obvious linking score."""
    people = faces(4000, 128)
    first = rotate(people, [key(k) for k in range(4000)])
    second = rotate(another_picture(people), [key(10_000 + k) for k in range(4000)])
    mated = np.einsum("nd,nd->n", first, second)
    non_mated = np.einsum("nd,nd->n", first, np.roll(second, 1, axis=0))
    edges = np.quantile(np.concatenate([mated, non_mated]), np.linspace(0, 1, 21))
    p_mated, p_non_mated = (np.histogram(s, edges)[0] / len(s) for s in (mated, non_mated))
    ratio = p_mated / p_non_mated
    local = np.where(ratio > 1, 2 * ratio / (1 + ratio) - 1, 0.0)
    # 0: unlinkable, 1: linkable. Twenty bins of 200 leave about 0.02 to chance.
    assert float((local * p_mated).sum()) < 0.06
    unprotected = np.einsum("nd,nd->n", people, another_picture(people))
    assert unprotected.min() > non_mated.max(), "without rotation every pair would be linked"


def test_a_key_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="31 bytes, needs 32"):
        rotate(faces(1, 8), [bytes(31)])
