"""Plans that cannot wrap, plans that are refused, and what a round costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mien.contribution import ContributionLayout, Lane
from mien.errors import ConfigError
from mien.protocol.canonical import task_sha256
from mien.secagg import Profile
from mien.secagg.planner import RoundIds, plan_numbers, plan_round, stage_bytes, statement_sha256
from mien.specs import CohortSpec, FaceInputSpec, ModelSpec, PrivacySpec, TaskSpec, Threshold
from tests.mien.secagg.cohort import Cohort, make_config, people


@pytest.mark.parametrize(
    ("n", "bits", "weight", "expected"),
    [
        (256, 32, None, (64, 16)),  # the design's default: weight 64 up to 256 devices
        (1000, 32, 16, (16, 17)),  # 1000 * 16 * (2^17 + 1) < 2^31
        (1000, 24, 1, (1, 13)),  # 1000 * (2^13 + 1) < 2^23
        (5000, 32, None, (6, 16)),  # fewer weights rather than coarser steps
        (100, 24, None, (10, 13)),
    ],
)
def test_plans_of_the_specification(n: int, bits: int, weight: int | None, expected: tuple[int, int]) -> None:
    numbers = plan_numbers(n, l2_clip=10.0, max_weight=weight, ring_bits=bits)
    assert (numbers.max_weight, numbers.frac_bits) == expected


def test_a_smaller_clip_gives_finer_steps() -> None:
    assert plan_numbers(256, l2_clip=1.0, coordinate_clip=2.0**-6, max_weight=64).frac_bits == 22


@given(
    st.integers(1, 5000),
    st.sampled_from([24, 32]),
    st.integers(1, 300),
    st.floats(2**-13, 50, width=32),
    st.floats(1, 256, width=32),
)
def test_no_plan_wraps_and_none_is_finer_than_it_could_be(
    n: int, bits: int, weight: int, clip: float, metric: float
) -> None:
    try:
        numbers = plan_numbers(
            n, l2_clip=1.0, coordinate_clip=clip, max_weight=weight, ring_bits=bits, metric_bound=metric
        )
    except ConfigError:
        assert n * weight * 2**8 > 2 ** (bits - 2), "only what would leave fewer than 2^8 steps is refused"
        return
    # In plain integers: every device at the largest value of every lane.
    assert n * weight * (int(-(-numbers.coordinate_clip * 2**numbers.frac_bits // 1)) + 1) < 2 ** (bits - 1)
    assert n * weight * (int(-(-numbers.metric_bound * 2**numbers.metric_frac_bits // 1)) + 1) < 2 ** (bits - 1)
    finer = n * weight * (numbers.coordinate_clip * 2 ** (numbers.frac_bits + 1) + 1)
    assert numbers.frac_bits == 48 or finer >= 2 ** (bits - 1) - n * weight


@pytest.mark.parametrize(("n", "weight", "bits"), [(5000, 64, 24), (5000, 65535, 32), (40_000, 1, 24)])
def test_what_would_wrap_or_be_too_coarse_is_refused(n: int, weight: int, bits: int) -> None:
    with pytest.raises(ConfigError, match="steps"):
        plan_numbers(n, l2_clip=1.0, max_weight=weight, ring_bits=bits)


def test_noise_takes_room() -> None:
    quiet = plan_numbers(256, l2_clip=1.0, max_weight=1)
    loud = plan_numbers(256, l2_clip=1.0, max_weight=1, noise_bound=2**30)
    assert loud.frac_bits == quiet.frac_bits - 1
    with pytest.raises(ConfigError):
        plan_numbers(256, l2_clip=1.0, max_weight=1, noise_bound=2**31)


TASK = TaskSpec("t", cohort=CohortSpec(size=40, min_reports=30), privacy=PrivacySpec(max_weight=64, l2_clip=5.0))
LANES = ContributionLayout((Lane("count", 1), Lane("weight", 1), Lane("loss", 1), Lane("delta", 1000)))
IDS = RoundIds(bytes(16), 3, 1, b"m" * 32, b"g" * 32)


def test_a_round_is_planned_from_its_task() -> None:
    config = plan_round(TASK, LANES, IDS)
    assert (config.size, config.num_metrics, config.round, config.attempt) == (1000, 1, 3, 1)
    assert (config.cohort.n_min, config.cohort.n_max, config.cohort.profile) == (30, 40, Profile.MALICIOUS_SERVER)
    assert (config.numbers.max_weight, config.numbers.l2_clip) == (64, 5.0)
    assert plan_round(TASK, LANES, IDS, l2_clip=2.0).numbers.l2_clip == 2.0
    assert (config.deadlines.keys_s, config.deadlines.upload_s) == (60, 600)
    assert config.layout_sha256.hex() == LANES.sha256
    assert config.task_sha256.hex() == task_sha256(TASK)
    assert config.model_sha256 == b"m" * 32


MODEL = ModelSpec("tiny", "1" * 64, FaceInputSpec(dim=8), "made up", "none", ("a.*", "b"))


@pytest.mark.parametrize(
    "told",
    [
        {"backbone": "other"},
        {"layout_sha256": "2" * 64},
        {"source": "other"},
        {"terms": "other"},
        {"trainable": ("a.*b",)},
        {"trainable": ("b", "a.*")},
        *({"input": replace(MODEL.input, **change)} for change in ({"mean": 0.0}, {"scale": 127.5}, {"colour": "BGR"})),
        *({"input": replace(MODEL.input, **change)} for change in ({"width": 96}, {"dim": 9})),
    ],
    ids=str,
)
def test_devices_that_were_told_another_model_have_another_statement(told: dict[str, Any]) -> None:
    assert statement_sha256("fedavg", replace(MODEL, **told)) != statement_sha256("fedavg", MODEL)


def test_a_statement_is_over_method_public_faces_and_what_all_are_told() -> None:
    shard = "3" * 64
    told = [("fedavg", "", b""), ("fedface", "", b""), ("fedavg", shard, b""), ("fedavg", "", bytes.fromhex(shard))]
    hashes = {statement_sha256(method, MODEL, faces, shared) for method, faces, shared in told}
    assert len(hashes) == len(told)
    known = Threshold(0.3, 1e-3, "made up", 100, 1000, "4" * 64, "2026-01-01")
    assert statement_sha256("fedavg", replace(MODEL, thresholds=(known,))) in hashes, "thresholds come later"


def of_size(size: int, *, min_reports: int = 16, **privacy: Any) -> TaskSpec:
    return TaskSpec(
        "t", cohort=CohortSpec(size=size, min_reports=min_reports), privacy=PrivacySpec(**{"l2_clip": 5.0, **privacy})
    )


def test_rounds_that_cannot_be_are_refused_before_they_begin() -> None:
    with pytest.raises(ConfigError):
        plan_round(of_size(5001), LANES, IDS)
    with pytest.raises(ConfigError):
        plan_round(of_size(2000, ring_bits=24), LANES, IDS)


def test_groups_are_sums_of_their_own() -> None:
    config = plan_round(of_size(40, min_reports=30, min_cohort=8, groups=3), LANES, IDS)
    assert (config.cohort.n_min, config.cohort.n_max) == (8, 14)


@pytest.mark.parametrize("profile", Profile)
def test_the_estimate_is_what_goes_over_the_wire(profile: Profile) -> None:
    config = make_config(12, profile=profile)
    cohort = Cohort.of(config, people(12), lost={5: [3]})
    cohort.run()
    device = sorted(cohort.devices)[5]
    certificate = len(people(1)[0].certificate)
    stages = stage_bytes(config, 12, certificate_bytes=certificate).values()
    sent = sum(len(cohort.wire.get((kind, device), b"")) for kind in (1, 3, 5, 7, 9)) + len(cohort.payloads[device])
    received = len(cohort.server.invite) + sum(len(cohort.wire.get((kind, device), b"")) for kind in (2, 4, 6, 8))
    assert (sum(stage.sent for stage in stages), sum(stage.received for stage in stages)) == (sent, received)


def test_four_and_three_bytes_a_parameter() -> None:
    large = plan_round(of_size(100), ContributionLayout((*LANES.summed[:3], Lane("delta", 10**6))), IDS)
    rest = 2 + 32 + 1 + 48 * 32 + 64
    assert (stage_bytes(large, 100)["upload"].sent - rest) / large.size < 4.001
    packed = plan_round(of_size(100, max_weight=1, ring_bits=24), LANES, IDS)
    assert (stage_bytes(packed, 100)["upload"].sent - rest) / packed.size == 3 * 1005 / 1000
