"""Encapsulation of ML-KEM-768 in plain Python, after FIPS 203: known chance in, known ciphertext out.

OpenSSL draws its own chance, so that vectors could not be made again with it; what it makes of these ciphertexts shows
that the two agree.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence

Q = 3329
K = 3
ZETAS = [pow(17, int(f"{i:07b}"[::-1], 2), Q) for i in range(128)]
Polynomial = list[int]


def ntt(f: Sequence[int]) -> Polynomial:
    """Algorithm 9."""
    out, index = list(f), 1
    for length in (128, 64, 32, 16, 8, 4, 2):
        for start in range(0, 256, 2 * length):
            for j in range(start, start + length):
                t = ZETAS[index] * out[j + length] % Q
                out[j + length], out[j] = (out[j] - t) % Q, (out[j] + t) % Q
            index += 1
    return out


def inverse_ntt(f: Sequence[int]) -> Polynomial:
    """Algorithm 10."""
    out, index = list(f), 127
    for length in (2, 4, 8, 16, 32, 64, 128):
        for start in range(0, 256, 2 * length):
            for j in range(start, start + length):
                t = out[j]
                out[j] = (t + out[j + length]) % Q
                out[j + length] = ZETAS[index] * (out[j + length] - t) % Q
            index -= 1
    return [value * 3303 % Q for value in out]


def multiply(f: Sequence[int], g: Sequence[int]) -> Polynomial:
    """Algorithms 11 and 12: 128 products modulo X^2 - zeta."""
    out = [0] * 256
    for i in range(128):
        gamma = ZETAS[i // 2 + 64] * (1 if i % 2 == 0 else -1)
        a, b, c, d = f[2 * i], f[2 * i + 1], g[2 * i], g[2 * i + 1]
        out[2 * i], out[2 * i + 1] = (a * c + b * d * gamma) % Q, (a * d + b * c) % Q
    return out


def add(*polynomials: Sequence[int]) -> Polynomial:
    return [sum(column) % Q for column in zip(*polynomials, strict=True)]


def sample_uniform(seed: bytes) -> Polynomial:
    """Algorithm 7: rejected from SHAKE-128, in the order of the NTT."""
    stream, out, at = hashlib.shake_128(seed).digest(3 * 1024), list[int](), 0
    while len(out) < 256:
        a, b, c = stream[at : at + 3]
        out += [value for value in (a + 256 * (b % 16), b // 16 + 16 * c) if value < Q]
        at += 3
    return out[:256]


def sample_small(seed: bytes, number: int) -> Polynomial:
    """Algorithm 8 with eta = 2."""
    data = int.from_bytes(hashlib.shake_256(seed + bytes([number])).digest(128), "little")
    bits = [data >> i & 1 for i in range(1024)]
    return [(sum(bits[4 * i : 4 * i + 2]) - sum(bits[4 * i + 2 : 4 * i + 4])) % Q for i in range(256)]


def encode(values: Sequence[int], width: int) -> bytes:
    """Algorithm 5."""
    return sum(value << width * i for i, value in enumerate(values)).to_bytes(32 * width, "little")


def decode(data: bytes, width: int) -> Polynomial:
    """Algorithm 6."""
    whole = int.from_bytes(data, "little")
    return [(whole >> width * i) % (1 << width) for i in range(256)]


def compress(values: Sequence[int], width: int) -> list[int]:
    """Equation 4.7, ties upwards."""
    return [((value << width) + Q // 2) // Q % (1 << width) for value in values]


@functools.lru_cache(maxsize=512)
def encapsulated(public: bytes, message: bytes) -> tuple[bytes, bytes]:
    """Return (secret, ciphertext): algorithms 17 and 14 with the 32 bytes m = `message`."""
    digest = hashlib.sha3_512(message + hashlib.sha3_256(public).digest()).digest()
    secret, r = digest[:32], digest[32:]
    rho, t_hat = public[384 * K :], [decode(public[384 * i : 384 * (i + 1)], 12) for i in range(K)]
    y_hat = [ntt(sample_small(r, i)) for i in range(K)]
    u = []
    for i in range(K):  # A is transposed: row i of the product takes the column i of A
        column = [multiply(sample_uniform(rho + bytes([i, j])), y_hat[j]) for j in range(K)]
        u.append(add(inverse_ntt(add(*column)), sample_small(r, K + i)))
    inner = inverse_ntt(add(*(multiply(t, y) for t, y in zip(t_hat, y_hat, strict=True))))
    mu = [bit * ((Q + 1) // 2) for bit in decode(message, 1)]
    v = add(inner, sample_small(r, 2 * K), mu)
    ciphertext = b"".join(encode(compress(each, 10), 10) for each in u) + encode(compress(v, 4), 4)
    return secret, ciphertext


def encapsulate(public: bytes, random_bytes: Callable[[int], bytes]) -> tuple[bytes, bytes]:
    """Return (secret, ciphertext) by the chance that is given."""
    return encapsulated(public, random_bytes(32))
