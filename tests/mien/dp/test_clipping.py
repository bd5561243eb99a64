"""The adaptive clip: its noise is paid for, and it settles where the target quantile is."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mien.dp.clipping import MIN_CLIP, bit_noise, next_clip, update_multiplier
from mien.dp.mechanisms import discrete_gaussian
from mien.errors import ConfigError
from mien.specs import MAX_CLIP


@pytest.mark.parametrize(("n", "expected"), [(100, 1.00504), (1000, 1.00005)])
def test_z_delta_is_the_papers(n: int, expected: float) -> None:
    assert update_multiplier(1.0, bit_noise(n, 1.0)) == pytest.approx(expected, abs=5e-6)


@pytest.mark.parametrize("n", [4, 16, 100])
@pytest.mark.parametrize("z", [0.3, 1.0, 5.0])
def test_update_and_bit_together_cost_what_z_costs(n: int, z: float) -> None:
    sigma_b = bit_noise(n, z)
    assert update_multiplier(z, sigma_b) ** -2 + (2 * sigma_b) ** -2 == pytest.approx(z**-2)


def test_bit_noise_that_cannot_be_paid_for_is_refused() -> None:
    with pytest.raises(ConfigError, match="exceed z/2"):
        update_multiplier(2.0, 1.0)


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
