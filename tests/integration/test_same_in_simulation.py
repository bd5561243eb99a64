"""Rounds over the real protocol, by real phones with two people each, give the simulator's model.

The coordinator and the registrar are processes of their own; phones are `device_sdk` with everything that belongs to
it. Chance plays no part: batches of all images, none mirrored, all phones in every round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from device_sdk.faces.crops import fit_crops
from device_sdk.rounds.events import Event, Transfer
from device_sdk.rounds.participate import Counted, RoundOutcome
from device_sdk.runtimes.torch_runtime import TorchRuntime
from mien.layout import Vector
from mien.methods.base import Crops
from mien.protocol.tensors import PublicShard
from mien.specs import CohortSpec, DeadlineSpec, LocalSpec, MustInclude, PrivacySpec, TaskSpec
from simulation.engines.engine import Cohort, PublicFaces, run_task
from tests.device_sdk.made_up_people import noise_crops
from tests.device_sdk.synthetic import images_of
from tests.integration.real_fleet import RealFleet, real_fleet, small_model

pytestmark = pytest.mark.slow

POPULATION = "same"
PHONES = {"one": ("asian_0007", "caucasian_0002"), "two": ("african_0000", "asian_0001")}
SOURCE = "operator"
ROUNDS = 3
PUBLIC = PublicFaces(np.concatenate([noise_crops(50 + k, 2) for k in range(4)]), np.repeat(np.arange(4), 2))
SOURCE_FACES = {"ada": noise_crops(60, 4), "bo": noise_crops(61, 3)}
BLOCKS = ("block1[2-5].*", "head.*", "gdconv.*", "embedding.*")


@dataclass(frozen=True)
class Case:
    """A method in one form; `trainable` empty is the model's own small part. `is_streamed`: its replies are long.

    `tolerance` is how far the models may lie apart, of the way that training went.
    """

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    trainable: tuple[str, ...] = ()
    lr: float = 0.05
    is_streamed: bool = False
    has_source: bool = False
    tolerance: float = 1e-3

    @property
    def participants(self) -> tuple[str, ...]:
        """Who takes part."""
        return (*PHONES, SOURCE) if self.has_source else tuple(PHONES)

    def task(self, name: str) -> TaskSpec:
        """Return the task of this case."""
        size = len(self.participants)
        return TaskSpec(
            f"same-{name}",
            method=self.method,
            rounds=ROUNDS,
            population=POPULATION,
            trainable=self.trainable,
            cohort=CohortSpec(size=size, min_reports=size, must_include=MustInclude() if self.has_source else None),
            deadlines=DeadlineSpec(selecting_s=150.0, training_s=150.0, upload_s=150.0),
            local=LocalSpec(lr=self.lr, steps=2, flip=False),
            privacy=PrivacySpec(min_cohort=2, secure_aggregation="off"),
            options=self.options,
        )


CLASSES = {"loss": "cosface", "scale": 10.0}
CLIENTS = {"identities": 2, "start": "mean_feature", "head": {"kind": "cosface", "scale": 10.0}}
CASES = {
    "fedavg": Case("fedavg", {"loss": "cosface"}),
    "fedprox": Case("fedprox", {**CLASSES, "mu": 0.5}),
    # Their replies, as long as the trained part, are streamed: 2 MB.
    # A control variate is a difference of models over steps and rate: rounding comes back a hundred times as large.
    "scaffold": Case("scaffold", CLASSES, trainable=BLOCKS, lr=0.005, is_streamed=True, tolerance=1e-2),
    "mime": Case("mime", {**CLASSES, "beta": 0.8}, trainable=BLOCKS, lr=0.005, is_streamed=True),
    "pfm": Case(
        "pfm_fv",
        {"validation": "off", "class_start": "mean_feature", "lr_drop_rounds": [2]},
        lr=0.002,
        is_streamed=True,
    ),
    "fedpe": Case("fedgc", {**CLIENTS, "correction": {"kind": "none"}}),
    "fedgc": Case("fedgc", CLIENTS),
    "fedfr": Case("fedfr", {"public_classes": 4, "hard_negative_threshold": -1.0}, lr=0.005),
    "uda": Case("fedfr_uda", lr=0.002, has_source=True),
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    """Return a fleet: two phones with two people each who agreed, and an operator's device with labelled faces."""
    folder = tmp_path_factory.mktemp("same")
    with real_fleet(folder) as running:
        shard = folder / "public.safetensors"
        shard.write_bytes(PublicShard(PUBLIC.crops, PUBLIC.labels, "CC0", "made up").to_bytes())
        running.release(small_model(), shard=shard)
        for name, (owner, guest) in PHONES.items():
            with running.phone(name, POPULATION, owner) as device:
                device.enroll("Guest", images_of(guest)[:4], consent=True)
        with running.open(SOURCE) as device:
            device.join(running.invite(POPULATION))
        for person, crops in SOURCE_FACES.items():
            (folder / "source" / person).mkdir(parents=True)
            for number, crop in enumerate(crops):
                path = folder / "source" / person / f"{number}.png"
                cv2.imwrite(str(path), np.ascontiguousarray(crop[..., ::-1]))
        yield running


@dataclass(frozen=True)
class Faces:
    """What one participant trains on."""

    crops: Crops = field(repr=False)
    labels: np.ndarray[Any, np.dtype[np.int64]] = field(repr=False)


@pytest.fixture(scope="module")
def faces(fleet: RealFleet) -> dict[str, Faces]:
    """Return what each participant trains on."""
    spec, held = small_model().spec.input, {}
    for name in PHONES:
        with fleet.open(name) as device:
            # Numbered by when they were enrolled.
            crops = [device.gallery.training_crops(person) for person in ("Owner", "Guest")]
        labels = np.repeat(np.arange(2), [len(each) for each in crops])
        held[name] = Faces(fit_crops(np.concatenate(crops), spec), labels)
    crops = list(SOURCE_FACES.values())
    labels = np.repeat(np.arange(2), [len(each) for each in crops])
    held[SOURCE] = Faces(fit_crops(np.concatenate(crops), spec), labels)
    return held


def cohort_of(case: Case, faces: Mapping[str, Faces]) -> Cohort:
    """Return the simulated participants; phones know whose face is whose unless a source's labels are all there is."""
    labelled = (SOURCE,) if case.has_source else case.participants
    return Cohort(
        {name: faces[name].crops for name in case.participants},
        public=PUBLIC,
        labels={name: faces[name].labels for name in labelled},
    )


def participate(fleet: RealFleet, name: str, events: list[Event]) -> list[RoundOutcome]:
    def tell(event: Event | Transfer) -> None:
        if isinstance(event, Event):
            events.append(event)

    with fleet.open(name, tell=tell) as device:
        if name != SOURCE:
            return list(device.participate(rounds=ROUNDS, idle_s=120.0))
        return list(
            device.participate(rounds=ROUNDS, idle_s=120.0, source=fleet.folder / "source", source_aligned=True)
        )


@pytest.mark.parametrize("name", CASES)
def test_the_model_after_three_rounds_is_the_simulators(fleet: RealFleet, faces: dict[str, Faces], name: str) -> None:
    case, model = CASES[name], small_model()
    task, events = case.task(name), list[Event]()
    task_id = fleet.submit(task)
    with ThreadPoolExecutor(len(case.participants)) as pool:
        outcomes = list(pool.map(lambda who: participate(fleet, who, events), case.participants))
    assert all(isinstance(outcome, Counted) for each in outcomes for outcome in each)
    reports = fleet.outcome(task_id)
    assert len(reports) == ROUNDS
    was_streamed = any(event.text.startswith("Fetching what the method tells") for event in events)
    assert was_streamed == case.is_streamed

    simulated: list[Vector] = []
    run_task(
        task,
        model.layout.part(task.trainable or model.spec.trainable),
        model.spec.input.dim,
        model.theta,
        cohort_of(case, faces),
        TorchRuntime(model.spec, model.layout),
        after_round=lambda state, _record: simulated.append(state.theta),
    )
    for report, expected in zip(reports, simulated, strict=True):
        real, moved = fleet.theta(report.model_id), np.linalg.norm(expected - model.theta)
        assert moved > 1e-4
        # 1e-5 is usual. Rounding that puts a unit on the other side of its kink gives more on some processors; a method
        # that forgot its control variates would differ by 3e-2, its momentum by 0.4, its proximal term by 1e-2.
        assert np.linalg.norm(real - expected) < case.tolerance * moved


def test_a_source_leaves_nothing_of_its_faces(fleet: RealFleet) -> None:
    """The source of the test above trained; nobody of it is in the gallery, and no crop on the disk."""
    with fleet.open(SOURCE) as device:
        assert device.people() == ()
    stored = b"".join(path.read_bytes() for path in Path(fleet.folder / SOURCE).rglob("*") if path.is_file())
    for crops in SOURCE_FACES.values():
        assert crops[0].tobytes()[:64] not in stored
