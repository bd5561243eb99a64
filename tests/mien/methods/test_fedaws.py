"""FedAwS is FedFace from a random start."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mien.methods.base import DeviceInput
from mien.methods.fedaws import FEDAWS
from mien.methods.fedface import W
from mien.methods.fedface_private import FEDFACE
from mien.specs import CohortSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.engines.engine import Cohort, run_task
from tests.tiny import made_up_crops, tiny_cnn

pytestmark = pytest.mark.numerics

TINY, DIM = tiny_cnn(8), 8
CROPS = {f"phone{i}": made_up_crops(3, seed=i) for i in range(4)}
EXACT = TaskSpec(
    name="aws",
    method="fedaws",
    rounds=3,
    cohort=CohortSpec(size=4, min_reports=3),
    local=LocalSpec(lr=0.05, flip=False),
    privacy=PrivacySpec(reveals=("class_embeddings",), min_cohort=3),
)


def input_of(seed: int) -> DeviceInput:
    return DeviceInput(EXACT, TINY.part(), DIM, TINY.theta, CROPS["phone0"], seed=seed)


def test_the_start_is_drawn_from_the_sphere_and_knows_nothing_of_the_person() -> None:
    still = replace(EXACT, local=LocalSpec(lr=0.05, private_lr=0.0, flip=False))
    starts = [
        FEDAWS.device_round(replace(input_of(seed), task=still), TINY.runtime()).private[W] for seed in range(200)
    ]
    np.testing.assert_allclose(np.linalg.norm(starts, axis=1), 1.0, atol=1e-6)
    assert np.abs(np.mean(starts, axis=0)).max() < 0.15  # deviation of a mean: 1 / sqrt(8 x 200) = 0.025
    other_person = replace(input_of(3), task=still, crops=CROPS["phone1"])
    np.testing.assert_array_equal(FEDAWS.device_round(other_person, TINY.runtime()).private[W], starts[3])


def test_after_the_start_it_is_fedface() -> None:
    start = FEDAWS.device_round(
        replace(input_of(5), task=replace(EXACT, local=LocalSpec(lr=0.05, private_lr=0.0, flip=False))), TINY.runtime()
    ).private[W]
    ours = FEDAWS.device_round(input_of(5), TINY.runtime())
    theirs = FEDFACE.device_round(replace(input_of(5), private={W: start}), TINY.runtime())
    np.testing.assert_array_equal(ours.contribution.vector, theirs.contribution.vector)
    answered = replace(input_of(6), reply={W: start})
    np.testing.assert_array_equal(
        FEDAWS.device_round(answered, TINY.runtime()).contribution.vector,
        FEDFACE.device_round(answered, TINY.runtime()).contribution.vector,
    )


def test_the_server_spreads_what_it_is_shown() -> None:
    run = run_task(EXACT, TINY.part(), DIM, TINY.theta, Cohort(CROPS), TINY.runtime())
    assert sorted(run.state.revealed) == sorted(CROPS)
    assert FEDAWS.requirements(EXACT).public_faces is False


def test_against_everybody_the_start_is_of_no_account() -> None:
    task = replace(EXACT, privacy=PrivacySpec(reveals=("class_moment",), min_cohort=3))
    runs = [
        run_task(replace(task, method=name), TINY.part(), DIM, TINY.theta, Cohort(CROPS), TINY.runtime())
        for name in ("fedaws", "fedface")
    ]
    assert np.abs(runs[0].state.theta - TINY.theta).max() > 1e-3
    np.testing.assert_array_equal(runs[0].state.theta, runs[1].state.theta)
