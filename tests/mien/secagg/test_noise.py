"""Differential privacy in a masked sum: terms, what a device sends, what the coordinator may use."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from mien.contribution import ContributionLayout, Lane
from mien.errors import ConfigError, CorruptDataError, ViolationError
from mien.secagg import Addends, CohortTerms, Mechanism, NumberFormat, OpenedSum, Profile, RoundConfig
from mien.secagg.masks import WordStream
from mien.secagg.noise import (
    check_terms,
    clip_after,
    honest_survivors,
    noise_allowance,
    noise_terms,
    noised,
    opening,
    protect,
    release,
    require_enforced,
    with_room_for_noise,
)
from mien.secagg.pipeline import encode
from mien.secagg.planner import RoundIds, plan_round
from mien.secagg.vector import VectorLayout, check_norm, decode
from mien.specs import CohortSpec, DpSpec, PrivacySpec, TaskSpec

CENTRAL = DpSpec("central_gaussian", 1.0, epsilon=20.0, delta=1e-5, max_participations=2)
SKELLAM = replace(CENTRAL, mechanism="skellam")
SIZE, N = 4000, 20
BINDING = bytes(32)


def source(seed: int) -> Callable[[int], bytes]:
    return np.random.default_rng(seed).bytes


def config_for(dp: DpSpec, *, frac_bits: int = 14, l2_clip: float = 2.0) -> RoundConfig:
    numbers = NumberFormat(32, frac_bits, l2_clip, 1.0, 1)
    return RoundConfig(
        *(bytes(16), bytes(32), 3, 1, bytes(32), bytes(32), bytes(32), SIZE, 2),
        numbers=with_room_for_noise(numbers, dp, N),
        cohort=CohortTerms(Profile.MALICIOUS_SERVER, 16, N),
        noise=noise_terms(dp),
    )


def sum_of(config: RoundConfig, dp: DpSpec, updates: list[np.ndarray], survivors: int) -> OpenedSum:
    """Return the opened sum over the first `survivors` devices, without masks, which cancel."""
    layout, total = VectorLayout(SIZE, 2), np.zeros(SIZE + 6, np.uint32)
    for seed, update in enumerate(updates[:survivors]):
        addends = protect(Addends(1, update, (3.5, 0.25)), config, dp, source(seed))
        total += encode(addends, layout, config.numbers, BINDING, WordStream(bytes([seed + 1]) * 32))
    return decode(total, layout, config.numbers, BINDING, survivors)


def updates_of(norm: float) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    drawn = rng.normal(size=(N, SIZE))
    return list((norm * drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32))


@pytest.mark.parametrize("survivors", [16, 20])
def test_skellam_noise_is_in_the_sum_when_it_is_opened(survivors: int) -> None:
    config, updates = config_for(SKELLAM), updates_of(1.5)
    assert honest_survivors(config.cohort, SKELLAM) == 14
    opened = sum_of(config, SKELLAM, updates, survivors)
    noise = opened.update - np.sum(updates[:survivors], axis=0)
    assert noise.std() == pytest.approx(2.0 * math.sqrt(survivors / 14), rel=0.05)
    check_norm(opened, config.numbers, noise_allowance(config, SKELLAM))
    used = noised(opened, config, SKELLAM, source(0))
    assert np.array_equal(used.opened.update, opened.update)


def test_central_noise_is_added_to_whole_steps() -> None:
    config, updates = config_for(CENTRAL), updates_of(1.5)
    opened = sum_of(config, CENTRAL, updates, 20)
    used = noised(opened, config, CENTRAL, source(7))
    noise = used.opened.update - opened.update
    assert noise.std() == pytest.approx(2.0, rel=0.05)
    steps = used.opened.update * 2.0**config.numbers.frac_bits
    assert np.array_equal(steps, np.rint(steps))


def test_a_sum_that_is_too_large_is_refused_once_it_is_noised_and_not_before() -> None:
    """A refusal before would be an answer about the sum without noise, which a lying phone could aim at another."""
    config = config_for(CENTRAL)
    opened = sum_of(config, CENTRAL, updates_of(1.5), 20)
    check_norm(opened, config.numbers, noise_allowance(config, CENTRAL))
    huge = replace(opened, update=opened.update + 100.0)
    check_norm(huge, config.numbers, noise_allowance(config, CENTRAL))
    with pytest.raises(CorruptDataError, match="nothing of it is used"):
        noised(huge, config, CENTRAL, source(1))
    assert noise_allowance(config, DpSpec()) == 0


@pytest.mark.parametrize("dp", [CENTRAL, SKELLAM])
def test_no_metric_and_no_clip_bit_leaves_a_device(dp: DpSpec) -> None:
    config = config_for(dp)
    opened = sum_of(config, dp, updates_of(1.5), 16)
    assert (opened.count, opened.weight, opened.num_unclipped, opened.metrics) == (16, 16, 0, (0.0, 0.0))


def test_an_adaptive_clip_uses_the_noised_count_only() -> None:
    dp = replace(CENTRAL, target_quantile=0.5)
    config = config_for(dp)
    opened = sum_of(config, dp, updates_of(1.5), 20)
    assert opened.num_unclipped == 20
    used = [noised(opened, config, dp, source(seed)) for seed in range(200)]
    assert all(each.opened.num_unclipped == 0 for each in used)
    shares = np.array([each.unclipped_share for each in used])
    assert shares.mean() == pytest.approx(1.0, abs=0.02)
    assert shares.std() == pytest.approx(2.0 / 20, rel=0.2)  # sigma_b = max(20 / 20, 2 z) in units of 20 devices
    assert clip_after(config, dp, [0.9, 1.1]) == pytest.approx(2.0 * math.exp(-0.2 * 0.5))
    assert clip_after(config, CENTRAL, []) == 2.0


def test_a_weight_above_one_does_not_leave() -> None:
    with pytest.raises(ConfigError, match="would tell of the images"):
        protect(Addends(2, updates_of(1.0)[0], (0.0, 0.0)), config_for(CENTRAL), CENTRAL, source(0))


def test_without_a_promise_nothing_changes() -> None:
    plain = DpSpec()
    config = replace(config_for(CENTRAL), noise=noise_terms(plain))
    addends = Addends(1, updates_of(1.0)[0], (1.0, 2.0))
    assert protect(addends, config, plain, source(0)) is addends
    opened = OpenedSum(3, 3, 2, (1.0, 2.0), np.zeros(SIZE))
    assert noised(opened, config, plain, source(0)).opened is opened
    assert release(config, plain) is None


def test_rounding_lengthens_an_update_by_at_most_what_is_accounted() -> None:
    """The worst case, every element a hair above a step and rounded up, at 6 fraction bits."""
    config = config_for(CENTRAL, frac_bits=6)
    found = release(config, CENTRAL)
    assert found is not None
    assert found.l2_steps == pytest.approx(2.0 * 64 + math.sqrt(SIZE))
    assert found.noise_multiplier == pytest.approx(1.0 * 128 / (128 + math.sqrt(SIZE)))
    layout = VectorLayout(SIZE, 2)
    for seed, update in enumerate(updates_of(5.0)):
        vector = encode(Addends(1, update, (0.0, 0.0)), layout, config.numbers, BINDING, WordStream(bytes([seed]) * 32))
        norm = float(np.linalg.norm(vector[layout.update].view(np.int32).astype(np.float64)))
        assert 128 < norm <= found.l2_steps


def test_fine_steps_make_rounding_free() -> None:
    found = release(config_for(CENTRAL, frac_bits=22), CENTRAL)
    assert found is not None
    assert found.noise_multiplier == pytest.approx(1.0, rel=1e-4)


def test_noise_of_devices_gets_room_in_the_ring() -> None:
    tight = NumberFormat(32, 26, 2.0, 1.0, 1)
    roomy = with_room_for_noise(tight, SKELLAM, N)
    assert roomy.frac_bits < 26
    RoundConfig(
        *(bytes(16), bytes(32), 3, 1, bytes(32), bytes(32), bytes(32), SIZE, 2),
        numbers=roomy,
        cohort=CohortTerms(Profile.MALICIOUS_SERVER, 16, N),
        noise=noise_terms(SKELLAM),
    )
    with pytest.raises(ConfigError, match="does not fit a ring"):
        with_room_for_noise(replace(tight, l2_clip=1e9), SKELLAM, N)


def test_a_device_leaves_a_round_whose_terms_break_the_promise() -> None:
    config = config_for(SKELLAM)
    check_terms(config, SKELLAM, 2.0)
    for broken, dp, clip in (
        (replace(config, noise=noise_terms(DpSpec())), SKELLAM, 2.0),
        (replace(config, noise=replace(config.noise, noise_multiplier=0.5)), SKELLAM, 2.0),
        (replace(config, noise=replace(config.noise, mechanism=Mechanism.CENTRAL_GAUSSIAN)), SKELLAM, 2.0),
        (config, DpSpec(), 2.0),
        (config, SKELLAM, 4.0),
    ):
        with pytest.raises(ViolationError, match="leave the round"):
            check_terms(broken, dp, clip)
    check_terms(config_for(replace(CENTRAL, target_quantile=0.5)), replace(CENTRAL, target_quantile=0.5), 4.0)


def test_somebody_must_be_left_to_make_noise() -> None:
    with pytest.raises(ConfigError, match="dishonest_share"):
        honest_survivors(CohortTerms(Profile.MALICIOUS_SERVER, 16, 100), replace(SKELLAM, dishonest_share=0.2))


def task(dp: DpSpec) -> TaskSpec:
    privacy = PrivacySpec(max_weight=1, l2_clip=2.0, dp=dp)
    return TaskSpec("t", trainable=("head*",), cohort=CohortSpec(20, 16), privacy=privacy)


def test_sampling_that_nothing_enforces_is_refused() -> None:
    require_enforced(task(CENTRAL))
    with pytest.raises(ConfigError, match="only simulations may assume it"):
        require_enforced(task(replace(CENTRAL, accounting="poisson")))


def test_an_opening_names_the_attempt_and_its_terms() -> None:
    config = config_for(CENTRAL)
    made = opening(task(CENTRAL), "t1", 3, 1, config, 18)
    assert made.key == ("t1", 3, 1)
    assert (made.config_sha256, made.l2_clip, made.num_survivors) == (config.sha256.hex(), 2.0, 18)
    assert made.release == release(config, CENTRAL)
    assert opening(task(DpSpec()), "t1", 3, 1, None).release is None


LANES = ContributionLayout((Lane("count", 1), Lane("weight", 1), Lane("loss", 1), Lane("delta", SIZE)))


@pytest.mark.parametrize("dp", [CENTRAL, SKELLAM])
def test_a_planned_round_keeps_its_tasks_promise(dp: DpSpec) -> None:
    """Steps are so fine that rounding costs less than a thousandth of the noise multiplier."""
    ids = RoundIds(bytes(16), 1, 1, bytes(32), bytes(32))
    config = plan_round(task(dp), LANES, ids)
    check_terms(config, dp, 2.0)
    found = release(config, dp)
    assert found is not None
    assert found.noise_multiplier > 0.999 * dp.noise_multiplier
    adaptive = plan_round(task(replace(CENTRAL, target_quantile=0.5)), LANES, ids, l2_clip=0.5)
    assert adaptive.numbers.l2_clip == 0.5


def test_a_cohort_without_honest_noise_is_not_planned() -> None:
    ids = RoundIds(bytes(16), 1, 1, bytes(32), bytes(32))
    with pytest.raises(ConfigError, match="dishonest_share"):
        plan_round(task(replace(SKELLAM, dishonest_share=0.9)), LANES, ids)


def test_a_device_takes_no_part_where_the_promise_rests_on_sampling() -> None:
    with pytest.raises(ViolationError):
        check_terms(config_for(CENTRAL), replace(CENTRAL, accounting="poisson"), 2.0)


LOUD = replace(SKELLAM, noise_multiplier=6.0)


def planned(dp: DpSpec, size: int, ring_bits: int = 32) -> RoundConfig:
    privacy = PrivacySpec(min_cohort=3, max_weight=1, l2_clip=2.0, ring_bits=ring_bits, dp=dp)
    cohort = CohortSpec(size, math.ceil(0.9 * size))
    made = TaskSpec("t", trainable=("head*",), cohort=cohort, privacy=privacy)
    return plan_round(made, LANES, RoundIds(bytes(16), 1, 1, bytes(32), bytes(32)))


@pytest.mark.parametrize("dp", [CENTRAL, LOUD])
@pytest.mark.parametrize("size", [4, 20, 97, 1000, 4000])
def test_cohorts_of_every_size_can_be_planned(dp: DpSpec, size: int) -> None:
    """A ring of 32 bits holds four thousand phones' noise, in steps that cost less than a hundredth of z."""
    config = planned(dp, size)
    check_terms(config, dp, 2.0)
    found = release(config, dp)
    assert found is not None
    assert found.noise_multiplier > 0.99 * dp.noise_multiplier


def test_what_a_small_ring_cannot_hold_is_refused() -> None:
    assert planned(LOUD, 4000, ring_bits=24).numbers.frac_bits == 9
    with pytest.raises(ConfigError, match="ring of 24 bits"):
        planned(replace(LOUD, noise_multiplier=60.0), 4000, ring_bits=24)
