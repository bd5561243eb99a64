"""Masks: pseudo-random words that hide a vector, added by one device and subtracted by another.

A mask is the AES-128-CTR key stream of a seed: key = seed[0:16], first counter block = seed[16:28] ‖ 2 (u32,
big-endian), word i = little-endian u32 of bytes 4i..4i+3. The counter starts at 2 so that AES-GCM over zeros gives the
same bytes. A vector has at most 2^30 words, so the 32-bit counter never wraps. Sums are modulo 2^32; a ring of 2^24
keeps the low 24 bits, which commutes with addition.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

Words = NDArray[np.uint32]

MAX_WORDS: Final = 1 << 30
BLOCK_WORDS: Final = 32 * 1024
"""128 KiB: vector block, mask block and cipher state stay in a core's own cache while all masks are added to it."""

_WORDS_PER_COUNT: Final = 4
_FIRST_COUNT: Final = 2
_ZEROS: Final = memoryview(bytes(4 * BLOCK_WORDS))
_WordUfunc = Any  # np.add or np.subtract; numpy's stubs have no common name for them


def key_stream(seed: bytes, first_word: int = 0) -> CipherContext:
    """Return the encryptor whose output over zeros is the mask from `first_word` (a multiple of 4) on."""
    count = _FIRST_COUNT + first_word // _WORDS_PER_COUNT
    block = seed[16:28] + count.to_bytes(4, "big")
    return Cipher(algorithms.AES(seed[:16]), modes.CTR(block)).encryptor()


class WordStream:
    """The words of a seed, one run after another."""

    def __init__(self, seed: bytes) -> None:
        self._stream = key_stream(seed)

    def __repr__(self) -> str:
        return "WordStream(***)"

    def take(self, size: int) -> Words:
        """Return the next `size` words."""
        words = np.empty(size, "<u4")
        for start in range(0, size, BLOCK_WORDS):
            block = words[start : start + BLOCK_WORDS]
            self._stream.update_into(_ZEROS[: block.nbytes], block.view(np.uint8).data)
        return words


def add_masks(words: Words, plus: Sequence[bytes], minus: Sequence[bytes], *, threads: int = 1) -> None:
    """Add the masks of the seeds in `plus` to `words`, in place, and subtract those in `minus`.

    `threads` share the vector in ranges of whole blocks; AES and addition run outside the interpreter's lock.
    """
    num_blocks = -(-len(words) // BLOCK_WORDS)
    threads = max(1, min(threads, num_blocks))
    bounds = [min(len(words), i * num_blocks // threads * BLOCK_WORDS) for i in range(threads)] + [len(words)]
    if threads == 1:
        _add_range(words, 0, plus, minus)
        return
    with ThreadPoolExecutor(threads) as pool:
        ranges = [(words[start:stop], start) for start, stop in itertools.pairwise(bounds)]
        for done in [pool.submit(_add_range, part, start, plus, minus) for part, start in ranges]:
            done.result()


def _add_range(words: Words, first_word: int, plus: Sequence[bytes], minus: Sequence[bytes]) -> None:
    """Add and subtract the masks' words from `first_word` on; block by block, all masks of a block together."""
    streams: list[tuple[CipherContext, _WordUfunc]] = [(key_stream(seed, first_word), np.add) for seed in plus]
    streams += [(key_stream(seed, first_word), np.subtract) for seed in minus]
    buffer = np.empty(BLOCK_WORDS, "<u4")
    for start in range(0, len(words), BLOCK_WORDS):
        block = words[start : start + BLOCK_WORDS]
        mask = buffer[: len(block)]
        zeros, target = _ZEROS[: mask.nbytes], mask.view(np.uint8).data
        for stream, combine in streams:
            stream.update_into(zeros, target)
            combine(block, mask, out=block)
