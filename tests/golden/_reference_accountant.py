"""An accountant that shares nothing with the product's: privacy loss distributions of tables of probabilities.

A mechanism is two vectors of probabilities of the same outcomes, one for each of two worlds. The distribution of
ln(p/q) is put on a grid, each value shared between its two neighbours so that the mean is exact, composed by a Fourier
transform of a fixed length, and read off (Koskela, Jalko, Honkela 2020). Good to about a percent; memory does not grow
with the number of compositions.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ive
from scipy.stats import norm

BINS = 1 << 16
_TINY = 1e-300


def pld_epsilon(p: NDArray[np.float64], q: NDArray[np.float64], times: int, delta: float) -> float:
    """Return epsilon at `delta` of telling `times` draws of `p` from as many of `q`."""
    both = (p > _TINY) & (q > _TINY)
    p, loss = p[both], np.log(p[both]) - np.log(q[both])
    mean = float((p * loss).sum() / p.sum())
    deviation = math.sqrt(float((p * (loss - mean) ** 2).sum() / p.sum()))
    reach = 14 * math.sqrt(times) * deviation + 2 * float(np.abs(loss - mean)[p > 1e-25].max()) + 1e-9
    step = 2 * reach / BINS
    place = loss / step
    low = np.floor(place).astype(np.int64)
    share = place - low
    once = np.bincount(low % BINS, p * (1 - share), BINS) + np.bincount((low + 1) % BINS, p * share, BINS)
    composed = np.maximum(np.fft.irfft(np.fft.rfft(once) ** times, BINS), 0)
    centre = round(times * mean / step)
    losses = ((np.arange(BINS) - centre + BINS // 2) % BINS - BINS // 2 + centre) * step

    def excess(epsilon: float) -> float:
        above = losses > epsilon
        return float((composed[above] * -np.expm1(epsilon - losses[above])).sum())

    low_epsilon, high_epsilon = 0.0, max(1.0, float(losses.max()))
    for _ in range(100):
        middle = (low_epsilon + high_epsilon) / 2
        if excess(middle) > delta:
            low_epsilon = middle
        else:
            high_epsilon = middle
    return high_epsilon


def sampled_gaussian_epsilon(z: float, share: float, times: int, delta: float) -> float:
    """Return epsilon of a Gaussian of multiplier `z` in which a device is by a coin of its own, in the worse direction.

    Outcomes are 60,000 intervals of the line: telling apart intervals is no easier than telling apart points.
    """
    edges = np.r_[-np.inf, np.linspace(-14 * z, 1 + 14 * z, 60_001), np.inf]
    without, within = (_interval_mass(edges, mean, z) for mean in (0.0, 1.0))
    mixed = (1 - share) * without + share * within
    return max(pld_epsilon(mixed, without, times, delta), pld_epsilon(without, mixed, times, delta))


def skellam_epsilon(variance: float, shift: int, num_elements: int, times: int, delta: float) -> float:
    """Return epsilon of Skellam noise on vectors, `num_elements` of which one device moves by `shift` steps each."""
    reach = math.ceil(13 * math.sqrt(variance)) + 40 * shift
    offsets = np.arange(-reach, reach + 1)
    here, moved = (ive(np.abs(offsets - by), variance) for by in (0, shift))
    return pld_epsilon(here, moved, times * num_elements, delta)


def _interval_mass(edges: NDArray[np.float64], mean: float, z: float) -> NDArray[np.float64]:
    """Return each interval's probability, from whichever tail it lies in: differences near 1 would keep no digit."""
    below, above = np.diff(norm.cdf(edges, mean, z)), -np.diff(norm.sf(edges, mean, z))
    return np.where(edges[1:] < mean, below, above)
