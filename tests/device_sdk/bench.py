"""A phone on a bench: real gallery, log, models and training, before a coordinator that a test scripts."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from device_sdk.models.models import ModelStore
from device_sdk.people.enrolled import Template
from device_sdk.people.gallery import Gallery
from device_sdk.people.trained import Pending
from device_sdk.rounds.attempts import Attempts
from device_sdk.rounds.conditions import StatedConditions
from device_sdk.rounds.disclosure import Agreement
from device_sdk.rounds.events import Event, Transfer
from device_sdk.rounds.masked import WaitingKeys
from device_sdk.rounds.participate import Participant
from device_sdk.runtimes.torch_runtime import TorchRuntime
from device_sdk.server.client import ClientSettings, CoordinatorClient
from device_sdk.server.retry import RetryPolicy
from device_sdk.storage.keystore import KeyStore
from mien.contribution import ContributionLayout
from mien.methods import METHODS
from mien.protocol.canonical import model_to_json, task_to_json
from mien.protocol.v1 import common_pb2, models_pb2, rounds_pb2
from mien.specs import CohortSpec, LocalSpec, PrivacySpec, TaskSpec
from tests.device_sdk.clocks import ShiftedClock
from tests.device_sdk.made_up_people import SPEC, noise_crops, project
from tests.device_sdk.scripted import Fleet, Script, scripted_coordinator
from tests.integration.real_fleet import small_model

REF = rounds_pb2.RoundRef(task_id="t1", round=2, attempt=1)
TASK = TaskSpec(
    "study",
    method="fedavg",
    cohort=CohortSpec(size=4, min_reports=2),
    local=LocalSpec(lr=0.05, flip=False),
    privacy=PrivacySpec(min_cohort=2, secure_aggregation="off"),
    options={"margin": 1.0},
)
PLAIN = Agreement(min_cohort=2, allow_plain_sums=True)
OLD_STATE = {"class_embedding": np.full(128, 128**-0.5, np.float32)}


def layout_of(task: TaskSpec) -> ContributionLayout:
    part = small_model().layout.part(small_model().spec.trainable)
    return METHODS[task.method].contribution_layout(task, part, 128)


def assignment(task: TaskSpec = TASK, **changes: Any) -> rounds_pb2.CheckInReply:
    values: dict[str, Any] = {
        "round": REF,
        "task_json": task_to_json(task),
        "model_id": small_model().model_id,
        "contribution_sha256": layout_of(task).sha256,
        "stage": rounds_pb2.TRAINING,
    }
    return rounds_pb2.CheckInReply(assignment=rounds_pb2.Assignment(**{**values, **changes}))


def stages(*numbers: int, **last: Any) -> Callable[[], Iterable[rounds_pb2.StageEvent]]:
    events = [rounds_pb2.StageEvent(stage=number) for number in numbers]
    events[-1] = rounds_pb2.StageEvent(stage=numbers[-1], **last)
    return lambda: events


ALL_THE_WAY = stages(rounds_pb2.TRAINING, rounds_pb2.UPLOAD, rounds_pb2.CLOSED, model_id="next", num_reports=3)


@dataclass
class Bench:
    """A phone with its gallery, and the coordinator it talks to."""

    folder: Path
    key_store: KeyStore
    script: Script
    gallery: Gallery
    participant: Participant
    events: list[Event] = field(default_factory=list)
    uploads: list[bytes] = field(default_factory=list)

    @property
    def owner(self) -> int:
        return self.gallery.person("Owner").id

    @property
    def state(self) -> dict[str, Any]:
        return self.gallery.private_state(self.owner, "t1")

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    def keep_old_state(self) -> None:
        earlier = Pending((self.owner,), "t1", 1, 1, b"", OLD_STATE)
        self.gallery.keep_pending(earlier)
        self.gallery.settle(earlier, counted=True)

    def state_is_old(self) -> bool:
        return bool(np.array_equal(self.state["class_embedding"], OLD_STATE["class_embedding"]))

    def restart(self) -> None:
        """The process ends and another begins: everything that was in memory is gone, what is on disk stays."""
        self.gallery.close()
        self.participant.attempts.close()
        self.gallery, attempts = open_stores(self.folder, self.key_store)
        self.participant = replace(self.participant, gallery=self.gallery, attempts=attempts, waiting=WaitingKeys())


def open_stores(folder: Path, key_store: KeyStore) -> tuple[Gallery, Attempts]:
    return (
        Gallery.open(folder / "device.db", key_store),
        Attempts.open(folder / "attempts.db", key_store, "default"),
    )


@cache
def engine() -> TorchRuntime:
    return TorchRuntime(small_model().spec, small_model().layout)


def offer_model(script: Script) -> None:
    """Let the coordinator hand out the small model."""
    model = small_model()
    theta = np.ascontiguousarray(model.theta, "<f4").tobytes()
    script.manifest = lambda: models_pb2.ModelManifest(
        model_id=model.model_id,
        spec_json=model_to_json(model.spec, model.layout),
        theta=common_pb2.BlobRef(sha256=hashlib.sha256(theta).hexdigest(), size_bytes=len(theta)),
    )
    script.download = lambda offset: (
        common_pb2.DataChunk(offset=start, data=theta[start : start + 200_000])
        for start in range(offset, len(theta), 200_000)
    )


@contextmanager
def open_bench(folder: Path, key_store: KeyStore, fleet: Fleet, agreement: Agreement = PLAIN) -> Iterator[Bench]:
    """Run a phone with one consenting person, and its coordinator, while the block runs."""
    gallery, attempts = open_stores(folder, key_store)
    crops = noise_crops(1)
    gallery.enroll("Owner", crops, Template.of(project(crops), "a" * 64, SPEC), now_unix_s=0, consent=True)
    script, clock, settings = Script(), ShiftedClock(), ClientSettings(retry=RetryPolicy(give_up_s=60.0))
    offer_model(script)
    script.check_in, script.follow = assignment, ALL_THE_WAY
    with (
        scripted_coordinator(fleet, script) as address,
        CoordinatorClient(fleet.identity(address), clock, random.Random(0), settings) as client,
    ):
        events: list[Event] = []
        uploads: list[bytes] = []

        def upload(sent: list[rounds_pb2.UploadChunk]) -> rounds_pb2.UploadStatus:
            uploads.append(b"".join(chunk.data for chunk in sent))
            return rounds_pb2.UploadStatus(accepted=True)

        def tell(event: Event | Transfer) -> None:
            if isinstance(event, Event):
                events.append(event)

        script.upload = upload
        participant = Participant(
            client,
            gallery,
            ModelStore(folder / "models"),
            agreement,
            StatedConditions(),
            lambda _model: engine(),
            attempts,
            clock,
            tell,
        )
        bench = Bench(folder, key_store, script, gallery, participant, events, uploads)
        try:
            yield bench
        finally:
            bench.gallery.close()
            bench.participant.attempts.close()
