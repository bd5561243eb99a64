"""Integer noise, sampled exactly from a source of random bytes.

Floats that stand for real noise have holes that give a device away (Mironov, CCS 2012), so all noise here is a whole
number of steps, and its distribution is the promised one, not a rounding of it. One sampler serves the three laws: an
offset y from the mode is proposed from blocks of `width` values, block V with probability 2^-(V+1), and accepted with
probability 2^(V-1) w(y)/w(0), which no law here lets exceed 1. The comparison with that probability is done in doubles,
and again in decimal arithmetic of as many digits as it takes wherever the doubles cannot decide (once in 10^12).

The random bytes must come from a cryptographic generator: who can predict them can remove the noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, getcontext, localcontext
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from mien.errors import ConfigError

RandomBytes = Callable[[int], bytes]
"""Returns that many bytes nobody can predict, e.g. `os.urandom`."""

Steps = NDArray[np.int64]
Reals = NDArray[np.float64]

_BLOCK: Final = 1 << 15
_MAX_WIDTH: Final = 1 << 40
_MAX_POISSON_MEAN: Final = 2.0**50
# Doubles err by less than 2^-44 in an acceptance probability (analysis in the laws' `log_weight`).
_DOUBT: Final = 2.0**-40
_LN2: Final = math.log(2.0)


class _Law(Protocol):
    """A distribution on the integers, by offset from its mode."""

    @property
    def width(self) -> int:
        """Length of a block: a power of two, so wide that 2^(V-1) w(y)/w(0) <= 1 for every y in block V."""
        ...

    def log_weight(self, offset: Steps) -> Reals:
        """Return ln(w(y)/w(0)) to within 2^-44 / w(y)."""
        ...

    def exact_weight(self, offset: int) -> Decimal:
        """Return w(y)/w(0), off by less than 10^(15 - digits of the decimal context)."""
        ...


@dataclass(frozen=True)
class _Gaussian:
    """w(y) = exp(-y^2 / 2 sigma^2). In block V, y >= V width; width >= 0.59 sigma gives the bound."""

    sigma: float

    @property
    def width(self) -> int:
        return _power_of_two(0.59 * self.sigma)

    def log_weight(self, offset: Steps) -> Reals:
        return -0.5 * np.square(offset.astype(np.float64) / self.sigma)

    def exact_weight(self, offset: int) -> Decimal:
        ratio = Decimal(offset) / Decimal(self.sigma)
        return (-ratio * ratio / 2).exp()


@dataclass(frozen=True)
class _Laplace:
    """w(y) = exp(-|y| / scale); width >= scale ln 2 gives the bound."""

    scale: float

    @property
    def width(self) -> int:
        return _power_of_two(0.7 * self.scale)

    def log_weight(self, offset: Steps) -> Reals:
        return -np.abs(offset.astype(np.float64)) / self.scale

    def exact_weight(self, offset: int) -> Decimal:
        return (-abs(Decimal(offset)) / Decimal(self.scale)).exp()


@dataclass(frozen=True)
class _Poisson:
    """w(y) = P[mode + y] for Poisson(mean), mode = floor(mean).

    ln P = -D(k, mean) - g(k), D the deviance and g Stirling's error (Loader 2000): no large terms cancel. Both tails
    obey ln w(y) <= -y^2 / 2 (mean + y/3) up to the half step between mode and mean, which the wider block absorbs.
    """

    mean: float

    @property
    def width(self) -> int:
        return _power_of_two(0.6 * math.sqrt(self.mean) + 2)

    @property
    def mode(self) -> int:
        """The likeliest value."""
        return math.floor(self.mean)

    def log_weight(self, offset: Steps) -> Reals:
        k = (offset + self.mode).astype(np.float64)
        mode = np.array([float(self.mode)])
        above = np.maximum(k, 0)
        logs = _deviance(mode, self.mean) - _deviance(above, self.mean) + _stirling(mode) - _stirling(above)
        return np.where(k < 0, -np.inf, logs)

    def exact_weight(self, offset: int) -> Decimal:
        mean, weight = Decimal(self.mean), Decimal(1)
        if self.mode + offset < 0:
            return Decimal(0)
        negligible = Decimal(10) ** -getcontext().prec
        for i in range(abs(offset)):  # every factor is at most 1
            weight *= mean / (self.mode + i + 1) if offset > 0 else (self.mode - i) / mean
            if weight < negligible:
                break
        return weight


def discrete_gaussian(size: int, sigma: float, random: RandomBytes) -> Steps:
    """Return (size,) draws of the discrete Gaussian N_Z(0, sigma^2), P[y] proportional to exp(-y^2 / 2 sigma^2).

    Added to an integer vector of L2 sensitivity D it gives the Renyi divergence of the continuous Gaussian,
    alpha D^2 / 2 sigma^2 (Canonne, Kamath, Steinke, NeurIPS 2020, theorem 14).
    """
    return _sample(size, _Gaussian(_positive("sigma", sigma)), random)


def discrete_laplace(size: int, scale: float, random: RandomBytes) -> Steps:
    """Return (size,) draws with P[y] proportional to exp(-|y| / scale)."""
    return _sample(size, _Laplace(_positive("scale", scale)), random)


def poisson(size: int, mean: float, random: RandomBytes) -> Steps:
    """Return (size,) draws of Poisson(mean), mean at most 2^50."""
    law = _Poisson(_positive("mean", mean))
    if law.mean > _MAX_POISSON_MEAN:
        raise ConfigError(f"Poisson mean is {mean}; it must be at most 2^50: lower the fraction bits or the noise")
    return _sample(size, law, random) + law.mode


def skellam(size: int, variance: float, random: RandomBytes) -> Steps:
    """Return (size,) draws of the symmetric Skellam distribution: a difference of two Poisson(variance / 2).

    Sums of independent draws are Skellam again, variances added: devices that drop out change the variance of a sum
    and nothing else (Agarwal, Kairouz, Liu, NeurIPS 2021).
    """
    return poisson(size, variance / 2, random) - poisson(size, variance / 2, random)


def skellam_share(size: int, sigma: float, num_honest: int, random: RandomBytes) -> Steps:
    """Return one device's share (size,) of noise: any `num_honest` shares together have a variance of at least sigma^2.

    More survivors make more noise, never less; devices that add none are what `num_honest` leaves out.
    """
    if num_honest < 1:
        raise ConfigError(f"{num_honest} honest survivors cannot make noise; raise cohort.min_reports")
    # A few units of the last place upwards, so that rounding never takes from the promised variance.
    return skellam(size, sigma * sigma / num_honest * (1 + 2.0**-50), random)


def local_statistics(values: Steps, bounds: Steps, epsilon: float, random: RandomBytes) -> Steps:
    """Return a device's counts (k,), each clipped to 0..bound and noised on the device, before anyone sees them.

    Pure epsilon local differential privacy of the whole vector: any two devices' answers differ by at most
    sum(bounds) in L1, the scale of the discrete Laplace noise is that over epsilon. It needs no trust in anyone and no
    cohort; the sum over n devices has standard deviation of about sqrt(2 n) sum(bounds) / epsilon.
    """
    if values.shape != bounds.shape or values.ndim != 1 or (bounds < 0).any() or bounds.sum() < 1:
        raise ConfigError("local statistics need one bound of at least 0 for each value, and one above 0")
    scale = float(bounds.sum()) / _positive("epsilon", epsilon) * (1 + 2.0**-50)
    return np.clip(values, 0, bounds) + discrete_laplace(len(values), scale, random)


# The sampler


def _sample(size: int, law: _Law, random: RandomBytes, doubt: float = _DOUBT) -> Steps:
    """Return (size,) offsets from the law's mode; the more `doubt`, the more is decided in decimal arithmetic."""
    drawn = np.empty(size, np.int64)
    if law.width > _MAX_WIDTH:
        raise ConfigError("noise of more than 2^40 steps does not fit a sum; lower the fraction bits or the noise")
    filled = 0
    while filled < size:
        accepted = _propose(min(_BLOCK, 3 * (size - filled) + 16), law, random, doubt)[: size - filled]
        drawn[filled : filled + len(accepted)] = accepted
        filled += len(accepted)
    return drawn


def _propose(num: int, law: _Law, random: RandomBytes, doubt: float) -> Steps:
    """Return the accepted ones of `num` proposals, in order."""
    words = np.frombuffer(random(24 * num), "<u8").reshape(3, num)
    block, is_negative = _blocks(words[0], random), words[0] >> np.uint64(63) == 1
    distance = block * law.width + (words[1] & np.uint64(law.width - 1)).astype(np.int64)
    offset = np.where(is_negative, -distance, distance)
    probability = np.exp((block - 1) * _LN2 + law.log_weight(offset))
    low = (words[2] >> np.uint64(11)) * 2.0**-53
    accepted = low + 2.0**-53 <= probability - doubt
    for i in np.flatnonzero(~accepted & (low < probability + doubt)):
        accepted[i] = _is_below(int(words[2][i]), int(block[i]), int(offset[i]), law, random)
    kept: Steps = offset[accepted & ~(is_negative & (distance == 0))]  # zero has one sign
    return kept


def _blocks(words: NDArray[np.uint64], random: RandomBytes) -> Steps:
    """Return the number of zeros before the first one among the low 63 bits, going on in new words where none is."""
    bits = words & np.uint64((1 << 63) - 1)
    first = bits & (~bits + np.uint64(1))
    zeros = np.frexp(first.astype(np.float64))[1].astype(np.int64) - 1
    for i in np.flatnonzero(first == 0):
        zeros[i] = 63 + _blocks(np.frombuffer(random(8), "<u8"), random)[0]
    return zeros


def _is_below(prefix: int, block: int, offset: int, law: _Law, random: RandomBytes) -> bool:
    """Return whether the uniform number that begins with 64 bits `prefix` is below the acceptance probability."""
    bits, digits = 64, 60
    while True:
        with localcontext() as context:
            context.prec = digits
            probability = law.exact_weight(offset) * Decimal(2) ** (block - 1)
            low, unit, error = Decimal(prefix) / 2**bits, Decimal(2) ** -bits, Decimal(10) ** (35 - digits)
            if low + unit <= probability - error:
                return True
            if low >= probability + error:
                return False
        prefix = prefix << 64 | int.from_bytes(random(8), "little")
        bits, digits = bits + 64, digits + 25


# Poisson's probabilities


def _deviance(k: Reals, mean: float) -> Reals:
    """Return k ln(k / mean) + mean - k, to a few units of its last place where it is small."""
    difference = k - mean
    v = difference / (k + mean)
    v2, power, series = v * v, 2 * k * v, np.zeros_like(k)
    for j in range(1, 12):
        power = power * v2
        series += power / (2 * j + 1)
    near = difference * v + series
    with np.errstate(divide="ignore", invalid="ignore"):
        far = np.where(k > 0, k * np.log(k / mean), 0.0) - difference
    return np.where(np.abs(v) < 0.1, near, far)


_STIRLING: Final = np.array([math.lgamma(k + 1) - (k * math.log(k) if k else 0) + k for k in range(16)])


def _stirling(k: Reals) -> Reals:
    """Return ln k! - k ln k + k."""
    large = np.maximum(k, 16)
    r = 1 / (large * large)
    series = (1 / 12 - r * (1 / 360 - r * (1 / 1260 - r / 1680))) / large
    small: Reals = _STIRLING[np.minimum(k, 15).astype(np.int64)]
    return np.where(k < 16, small, 0.5 * np.log(2 * math.pi * large) + series)


def _power_of_two(least: float) -> int:
    return 1 << max(0, math.ceil(math.log2(least)))


def _positive(name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise ConfigError(f"{name} of the noise is {value}; it must be positive and finite")
    return float(value)
