"""The mask stream: AES-CTR and AES-GCM over zeros agree, threads agree, masks cancel."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mien.secagg.masks import BLOCK_WORDS, WordStream, add_masks

SEEDS = [bytes([i]) * 32 for i in range(1, 6)]


@pytest.mark.parametrize("size", [1, 4, 5, BLOCK_WORDS - 1, BLOCK_WORDS, 2 * BLOCK_WORDS + 3])
def test_the_stream_is_gcm_over_zeros(size: int) -> None:
    seed = bytes(range(32))
    sealed = AESGCM(seed[:16]).encrypt(seed[16:28], bytes(4 * size), None)[:-16]
    assert WordStream(seed).take(size).tobytes() == sealed


def test_a_stream_goes_on_where_it_stopped() -> None:
    whole, pieces = WordStream(SEEDS[0]).take(1000), WordStream(SEEDS[0])
    assert np.array_equal(np.concatenate([pieces.take(n) for n in (1, 3, 500, 496)]), whole)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("size", [0, 7, 3 * BLOCK_WORDS + 5])
def test_masks_are_sums_modulo_2_to_the_32(threads: int, size: int) -> None:
    vector = np.arange(size, dtype=np.uint32) * np.uint32(2654435761)
    masked = vector.copy()
    add_masks(masked, SEEDS[:2], SEEDS[2:], threads=threads)
    streams = [WordStream(seed).take(size).astype(object) for seed in SEEDS]
    expected = (vector.astype(object) + sum(streams[:2]) - sum(streams[2:])) % 2**32
    assert masked.tolist() == expected.tolist()
    add_masks(masked, SEEDS[2:], SEEDS[:2], threads=threads)
    assert np.array_equal(masked, vector)


def test_the_counter_is_not_reused_between_ranges() -> None:
    words = WordStream(SEEDS[0]).take(2 * BLOCK_WORDS)
    blocks = words.reshape(-1, 4)
    assert len(np.unique(blocks, axis=0)) == len(blocks)


def test_the_last_32_bits_of_a_seed_are_not_used_and_the_others_are() -> None:
    base = WordStream(bytes(32)).take(64)
    for byte in range(32):
        seed = bytearray(32)
        seed[byte] = 1
        assert np.array_equal(WordStream(bytes(seed)).take(64), base) == (byte >= 28)


def test_a_stream_does_not_show_its_seed() -> None:
    assert repr(WordStream(SEEDS[0])) == "WordStream(***)"
