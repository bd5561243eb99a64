"""A coordinator that never was: a year in the life of a fleet, made up, for tests and for pictures in the docs."""

from __future__ import annotations

import functools
import hashlib
import math
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa

from coordinator.home.config import CoordinatorConfig
from coordinator.home.home import CoordinatorHome
from coordinator.keys import pki
from coordinator.keys.note_keys import log_signer, witness_signer
from coordinator.release.gates_worker import _summary
from coordinator.store import account, audit, round_log
from coordinator.store.releases import decide
from coordinator.store.store import Store
from coordinator.store.tables import DEVICES
from mien.dp.accountant import Release
from mien.dp.ledger import Opening
from mien.evaluation import Comparisons, Evidence, Monitors, SetEvidence, all_pairs, det_curve
from mien.evaluation.gates import judge, monitors, tar_at
from mien.log.checkpoints import Checkpoint, Note, NoteSigner
from mien.log.entries import LogEntry, certificate_entry, result_entry, roster_entry, round_entry
from mien.protocol.canonical import model_to_json, task_from_json, task_to_json, to_canonical_json
from mien.protocol.rounds import BlobId, Role, Stage
from mien.rounds.machine import MASKED, STEP_OF, RoundState, Step
from mien.rounds.records import (
    CandidateRecord,
    CandidateState,
    ModelRecord,
    RoundChange,
    RoundRecord,
    TaskRecord,
    TaskState,
    UploadRecord,
)
from mien.rounds.verdicts import after_abort
from mien.secagg.planner import raw_task_id
from mien.shell.clock import Clock
from mien.specs import CohortSpec, DpSpec, GateSpec, PrivacySpec, TaskSpec, Threshold
from simulation.faces.datasets import LabelledCrops
from simulation.faces.folder_protocol import folder_record
from simulation.faces.models import Model
from simulation.testing import LAYOUT, SPEC, THETA

PASSWORD = "correct horse battery"
DP = DpSpec("central_gaussian", 12.0, epsilon=8.0, delta=1e-6, max_participations=4, min_separation=2)
RELEASE = Release("central_gaussian", 12.0, 2.0**16, 1000)
HOUR_MS = 3_600_000
MEASURED = ((0.0, 64), (0.06, 64), (-0.2, 24), (0.18, 64))
"""How good the imported model and its candidates are, and in how many directions their embeddings lie, in order."""


class SetClock(Clock):
    """A clock that stands until it is moved."""

    def __init__(self, at: float) -> None:
        super().__init__()
        self.at = at

    def now(self) -> float:
        """Return where the clock was set."""
        return self.at

    def move(self, seconds: float) -> None:
        """Let time pass."""
        self.at += seconds


def device_id(number: int) -> str:
    """Return the id of a made-up phone."""
    return hashlib.sha256(f"phone {number}".encode()).hexdigest()[:32]


def model_id(name: str) -> str:
    """Return the id of a made-up model."""
    return hashlib.sha256(f"model {name}".encode()).hexdigest()


@dataclass(frozen=True)
class PeopleMeasured:
    """Made-up people, measured by the program that measures folders of faces."""

    comparisons: Comparisons
    monitors: Monitors
    record: dict[str, Any]


@functools.cache
def people_measured(*, gain: float, dims: int, dataset: str = "public-faces") -> PeopleMeasured:
    """Return what a model says of 90 people that lie in `dims` directions, each the tighter the larger `gain`."""
    rng = np.random.default_rng(3)
    labels = np.repeat(np.arange(90), 5)
    people, noise = rng.standard_normal((90, 64)), rng.standard_normal((labels.size, 64))
    embeddings = (people[labels] + 1.15 * (1 - gain) * noise).astype(np.float32)
    embeddings[:, dims:] = 0
    comparisons = all_pairs(embeddings, labels)
    faces = LabelledCrops(np.zeros((labels.size, 1, 1, 3), np.uint8), labels, tuple(map(str, range(90))))
    record = folder_record(
        Model(SPEC, LAYOUT, THETA), faces, embeddings, comparisons, dataset=dataset, dataset_sha256="d" * 64
    )
    return PeopleMeasured(comparisons, monitors(embeddings, comparisons), record)


class Fleet:
    """A coordinator's folder with a store, and what happens in it; `end` is the moment at which tests look."""

    def __init__(self, folder: Path, *, end: datetime | None = None, **settings: Any) -> None:
        self.end = end or datetime.now(UTC)
        self.clock = SetClock(self.end.timestamp() - 13.7 * 86_400)
        values: dict[str, Any] = {"address": "coordinator.example:7443", "registrar_address": "registrar.example:7440"}
        config = CoordinatorConfig(**{**values, "dashboard_listen": "127.0.0.1:0", **settings})
        self.home: CoordinatorHome = CoordinatorHome.create(
            folder / "coordinator", config, self.end - timedelta(days=30)
        )
        self.registrar = pki.create_authority("registrar", self.end - timedelta(days=30))
        self.home.trust(self.registrar.certificate_pem, replace=False)
        self.store = Store.open(self.home.database_url(config), self.clock)
        if self.store._engine.dialect.name == "sqlite":
            with self.store._engine.connect() as connection:  # nobody pulls the plug on what was made up
                connection.connection.driver_connection.execute("PRAGMA synchronous = OFF")  # type: ignore[union-attr]
        self.random = random.Random(7)

    # What there is

    def add_phones(self, number: int, population: str, *, first: int = 0) -> None:
        """Let phones have called: most of them lately, by day more than by night."""
        now_ms = round(self.end.timestamp() * 1000)
        rows = []
        for each in range(first, first + number):
            age = self.random.expovariate(1 / 9) if self.random.random() < 0.86 else self.random.uniform(24, 400)
            sleeps = self.random.random() < 0.7  # drawn for each: what follows is the same at every hour
            if sleeps and (self.end - timedelta(hours=age)).hour < 6:
                age += 7
            software = "mien-device 0.1.0" if self.random.random() < 0.9 else "mien-device 0.0.9"
            rows.append(
                {"device_id": device_id(each), "population": population, "software": software,
                 "first_seen_ms": now_ms - 480 * HOUR_MS, "last_seen_ms": now_ms - round(age * HOUR_MS)}
            )  # fmt: skip
        self.store.privacy(lambda db: db.execute(sa.insert(DEVICES), rows))

    def add_model(self, name: str, *, task: TaskRecord | None = None, round_: int | None = None) -> ModelRecord:
        """Import a model, or let a task's round have made it."""
        made = self.model(name, task=task, round_=round_)
        return self.store.add_model(made, actor="alice")

    def model(self, name: str, *, task: TaskRecord | None = None, round_: int | None = None) -> ModelRecord:
        """Return a model that is not kept yet."""
        made, shift = model_id(name), self.random.uniform(-0.01, 0.01)
        thresholds = tuple(
            Threshold(round(value + shift, 4), fmr, "public-faces", 3120, 401_300, made, f"{self.end:%Y-%m-%d}")
            for value, fmr in ((0.21, 9.8e-2), (0.335, 9.9e-3), (0.431, 9.7e-4), (0.512, 9.5e-5))
        )
        spec = model_to_json(replace(SPEC, thresholds=thresholds), LAYOUT)
        return ModelRecord(
            made, spec, LAYOUT.sha256, BlobId(hashlib.sha256(made.encode()).hexdigest(), 4 * LAYOUT.size),
            self.clock.now_ms(), parent_model_id=None if task is None else task.base_model_id,
            population=None if task is None else task.population,
            task_id=None if task is None else task.task_id, round=round_,
        )  # fmt: skip

    def measure(self, model: str, *, gain: float, dataset: str = "public-faces", dims: int = 64) -> None:
        """Keep what simulation.program.worker says: the better, the larger `gain`; few `dims` are a collapse."""
        self.keep(model, people_measured(gain=gain, dims=dims, dataset=dataset).record)

    def keep(self, model: str, record: Mapping[str, Any]) -> None:
        """Keep a record as model evaluate has it kept."""
        said = to_canonical_json({**record, "model_id": model})
        self.store.add_evaluation(model, said, actor="alice")

    def judge(self, task: TaskRecord, model: str, round_: int, *, gain: float, dims: int = 64) -> bool:
        """Let the gates judge a candidate beside the model that its task began with; returns whether it passed."""
        before, after = people_measured(gain=0.0, dims=64), people_measured(gain=gain, dims=dims)
        gates = task_from_json(task.task_json).gates
        compared = before.comparisons
        tars = [tar_at(det_curve(each.comparisons), gates.fmr) for each in (before, after)]
        found = SetEvidence("public-faces", compared.num_mated, compared.num_non_mated, tars[0], before.monitors,
                            candidate_tar=tars[1], candidate=after.monitors)  # fmt: skip
        evidence = Evidence(is_finite=True, change=0.04, sets=(found,))
        reasons = judge(gates, evidence)
        offered = CandidateRecord(
            model, task.task_id, round_, CandidateState.FAILED if reasons else CandidateState.PASSED,
            self.clock.now_ms(), reason="; ".join(reasons), decided_ms=self.clock.now_ms(),
        )  # fmt: skip
        reference = self.store.model(task.base_model_id)
        self.keep(model, after.record)
        self.keep(model, _summary(gates, offered, reference, evidence, reasons))
        self.store.privacy(lambda db: decide(db, offered))
        detail = {"task": task.task_id, "round": round_, "reason": offered.reason}
        self.store.log(audit.COORDINATOR, f"gates.{offered.state.value}", model, detail)
        return not reasons

    # What happens

    def add_task(
        self, name: str, base: str, *, population: str = "default", rounds: int = 20, dp: DpSpec | None = None
    ) -> TaskRecord:
        """Submit a task."""
        dp = dp or DpSpec()
        spec = TaskSpec(
            name, method="fedface", rounds=rounds, population=population, cohort=CohortSpec(20, 16, 1.3),
            trainable=("tail.*",) if dp.is_on else (), gates=GateSpec(every=4, share=0.1),
            privacy=PrivacySpec(max_weight=1 if dp.is_on else 64, dp=dp),
        )  # fmt: skip
        task_id = hashlib.sha256(f"task {name}".encode()).hexdigest()[:16]
        return self.store.add_task(
            TaskRecord(task_id, name, population, task_to_json(spec), name, TaskState.RUNNING, base, base, "alice",
                       self.clock.now_ms())
        )  # fmt: skip

    def begin_round(self, task: TaskRecord, number: int, attempt: int = 1) -> tuple[RoundRecord, dict[str, Step]]:
        """Open an attempt and choose its phones."""
        record = self.store.open_attempt(task, round_number=number, attempt=attempt, deadline=self.clock.now() + 300)
        self.clock.move(self.random.uniform(20, 90))
        steps = {device_id(n): Step.SELECTED for n in self.random.sample(range(400), 26)}
        return self._save(record, Stage.TRAINING, steps), steps

    def _save(self, record: RoundRecord, stage: Stage, steps: dict[str, Step], **more: Any) -> RoundRecord:
        deadline = math.inf if stage in (Stage.CLOSING, Stage.CLOSED, Stage.ABORTED) else self.clock.now() + 600
        state = RoundState(stage, deadline, {}, steps, reason=more.pop("reason", ""))
        return self.store.save_round(
            RoundChange(record, state, steps=steps, logged=_logged(record, stage, more.get("model")), **more)
        )

    def cosign(self, *further: NoteSigner) -> str:
        """Have the log's checkpoint cosigned by the registrar, and by others; return the registrar's name."""
        log, witness = log_signer(self.home.authority()), witness_signer(self.registrar)
        size = self.store.round_log(round_log.read_head).size
        text = Checkpoint(log.key.name, size, self.store.round_log(lambda db: round_log.root(db, size))).text
        now = int(self.clock.now())
        note = Note(text, (log.sign(text), *(each.sign(text, now) for each in (witness, *further))))
        self.store.round_log(lambda db: round_log.keep_cosigned(db, str(note), size))
        return witness.key.name

    def play(
        self, task: TaskRecord, number: int, attempt: int = 1, *, stop_at: Stage | None = None, reason: str = "",
        codes: tuple[str, ...] = (), candidate: bool = False, uploads: int = 15,
    ) -> TaskRecord:  # fmt: skip
        """Run one attempt: to its close, to an abort with `reason` in the upload, or to where it is now (`stop_at`)."""
        record, steps = self.begin_round(task, number, attempt)
        devices = sorted(steps)
        lost = dict(zip(devices, codes, strict=False))
        lasts = {Stage.TRAINING: 240.0, Stage.KEYS: 6.0, Stage.SHARES: 9.0, Stage.UPLOAD: 70.0,
                 Stage.CONSISTENCY: 5.0, Stage.UNMASK: 8.0}  # fmt: skip
        for stage, following in zip(MASKED, (*MASKED[1:], Stage.CLOSING), strict=True):
            self.clock.move(lasts[stage] * self.random.uniform(0.7, 1.4))
            late = devices[len(lost) + 20 :] if stage is Stage.TRAINING else []
            staying = [device for device in devices[:][: len(lost) + 20] if device not in lost]
            steps = {**steps, **dict.fromkeys(late, Step.LATE), **dict.fromkeys(staying, STEP_OF[stage])}
            more: dict[str, Any] = {}
            if stage is Stage.TRAINING and lost:
                steps |= dict.fromkeys(lost, Step.LEFT)
                more["error_codes"] = lost
            if stage is Stage.UPLOAD and reason:
                steps, staying = {**steps, **dict.fromkeys(staying[uploads:], Step.SHARED)}, staying[:uploads]
            if stage is Stage.UPLOAD:
                blobs = {each: BlobId(hashlib.sha256(each.encode()).hexdigest(), 66_048) for each in staying}
                self.store.announce_uploads(
                    [UploadRecord(record.id, *each, is_committed=False) for each in blobs.items()]
                )
                more["committed"] = tuple(staying)
            if stage is Stage.UPLOAD and reason:
                self._save(record, Stage.ABORTED, steps, reason=reason, **more)
                return task
            record = self._save(record, following, steps, **more)
            if following is stop_at:
                return task
        return self._close(task, record, steps, number, candidate=candidate)

    def _close(
        self, task: TaskRecord, record: RoundRecord, steps: dict[str, Step], number: int, *, candidate: bool
    ) -> TaskRecord:
        self.clock.move(4)
        made = self.model(f"{task.name}-{number}", task=task, round_=number)
        after = replace(task, rounds_closed=number, model_id=made.model_id, aborted_in_a_row=0)
        loss = 0.9 * 0.93**number
        metrics = {"loss_before": loss, "loss_after": loss * 0.86, "unmask_s": 0.41}
        offer = None
        if candidate:
            offer = CandidateRecord(made.model_id, task.task_id, number, CandidateState.WAITING, self.clock.now_ms())
        self._save(record, Stage.CLOSED, steps, task=after, model=made, metrics=metrics, candidate=offer)
        return after

    def spend(self, task: TaskRecord, rounds: int) -> None:
        """Open sums of a task under differential privacy."""
        for number in range(1, rounds + 1):
            ids = [device_id(10_000 + 20 * number + k) for k in range(20)]
            opening = Opening(task.task_id, number, 1, "c" * 64, 1.0, DP, RELEASE, num_survivors=20)
            self.store.privacy(
                lambda db, opening=opening, ids=ids: account.record_opening(db, task.population, opening, ids)
            )

    def write_crl(self, revoked: int) -> None:
        """Let the registrar's list have come a moment ago."""
        entries = [pki.Revocation(1000 + n, self.end) for n in range(revoked)]
        self.home.crl_path.write_bytes(pki.build_crl(self.registrar, entries, 41, self.end - timedelta(minutes=5)))
        at = self.end.timestamp() - 3
        os.utime(self.home.crl_path, (at, at))

    def close(self) -> None:
        """Let go of the database."""
        self.store.close()


def _logged(record: RoundRecord, stage: Stage, made: ModelRecord | None) -> tuple[LogEntry, ...]:
    """Return what an attempt enters in the log of rounds with a stage."""
    subject = raw_task_id(record.ref.task_id).hex(), record.ref.round, record.ref.attempt
    if stage is Stage.TRAINING:
        hashes = dict.fromkeys(("task_sha256", "layout_sha256", "statement_sha256"), "5" * 64)
        return (round_entry(*subject, model_sha256=record.base_model_id, **hashes),)
    if made is not None:
        return (result_entry(*subject, model_sha256=made.model_id),)
    return (roster_entry(*subject, [bytes(32)]),) if stage is Stage.SHARES else ()


def lived_in(folder: Path, *, end: datetime | None = None, **settings: Any) -> Fleet:
    """Return a coordinator with phones, models, releases, tasks in every state, and a budget that is being spent."""
    fleet = Fleet(folder, end=end, **settings)
    store, clock = fleet.store, fleet.clock
    store.log(audit.COORDINATOR, "server.start", "coordinator.example:7443", {"software": "mien-coordinator 0.1.0"})
    fleet.add_phones(412, "default")
    fleet.add_phones(38, "staff", first=500)
    fleet.add_phones(9, "beta", first=600)
    base = fleet.add_model("imported").model_id
    fleet.measure(base, gain=0.0)
    store.release(base, population=None, actor="alice")
    winter = fleet.add_task("winter", base, rounds=2)
    for number in (1, 2):
        clock.move(3600)
        winter = fleet.play(winter, number)
    store.save_task(winter.ended(TaskState.DONE, "", clock.now_ms()), actor=audit.COORDINATOR, action="task.done")
    _spring(fleet, base)
    fleet.write_crl(7)
    issued = [certificate_entry(hashlib.sha256(f"certificate {number}".encode()).hexdigest()) for number in range(3)]
    store.round_log(lambda db: round_log.append(db, clock.now_ms(), issued))
    fleet.cosign()
    return fleet


def _spring(fleet: Fleet, base: str) -> None:
    """The task that runs: candidates at rounds 4, 8 and 12, one roll-back, a round that is under way."""
    store, clock = fleet.store, fleet.clock
    spring = fleet.add_task("spring", base)
    for number in range(1, 13):
        clock.move(fleet.random.uniform(85_000, 100_000))
        codes = (("late", "non_finite", "unreachable"), (), ("low_battery",), ())[number % 4]
        if number in (3, 9):
            reason = "too few phones uploaded: 15 of at least 16"
            fleet.play(spring, number, 1, reason=reason, codes=("unreachable",) * 6)
            spring = fleet.play(spring, number, 2, codes=codes)
            continue
        spring = fleet.play(spring, number, codes=codes, candidate=number % 4 == 0)
        if number % 4 == 0:
            made = spring.model_id
            gain, dims = MEASURED[number // 4]
            passed = fleet.judge(spring, made, number, gain=gain, dims=dims)
            assert passed is (number != 8)
            if passed:
                store.release(made, population=None, share=0.1, actor=audit.COORDINATOR)
                clock.move(7200)
            if number == 4:
                store.release(made, population=None, actor="alice")
                clock.move(9000)
                store.roll_back(None, actor="bob")
                clock.move(9000)
                store.release(made, population=None, actor="alice")
    clock.at = fleet.end.timestamp() - 5 * 3600
    _others(fleet, base)
    clock.at = fleet.end.timestamp() - 420
    fleet.play(spring, 13, stop_at=Stage.UPLOAD, codes=("unreachable", "late"))


def _others(fleet: Fleet, base: str) -> None:
    """A task that paused because its phones do not come through, and one that spends a privacy budget."""
    store, clock = fleet.store, fleet.clock
    autumn = fleet.add_task("autumn", base, population="beta")
    reason = "too few phones uploaded: 3 of at least 16"
    attempts = 5  # as many as pause a task
    for attempt in range(1, attempts + 1):
        clock.move(700)
        fleet.play(autumn, 1, attempt, reason=reason, codes=("late", "unreachable"), uploads=3)
    autumn = replace(autumn, aborted_in_a_row=attempts - 1)
    paused = after_abort(autumn, reason, role=Role.TRAIN, max_aborted=attempts)
    store.save_task(paused, actor=audit.COORDINATOR, action="task.paused")
    private = fleet.add_task("private", base, population="staff", dp=DP)
    fleet.spend(private, 24)
