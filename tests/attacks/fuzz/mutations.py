"""Damage to bytes, settled by a generator of random numbers: what a fuzzer without knowledge of the format does."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

_NUMBERS: Final = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    2**63 - 1,
    2**64 - 1,
)
_TOKENS: Final = (
    b"\x00",
    b"\xff" * 8,
    b"-1",
    b"9" * 30,
    b"1e999",
    b"NaN",
    b"null",
    b"[" * 200,
    b'{"":' * 100,
    b"../../etc/passwd",
    b"\xed\xa0\x80",
    "\N{RIGHT-TO-LEFT OVERRIDE}é".encode(),
    b"%00%n",
    b"\r\n\r\n",
)


def mutate(rng: random.Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Return damaged bytes: one to four changes, sometimes a part of another valid input."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        changed = _changed(rng, changed, others)
    return bytes(changed)


def _changed(rng: random.Random, data: bytearray, others: Sequence[bytes]) -> bytearray:
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + 1 + rng.randrange(16))
    kind = rng.randrange(8)
    if kind == 0 and data:
        data[at % len(data)] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        del data[at:end]
    elif kind == 3:
        data[at:at] = data[at:end] * rng.randint(1, 40)
    elif kind == 4:
        data[at:at] = rng.choice(_TOKENS)
    elif kind == 5:
        data[at:end] = rng.choice(_TOKENS)
    elif kind == 6:
        size = rng.choice((1, 2, 4, 8))
        number = (rng.choice(_NUMBERS) & (256**size - 1)).to_bytes(size, rng.choice(("little", "big")))
        data[at : at + size] = number
    elif others:
        other = rng.choice(others)
        start = rng.randrange(len(other) + 1)
        data[at:end] = other[start : start + rng.randrange(1, 64)]
    return data
