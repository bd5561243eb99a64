"""The coordinator's database in the words of the domain; every method is one transaction.

Calls block: `Store` runs on one thread (`coordinator.store.thread`), so that the event loop stays free and writes keep
their order.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from coordinator.store import account, audit, releases, round_log
from coordinator.store.audit import AuditLog
from coordinator.store.database import hold_commands, open_migrated
from coordinator.store.rollouts import RollOutStore, is_under_way
from coordinator.store.rows import (
    CANDIDATE_ROWS,
    DEVICE_ROWS,
    MODEL_BLOBS,
    MODEL_ROWS,
    ROUND_GOES_ON,
    ROUND_ROWS,
    STEP_ROWS,
    TASK_GOES_ON,
    TASK_ROWS,
)
from coordinator.store.tables import (
    AUDIT,
    BUNDLES,
    DEVICES,
    MODELS,
    PARTICIPANTS,
    RELEASES,
    ROUNDS,
    SETTINGS,
    STEPS,
    TASKS,
    UPLOADS,
)
from mien.errors import AlreadyExistsError, LateError, NotFoundError
from mien.format import cut
from mien.log.audit import Anchor
from mien.models.bundles import BundleFile, listed_by
from mien.protocol.ids import AttemptNumber, DeviceId, ModelId, PopulationId, RoundId, RoundNumber, TaskId
from mien.protocol.rounds import BlobId, Role, Stage
from mien.rounds.machine import COUNTED, REPORTED, Step
from mien.rounds.records import (
    DeviceCall,
    DeviceRecord,
    ModelRecord,
    RoundChange,
    RoundRecord,
    StepRecord,
    TaskRecord,
    UploadRecord,
)
from mien.rounds.verdicts import Decision, Verdict
from mien.shell.clock import Clock, to_ms

T = TypeVar("T")

MIGRATIONS: Final = Path(__file__).parents[1] / "migrations"
SCHEMA: Final = "0016"
"""Revision of the schema that this program writes."""

_IDS_AT_ONCE: Final = 500


class Store(RollOutStore):
    """Tasks, rounds, models, devices and history."""

    def __init__(self, engine: sa.Engine, clock: Clock) -> None:
        super().__init__(engine, clock)
        self._last_change: tuple[RoundChange, RoundRecord] | None = None

    @classmethod
    def open(cls, url: str, clock: Clock) -> Self:
        """Return the store at a database URL, its schema brought up to date; raises VersionError for a newer one."""
        return cls(open_migrated(url, MIGRATIONS, SCHEMA), clock)

    # Models

    def add_model(self, model: ModelRecord, *, actor: str) -> ModelRecord:
        """Keep a model; the same model again changes nothing and returns what was kept first."""
        with self._transaction() as db:
            hold_commands(db)
            if (kept := _model_of(db, model.model_id)) is not None and kept.removed_ms is None:
                return kept
            _keep_model(db, model)
            self._log(db, actor, "model.import", model.model_id, {"theta_sha256": model.theta.sha256})
            return model

    def model(self, model_id: ModelId) -> ModelRecord:
        """Return a model; raises NotFoundError."""
        return _found(self._first(MODEL_ROWS, MODELS.c.model_id == model_id), "model", model_id)

    def models(self) -> list[ModelRecord]:
        """Return all models, oldest first."""
        return self._find(MODEL_ROWS, order=(MODELS.c.created_ms, MODELS.c.model_id))

    def describe(self, model_id: ModelId, anew: Callable[[ModelRecord], bytes], *, actor: str) -> ModelRecord:
        """Return the model with the description that `anew` makes of it; nobody else changes it in between.

        What `anew` raises leaves the model as it was, and the same description is no change.
        """
        with self._transaction() as db:
            db.execute(sa.select(MODELS.c.model_id).where(MODELS.c.model_id == model_id).with_for_update())
            model = _found(_model_of(db, model_id), "model", model_id)
            spec_json = anew(model)
            if spec_json == model.spec_json:
                return model
            db.execute(sa.update(MODELS).where(MODELS.c.model_id == model_id).values(spec_json=spec_json))
            detail = {"spec_sha256": hashlib.sha256(spec_json).hexdigest()}
            self._log(db, actor, "model.describe", model_id, detail)
            return dataclasses.replace(model, spec_json=spec_json)

    def may_read_model(self, model_id: ModelId, population: PopulationId) -> bool:
        """Return whether a device of that population may fetch a model: released once, or used by its own tasks."""
        with self._transaction() as db:
            return _visible(db, population, sa.and_(MODELS.c.model_id == model_id, MODELS.c.removed_ms.is_(None)))

    def may_read_blob(self, sha256: str, population: PopulationId | None) -> BlobId | None:
        """Return a model's blob if a device of that population (None: an operator) may fetch it."""
        holds = sa.or_(*(column == sha256 for column in MODEL_BLOBS))
        holds = sa.and_(holds, MODELS.c.removed_ms.is_(None))
        with self._transaction() as db:
            model = MODEL_ROWS.first(db, holds)
            if model is None:
                return _graph(db, sha256, population)
            if population is not None and not _visible(db, population, holds):
                return None
            blobs = (model.theta, model.shard, model.changes)
            return next(blob for blob in blobs if blob is not None and blob.sha256 == sha256)

    # Tasks

    def add_task(self, task: TaskRecord) -> TaskRecord:
        """Keep a task; the same idempotency token again returns the task that the first call made.

        Raises AlreadyExistsError while another task of that name goes on: people say names, and would mean either.
        """
        with self._transaction() as db:
            hold_commands(db)
            same = TASKS.c.idempotency_token == task.idempotency_token
            if (earlier := TASK_ROWS.first(db, same)) is not None:
                return earlier
            namesake = sa.select(TASKS.c.task_id).where(TASKS.c.name == task.name, TASK_GOES_ON)
            if (other := db.execute(namesake).scalar()) is not None:
                raise AlreadyExistsError(
                    f"a task named {task.name} goes on already ({other}); choose another name, or cancel that one"
                )
            TASK_ROWS.add(db, dataclasses.replace(task, reason=cut(task.reason)))
            task_sha256 = hashlib.sha256(task.task_json).hexdigest()
            detail = {"name": task.name, "task_sha256": task_sha256, "model_id": task.model_id}
            self._log(db, task.submitted_by, "task.submit", task.task_id, detail)
            return task

    def task(self, task_id: TaskId) -> TaskRecord:
        """Return a task; raises NotFoundError."""
        return _found(self._first(TASK_ROWS, TASKS.c.task_id == task_id), "task", task_id)

    def task_of_token(self, token: str) -> TaskRecord | None:
        """Return the task that was submitted with an idempotency token; None where none was."""
        return self._first(TASK_ROWS, TASKS.c.idempotency_token == token)

    def tasks(self) -> list[TaskRecord]:
        """Return all tasks, oldest first."""
        return self._find(TASK_ROWS, order=(TASKS.c.created_ms, TASKS.c.task_id))

    def save_task(self, task: TaskRecord, *, actor: str, action: str) -> None:
        """Commit a task's new state."""
        with self._transaction(task.task_id) as db:
            _update_task(db, task)
            self._log(db, actor, action, task.task_id, {"reason": task.reason})

    def save_verdict(self, decision: Decision, verdict: Verdict) -> None:
        """Commit what the gates say of a candidate, what that makes of its task, and a release where it is due.

        A release to a share of the devices is one to all where nothing is released to the others. What an operator
        rolls out already is left to that roll-out.
        """
        task, candidate, offer = decision.task, decision.candidate, verdict.candidate
        detail: dict[str, object] = {"task": task.task_id, "round": offer.round}
        with self._transaction(task.task_id) as db:
            hold_commands(db)
            if candidate is not None:
                releases.decide(db, candidate)
                detail["reason"] = candidate.reason
            else:
                detail["reason"] = verdict.problem
            if verdict.spec_json is not None:
                described = sa.update(MODELS).where(MODELS.c.model_id == offer.model_id)
                db.execute(described.values(spec_json=verdict.spec_json))
            releases.keep_evaluations(db, verdict.evaluations)
            outcome = "unjudged" if candidate is None else candidate.state.value
            self._log(db, audit.COORDINATOR, f"gates.{outcome}", offer.model_id, detail)
            is_due = decision.release_share > 0
            if candidate is not None and is_due and not is_under_way(db, candidate.model_id):
                self._release_candidate(db, candidate, task.population, decision.release_share)
                self._end_replaced(db, audit.COORDINATOR)
                if decision.roll_out is not None:
                    self._begin(db, candidate.model_id, decision.roll_out, audit.COORDINATOR)
            _update_task(db, task)
            self._log(db, audit.COORDINATOR, f"task.{task.state}", task.task_id, {"reason": task.reason})

    def state_blobs(self) -> set[str]:
        """Return the hashes of all server state that some task still needs; one that is over needs none."""
        blobs = sa.select(TASKS.c.arrays_sha256, TASKS.c.revealed_sha256, TASKS.c.candidates_sha256)
        with self._transaction() as db:
            rows = db.execute(blobs.where(TASK_GOES_ON))
            return {sha256 for row in rows for sha256 in row if sha256} | releases.candidate_state_blobs(db)

    def model_blobs(self) -> set[str]:
        """Return the hashes of everything that some model consists of, graphs of its signed bundles included."""
        columns = sa.select(*MODEL_BLOBS).where(MODELS.c.removed_ms.is_(None))
        with self._transaction() as db:
            graphs = {file.sha256 for row in db.execute(sa.select(BUNDLES)) for file in _graphs_of(row)}
            return graphs | {sha256 for row in db.execute(columns) for sha256 in row if sha256}

    # Rounds

    def open_attempt(
        self,
        task: TaskRecord,
        *,
        round_number: RoundNumber,
        attempt: AttemptNumber,
        deadline: float,
        role: Role = Role.TRAIN,
    ) -> RoundRecord:
        """Return a new attempt of a round, in its first stage; the same call again returns what the first one made."""
        record = RoundRecord(
            id=RoundId(0),
            task_id=task.task_id,
            round=round_number,
            attempt=attempt,
            stage=Stage.SELECTING,
            deadline_ms=to_ms(deadline),
            base_model_id=task.model_id,
            started_ms=self._clock.now_ms(),
            role=role,
            base_version=task.rounds_closed,
        )
        name = (ROUNDS.c.task_id == record.task_id, ROUNDS.c.round == round_number, ROUNDS.c.attempt == attempt)
        with self._transaction(task.task_id) as db:
            if (there := ROUND_ROWS.first(db, *name)) is not None:
                return _opened_before(there, record)
            return ROUND_ROWS.add(db, record)

    def save_round(self, change: RoundChange) -> RoundRecord:
        """Commit one transition of a round as a whole, and return the round as it is afterwards.

        The very same change again returns what the first call committed. Raises LateError when somebody else has
        changed the round since it was read, BudgetExceededError when the privacy ledger does not permit the sum to be
        opened.
        """
        with self._transaction(change.record.task_id) as db:
            now_ms = self._clock.now_ms()
            if (landed := self._landed(db, change)) is not None:
                return landed
            if change.model is not None:
                _keep_model(db, change.model)
            before = change.record
            _merge_participants(db, change, now_ms)
            committed_bytes = _commit_uploads(db, before.id, change.committed, now_ms)
            after = dataclasses.replace(
                _round_after(before, change, now_ms), upload_bytes=before.upload_bytes + committed_bytes
            )
            unchanged = sa.and_(ROUNDS.c.id == before.id, ROUNDS.c.version == before.version)
            if db.execute(sa.update(ROUNDS).where(unchanged).values(**ROUND_ROWS.values(after))).rowcount != 1:
                raise LateError("another coordinator has changed this round; check in again")
            subject = f"{after.task_id}/{after.round}/{after.attempt}"
            if after.stage is not before.stage:
                self._log(db, audit.COORDINATOR, f"round.{after.stage}", subject, _round_detail(after, change))
            round_log.append(db, now_ms, round_log.of_attempt(db, change.logged))
            for device_id in sorted(change.left_out):
                detail = {"device": device_id, "round": after.round, "attempt": after.attempt}
                self._log(db, audit.COORDINATOR, audit.LEFT_OUT, after.task_id, detail)
            _keep_steps(db, before.id, change.messages)
            if (ledgered := change.sum_opening) is not None:
                event = account.record_opening(
                    db,
                    ledgered.population,
                    ledgered.opening,
                    ledgered.device_ids,
                    counts_once=ledgered.counts_once,
                )
                entered = {"population": event.population, "event": event.position, "event_sha256": event.sha256}
                self._log(db, audit.COORDINATOR, "ledger.opening", subject, entered)
            if change.next_clip is not None:
                account.keep_clip(db, after.task_id, after.round, change.next_clip)
            if after.stage.is_over:
                db.execute(sa.delete(STEPS).where(STEPS.c.round_id == before.id))
            if change.candidate is not None:
                CANDIDATE_ROWS.add(db, change.candidate)
            self._keep_measured(db, change.evaluations)
            if change.task is not None:
                if change.task.state.value != db.scalar(
                    sa.select(TASKS.c.state).where(TASKS.c.task_id == change.task.task_id)
                ):
                    detail = {"reason": change.task.reason}
                    self._log(db, audit.COORDINATOR, f"task.{change.task.state}", change.task.task_id, detail)
                _update_task(db, change.task)
            self._last_change = (change, after)
            return after

    def _landed(self, db: sa.Connection, change: RoundChange) -> RoundRecord | None:
        """Return the round if this store committed the very same change before, its answer lost on the way."""
        if self._last_change is None or self._last_change[0] is not change:
            return None
        after = self._last_change[1]
        # The lock waits for the earlier commit where that is still on its way.
        row = db.execute(sa.select(ROUNDS).where(ROUNDS.c.id == after.id).with_for_update()).first()
        return after if row is not None and ROUND_ROWS.record(row) == after else None

    def rounds(self, task_id: TaskId, *, since_id: int = 0) -> list[RoundRecord]:
        """Return all attempts of a task from one on, oldest first."""
        return self._find(ROUND_ROWS, ROUNDS.c.task_id == task_id, ROUNDS.c.id >= since_id, order=ROUNDS.c.id)

    def last_round(self, task_id: TaskId) -> RoundRecord | None:
        """Return a task's newest attempt."""
        return self._first(ROUND_ROWS, ROUNDS.c.task_id == task_id, order=ROUNDS.c.id.desc())

    def open_rounds(self, task_id: TaskId) -> list[RoundRecord]:
        """Return a task's attempts that are not over, oldest first; in asynchronous mode there may be several."""
        return self._find(ROUND_ROWS, ROUNDS.c.task_id == task_id, ROUND_GOES_ON, order=ROUNDS.c.id)

    def live_rounds(self) -> set[RoundId]:
        """Return the row ids of all attempts that go on."""
        with self._transaction() as db:
            wanted = sa.select(ROUNDS.c.id).join(TASKS).where(ROUND_GOES_ON, TASK_GOES_ON)
            return {RoundId(each) for each in db.scalars(wanted)}

    def ended_rounds(self, round_ids: Collection[RoundId]) -> set[RoundId]:
        """Return which of these attempts, by their row ids, are over."""
        found = set[RoundId]()
        with self._transaction() as db:
            for part in _parts(sorted(round_ids)):
                asked = ROUNDS.c.id.in_(part)
                found |= {RoundId(each) for each in db.scalars(sa.select(ROUNDS.c.id).where(asked, ~ROUND_GOES_ON))}
        return found

    def round(self, task_id: TaskId, round_number: RoundNumber, attempt: AttemptNumber) -> RoundRecord | None:
        """Return one attempt, None if there never was one."""
        name = (ROUNDS.c.task_id == task_id, ROUNDS.c.round == round_number, ROUNDS.c.attempt == attempt)
        return self._first(ROUND_ROWS, *name)

    def participants(self, round_id: RoundId) -> dict[DeviceId, Step]:
        """Return the steps of an attempt's participants."""
        columns = sa.select(PARTICIPANTS.c.device_id, PARTICIPANTS.c.step)
        with self._transaction() as db:
            rows = db.execute(columns.where(PARTICIPANTS.c.round_id == round_id))
            return {DeviceId(device_id): Step(step) for device_id, step in rows}

    def labelled(self, round_id: RoundId) -> frozenset[DeviceId]:
        """Return those of an attempt's participants that said they know whose faces they train on."""
        same = sa.and_(PARTICIPANTS.c.round_id == round_id, PARTICIPANTS.c.labelled)
        with self._transaction() as db:
            return frozenset(map(DeviceId, db.scalars(sa.select(PARTICIPANTS.c.device_id).where(same))))

    def participant(self, round_id: RoundId, device_id: DeviceId) -> Step | None:
        """Return the step of one participant of an attempt, None for a device that is none."""
        same = sa.and_(PARTICIPANTS.c.round_id == round_id, PARTICIPANTS.c.device_id == device_id)
        with self._transaction() as db:
            step = db.scalar(sa.select(PARTICIPANTS.c.step).where(same))
            return None if step is None else Step(step)

    # Uploads

    def announce_uploads(self, uploads: Sequence[UploadRecord]) -> list[UploadRecord]:
        """Return each of these uploads as it is kept from now on: what its device announced first, in that round."""
        wanted = {(upload.round_id, upload.device_id): upload for upload in reversed(uploads)}
        with self._transaction() as db:
            kept = {(upload.round_id, upload.device_id): upload for upload in _uploads_of(db, wanted)}
            new = [
                {
                    "round_id": upload.round_id,
                    "device_id": upload.device_id,
                    "sha256": upload.blob.sha256,
                    "size_bytes": upload.blob.size_bytes,
                    "announced_ms": self._clock.now_ms(),
                }
                for key, upload in sorted(wanted.items())
                if key not in kept
            ]
            if new:
                db.execute(_insert_missing(db, UPLOADS), new)
                if db.dialect.name == "postgresql":  # another replica may have been first
                    kept = {(upload.round_id, upload.device_id): upload for upload in _uploads_of(db, wanted)}
            return [(wanted | kept)[upload.round_id, upload.device_id] for upload in uploads]

    def upload(self, round_id: RoundId, device_id: DeviceId) -> UploadRecord | None:
        """Return a device's announcement in a round, None if there is none."""
        with self._transaction() as db:
            row = db.execute(sa.select(UPLOADS).where(_is_upload(round_id, device_id))).first()
            return None if row is None else _upload(row)

    def uploads(self, round_id: RoundId) -> dict[DeviceId, UploadRecord]:
        """Return the uploads of a round that count, by device."""
        counts = sa.and_(UPLOADS.c.round_id == round_id, UPLOADS.c.committed_ms.is_not(None))
        with self._transaction() as db:
            uploads = [_upload(row) for row in db.execute(sa.select(UPLOADS).where(counts))]
            return {upload.device_id: upload for upload in uploads}

    def forget_upload(self, round_id: RoundId, device_id: DeviceId) -> None:
        """Drop an upload that does not count, so that the device may send it from the start."""
        pending = sa.and_(_is_upload(round_id, device_id), UPLOADS.c.committed_ms.is_(None))
        with self._transaction() as db:
            db.execute(sa.delete(UPLOADS).where(pending))

    def steps(self, round_id: RoundId) -> list[StepRecord]:
        """Return devices' messages at the stages of secure aggregation, in the order in which they were accepted."""
        return self._find(STEP_ROWS, STEPS.c.round_id == round_id, order=STEPS.c.id)

    # Privacy ledger

    def privacy(self, call: Callable[[sa.Connection], T]) -> T:
        """Return the result of a function of `account` or `report`, in one transaction."""
        with self._transaction() as db:
            return call(db)

    # Devices, history, settings

    def saw_devices(self, seen: Sequence[DeviceCall | tuple[str, str, str]]) -> list[bool]:
        """Remember that devices called, and what they told, and return of each whether it asked to be left out.

        The last word of one counts.
        """
        now_ms, there = self._clock.now_ms(), dict[DeviceId, bool]()
        rows: dict[DeviceId, dict[str, object]] = {}
        for call in (DeviceCall(*each) for each in seen):
            before = rows.get(call.device_id, {})
            facts = {"population": call.population, "software": call.software[:80], "now": now_ms}
            rows[call.device_id] = {"of": call.device_id, **facts, "told": call.told_json or before.get("told")}
        with self._transaction() as db:
            for part in _parts(list(rows)):
                known_rows = sa.select(DEVICES.c.device_id, DEVICES.c.stays_out_since_ms)
                for device_id, since_ms in db.execute(known_rows.where(DEVICES.c.device_id.in_(part))):
                    there[DeviceId(device_id)] = since_ms is not None
            new = [row for of, row in sorted(rows.items()) if of not in there]
            values: dict[str, Any] = {name: sa.bindparam(name) for name in ("population", "software")}
            values["last_seen_ms"] = sa.bindparam("now")
            if new:
                first = {"device_id": sa.bindparam("of"), "first_seen_ms": sa.bindparam("now"), **values}
                first["told_json"] = sa.bindparam("told")
                db.execute(_insert_missing(db, DEVICES).values(**first), new)
            if known := [row for of, row in sorted(rows.items()) if of in there]:
                update = sa.update(DEVICES).where(DEVICES.c.device_id == sa.bindparam("of"))
                kept = sa.func.coalesce(sa.bindparam("told", type_=sa.Text), DEVICES.c.told_json)
                db.execute(update.values(**values, told_json=kept), known)
        return [there.get(DeviceId(each[0]), False) for each in seen]

    def set_participation(self, device_id: DeviceId, *, stays_out: bool) -> None:
        """Remember whether a device that has called may be chosen for rounds; said again, nothing changes."""
        with self._transaction() as db:
            since_ms = self._clock.now_ms() if stays_out else None
            was = DEVICES.c.stays_out_since_ms.is_(None) if stays_out else DEVICES.c.stays_out_since_ms.is_not(None)
            update = sa.update(DEVICES).where(DEVICES.c.device_id == device_id, was)
            if db.execute(update.values(stays_out_since_ms=since_ms)).rowcount:
                action = "device.stays_out" if stays_out else "device.takes_part"
                self._log(db, f"device:{device_id}", action, device_id)

    def devices_since(self, since_ms: int) -> dict[PopulationId, int]:
        """Return how many devices of each population have called since then."""
        count = sa.select(DEVICES.c.population, sa.func.count()).where(DEVICES.c.last_seen_ms >= since_ms)
        with self._transaction() as db:
            rows = db.execute(count.group_by(DEVICES.c.population)).all()
        return {PopulationId(population): number for population, number in rows}

    def devices(self, *, after: str = "", limit: int | None = None) -> list[DeviceRecord]:
        """Return devices that ever called, in order of their ids: those behind an id, at most so many."""
        return self._find(DEVICE_ROWS, DEVICES.c.device_id > after, order=DEVICES.c.device_id, limit=limit)

    def log(self, actor: str, action: str, subject: str, detail: Mapping[str, object] | None = None) -> Anchor:
        """Return the place of a new entry of the audit log, for a deed that has no transaction of its own."""
        with self._transaction() as db:
            self._log(db, actor, action, subject, detail)
            return AUDIT.read_head(db)

    def audit(self, call: Callable[[AuditLog, sa.Connection], T]) -> T:
        """Return the result of a call on the audit log, in one transaction."""
        with self._transaction() as db:
            return call(AUDIT, db)

    def round_log(self, call: Callable[[sa.Connection], T]) -> T:
        """Return the result of a function of `coordinator.store.round_log`, in one transaction."""
        with self._transaction() as db:
            return call(db)

    def left_out(self, task_id: TaskId) -> frozenset[DeviceId]:
        """Return the devices that were found to spoil a task's sums, as the audit log has them."""
        with self._transaction() as db:
            entries = AUDIT.read(db, subject=task_id)
        return frozenset(
            DeviceId(json.loads(entry.detail_json)["device"]) for entry in entries if entry.action == audit.LEFT_OUT
        )

    def events(self, subject: str) -> list[tuple[int, str, str]]:
        """Return (time in ms, actor, action) of what happened to one subject, in order."""
        with self._transaction() as db:
            return [(entry.at_ms, entry.actor, entry.action) for entry in AUDIT.read(db, subject=subject)]

    def setting(self, name: str) -> str | None:
        """Return a remembered value."""
        with self._transaction() as db:
            return db.scalar(sa.select(SETTINGS.c.value).where(SETTINGS.c.name == name))

    def remember(self, name: str, value: str) -> None:
        """Remember a value."""
        with self._transaction() as db:
            if db.execute(sa.update(SETTINGS).where(SETTINGS.c.name == name).values(value=value)).rowcount == 0:
                db.execute(sa.insert(SETTINGS).values(name=name, value=value))


# Rows to records and back


def _found(row: T | None, kind: str, name: str) -> T:
    if row is None:
        shown = name if len(name) <= 64 and name.isprintable() else "of that name"  # callers send names of any kind
        raise NotFoundError(f"there is no {kind} {shown}; list the {kind}s to see which there are")
    return row


def _graphs_of(row: Any) -> tuple[BundleFile, ...]:
    return listed_by(row.manifest_json).extras


def _graph(db: sa.Connection, sha256: str, population: PopulationId | None) -> BlobId | None:
    """Return a graph of a signed bundle whose model a device of that population (None: an operator) may fetch."""
    for row in db.execute(sa.select(BUNDLES).order_by(BUNDLES.c.sequence.desc())):
        found = next((file for file in _graphs_of(row) if file.sha256 == sha256), None)
        if found and (population is None or _visible(db, population, MODELS.c.model_id == row.model_id)):
            return BlobId(found.sha256, found.size_bytes)
    return None


def _visible(db: sa.Connection, population: PopulationId, condition: sa.ColumnElement[bool]) -> bool:
    """Return whether a population may see some model that meets `condition`."""
    released = sa.exists().where(
        RELEASES.c.model_id == MODELS.c.model_id,
        sa.or_(RELEASES.c.population.is_(None), RELEASES.c.population == population),
    )
    used = sa.exists().where(
        sa.or_(TASKS.c.base_model_id == MODELS.c.model_id, TASKS.c.model_id == MODELS.c.model_id),
        TASKS.c.population == population,
    )
    seen = sa.or_(released, used, MODELS.c.population == population)
    return db.execute(sa.select(MODELS.c.model_id).where(condition, seen).limit(1)).first() is not None


def _model_of(db: sa.Connection, model_id: ModelId) -> ModelRecord | None:
    return MODEL_ROWS.first(db, MODELS.c.model_id == model_id)


def _keep_model(db: sa.Connection, model: ModelRecord) -> None:
    """Keep a model; one that is there already stays as it is, unless its blobs were given up and are back now."""
    kept = _model_of(db, model.model_id)
    if kept is None:
        MODEL_ROWS.add(db, model)
    elif kept.removed_ms is not None:
        theirs = MODELS.c.model_id == model.model_id
        db.execute(sa.update(MODELS).where(theirs).values(**MODEL_ROWS.values(model)))


def _update_task(db: sa.Connection, task: TaskRecord) -> None:
    kept = dataclasses.replace(task, reason=cut(task.reason))
    update = sa.update(TASKS).where(TASKS.c.task_id == task.task_id).values(**TASK_ROWS.values(kept))
    if db.execute(update).rowcount != 1:
        raise NotFoundError(f"there is no task {task.task_id}; list the tasks to see which there are")


def _round_after(before: RoundRecord, change: RoundChange, now_ms: int) -> RoundRecord:
    state = change.state
    return dataclasses.replace(
        before,
        stage=state.stage,
        deadline_ms=to_ms(state.deadline) if math.isfinite(state.deadline) else None,
        reason=cut(state.reason),
        model_id=change.model.model_id if change.model is not None else before.model_id,
        num_selected=len(state.participants),
        num_trained=max(before.num_trained, len(state.devices(*REPORTED))),
        num_reports=len(state.devices(*COUNTED)),
        metrics=change.metrics or before.metrics,
        ended_ms=now_ms if state.stage.is_over else None,
        version=before.version + 1,
    )


def _opened_before(there: RoundRecord, wanted: RoundRecord) -> RoundRecord:
    """Return the attempt that an earlier call opened, its answer lost; raises LateError for anybody else's."""
    same = dataclasses.replace(wanted, id=there.id, deadline_ms=there.deadline_ms, started_ms=there.started_ms)
    if there != same:
        raise LateError("another coordinator has opened this attempt; check in again")
    return there


def _round_detail(after: RoundRecord, change: RoundChange) -> dict[str, object]:
    """Return what the audit log keeps of a transition: why an attempt was aborted, or what a round made of the sum."""
    detail: dict[str, object] = {"reason": after.reason} if after.reason else {}
    if change.model is not None:
        made = {"theta_sha256": change.model.theta.sha256, "model_id": change.model.model_id}
        detail |= {**made, "base_model_id": after.base_model_id, "reports": after.num_reports}
    return detail


def _is_upload(round_id: RoundId, device_id: DeviceId) -> sa.ColumnElement[bool]:
    return sa.and_(UPLOADS.c.round_id == round_id, UPLOADS.c.device_id == device_id)


def _upload(row: sa.Row[Any]) -> UploadRecord:
    return UploadRecord(row.round_id, row.device_id, BlobId(row.sha256, row.size_bytes), row.committed_ms is not None)


def _uploads_of(db: sa.Connection, keys: Collection[tuple[RoundId, DeviceId]]) -> list[UploadRecord]:
    """Return the uploads that are kept under these rounds and devices."""
    found: list[UploadRecord] = []
    for round_id in {round_id for round_id, _ in keys}:
        devices = [device_id for round_, device_id in keys if round_ == round_id]
        for part in _parts(devices):
            wanted = sa.and_(UPLOADS.c.round_id == round_id, UPLOADS.c.device_id.in_(part))
            found += [_upload(row) for row in db.execute(sa.select(UPLOADS).where(wanted))]
    return found


def _insert_missing(db: sa.Connection, table: sa.Table) -> sa.Insert:
    """Return an insert that leaves rows as they are which another replica has inserted since this one looked."""
    if db.dialect.name == "postgresql":  # the only database that replicas share
        return postgresql.insert(table).on_conflict_do_nothing()
    return sa.insert(table)


def _parts(ids: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield ids in parts that fit one statement."""
    for start in range(0, len(ids), _IDS_AT_ONCE):
        yield ids[start : start + _IDS_AT_ONCE]


def _commit_uploads(db: sa.Connection, round_id: RoundId, device_ids: Sequence[DeviceId], now_ms: int) -> int:
    """Let uploads count and return how many bytes that adds: those that counted already add none."""
    kept = {upload.device_id: upload for upload in _uploads_of(db, [(round_id, device) for device in device_ids])}
    added = 0
    for device_id in dict.fromkeys(device_ids):
        upload = _found(kept.get(device_id), "upload", device_id)
        added += 0 if upload.is_committed else upload.blob.size_bytes
    for part in _parts([device_id for device_id, upload in kept.items() if not upload.is_committed]):
        pending = sa.and_(UPLOADS.c.round_id == round_id, UPLOADS.c.device_id.in_(part))
        db.execute(sa.update(UPLOADS).where(pending).values(committed_ms=now_ms))
    return added


def _keep_steps(db: sa.Connection, round_id: RoundId, steps: Iterable[StepRecord]) -> None:
    """Keep accepted steps, in order; one that is there already is the same."""
    wanted = {(step.device_id, step.stage.value): step.message for step in reversed([*steps])}
    for part in _parts(sorted({device_id for device_id, _ in wanted})):
        same = sa.and_(STEPS.c.round_id == round_id, STEPS.c.device_id.in_(part))
        for device_id, stage in db.execute(sa.select(STEPS.c.device_id, STEPS.c.stage).where(same)):
            wanted.pop((DeviceId(device_id), stage), None)
    rows = [
        {"round_id": round_id, "device_id": device_id, "stage": stage, "message": message}
        for (device_id, stage), message in reversed(wanted.items())
    ]
    if rows:
        db.execute(sa.insert(STEPS), rows)


def _merge_participants(db: sa.Connection, change: RoundChange, now_ms: int) -> None:
    """Keep how far participants got, and why one left; a reason that is there already stays."""
    round_id, there = change.record.id, set[str]()
    for part in _parts(list(change.steps)):
        same = sa.and_(PARTICIPANTS.c.round_id == round_id, PARTICIPANTS.c.device_id.in_(part))
        there |= set(db.scalars(sa.select(PARTICIPANTS.c.device_id).where(same)))
    rows = [
        {"of": device_id, "step": step.value, "changed_ms": now_ms, "code": change.error_codes.get(device_id, "")}
        for device_id, step in change.steps.items()
    ]
    new = [{**row, "labelled": row["of"] in change.state.labelled} for row in rows if row["of"] not in there]
    known = [row for row in rows if row["of"] in there]
    if new:
        made = [{"round_id": round_id, "device_id": r.pop("of"), "error_code": r.pop("code"), **r} for r in new]
        db.execute(sa.insert(PARTICIPANTS), made)
    if known:
        code = sa.bindparam("code", type_=sa.String)
        update = sa.update(PARTICIPANTS).where(
            PARTICIPANTS.c.round_id == round_id, PARTICIPANTS.c.device_id == sa.bindparam("of")
        )
        kept = sa.case((code == "", PARTICIPANTS.c.error_code), else_=code)
        values = {"step": sa.bindparam("step"), "changed_ms": sa.bindparam("changed_ms"), "error_code": kept}
        db.execute(update.values(**values), known)
