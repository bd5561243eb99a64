"""Masked rounds between processes give the model that the simulator's ring gives, to the last bit.

The coordinator, the registrar and every phone are processes of their own; phones speak secure aggregation over mutual
TLS. Keys, masks and shares are drawn afresh and leave no trace in a sum. Two draws do: the seed of local training, and
the seed of the stochastic rounding. The second is secret on a real phone, so there is nothing defined to compare it
with; `seeded_phone` draws both as the simulator does, through the seams where a phone's chance comes in.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from device_sdk.faces.crops import fit_crops
from device_sdk.runtimes import load_runtime
from mien.layout import Vector
from mien.methods.base import Crops
from mien.protocol.tensors import PublicShard
from mien.specs import CohortSpec, DeadlineSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.engines.engine import Cohort, PublicFaces, run_task
from simulation.engines.sums import Sums
from tests.device_sdk.made_up_people import noise_crops
from tests.device_sdk.synthetic import images_of
from tests.helpers import ROOT
from tests.integration.real_fleet import RealFleet, real_fleet, small_model

pytestmark = pytest.mark.slow

POPULATION = "bits"
PHONES = {
    "one": ("asian_0007", "caucasian_0002"),
    "two": ("african_0000", "asian_0001"),
    "three": ("caucasian_0008", "african_0003"),
}
ROUNDS = 2
PUBLIC = PublicFaces(np.concatenate([noise_crops(50 + k, 2) for k in range(4)]), np.repeat(np.arange(4), 2))
LIMIT_S = 480.0


@dataclass(frozen=True)
class Case:
    """A method in one form, and whose faces train: everybody's, or the owner's alone."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    person: str = ""

    @property
    def task(self) -> TaskSpec:
        """Return the task, under full secure aggregation; batches and mirrored images are drawn."""
        return TaskSpec(
            f"bits-{self.method}",
            method=self.method,
            rounds=ROUNDS,
            population=POPULATION,
            cohort=CohortSpec(size=len(PHONES), min_reports=len(PHONES)),
            deadlines=DeadlineSpec(*(150.0,) * 7),
            local=LocalSpec(lr=0.02, epochs=2, batch_size=4),
            privacy=PrivacySpec(min_cohort=3),
            options=self.options,
        )


CASES = {
    case.method: case
    for case in (
        Case("fedavg", {"loss": "cosface"}),
        Case("fedface", person="Owner"),
        Case("fedfr", {"public_classes": 4, "hard_negative_threshold": -1.0}),
    )
}


@dataclass(frozen=True)
class Phone:
    """What one phone trains on, by person."""

    crops: Mapping[str, Crops] = field(repr=False)

    def faces(self, person: str) -> tuple[Crops, np.ndarray[Any, np.dtype[np.int64]]]:
        """Return crops and labels of one person, or of everybody in the order in which they were enrolled."""
        chosen = [self.crops[person]] if person else list(self.crops.values())
        return np.concatenate(chosen), np.repeat(np.arange(len(chosen)), [len(each) for each in chosen])


@dataclass(frozen=True)
class Trained:
    """Phones by device id, and the models that the coordinator made, by method."""

    phones: Mapping[str, Phone]
    models: Mapping[str, list[Vector]] = field(repr=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Return what became of all tasks, one after another, between processes."""
    folder = tmp_path_factory.mktemp("bits")
    with real_fleet(folder) as fleet:
        shard = folder / "public.safetensors"
        shard.write_bytes(PublicShard(PUBLIC.crops, PUBLIC.labels, "CC0", "made up").to_bytes())
        fleet.release(small_model(), shard=shard)
        phones = dict(enrolled(fleet, name) for name in PHONES)
        tasks = {method: fleet.submit(case.task) for method, case in CASES.items()}
        plan = [word for case in CASES.values() for word in (str(ROUNDS), case.person)]
        take_part(fleet, plan)
        return Trained(phones, {method: models(fleet, task_id) for method, task_id in tasks.items()})


def enrolled(fleet: RealFleet, name: str) -> tuple[str, Phone]:
    owner, guest = PHONES[name]
    with fleet.phone(name, POPULATION, owner) as device:
        device.enroll("Guest", images_of(guest)[:4], consent=True)
        spec = small_model().spec.input
        crops = {person: fit_crops(device.gallery.training_crops(person), spec) for person in ("Owner", "Guest")}
        return device.identity.device_id, Phone(crops)


def take_part(fleet: RealFleet, plan: list[str]) -> None:
    command = [sys.executable, "-m", "tests.integration.seeded_phone"]
    running = [
        subprocess.Popen([*command, str(fleet.folder / name), *plan], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for name in PHONES
    ]
    try:
        for process in running:
            _, errors = process.communicate(timeout=LIMIT_S)
            assert process.returncode == 0, errors
    finally:
        for process in running:
            process.kill()


def models(fleet: RealFleet, task_id: str) -> list[Vector]:
    return [fleet.theta(report.model_id) for report in fleet.outcome(task_id)]


def simulate(case: Case, phones: Mapping[str, Phone], sums: Sums = "ring") -> list[Vector]:
    """Return the simulator's model after each round."""
    model, found = small_model(), list[Vector]()
    faces = {device: phone.faces(case.person) for device, phone in phones.items()}
    run_task(
        case.task,
        model.layout.part(model.spec.trainable),
        model.spec.input.dim,
        model.theta,
        Cohort(
            {device: crops for device, (crops, _) in faces.items()},
            public=PUBLIC,
            labels={} if case.person else {device: labels for device, (_, labels) in faces.items()},
        ),
        load_runtime(model.spec, model.layout),
        sums=sums,
        after_round=lambda state, _record: found.append(state.theta),
    )
    return found


@pytest.mark.parametrize("method", CASES)
def test_masked_rounds_give_the_simulators_model_bit_for_bit(trained: Trained, method: str) -> None:
    simulated, real = simulate(CASES[method], trained.phones), trained.models[method]
    assert len(real) == len(simulated) == ROUNDS
    assert np.abs(simulated[-1] - small_model().theta).max() > 1e-4
    for ours, theirs in zip(real, simulated, strict=True):
        np.testing.assert_array_equal(ours.view(np.uint32), theirs.astype("<f4").view(np.uint32))


def test_rounding_is_seen_to_the_last_bit(trained: Trained) -> None:
    """Sums without rounding give another model: equality above is not that of numbers that rounding leaves alone."""
    exact = simulate(CASES["fedavg"], trained.phones, "exact")
    assert not np.array_equal(exact[-1], trained.models["fedavg"][-1])
    moved = np.abs(exact[-1] - small_model().theta).max()
    assert np.abs(exact[-1] - trained.models["fedavg"][-1]).max() < 0.05 * moved
