"""Devices of the SDK under masked sums: three train on labelled faces, three judge candidates on others."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from device_sdk.faces.crops import fit_crops
from device_sdk.rounds.events import Event, Transfer
from device_sdk.rounds.judging import JUDGED
from device_sdk.rounds.participate import Counted, RoundOutcome
from device_sdk.runtimes.torch_runtime import TorchRuntime
from mien.methods.base import Crops
from mien.methods.pfm_fv import DRAWN_FROM, own_faces
from mien.protocol.v1 import rounds_pb2
from mien.specs import CohortSpec, DeadlineSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.engines.engine import Cohort, run_task
from tests.integration.real_fleet import RealFleet, real_fleet, small_model
from tests.tiny import made_up_crops

pytestmark = pytest.mark.slow

ROUNDS = 2
TRAINERS, VALIDATORS = ("t0", "t1", "t2"), ("v0", "v1", "v2")
# Nothing is mixed in, so that a pair of faces on the edge cannot make two models of one; who wins is tested elsewhere.
TASK = TaskSpec(
    "real-validators",
    method="pfm_fv",
    rounds=ROUNDS,
    population="silos",
    cohort=CohortSpec(size=3, min_reports=3),
    validators=CohortSpec(size=3, min_reports=3),
    deadlines=DeadlineSpec(*(150.0,) * 7),
    local=LocalSpec(lr=0.002, steps=2, flip=False),
    privacy=PrivacySpec(("local_models",), 3, max_weight=8),
    options={
        "loss": "cosface", "scale": 10.0, "class_start": "mean_feature",
        "candidates": 2, "mixing": 0.0, "validation": "moving_norm",
    },
)  # fmt: skip


def faces_of(name: str) -> tuple[Crops, NDArray[np.int64]]:
    """Return a silo's crops and whose they are: two people who train, or four who judge."""
    num_people, start = (2, 100) if name in TRAINERS else (4, 500)
    seeds = [start + 20 * int(name[1]) + k for k in range(num_people)]
    crops = np.concatenate([made_up_crops(3, seed=seed) for seed in seeds])
    return crops, np.repeat(np.arange(num_people), 3).astype(np.int64)


def write_source(folder: Path, crops: Crops, labels: NDArray[np.int64]) -> None:
    for number, (crop, label) in enumerate(zip(crops, labels, strict=True)):
        (folder / f"person{label}").mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / f"person{label}" / f"{number:03}.png"), np.ascontiguousarray(crop[..., ::-1]))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    """Return a fleet of six silos that have joined."""
    folder = tmp_path_factory.mktemp("silos")
    with real_fleet(folder) as running:
        running.release(small_model())
        for name in (*TRAINERS, *VALIDATORS):
            write_source(folder / "faces" / name, *faces_of(name))
            with running.open(name) as device:
                device.join(running.invite(TASK.population))
        yield running


def participate(fleet: RealFleet, name: str, events: list[Event]) -> list[RoundOutcome]:
    def tell(event: Event | Transfer) -> None:
        if isinstance(event, Event):
            events.append(event)

    options: dict[str, Any] = {"participation.min_cohort": 3, "participation.allow_plain_sums": False}
    if name in TRAINERS:
        options["participation.allow_reveal"] = ("local_models",)
    with fleet.open(name, tell=tell, **options) as device:
        faces = fleet.folder / "faces" / name
        validate = name in VALIDATORS
        return list(
            device.participate(rounds=ROUNDS, idle_s=120.0, source=faces, source_aligned=True, validate=validate)
        )


def test_the_model_and_the_validators_statistics_are_the_simulators(fleet: RealFleet) -> None:
    model, spec, events = small_model(), small_model().spec.input, list[Event]()
    task_id = fleet.submit(TASK)
    everybody = (*TRAINERS, *VALIDATORS)
    with ThreadPoolExecutor(len(everybody)) as pool:
        outcomes = list(pool.map(lambda name: participate(fleet, name, events), everybody))
    assert [len(each) for each in outcomes] == [ROUNDS] * 6
    assert all(isinstance(outcome, Counted) for each in outcomes for outcome in each)
    reports = fleet.outcome(task_id)
    assert [report.duty for report in reports] == [rounds_pb2.TRAIN, rounds_pb2.VALIDATE] * ROUNDS
    said = {event.text for event in events if event.kind == "disclosure"}
    assert any("2 numbers, one for each candidate model" in text for text in said)

    ids, kept = {}, {}
    for name in everybody:
        with fleet.open(name) as device:
            ids[name] = device.identity.device_id
            source = device._read_source(fleet.folder / "faces" / name, aligned=True).id
            kept[name] = device.gallery.source_state(source, task_id)
    # What is kept tells apart who trained and who judged: neither can do the other in this task.
    assert {name for name in everybody if JUDGED in kept[name]} == set(VALIDATORS)
    assert {name for name in everybody if "class_embeddings" in kept[name]} == set(TRAINERS)
    # The simulator is told what the phones' draws follow from, which nobody else knows.
    secrets = {name: kept[name][DRAWN_FROM] for name in TRAINERS}
    assert len({tuple(each) for each in secrets.values()}) == len(TRAINERS)
    held = {name: (fit_crops(faces_of(name)[0], spec), faces_of(name)[1]) for name in everybody}
    cohort = Cohort(
        {ids[name]: held[name][0] for name in TRAINERS},
        labels={ids[name]: held[name][1] for name in TRAINERS},
        private={ids[name]: {DRAWN_FROM: secrets[name]} for name in TRAINERS},
        validators={ids[name]: own_faces(*held[name]) for name in VALIDATORS},
    )
    part = model.layout.part(model.spec.trainable)
    done = run_task(TASK, part, spec.dim, model.theta, cohort, TorchRuntime(model.spec, model.layout))
    moved = np.linalg.norm(done.state.theta - model.theta)
    assert moved > 1e-3
    assert np.linalg.norm(fleet.theta(reports[-1].model_id) - done.state.theta) < 0.02 * moved
    for name in VALIDATORS:
        expected = done.cohort.validator_private[ids[name]]["percent_statistics"]
        np.testing.assert_allclose(kept[name]["percent_statistics"] / [1e2, 1e4], expected / [1e2, 1e4], atol=0.05)
