"""Real numbers as ring elements: clip, round at random without bias, and never wrap.

q = floor(x * 2^f + r * 2^-32), x clipped, r a uniform u32. In steps of 2^-f, an element is off by at most 1, by less
than 2^-22 on average, and with a variance of at most 1/4. The integer weight multiplies q, not x, so precision does not
depend on the weight. Arithmetic is IEEE double (a product, a power of two, a sum, a floor), so languages agree bit for
bit; only the norm behind the L2 clip depends on the order of summation, in its last digit, and nobody compares it.
There is no exact float mode: floats have no modulus, and what does not wrap cannot hide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from mien.errors import ConfigError, CorruptDataError, NonFiniteError
from mien.records import check_limits, within
from mien.secagg.masks import BLOCK_WORDS, Words

RING_BITS: Final = (24, 32)
MAX_FRAC_BITS: Final = 48
MAX_WEIGHT: Final = 65535


class RoundingWords(Protocol):
    """Source of the random words of rounding; one word an element, in the vector's order."""

    def take(self, size: int) -> Words:
        """Return the next `size` words."""
        ...


@dataclass(frozen=True)
class NumberFormat:
    """Format of real numbers as ring elements of `ring_bits`.

    An update is scaled to L2 norm at most `l2_clip`, its elements clipped to +-`coordinate_clip` and rounded to
    2^-frac_bits. Metrics are clipped to +-`metric_bound` and rounded to 2^-metric_frac_bits. Weights are 1..max_weight.
    """

    ring_bits: int
    frac_bits: Annotated[int, within(0, MAX_FRAC_BITS)]
    l2_clip: float
    coordinate_clip: float
    max_weight: Annotated[int, within(1, MAX_WEIGHT)] = 1
    metric_bound: float = 64.0
    metric_frac_bits: Annotated[int, within(0, MAX_FRAC_BITS)] = 8

    def __post_init__(self) -> None:
        if self.ring_bits not in RING_BITS:
            raise ConfigError(f"ring_bits is {self.ring_bits}; it must be 24 or 32")
        check_limits(self, "")
        for name in ("l2_clip", "coordinate_clip", "metric_bound"):
            value = as_float32(getattr(self, name))
            if not 0 < value < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be positive and fit a float32")
            object.__setattr__(self, name, value)

    @property
    def largest_step(self) -> int:
        """The largest absolute value of a rounded element: the coordinate clip in steps, rounded up, and one more.

        One more, because above 2^20 steps the sum with r 2^-32 may round up to the next integer.
        """
        return math.ceil(self.coordinate_clip * 2.0**self.frac_bits) + 1

    @property
    def largest_metric_step(self) -> int:
        """The largest absolute value of a rounded metric."""
        return math.ceil(self.metric_bound * 2.0**self.metric_frac_bits) + 1

    @property
    def max_error(self) -> float:
        """Each element of a weighted mean is off the mean of the clipped elements by at most this."""
        return 2.0**-self.frac_bits

    def check_no_wrap(self, n_max: int, noise_bound: int = 0) -> None:
        """Raise ConfigError unless the sum over `n_max` devices stays below 2^(ring_bits - 1) in every lane.

        `noise_bound` is the largest absolute value of integer noise in a lane of the sum, all devices together.
        """
        limit = 1 << (self.ring_bits - 1)
        for what, step in (("coordinate_clip", self.largest_step), ("metric_bound", self.largest_metric_step)):
            largest = n_max * self.max_weight * step + noise_bound
            if largest >= limit:
                raise ConfigError(
                    f"a sum over {n_max} devices can reach {largest}, a ring of {self.ring_bits} bits holds less than "
                    f"{limit}; lower max_weight ({self.max_weight}), {what} or its fraction bits"
                )

    def norm_bound(self, sum_of_weights: int, size: int) -> float:
        """Return the largest L2 norm that an honest sum of weighted updates of `size` elements can have."""
        return sum_of_weights * (self.l2_clip + math.sqrt(size) * 2.0**-self.frac_bits)


def as_float32(value: float) -> float:
    """Return the number that a 32-bit float makes of `value`, zero without a sign: one number has one form of bytes."""
    with np.errstate(over="ignore"):
        return float(np.float32(value)) + 0.0


def l2_norm(update: NDArray[np.float32]) -> float:
    """Return the norm in float64; raises NonFiniteError for NaN or infinity: such an update leaves the round."""
    squares = 0.0
    for start in range(0, len(update), BLOCK_WORDS):
        block = update[start : start + BLOCK_WORDS].astype(np.float64)
        # Not np.dot: for a block this long BLAS wakes its threads, which costs more than the sum on a busy machine.
        squares += float(np.einsum("i,i->", block, block))
    if not math.isfinite(squares):
        raise NonFiniteError("the update holds NaN or infinity; the device leaves the round")
    return math.sqrt(squares)


def round_at_random(values: NDArray[np.float64], frac_bits: int, random: Words) -> NDArray[np.int32]:
    """Return floor(x 2^f + r 2^-32) for clipped values (N,) and random words (N,); `values` is overwritten."""
    values *= 2.0**frac_bits
    values += random * 2.0**-32
    np.floor(values, out=values)
    return values.astype(np.int32)


def quantise_update(
    update: NDArray[np.float32], factor: float, numbers: NumberFormat, weight: int, rounding: RoundingWords, out: Words
) -> None:
    """Write weight * q(update * factor) to `out` (N,) as ring elements, block by block."""
    clip = numbers.coordinate_clip
    for start in range(0, len(update), BLOCK_WORDS):
        block = update[start : start + BLOCK_WORDS].astype(np.float64)
        block *= factor
        np.clip(block, -clip, clip, out=block)
        q = round_at_random(block, numbers.frac_bits, rounding.take(len(block)))
        q *= np.int32(weight)
        out[start : start + len(block)] = q.view(np.uint32)


def quantise_metrics(
    metrics: tuple[float, ...], numbers: NumberFormat, weight: int, rounding: RoundingWords
) -> NDArray[np.int32]:
    """Return weight * q(metric) for each metric, clipped to the bound; raises NonFiniteError for NaN or infinity."""
    values = np.array(metrics, np.float64)
    if not np.isfinite(values).all():
        raise NonFiniteError("a metric is NaN or infinite; the device leaves the round")
    np.clip(values, -numbers.metric_bound, numbers.metric_bound, out=values)
    q = round_at_random(values, numbers.metric_frac_bits, rounding.take(len(values)))
    return q * np.int32(weight)


def to_signed(words: Words, ring_bits: int) -> NDArray[np.int32]:
    """Return ring elements as the integers of least absolute value that they stand for."""
    shift = np.int32(32 - ring_bits)
    return (words << np.uint32(shift)).view(np.int32) >> shift


# On the wire


def packed_size(num_words: int, ring_bits: int) -> int:
    """Return the bytes of a vector: ring_bits / 8 an element."""
    return num_words * ring_bits // 8


def pack(words: Words, ring_bits: int) -> bytes:
    """Return the low `ring_bits` of each word, little-endian, without gaps."""
    little = np.ascontiguousarray(words, "<u4")
    if ring_bits == 32:
        return little.tobytes()
    return np.ascontiguousarray(little.view(np.uint8).reshape(-1, 4)[:, : ring_bits // 8]).tobytes()


def add_packed(total: Words, packed: bytes | memoryview, ring_bits: int) -> None:
    """Add a packed vector to `total` in place, block by block; raises CorruptDataError for another length."""
    if len(packed) != packed_size(len(total), ring_bits):
        raise CorruptDataError(
            f"masked vector has {len(packed)} bytes, needs {packed_size(len(total), ring_bits)}; send it again"
        )
    if ring_bits == 32:
        np.add(total, np.frombuffer(packed, "<u4"), out=total)
        return
    width = ring_bits // 8
    octets = np.frombuffer(packed, np.uint8).reshape(-1, width)
    block = np.zeros((BLOCK_WORDS, 4), np.uint8)
    for start in range(0, len(total), BLOCK_WORDS):
        part = octets[start : start + BLOCK_WORDS]
        block[: len(part), :width] = part
        total[start : start + len(part)] += block[: len(part)].view("<u4")[:, 0]


def unpack(packed: bytes | memoryview, ring_bits: int) -> Words:
    """Return the words of a packed vector."""
    width = ring_bits // 8
    if len(packed) % width:
        raise CorruptDataError(f"packed vector has {len(packed)} bytes, no multiple of {width}; send it again")
    words = np.zeros(len(packed) // width, np.uint32)
    add_packed(words, packed, ring_bits)
    return words
