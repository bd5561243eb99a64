"""A second implementation in plain Python integers: slow, short, and sharing nothing with `mien.secagg`."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from fractions import Fraction


def tagged_hash(tag: str, *parts: bytes) -> bytes:
    text = b"MSA2/" + tag.encode()
    data = len(text).to_bytes(2, "big") + text
    for part in parts:
        data += len(part).to_bytes(8, "big") + part
    return hashlib.sha256(data).digest()


def hkdf(ikm: bytes, salt: bytes, info: bytes) -> bytes:
    """RFC 5869 with one block of output."""
    extracted = hmac.new(salt, ikm, hashlib.sha256).digest()
    return hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()


def merkle_root(entries: Sequence[bytes]) -> bytes:
    """By recursion from the top, unlike the levels of the other implementation."""
    width = 1
    while width < len(entries):
        width *= 2

    def node(low: int, high: int) -> bytes:
        if high - low == 1:
            return (
                tagged_hash("leaf", low.to_bytes(4, "big"), entries[low]) if low < len(entries) else tagged_hash("leaf")
            )
        middle = (low + high) // 2
        return tagged_hash("node", node(low, middle), node(middle, high))

    return node(0, width)


def gf_multiply(a: int, b: int) -> int:
    """Multiply in GF(2^8) modulo x^8 + x^4 + x^3 + x + 1, bit by bit."""
    product = 0
    while b:
        if b & 1:
            product ^= a
        a <<= 1
        if a & 0x100:
            a ^= 0x11B
        b >>= 1
    return product


def gf_inverse(a: int) -> int:
    """a^254."""
    result = 1
    for _ in range(254):
        result = gf_multiply(result, a)
    return result


def gf_evaluate(coefficients: Sequence[int], x: int) -> int:
    """Constant term first."""
    value = 0
    for coefficient in reversed(coefficients):
        value = gf_multiply(value, x) ^ coefficient
    return value


def combine(shares: Mapping[int, bytes]) -> bytes:
    """Lagrange at 0, byte by byte."""
    length = len(next(iter(shares.values())))
    secret = [0] * length
    for i in shares:
        weight = 1
        for j in shares:
            if j != i:
                weight = gf_multiply(weight, gf_multiply(j, gf_inverse(j ^ i)))
        for byte in range(length):
            secret[byte] ^= gf_multiply(weight, shares[i][byte])
    return bytes(secret)


def quantise(value: float, bound: float, frac_bits: int, random_word: int) -> int:
    """floor(clip(x) 2^f + r 2^-32) with exact fractions."""
    clipped = max(-bound, min(bound, value))
    return (Fraction(clipped) * 2**frac_bits + Fraction(random_word, 1 << 32)).__floor__()


def shuffle(words: Sequence[int], n: int) -> list[int]:
    """Fisher-Yates with rejected words."""
    supply = iter(words)
    order = list(range(n))
    for last in range(n - 1, 0, -1):
        size = last + 1
        while True:
            word = next(supply)
            if word < 2**32 - 2**32 % size:
                break
        other = word % size
        order[last], order[other] = order[other], order[last]
    return order


def signed(word: int, bits: int) -> int:
    word &= (1 << bits) - 1
    return word - (1 << bits) if word >> (bits - 1) else word
