"""The L2 clip, a bound on one device's part of a sum: fixed, or following a quantile of the norms.

A fixed clip S is `privacy.l2_clip`, applied on the device by `mien.secagg.quantise`. The adaptive one (Andrew, Thakkar,
McMahan, Ramaswamy, NeurIPS 2021) starts there: each device adds one bit, whether its norm was within S, and the server
moves S by the noised share of ones. Update and bit are one release of noise multiplier z: the bit's noise takes a
little of the budget, which the update's noise makes up for (`update_multiplier`).
"""

from __future__ import annotations

import math
from typing import Final

from mien.errors import ConfigError
from mien.specs import MAX_CLIP

MIN_CLIP: Final = 1e-6
"""The clip does not fall below this, nor rise above what a task may ask for: both are far outside of use."""


def bit_noise(num_devices: int, noise_multiplier: float) -> float:
    """Return sigma_b, the standard deviation of the noise in the count of unclipped updates.

    n / 20 as in the paper (section 3.1), but at least 2 z: the update's noise then grows by 15 % at the most, and at z
    no noise of the update could make up for the bit.
    """
    return max(num_devices / 20, 2 * noise_multiplier)


def update_multiplier(noise_multiplier: float, sigma_b: float) -> float:
    """Return z_delta = (z^-2 - sigma_b^-2)^-1/2, so that update and bit together cost what z costs.

    Neighbours are "zero-out": in place of an update beyond the clip, whose bit is 0, stands an empty one, whose norm is
    within it and whose bit is 1. So the count moves by 1 with the bit, where theorem 1 of the paper has 1/2: there the
    device is absent, and a bit of +-1/2 is centred on its absence. Raises ConfigError where sigma_b <= z.
    """
    if not sigma_b > noise_multiplier > 0:
        raise ConfigError(f"bit noise {sigma_b} is too small for noise multiplier {noise_multiplier}; it must exceed z")
    return 1 / math.sqrt(noise_multiplier**-2 - sigma_b**-2)


def next_clip(l2_clip: float, unclipped_share: float, target_quantile: float, clip_lr: float) -> float:
    """Return S exp(-eta (b - gamma)): smaller where more than the target quantile of updates was within S.

    `unclipped_share` is b, noised and therefore not always in [0, 1].
    """
    # Far noise would overflow the exponential; e^+-100 is beyond both ends of the range already.
    exponent = min(100.0, max(-100.0, -clip_lr * (unclipped_share - target_quantile)))
    return min(MAX_CLIP, max(MIN_CLIP, l2_clip * math.exp(exponent)))
