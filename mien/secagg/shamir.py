"""Shamir's secret sharing over GF(2^8), byte by byte: t of k shares give the secret, t - 1 give nothing.

The field is that of AES (modulus x^8 + x^4 + x^3 + x + 1). A share is the value of one random polynomial of degree
t - 1 a byte, whose constant term is the secret's byte, at the share's index x in 1..255 (Shamir, CACM 1979).

Lookups depend on secret bytes, so time on the device's own cores may tell another process on the same phone something
about a secret that lives for one attempt; across the network nothing is seen of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mien.errors import ConfigError, CorruptDataError
from mien.secagg.keys import RandomBytes

Bytes = NDArray[np.uint8]

MAX_SHARES: Final = 255
MAX_SUBSETS: Final = 512
"""So many t-subsets of the shares are tried one by one; beyond that the errors are located by decoding."""


def _tables() -> tuple[Bytes, NDArray[np.int64], Bytes]:
    """Return powers of the generator 3, logarithms to base 3, and all products."""
    exp, log = np.zeros(255, np.uint8), np.zeros(256, np.int64)
    value = 1
    for power in range(255):
        exp[power], log[value] = value, power
        value ^= value << 1
        value ^= 0x11B if value & 0x100 else 0
    mul = np.zeros((256, 256), np.uint8)
    mul[1:, 1:] = exp[(log[1:, None] + log[None, 1:]) % 255]
    return exp, log, mul


EXP, LOG, MUL = _tables()


def _power(exponents: NDArray[np.int64]) -> Bytes:
    """Return the generator to the exponents; -LOG[a] gives 1 / a."""
    return np.asarray(EXP[exponents % 255], np.uint8)


def split(secret: bytes | bytearray, threshold: int, num_shares: int, random_bytes: RandomBytes) -> list[bytes]:
    """Return the shares of `secret` at x = 1..num_shares, each as long as the secret.

    Coefficients are drawn at once as (threshold - 1) rows of the secret's length, that of x first.
    """
    if not 1 <= threshold <= num_shares <= MAX_SHARES:
        raise ConfigError(f"{threshold} of {num_shares} shares is not possible; 1 <= t <= k <= {MAX_SHARES}")
    drawn = np.frombuffer(random_bytes((threshold - 1) * len(secret)), np.uint8)
    coefficients = drawn.reshape(threshold - 1, len(secret))
    x = np.arange(1, num_shares + 1)[:, None]
    values = np.zeros((num_shares, len(secret)), np.uint8)
    for row in coefficients[::-1]:
        values = MUL[x, values ^ row]
    values ^= np.frombuffer(secret, np.uint8)
    return [value.tobytes() for value in values]


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Return the secret that exactly `threshold` shares, by index, lead to; nothing tells whether they are right.

    Raises CorruptDataError for another number of shares, an index outside 1..255 or shares of unequal length.
    """
    if len(shares) != threshold:
        raise CorruptDataError(f"{threshold} shares are needed, got {len(shares)}; collect exactly that many")
    x, y = _arrays(shares)
    return _weighted_sum(_weights_at_zero(x), y).tobytes()


@dataclass(frozen=True)
class Recovered:
    """A secret that passed its check, and the indices of the shares that do not fit it."""

    secret: bytes = field(repr=False)
    wrong: frozenset[int]


def recover(shares: Mapping[int, bytes], threshold: int, accepts: Callable[[bytes], bool]) -> Recovered | None:
    """Return the secret that `accepts` accepts and which shares are wrong, or None if no t-subset that is tried fits.

    If the first t fit, the others are not looked at. If not, wrong ones are found among all m: always where there are
    at most MAX_SUBSETS subsets of t, else up to (m - t) / 2 of them (Gao's decoder, each byte by itself).
    """
    for subset in _candidates(shares, threshold):
        secret = combine({x: shares[x] for x in subset}, threshold)
        if accepts(secret):
            is_first = subset == tuple(shares)[:threshold]
            return Recovered(secret, frozenset() if is_first else _unfit(shares, subset))
    return None


def _candidates(shares: Mapping[int, bytes], threshold: int) -> Iterator[tuple[int, ...]]:
    """Yield t-subsets of indices worth trying, the first t in the caller's order first."""
    order = tuple(shares)
    if len(order) < threshold:
        return
    if math.comb(len(order), threshold) <= MAX_SUBSETS:
        yield from itertools.combinations(order, threshold)
        return
    yield order[:threshold]
    wrong = _locate_errors(shares, threshold)
    right = tuple(x for x in order if wrong is not None and x not in wrong)
    if len(right) >= threshold:
        yield right[:threshold]


def _unfit(shares: Mapping[int, bytes], subset: Sequence[int]) -> frozenset[int]:
    """Return the indices whose shares lie beside the polynomials through `subset`."""
    others = [x for x in shares if x not in subset]
    if not others:
        return frozenset()
    x, y = _arrays({i: shares[i] for i in subset})
    wrong = []
    for other in others:
        if _weighted_sum(_weights_at(x, other), y).tobytes() != shares[other]:
            wrong.append(other)
    return frozenset(wrong)


def _arrays(shares: Mapping[int, bytes]) -> tuple[Bytes, Bytes]:
    """Return indices (t,) and values (t, length)."""
    if any(not 1 <= x <= MAX_SHARES for x in shares) or len({len(share) for share in shares.values()}) > 1:
        raise CorruptDataError(f"shares need indices from 1 to {MAX_SHARES} and one length; leave the wrong ones out")
    x = np.array(list(shares), np.uint8)
    return x, np.frombuffer(b"".join(shares.values()), np.uint8).reshape(len(shares), -1)


def _weighted_sum(weights: Bytes, rows: Bytes) -> Bytes:
    """Return the sum of rows (t, L) by weights (t,)."""
    return np.asarray(np.bitwise_xor.reduce(MUL[weights[:, None], rows], axis=0), np.uint8)


def _weights_at_zero(x: Bytes) -> Bytes:
    """Return Lagrange's weights for the value at 0: prod over j != i of x_j / (x_j - x_i)."""
    return _weights_at(x, 0)


def _weights_at(x: Bytes, point: int) -> Bytes:
    """Return Lagrange's weights for the value at `point`, which is none of x. Subtraction is XOR."""
    to_point = LOG[x ^ np.uint8(point)]
    between = LOG[x[:, None] ^ x[None, :]]
    np.fill_diagonal(between, 0)
    return _power(to_point.sum() - to_point - between.sum(axis=1))


# Locating wrong shares: Gao's decoder of Reed-Solomon codes (2003). Polynomials are arrays, lowest power first.


def _locate_errors(shares: Mapping[int, bytes], threshold: int) -> frozenset[int] | None:
    """Return the indices of shares that are wrong in any byte, or None where a byte has too many wrong ones."""
    x, y = _arrays(shares)
    vanishing = np.ones(1, np.uint8)
    for root in x:
        vanishing = _add(np.concatenate([[np.uint8(0)], vanishing]), MUL[root, vanishing])
    basis = _lagrange_basis(x, vanishing)
    wrong = np.zeros(len(x), bool)
    for column in y.T:
        message = _decode(vanishing, _weighted_sum(column, basis), threshold)
        if message is None:
            return None
        wrong |= _evaluate(message, x) != column
    return frozenset(int(index) for index in x[wrong])


def _lagrange_basis(x: Bytes, vanishing: Bytes) -> Bytes:
    """Return the m polynomials (m, m) of which number i is 1 at x_i and 0 at every other x."""
    basis = np.zeros((len(x), len(x)), np.uint8)
    carry = np.zeros(len(x), np.uint8)
    for power in range(len(x), 0, -1):  # divide the vanishing polynomial by (z - x_i), for all i at once
        carry = vanishing[power] ^ MUL[carry, x]
        basis[:, power - 1] = carry
    differences = LOG[x[:, None] ^ x[None, :]]
    np.fill_diagonal(differences, 0)
    return np.asarray(MUL[basis, _power(-differences.sum(axis=1))[:, None]], np.uint8)


def _decode(vanishing: Bytes, interpolated: Bytes, threshold: int) -> Bytes | None:
    """Return the polynomial of degree < t that agrees with most values, by a partial Euclidean algorithm."""
    num_values = len(vanishing) - 1
    r0, r1 = vanishing, _trim(interpolated)
    v0, v1 = np.zeros(0, np.uint8), np.ones(1, np.uint8)
    while 2 * (len(r1) - 1) >= num_values + threshold:
        quotient, remainder = _divide(r0, r1)
        r0, r1 = r1, remainder
        v0, v1 = v1, _add(v0, _multiply(quotient, v1))
    message, remainder = _divide(r1, v1)
    return None if len(remainder) or len(message) > threshold else message


def _trim(a: Bytes) -> Bytes:
    nonzero = np.flatnonzero(a)
    return a[: nonzero[-1] + 1] if len(nonzero) else a[:0]


def _add(a: Bytes, b: Bytes) -> Bytes:
    total = np.zeros(max(len(a), len(b)), np.uint8)
    total[: len(a)] = a
    total[: len(b)] ^= b
    return _trim(total)


def _multiply(a: Bytes, b: Bytes) -> Bytes:
    product = np.zeros(max(len(a) + len(b) - 1, 0), np.uint8)
    for power, coefficient in enumerate(a):
        product[power : power + len(b)] ^= MUL[coefficient, b]
    return product


def _divide(a: Bytes, b: Bytes) -> tuple[Bytes, Bytes]:
    """Return quotient and remainder of a / b; the leading coefficient of b is not zero."""
    remainder = a.copy()
    quotient = np.zeros(max(len(a) - len(b) + 1, 0), np.uint8)
    scale = _power(-LOG[b[-1:]])[0]
    for power in range(len(quotient) - 1, -1, -1):
        quotient[power] = MUL[remainder[power + len(b) - 1], scale]
        remainder[power : power + len(b)] ^= MUL[quotient[power], b]
    return _trim(quotient), _trim(remainder)


def _evaluate(polynomial: Bytes, x: Bytes) -> Bytes:
    value = np.zeros(len(x), np.uint8)
    for coefficient in polynomial[::-1]:
        value = MUL[value, x] ^ coefficient
    return value
