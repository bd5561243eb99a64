"""Differential privacy of the sums of `mien.secagg`: what goes into a round's terms, a device's vector, the opened sum.

In order: the planner takes `noise_terms` and `with_room_for_noise`; the device checks them against its task
(`check_terms`), and its pipeline begins with `protect`; the coordinator writes `opening` to the ledger, opens the sum
with `noise_allowance`, and uses nothing of it but what `noised` returns.

Under differential privacy a device sends no metrics, weighs 1, and tells whether it was clipped only for an adaptive
clip, whose noise is part of the release. The count of survivors is public.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mien.dp.accountant import Release
from mien.dp.clipping import bit_noise, next_clip, update_multiplier
from mien.dp.ledger import Opening
from mien.dp.mechanisms import RandomBytes, discrete_gaussian, skellam_share
from mien.errors import ConfigError, ViolationError
from mien.protocol.ids import AttemptNumber, RoundNumber, TaskId
from mien.secagg.config import CohortTerms, Mechanism, NoiseTerms, RoundConfig
from mien.secagg.quantise import NumberFormat, as_float32
from mien.secagg.vector import Addends, OpenedSum, check_norm
from mien.specs import DpSpec, TaskSpec

_MECHANISMS = {
    "none": Mechanism.NONE,
    "central_gaussian": Mechanism.CENTRAL_GAUSSIAN,
    "skellam": Mechanism.SKELLAM,
}
# The norm of d normal numbers exceeds sqrt(d) + 16 with probability below e^-128.
_TAIL = 16.0
# As the planner without noise: coarser rounding than 2^8 steps on each side of zero is refused.
_FEWEST_STEPS = 1 << 8


def require_enforced(task: TaskSpec) -> None:
    """Raise ConfigError for a promise that rests on something which the real protocol does not enforce."""
    if task.privacy.dp.accounting == "poisson":
        raise ConfigError(
            "privacy.dp.accounting is 'poisson', which is right only where every device flips a coin of its own; "
            "nothing enforces that here, only simulations may assume it: use 'participations'"
        )


# Terms


def noise_terms(dp: DpSpec) -> NoiseTerms:
    """Return the noise of a round's terms, as the task promises it."""
    if not dp.is_on:
        return NoiseTerms()
    return NoiseTerms(_MECHANISMS[dp.mechanism], dp.noise_multiplier, dp.epsilon, dp.delta)


def with_room_for_noise(numbers: NumberFormat, dp: DpSpec, n_max: int) -> NumberFormat:
    """Return the number format with as many fraction bits less as the devices' own noise needs not to wrap.

    Metrics, which are zeros, take none.
    """
    if dp.mechanism != "skellam":
        return numbers
    for frac_bits in range(numbers.frac_bits, -1, -1):
        fewer = replace(numbers, frac_bits=frac_bits, metric_frac_bits=0)
        if fewer.largest_step <= _FEWEST_STEPS:
            break
        deviation = as_float32(dp.noise_multiplier) * fewer.l2_clip * 2.0**frac_bits
        largest = n_max * max(fewer.largest_step, fewer.largest_metric_step)
        if largest + math.ceil(_TAIL * deviation * math.sqrt(n_max)) + 64 < 1 << (numbers.ring_bits - 1):
            return fewer
    raise ConfigError(
        f"noise of {dp.noise_multiplier:g} x {numbers.l2_clip:g} over {n_max} devices does not fit a ring of "
        f"{numbers.ring_bits} bits in fine enough steps; lower privacy.l2_clip, or plan fewer devices"
    )


def honest_survivors(cohort: CohortTerms, dp: DpSpec) -> int:
    """Return h, how many of the fewest survivors are counted on for noise: n_min less the dishonest share of n_max.

    Raises ConfigError if none is left.
    """
    honest = cohort.n_min - math.floor(dp.dishonest_share * cohort.n_max)
    if honest < 1:
        raise ConfigError(
            f"privacy.dp.dishonest_share {dp.dishonest_share:g} of {cohort.n_max} devices leaves nobody of the "
            f"{cohort.n_min} fewest survivors to make noise; lower it or raise cohort.min_reports"
        )
    return honest


def check_terms(config: RoundConfig, dp: DpSpec, l2_clip: float) -> None:
    """Raise ViolationError unless a round's terms keep what its task promises; devices call this before they train.

    `l2_clip` is the task's; under an adaptive clip a round may use another.
    """
    kept = config.noise == noise_terms(dp) and (not dp.is_on or config.numbers.max_weight == 1)
    kept = kept and dp.accounting == "participations"
    if not kept or (dp.is_on and not dp.is_adaptive and config.numbers.l2_clip != as_float32(l2_clip)):
        raise ViolationError(
            "the round's terms do not keep the differential privacy that its task promises; leave the round, and tell "
            "the operator"
        )


def l2_sensitivity_steps(numbers: NumberFormat, size: int) -> float:
    """Return the largest L2 norm in steps of what one device of weight 1 adds: S 2^f + sqrt(d).

    Never more than each element can be: sqrt(d) times the coordinate clip in steps, rounded up.
    """
    rounded = numbers.l2_clip * 2.0**numbers.frac_bits + math.sqrt(size)
    return min(rounded, math.sqrt(size) * numbers.largest_step)


def release(config: RoundConfig, dp: DpSpec) -> Release | None:
    """Return a round's sum as the accountants see it, None without noise.

    The noise is z S 2^f steps; rounding makes the sensitivity larger than S 2^f steps, and the effective multiplier
    smaller by the same factor. An adaptive clip's bit is within z (`clipping.update_multiplier`).
    """
    if not dp.is_on:
        return None
    steps = config.numbers.l2_clip * 2.0**config.numbers.frac_bits
    l2_steps = l2_sensitivity_steps(config.numbers, config.size)
    # Not the smaller sensitivity of small elements alone: z never counts for more than was asked.
    effective = config.noise.noise_multiplier * min(1.0, steps / l2_steps)
    return Release("skellam" if dp.mechanism == "skellam" else "central_gaussian", effective, l2_steps, config.size)


def opening(
    task: TaskSpec,
    task_id: TaskId,
    round_: RoundNumber,
    attempt: AttemptNumber,
    config: RoundConfig | None,
    num_survivors: int = 0,
) -> Opening:
    """Return the ledger's opening of an attempt's sums; `config` is None where updates are not masked.

    Groups of one cohort share an opening: a device is in one of them, and each has noise of its own.
    """
    return Opening(
        task_id=task_id,
        round=round_,
        attempt=attempt,
        config_sha256="" if config is None else config.sha256.hex(),
        l2_clip=task.privacy.l2_clip if config is None else config.numbers.l2_clip,
        dp=task.privacy.dp,
        release=None if config is None else release(config, task.privacy.dp),
        num_survivors=num_survivors,
    )


# On the device


def protect(addends: Addends, config: RoundConfig, dp: DpSpec, random: RandomBytes) -> Addends:
    """Return the addends that a device may send: no metrics, a clip bit only to steer the clip, its share of noise."""
    if not dp.is_on:
        return addends
    if addends.weight != 1:
        raise ConfigError(f"weight {addends.weight} would tell of the images; under differential privacy it is 1")
    noise = None
    if dp.mechanism == "skellam":
        sigma = config.noise.noise_multiplier * config.numbers.l2_clip * 2.0**config.numbers.frac_bits
        noise = skellam_share(config.size, sigma, honest_survivors(config.cohort, dp), random)
    return replace(addends, metrics=(0.0,) * len(addends.metrics), noise=noise, tells_clip=dp.is_adaptive)


# On the coordinator


@dataclass(frozen=True)
class NoisedSum:
    """A sum as it may be used: `update` and all else noised. `unclipped_share` is None unless the clip is adaptive."""

    opened: OpenedSum = field(repr=False)
    unclipped_share: float | None = None


def noise_allowance(config: RoundConfig, dp: DpSpec) -> float:
    """Return the noise's bound on the growth of an honest sum's norm, for `ServerRound.open`; 0 without any.

    Infinite where the coordinator adds it: whether a sum without noise passes is a question about the phones in it,
    which a phone that lies could aim at one of them. `noised` asks it of the sum with noise.
    """
    if not dp.is_on:
        return 0.0
    if dp.mechanism == "central_gaussian":
        return math.inf
    return _norm_of_noise(config, config.noise.noise_multiplier) * math.sqrt(
        config.cohort.n_max / honest_survivors(config.cohort, dp)
    )


def noised(opened: OpenedSum, config: RoundConfig, dp: DpSpec, random: RandomBytes) -> NoisedSum:
    """Return the sum with the coordinator's noise; nothing else of `opened` may be stored, logged or used.

    Central noise is whole steps added to a whole number of steps, before any division: N_Z(0, (z S 2^f)^2), or with
    an adaptive clip z_delta for z, and N_Z(0, (2 sigma_b)^2) on the count of unclipped less the count of clipped.
    Devices' own noise is in the sum already. Raises CorruptDataError for a sum larger than clipped updates and noise.
    """
    if dp.mechanism == "skellam":
        return NoisedSum(replace(opened, num_unclipped=0))
    if not dp.is_on:
        return NoisedSum(opened)
    z, share = config.noise.noise_multiplier, None
    if dp.is_adaptive:
        sigma_b = bit_noise(opened.count, z)
        difference = 2 * opened.num_unclipped - opened.count + int(discrete_gaussian(1, 2 * sigma_b, random)[0])
        z, share = update_multiplier(z, sigma_b), (difference / opened.count + 1) / 2
    scale = 2.0**config.numbers.frac_bits
    noise = discrete_gaussian(config.size, z * config.numbers.l2_clip * scale, random)
    steps = np.rint(opened.update * scale) + noise
    metrics = (0.0,) * len(opened.metrics)
    used = replace(opened, num_unclipped=0, metrics=metrics, update=steps / scale)
    check_norm(used, config.numbers, _norm_of_noise(config, z))
    return NoisedSum(used, share)


def _norm_of_noise(config: RoundConfig, multiplier: float) -> float:
    """Return the bound on the noise's norm, exceeded with probability below e^-128, at multiplier times the clip."""
    return multiplier * config.numbers.l2_clip * (math.sqrt(config.size) + _TAIL)


def clip_after(config: RoundConfig, dp: DpSpec, unclipped_shares: Sequence[float]) -> float:
    """Return the L2 clip of the next round, from the noised shares of a round's sums (one a group)."""
    if not (dp.is_adaptive and unclipped_shares):
        return config.numbers.l2_clip
    share = math.fsum(unclipped_shares) / len(unclipped_shares)
    return next_clip(config.numbers.l2_clip, share, dp.target_quantile, dp.clip_lr)
