"""The adaptive clip: its noise is paid for, and it settles where the target quantile is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from mien.dp.clipping import MIN_CLIP, bit_noise, next_clip, update_multiplier
from mien.dp.mechanisms import discrete_gaussian
from mien.errors import ConfigError
from mien.secagg.masks import WordStream
from mien.secagg.pipeline import encode
from mien.secagg.planner import plan_numbers
from mien.secagg.vector import CLIP_BIT, Addends, VectorLayout
from mien.specs import MAX_CLIP


@pytest.mark.parametrize(("n", "expected"), [(100, 1.020621), (1000, 1.000200)])
def test_z_delta_by_hand(n: int, expected: float) -> None:
    """(1 - 1 / 5^2)^-1/2 and (1 - 1 / 50^2)^-1/2; the paper's 1.00504 and 1.00005 are for a bit that moves by 1/2."""
    assert update_multiplier(1.0, bit_noise(n, 1.0)) == pytest.approx(expected, abs=5e-6)


def sent(update: NDArray[np.float32]) -> tuple[float, int]:
    """Return the norm in clips of what the device's own code sends of an update, and its clip bit."""
    numbers = plan_numbers(16, l2_clip=1.0, max_weight=1)
    vector = encode(Addends(1, update, ()), VectorLayout(len(update), 0), numbers, bytes(32), WordStream(bytes(32)))
    steps = vector[VectorLayout(len(update), 0).update].view(np.int32).astype(np.float64)
    return float(np.linalg.norm(steps * 2.0**-numbers.frac_bits)), int(vector[CLIP_BIT])


@pytest.mark.parametrize("n", [4, 16, 20, 40, 100, 1000, 100_000])
@pytest.mark.parametrize("z", [0.3, 1.0, 2.1, 6.8, 50.0])
def test_update_and_bit_together_cost_what_z_costs_between_what_is_sent(n: int, z: float) -> None:
    """The two worlds are executed: an update beyond the clip, and an empty one in its place.

    Two Gaussian releases compose to one whose multiplier is (sum of squared sensitivity over noise)^-1/2, exactly.
    """
    beyond, nothing = np.zeros(64, np.float32), np.zeros(64, np.float32)
    beyond[0] = 5.0
    (norm, bit), (empty, bit_of_empty) = sent(beyond), sent(nothing)
    assert (norm, empty, bit, bit_of_empty) == (pytest.approx(1.0, abs=1e-3), 0.0, 0, 1)
    sigma_b = bit_noise(n, z)
    in_update, in_count = 1.0 / update_multiplier(z, sigma_b), 2 * abs(bit_of_empty - bit) / (2 * sigma_b)
    assert in_update**2 + in_count**2 == pytest.approx(z**-2)
    assert update_multiplier(z, sigma_b) <= 1.155 * z


def test_bit_noise_that_cannot_be_paid_for_is_refused() -> None:
    with pytest.raises(ConfigError, match="exceed z"):
        update_multiplier(2.0, 2.0)


@pytest.mark.parametrize(("quantile", "start"), [(0.5, 0.01), (0.5, 1000.0), (0.9, 1.0)])
def test_the_clip_converges_to_the_quantile_of_the_norms(quantile: float, start: float) -> None:
    """Log-normal norms; noised counts of 200 devices a round, rate 0.2: half of all updates end up within S."""
    rng = np.random.default_rng(0)
    clip, late = start, []
    for step in range(200):
        norms = np.exp(rng.normal(1.0, 0.5, 200))
        count = int((norms <= clip).sum())
        noise = discrete_gaussian(1, 2 * bit_noise(200, 1.0), rng.bytes)[0]
        share = ((2 * count - 200 + int(noise)) / 200 + 1) / 2
        clip = next_clip(clip, share, quantile, 0.2)
        late += [clip] if step >= 150 else []
    wanted = math.exp(1.0 + 0.5 * {0.5: 0.0, 0.9: 1.2816}[quantile])
    assert np.mean(late) == pytest.approx(wanted, rel=0.1)


def test_the_clip_stays_in_its_range() -> None:
    assert next_clip(MIN_CLIP, 5.0, 0.5, 1.0) == MIN_CLIP
    assert next_clip(MAX_CLIP, -5.0, 0.5, 1.0) == MAX_CLIP
    assert next_clip(1.0, 1000.0, 0.5, 10.0) == MIN_CLIP, "noise may be far outside of [0, 1]"
    assert next_clip(1.0, -1000.0, 0.5, 10.0) == MAX_CLIP
