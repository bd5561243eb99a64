"""Every method over the real protocol: after two rounds of plain sums the model is the reference engine's to 1e-5.

Devices are light ones, real in all but their faces: each runs its method's own device half on a tiny recogniser and
draws from the engine's seed, so that chance is the same on both sides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mien.contribution import Arrays
from mien.methods import METHODS
from mien.methods.base import Crops, DeviceInput
from mien.protocol.canonical import model_to_json
from mien.protocol.tensors import PublicShard, unpack_tensors
from mien.protocol.v1 import rounds_pb2
from mien.specs import CohortSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.engines.engine import Cohort, PublicFaces, device_seed, run_task
from simulation.testing import FakeDevice, FakeFleet, tiny_task
from tests.helpers import run
from tests.integration.test_rounds import outcome
from tests.tiny import made_up_crops, tiny_cnn

TINY = tiny_cnn()
ROUNDS = 2
DEVICES = 3
PUBLIC = PublicFaces(np.concatenate([made_up_crops(3, seed=90 + k) for k in range(5)]), np.repeat(np.arange(5), 3))
PLAIN = PrivacySpec(min_cohort=2, secure_aggregation="off")
SHOWN = PrivacySpec(("class_embeddings",), 2, secure_aggregation="off")


@dataclass(frozen=True)
class Case:
    """A method in one of its forms; with `several` identities a device holds two people."""

    method: str
    options: dict[str, Any] = field(default_factory=dict)
    privacy: PrivacySpec = PLAIN
    several: bool = False
    lr: float = 0.05

    def task(self, name: str) -> TaskSpec:
        """Return the task of this form, in a population of its own."""
        return tiny_task(
            name,
            name,
            method=self.method,
            rounds=ROUNDS,
            cohort=CohortSpec(size=DEVICES, min_reports=DEVICES),
            local=LocalSpec(lr=self.lr, epochs=2, batch_size=3),
            privacy=self.privacy,
            options=self.options,
            seed=7,
        )


CASES = {
    "fedavg": Case("fedavg", {"margin": 1.0}),
    "fedavg-cosface": Case("fedavg", {"loss": "cosface"}, several=True),
    "fixed": Case("fixed_embedding"),
    "fedface": Case("fedface"),
    "fedface-exact": Case("fedface", {"margin": 1.0}, SHOWN),
    "fedaws": Case("fedaws"),
    "fedprox": Case("fedprox", {"margin": 1.0, "mu": 0.5}),
    "scaffold": Case("scaffold", {"margin": 1.0}),
    "mime": Case("mime", {"margin": 1.0}),
    "pfm": Case("pfm_fv", {"validation": "off", "loss": "arcface"}, several=True, lr=0.002),
    "fedpe": Case("fedgc", {"identities": 2, "correction": {"kind": "none"}}, several=True),
    "fedgc-exact": Case("fedgc", {"identities": 2}, SHOWN, several=True),
    "fedfr": Case("fedfr", {"public_classes": 5}, several=True),
    "fedfr-uda": Case("fedfr_uda", several=True, lr=0.002),
}


def faces_of(index: int, *, several: bool) -> tuple[Crops, np.ndarray[Any, np.dtype[np.int64]] | None]:
    """Return what device number `index` trains on, and who is on it."""
    if not several:
        return made_up_crops(3 + index, seed=index), None
    crops = [made_up_crops(3 + index, seed=10 * index + k) for k in range(2)]
    return np.concatenate(crops), np.repeat(np.arange(2), 3 + index)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeFleet]:
    """A running coordinator whose released model is the tiny recogniser, with public faces."""
    folder = tmp_path_factory.mktemp("methods")
    fleet = FakeFleet(folder)
    try:
        fleet.start()
        run(_release(fleet, folder))
        yield fleet
        assert fleet.stop() == 0
    finally:
        fleet.close()


async def _release(fleet: FakeFleet, folder: Path) -> None:
    theta, shard = folder / "theta.f32", folder / "public.safetensors"
    theta.write_bytes(TINY.theta.astype("<f4").tobytes())
    shard.write_bytes(PublicShard(PUBLIC.crops, PUBLIC.labels, "CC0", "made up").to_bytes())
    async with fleet.operator() as operator:
        model = await operator.import_model(model_to_json(TINY.spec, TINY.layout), theta, shard)
        await operator.release(model.model_id)


@dataclass
class Phone:
    """A fake device with faces, and what it keeps to itself."""

    device: FakeDevice
    crops: Crops
    labels: np.ndarray[Any, np.dtype[np.int64]] | None
    fleet: FakeFleet
    private: Arrays = field(default_factory=dict)

    def contribution(self, task: TaskSpec, assignment: rounds_pb2.Assignment) -> bytes:
        """Return what the method's device half makes of this round's model and reply."""
        inp = DeviceInput(
            task=task,
            part=TINY.part(),
            dim=TINY.spec.input.dim,
            theta=np.asarray(self.fleet.theta(assignment.model_id), np.float32),
            crops=self.crops,
            labels=self.labels,
            private=self.private,
            reply=unpack_tensors(assignment.reply, what="reply") if assignment.reply else {},
            public_crops=PUBLIC.crops,
            public_labels=PUBLIC.labels,
            seed=device_seed(task, self.device.id, assignment.round.round),
        )
        output = METHODS[task.method].device_round(inp, TINY.runtime())
        self.private = output.private
        return output.contribution.to_bytes()


@pytest.mark.parametrize("name", CASES)
def test_the_model_is_the_reference_engines(home: FakeFleet, name: str) -> None:
    case = CASES[name]
    task = case.task(name)

    async def story() -> tuple[list[str], list[str]]:
        async with home.operator() as operator, home.devices(name, DEVICES, known=True) as devices:
            status = await operator.submit(task, name)
            phones = [Phone(d, *faces_of(i, several=case.several), home) for i, d in enumerate(devices)]
            for _ in range(ROUNDS):
                await asyncio.gather(*(phone.device.take_part(phone.contribution) for phone in phones))
            reports = await outcome(operator, status.task_id)
            return [device.id for device in devices], [report.model_id for report in reports]

    ids, models = run(story())
    held = {device: faces_of(i, several=case.several) for i, device in enumerate(ids)}
    cohort = Cohort(
        {device: crops for device, (crops, _) in held.items()},
        public=PUBLIC,
        labels={device: labels for device, (_, labels) in held.items() if labels is not None},
    )
    simulated = run_task(task, TINY.part(), TINY.spec.input.dim, TINY.theta, cohort, TINY.runtime())
    assert len(models) == ROUNDS
    assert np.abs(simulated.state.theta - TINY.theta).max() > 1e-4
    np.testing.assert_allclose(home.theta(models[-1]), simulated.state.theta, atol=1e-5)


def test_every_method_has_a_case() -> None:
    """But for what takes masked sums alone (test_statistics.py)."""
    assert {case.method for case in CASES.values()} == {name for name, method in METHODS.items() if method.is_minimised}
