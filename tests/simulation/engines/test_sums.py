"""Simulated sums: exact ones, and those of the ring with its noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mien.contribution import ContributionLayout, Lane
from mien.errors import ConfigError
from mien.specs import CohortSpec, DpSpec, PrivacySpec, TaskSpec
from simulation.engines.sums import Sums, cohort_sum

LAYOUT = ContributionLayout((Lane("count", 1), Lane("weight", 1), Lane("loss", 1), Lane("delta", 4000)))


def task_of(**privacy: Any) -> TaskSpec:
    spec = PrivacySpec(**{"min_cohort": 3, **privacy})
    return TaskSpec("t", trainable=("x",), cohort=CohortSpec(size=10, min_reports=9), privacy=spec)


def summed(task: TaskSpec, sums: Sums, number: int = 1, *, weight: float | None = None) -> np.ndarray[Any, Any]:
    total = cohort_sum(task, LAYOUT, sums, number)
    rng = np.random.default_rng(5)
    for device in range(10):
        vector = (0.05 * rng.standard_normal(LAYOUT.size)).astype(np.float32)
        w = np.float32(weight or 1 + device)
        vector[:2] = 1, w
        vector[2:] *= w
        total.add(str(device), LAYOUT.parse(vector.tobytes()))
    return total.total().vector


def test_the_rings_sum_is_within_its_bound_of_the_exact_one_and_repeats() -> None:
    task = task_of()
    exact, ring = summed(task, "exact"), summed(task, "ring")
    assert exact[1] == ring[1] == 55
    bound = 55 * 2.0**-21  # weight 64, ten devices: 2^31 / 640 steps on each side of 1
    assert 0 < np.abs(ring - exact)[3:].max() <= bound
    assert np.array_equal(ring, summed(task, "ring"))
    assert not np.array_equal(ring, summed(task, "ring", number=2)), "each round rounds anew"


@pytest.mark.parametrize("mechanism", ["central_gaussian", "skellam"])
def test_noise_is_of_the_promised_size(mechanism: str) -> None:
    dp: Any = {"mechanism": mechanism, "noise_multiplier": 0.5, "epsilon": 50.0, "delta": 1e-5, "max_participations": 5}
    task = task_of(max_weight=1, l2_clip=4.0, dp=DpSpec(**dp))
    noise = summed(task, "ring", weight=1.0)[3:] - summed(task_of(max_weight=1), "exact", weight=1.0)[3:]
    # 4000 elements: the sample's deviation is within 6 % of the true one except with probability 1e-7. With Skellam
    # noise the 10 devices add what 8 are counted on for.
    expected = 2.0 * (1.0 if mechanism == "central_gaussian" else np.sqrt(10 / 8))
    assert abs(float(noise.std()) / expected - 1) < 0.06


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(ConfigError, match="exact sums"):
        cohort_sum(task_of(secure_aggregation="off"), LAYOUT, "ring", 1)
    with pytest.raises(ConfigError, match="groups"):
        cohort_sum(task_of(groups=3), LAYOUT, "ring", 1)


@pytest.mark.parametrize("sums", ["exact", "ring"])
def test_shards_add_up_to_the_sum_over_all(sums: Sums) -> None:
    """In the ring to the last bit, noise included; in float64 to its rounding, and repeated to the last bit."""
    dp: Any = {
        "mechanism": "central_gaussian",
        "noise_multiplier": 0.5,
        "epsilon": 50.0,
        "delta": 1e-5,
        "max_participations": 5,
    }
    task = task_of(max_weight=1, l2_clip=4.0, dp=DpSpec(**dp))
    rng = np.random.default_rng(7)
    vectors = {str(device): (0.05 * rng.standard_normal(LAYOUT.size)).astype(np.float32) for device in range(9)}
    for vector in vectors.values():
        vector[:2] = 1, 1

    def over(*shards: str) -> np.ndarray[Any, Any]:
        partial = [cohort_sum(task, LAYOUT, sums, 1) for _ in shards]
        for each, shard in zip(partial, shards, strict=True):
            for device in shard:
                each.add(device, LAYOUT.parse(vectors[device].tobytes()))
        for each in partial[1:]:
            partial[0].merge(each)
        return partial[0].total().vector

    whole, cut = over("012345678"), over("012", "3", "45678")
    np.testing.assert_allclose(cut, whole, rtol=1e-12, atol=1e-12)
    assert sums == "exact" or np.array_equal(cut, whole)
    assert np.array_equal(cut, over("012", "3", "45678"))


@pytest.mark.parametrize("size", [2**30 * 128, 2**63 * 128])
@pytest.mark.parametrize("sums", ["exact", "ring"])
def test_a_sum_that_no_memory_holds_is_refused_before_it_is_made(sums: Sums, size: int) -> None:
    layout = ContributionLayout((Lane("count", 1), Lane("weight", 1), Lane("loss", 1), Lane("delta", size)))
    with pytest.raises(ConfigError, match=r"numbers, and a sum has at most [0-9]+; lower what its size follows from"):
        cohort_sum(task_of(), layout, sums, 1)
