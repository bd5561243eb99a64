"""Methods with state on both sides: rounds over the real protocol and in the simulator give the same model."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from device_sdk.participate import Counted, RoundOutcome
from device_sdk.recogniser import fit_crops
from device_sdk.runtimes.torch_runtime import TorchRuntime
from mien.layout import Vector
from mien.methods.base import Crops
from mien.specs import CohortSpec, DeadlineSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.engine import Cohort, run_task
from tests.integration.real_fleet import IDENTITIES, RealFleet, real_fleet, small_model

POPULATION = "same"
PHONES = dict(zip(("one", "two"), IDENTITIES[:2], strict=True))
ROUNDS = 3
OPTIONS: dict[str, dict[str, Any]] = {
    "fedprox": {"mu": 0.5},
    "scaffold": {},
    "mime": {"beta": 0.8},
    "pfm_fv": {"validation": "off", "loss": "positive", "class_start": "mean_feature", "lr_drop_rounds": [2]},
}


def task_of(method: str) -> TaskSpec:
    """Return a task in which chance plays no part: batches of all images, none mirrored, all phones in every round."""
    return TaskSpec(
        f"same-{method.replace('_', '-')}",
        method=method,
        rounds=ROUNDS,
        population=POPULATION,
        cohort=CohortSpec(size=len(PHONES), min_reports=len(PHONES)),
        deadlines=DeadlineSpec(selecting_s=60.0, training_s=60.0, upload_s=60.0),
        local=LocalSpec(lr=0.05, steps=3, flip=False),
        privacy=PrivacySpec(min_cohort=2, secure_aggregation="off"),
        # Embeddings of random weights are all alike: only the largest margin leaves something to train.
        options={"margin": 1.0, **OPTIONS[method]},
    )


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    """Return a fleet whose phones have joined and enrolled."""
    with real_fleet(tmp_path_factory.mktemp("same")) as running:
        running.release(small_model())
        for name, identity in PHONES.items():
            running.phone(name, POPULATION, identity).close()
        yield running


@pytest.fixture(scope="module")
def crops(fleet: RealFleet) -> dict[str, Crops]:
    """Return what the phones train on."""
    held = {}
    for name in PHONES:
        with fleet.open(name) as device:
            (owner,) = device.people()
            held[name] = fit_crops(device.gallery.training_crops(owner.name), small_model().spec.input)
    return held


def participate(fleet: RealFleet, name: str) -> list[RoundOutcome]:
    with fleet.open(name) as device:
        return list(device.participate(rounds=ROUNDS))


@pytest.mark.parametrize("method", OPTIONS)
def test_the_model_after_three_rounds_is_the_simulators(fleet: RealFleet, crops: dict[str, Crops], method: str) -> None:
    task, model = task_of(method), small_model()
    task_id = fleet.submit(task)
    with ThreadPoolExecutor(len(PHONES)) as pool:
        outcomes = list(pool.map(lambda name: participate(fleet, name), PHONES))
    assert all(isinstance(outcome, Counted) for each in outcomes for outcome in each)
    reports = fleet.outcome(task_id)
    assert len(reports) == ROUNDS

    part = model.layout.part(model.spec.trainable)
    simulated: list[Vector] = []
    run_task(
        task,
        part,
        model.spec.input.dim,
        model.theta,
        Cohort(crops),
        TorchRuntime(model.spec, model.layout),
        after_round=lambda state, _record: simulated.append(state.theta),
    )
    for report, expected in zip(reports, simulated, strict=True):
        real = fleet.theta(report.model_id)
        assert np.linalg.norm(expected - model.theta) > 1e-4
        # Far below any movement, so that a forgotten momentum or control variate cannot hide in the tolerance.
        np.testing.assert_allclose(real, expected, atol=1e-7)
