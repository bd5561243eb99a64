"""The coordinator's database in the words of the domain; every method is one transaction.

Calls block: `Store` runs on the one thread of `StoreThread`, so that the event loop stays free and writes keep their
order.
"""

from __future__ import annotations

import asyncio
import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session, sessionmaker

from coordinator.clock import Clock, to_ms
from coordinator.rounds.machine import Stage, Step
from coordinator.store.database import database_errors, migrate, open_engine
from coordinator.store.records import (
    BlobId,
    DeviceRecord,
    ModelRecord,
    ReleaseRecord,
    RoundChange,
    RoundRecord,
    TaskRecord,
    TaskState,
    UploadRecord,
)
from coordinator.store.tables import (
    DeviceRow,
    EventRow,
    ModelRow,
    ParticipantRow,
    ReleaseRow,
    RoundRow,
    SettingRow,
    TaskRow,
    UploadRow,
)
from mien.errors import NotFoundError, ReplayError

P = ParamSpec("P")
T = TypeVar("T")

MIGRATIONS: Final = Path(__file__).parents[1] / "migrations"
SCHEMA: Final = "0001"
"""Revision of the schema that this program writes."""

_MAX_REASON: Final = 400
_REPORTED: Final = (Step.TRAINED, Step.UPLOADED)


class Store:
    """Tasks, rounds, models, devices and history."""

    def __init__(self, engine: sa.Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._session: sessionmaker[Session] = sessionmaker(engine)

    @classmethod
    def open(cls, url: str, clock: Clock) -> Store:
        """Return the store at a database URL, its schema brought up to date; raises VersionError for a newer one."""
        engine = open_engine(url)
        migrate(engine, MIGRATIONS, SCHEMA)
        return cls(engine, clock)

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()

    @contextmanager
    def _transaction(self) -> Iterator[Session]:
        with database_errors(), self._session.begin() as session:
            yield session

    # Models

    def add_model(self, model: ModelRecord, *, actor: str) -> ModelRecord:
        """Keep a model; the same model again changes nothing and returns what was kept first."""
        with self._transaction() as session:
            if (row := session.get(ModelRow, model.model_id)) is not None:
                return _model(row)
            session.add(_model_row(model))
            self._log(session, actor, "model.import", model.model_id)
            return model

    def model(self, model_id: str) -> ModelRecord:
        """Return a model; raises NotFoundError."""
        with self._transaction() as session:
            return _model(_found(session.get(ModelRow, model_id), "model", model_id))

    def models(self) -> list[ModelRecord]:
        """Return all models, oldest first."""
        with self._transaction() as session:
            order = sa.select(ModelRow).order_by(ModelRow.created_ms, ModelRow.model_id)
            return [_model(row) for row in session.scalars(order)]

    def replace_spec(self, model_id: str, spec_json: bytes, *, actor: str) -> ModelRecord:
        """Return the model with another description (a threshold was added)."""
        with self._transaction() as session:
            row = _found(session.get(ModelRow, model_id), "model", model_id)
            row.spec_json = spec_json
            self._log(session, actor, "model.describe", model_id)
            return _model(row)

    def release(self, model_id: str, *, population: str | None, actor: str) -> None:
        """Put a model in force; releasing the one in force again changes nothing."""
        with self._transaction() as session:
            _found(session.get(ModelRow, model_id), "model", model_id)
            latest = _latest_release(session, population)
            if latest is not None and (latest.model_id, latest.population) == (model_id, population):
                return
            now_ms = self._clock.now_ms()
            session.add(ReleaseRow(model_id=model_id, population=population, released_ms=now_ms, released_by=actor))
            self._log(session, actor, "model.release", model_id, {"population": population})

    def released(self, population: str | None) -> ReleaseRecord | None:
        """Return the release in force for a population: its own or one for all, whichever is newer."""
        with self._transaction() as session:
            row = _latest_release(session, population)
            return None if row is None else _release(row)

    def released_ids(self) -> set[str]:
        """Return the ids of the models that are in force for any population."""
        with self._transaction() as session:
            populations = session.scalars(sa.select(ReleaseRow.population).distinct())
            rows = [_latest_release(session, population) for population in list(populations)]
            return {row.model_id for row in rows if row is not None}

    def may_read_model(self, model_id: str, population: str) -> bool:
        """Return whether a device of that population may fetch a model: released once, or used by its own tasks."""
        with self._transaction() as session:
            return _visible(session, population, ModelRow.model_id == model_id)

    def may_read_blob(self, sha256: str, population: str | None) -> BlobId | None:
        """Return a model's blob if a device of that population (None: an operator) may fetch it."""
        holds = sa.or_(ModelRow.theta_sha256 == sha256, ModelRow.shard_sha256 == sha256)
        with self._transaction() as session:
            row = session.scalars(sa.select(ModelRow).where(holds).limit(1)).first()
            if row is None or (population is not None and not _visible(session, population, holds)):
                return None
            size = row.theta_bytes if row.theta_sha256 == sha256 else row.shard_bytes
            return BlobId(sha256, size or 0)

    # Tasks

    def add_task(self, task: TaskRecord) -> TaskRecord:
        """Keep a task; the same idempotency token again returns the task that the first call made."""
        with self._transaction() as session:
            earlier = session.scalars(
                sa.select(TaskRow).where(TaskRow.idempotency_token == task.idempotency_token)
            ).first()
            if earlier is not None:
                return _task(earlier)
            row = TaskRow(task_id=task.task_id)
            _fill_task(row, task)
            session.add(row)
            self._log(session, task.submitted_by, "task.submit", task.task_id, {"name": task.name})
            return task

    def task(self, task_id: str) -> TaskRecord:
        """Return a task; raises NotFoundError."""
        with self._transaction() as session:
            return _task(_found(session.get(TaskRow, task_id), "task", task_id))

    def tasks(self) -> list[TaskRecord]:
        """Return all tasks, oldest first."""
        with self._transaction() as session:
            return [
                _task(row) for row in session.scalars(sa.select(TaskRow).order_by(TaskRow.created_ms, TaskRow.task_id))
            ]

    def save_task(self, task: TaskRecord, *, actor: str, action: str) -> None:
        """Commit a task's new state."""
        with self._transaction() as session:
            _fill_task(_found(session.get(TaskRow, task.task_id), "task", task.task_id), task)
            self._log(session, actor, action, task.task_id, {"reason": task.reason})

    def state_blobs(self) -> set[str]:
        """Return the hashes of all server state that some task still needs."""
        with self._transaction() as session:
            rows = session.execute(sa.select(TaskRow.arrays_sha256, TaskRow.revealed_sha256))
            return {sha256 for row in rows for sha256 in row if sha256}

    # Rounds

    def open_attempt(self, task: TaskRecord, *, round_number: int, attempt: int, deadline: float) -> RoundRecord:
        """Return a new attempt of a round, in its first stage."""
        with self._transaction() as session:
            row = RoundRow(
                task_id=task.task_id,
                round=round_number,
                attempt=attempt,
                stage=Stage.SELECTING.value,
                deadline_ms=to_ms(deadline),
                base_model_id=task.model_id,
                started_ms=self._clock.now_ms(),
            )
            session.add(row)
            session.flush()
            return _round(row)

    def save_round(self, change: RoundChange) -> RoundRecord:
        """Commit one transition of a round as a whole, and return the round as it is afterwards."""
        with self._transaction() as session:
            now_ms = self._clock.now_ms()
            if change.model is not None and session.get(ModelRow, change.model.model_id) is None:
                session.add(_model_row(change.model))
                session.flush()
            row = _found(session.get(RoundRow, change.round_id), "round", str(change.round_id))
            for device_id, step in change.steps.items():
                error_code = change.error_codes.get(device_id, "")
                _merge_participant(session, row.id, device_id, step, error_code, now_ms)
            for device_id in change.committed:
                upload = _found(session.get(UploadRow, (row.id, device_id)), "upload", device_id)
                if upload.committed_ms is None:
                    upload.committed_ms = now_ms
                    row.upload_bytes += upload.size_bytes
            self._fill_round(session, row, change, now_ms)
            if change.task is not None:
                _fill_task(_found(session.get(TaskRow, change.task.task_id), "task", change.task.task_id), change.task)
            session.flush()
            return _round(row)

    def _fill_round(self, session: Session, row: RoundRow, change: RoundChange, now_ms: int) -> None:
        state = change.state
        if row.stage != state.stage.value:
            self._log(
                session,
                "coordinator",
                f"round.{state.stage.value}",
                f"{row.task_id}/{row.round}/{row.attempt}",
                {"reason": state.reason} if state.reason else {},
            )
        row.stage = state.stage.value
        row.deadline_ms = to_ms(state.deadline) if math.isfinite(state.deadline) else None
        row.reason = state.reason[:_MAX_REASON]
        row.num_selected = len(state.participants)
        row.num_trained = max(row.num_trained, len(state.devices(*_REPORTED)))
        row.num_reports = len(state.devices(Step.UPLOADED))
        if state.stage.is_over:
            row.ended_ms = now_ms
        if change.model is not None:
            row.model_id = change.model.model_id
            row.metrics_json = json.dumps(dict(change.metrics), allow_nan=False)

    def rounds(self, task_id: str, *, since_id: int = 0) -> list[RoundRecord]:
        """Return all attempts of a task from one on, oldest first."""
        wanted = sa.and_(RoundRow.task_id == task_id, RoundRow.id >= since_id)
        with self._transaction() as session:
            return [_round(row) for row in session.scalars(sa.select(RoundRow).where(wanted).order_by(RoundRow.id))]

    def last_round(self, task_id: str) -> RoundRecord | None:
        """Return a task's newest attempt."""
        with self._transaction() as session:
            newest = sa.select(RoundRow).where(RoundRow.task_id == task_id).order_by(RoundRow.id.desc()).limit(1)
            row = session.scalars(newest).first()
            return None if row is None else _round(row)

    def round(self, task_id: str, round_number: int, attempt: int) -> RoundRecord | None:
        """Return one attempt, None if there never was one."""
        wanted = sa.and_(RoundRow.task_id == task_id, RoundRow.round == round_number, RoundRow.attempt == attempt)
        with self._transaction() as session:
            row = session.scalars(sa.select(RoundRow).where(wanted)).first()
            return None if row is None else _round(row)

    def participants(self, round_id: int) -> dict[str, Step]:
        """Return the steps of an attempt's participants."""
        with self._transaction() as session:
            rows = session.scalars(sa.select(ParticipantRow).where(ParticipantRow.round_id == round_id))
            return {row.device_id: Step(row.step) for row in rows}

    def error_codes(self, round_id: int) -> dict[str, str]:
        """Return why participants left an attempt, where they or the server said so."""
        with self._transaction() as session:
            rows = session.scalars(sa.select(ParticipantRow).where(ParticipantRow.round_id == round_id))
            return {row.device_id: row.error_code for row in rows if row.error_code}

    # Uploads

    def announce_upload(self, round_id: int, device_id: str, blob: BlobId) -> UploadRecord:
        """Return the upload of a device in a round, kept from now on.

        Raises ReplayError when the device announced other bytes before.
        """
        with self._transaction() as session:
            row = session.get(UploadRow, (round_id, device_id))
            if row is None:
                row = UploadRow(
                    round_id=round_id,
                    device_id=device_id,
                    sha256=blob.sha256,
                    size_bytes=blob.size_bytes,
                    announced_ms=self._clock.now_ms(),
                )
                session.add(row)
            elif (row.sha256, row.size_bytes) != (blob.sha256, blob.size_bytes):
                raise ReplayError(
                    "this device already began to send another contribution for this round; "
                    "abandon the round and check in again"
                )
            return _upload(row)

    def upload(self, round_id: int, device_id: str) -> UploadRecord | None:
        """Return what a device announced in a round, None if nothing."""
        with self._transaction() as session:
            row = session.get(UploadRow, (round_id, device_id))
            return None if row is None else _upload(row)

    def uploads(self, round_id: int) -> dict[str, UploadRecord]:
        """Return the uploads of a round that count, by device."""
        counts = sa.and_(UploadRow.round_id == round_id, UploadRow.committed_ms.is_not(None))
        with self._transaction() as session:
            return {row.device_id: _upload(row) for row in session.scalars(sa.select(UploadRow).where(counts))}

    def forget_upload(self, round_id: int, device_id: str) -> None:
        """Drop an upload that does not count, so that the device may send it from the start."""
        with self._transaction() as session:
            row = session.get(UploadRow, (round_id, device_id))
            if row is not None and row.committed_ms is None:
                session.delete(row)

    # Devices, history, settings

    def saw_device(self, device_id: str, population: str, software: str) -> None:
        """Remember that a device called."""
        with self._transaction() as session:
            now_ms = self._clock.now_ms()
            row = session.get(DeviceRow, device_id)
            if row is None:
                row = DeviceRow(device_id=device_id, first_seen_ms=now_ms)
                session.add(row)
            row.population, row.software, row.last_seen_ms = population, software[:80], now_ms

    def devices(self) -> list[DeviceRecord]:
        """Return all devices that ever called, in order of their ids."""
        with self._transaction() as session:
            return [
                DeviceRecord(row.device_id, row.population, row.software, row.first_seen_ms, row.last_seen_ms)
                for row in session.scalars(sa.select(DeviceRow).order_by(DeviceRow.device_id))
            ]

    def _log(
        self, session: Session, actor: str, action: str, subject: str, detail: Mapping[str, object] | None = None
    ) -> None:
        session.add(
            EventRow(
                at_ms=self._clock.now_ms(),
                actor=actor,
                action=action,
                subject=subject,
                detail_json=json.dumps(dict(detail or {}), sort_keys=True),
            )
        )

    def events(self, subject: str) -> list[tuple[int, str, str]]:
        """Return (time in ms, actor, action) of what happened to one subject, in order."""
        with self._transaction() as session:
            rows = session.scalars(sa.select(EventRow).where(EventRow.subject == subject).order_by(EventRow.id))
            return [(row.at_ms, row.actor, row.action) for row in rows]

    def setting(self, name: str) -> str | None:
        """Return a remembered value."""
        with self._transaction() as session:
            row = session.get(SettingRow, name)
            return None if row is None else row.value

    def remember(self, name: str, value: str) -> None:
        """Remember a value."""
        with self._transaction() as session:
            session.merge(SettingRow(name=name, value=value))


class StoreThread:
    """Runs a store's methods one after another on a thread of its own."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="store")

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `call` returns, without blocking the event loop. What has begun is finished even when the
        caller goes away.
        """
        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(self._pool, functools.partial(call, *args, **kwargs)))

    def close(self) -> None:
        """Wait for what has begun."""
        self._pool.shutdown(wait=True)


# Rows to records and back


def _found(row: T | None, kind: str, name: str) -> T:
    if row is None:
        raise NotFoundError(f"there is no {kind} {name}; list the {kind}s to see which there are")
    return row


def _latest_release(session: Session, population: str | None) -> ReleaseRow | None:
    mine: sa.ColumnElement[bool] = ReleaseRow.population.is_(None)
    if population is not None:
        mine = sa.or_(mine, ReleaseRow.population == population)
    return session.scalars(sa.select(ReleaseRow).where(mine).order_by(ReleaseRow.id.desc()).limit(1)).first()


def _visible(session: Session, population: str, condition: sa.ColumnElement[bool]) -> bool:
    """Return whether a population may see some model that meets `condition`."""
    released = sa.exists().where(
        ReleaseRow.model_id == ModelRow.model_id,
        sa.or_(ReleaseRow.population.is_(None), ReleaseRow.population == population),
    )
    used = sa.exists().where(
        sa.or_(TaskRow.base_model_id == ModelRow.model_id, TaskRow.model_id == ModelRow.model_id),
        TaskRow.population == population,
    )
    seen = sa.or_(released, used, ModelRow.population == population)
    return session.scalars(sa.select(ModelRow.model_id).where(condition, seen).limit(1)).first() is not None


def _model_row(model: ModelRecord) -> ModelRow:
    return ModelRow(
        model_id=model.model_id,
        spec_json=model.spec_json,
        layout_sha256=model.layout_sha256,
        theta_sha256=model.theta.sha256,
        theta_bytes=model.theta.size_bytes,
        shard_sha256=model.shard.sha256 if model.shard else None,
        shard_bytes=model.shard.size_bytes if model.shard else None,
        parent_model_id=model.parent_model_id,
        population=model.population,
        task_id=model.task_id,
        round=model.round,
        created_ms=model.created_ms,
    )


def _model(row: ModelRow) -> ModelRecord:
    return ModelRecord(
        model_id=row.model_id,
        spec_json=row.spec_json,
        layout_sha256=row.layout_sha256,
        theta=BlobId(row.theta_sha256, row.theta_bytes),
        created_ms=row.created_ms,
        shard=BlobId(row.shard_sha256, row.shard_bytes or 0) if row.shard_sha256 else None,
        parent_model_id=row.parent_model_id,
        population=row.population,
        task_id=row.task_id,
        round=row.round,
    )


def _release(row: ReleaseRow) -> ReleaseRecord:
    return ReleaseRecord(row.model_id, row.population, row.released_ms, row.released_by)


def _fill_task(row: TaskRow, task: TaskRecord) -> None:
    row.name, row.population, row.task_json = task.name, task.population, task.task_json
    row.idempotency_token = task.idempotency_token
    row.state, row.reason = task.state.value, task.reason[:_MAX_REASON]
    row.base_model_id, row.model_id = task.base_model_id, task.model_id
    row.rounds_closed, row.aborted_in_a_row = task.rounds_closed, task.aborted_in_a_row
    row.arrays_sha256, row.revealed_sha256 = task.arrays_sha256, task.revealed_sha256
    row.submitted_by, row.created_ms, row.ended_ms = task.submitted_by, task.created_ms, task.ended_ms


def _task(row: TaskRow) -> TaskRecord:
    return TaskRecord(
        task_id=row.task_id,
        name=row.name,
        population=row.population,
        task_json=row.task_json,
        idempotency_token=row.idempotency_token,
        state=TaskState(row.state),
        base_model_id=row.base_model_id,
        model_id=row.model_id,
        submitted_by=row.submitted_by,
        created_ms=row.created_ms,
        reason=row.reason,
        rounds_closed=row.rounds_closed,
        aborted_in_a_row=row.aborted_in_a_row,
        arrays_sha256=row.arrays_sha256,
        revealed_sha256=row.revealed_sha256,
        ended_ms=row.ended_ms,
    )


def _round(row: RoundRow) -> RoundRecord:
    return RoundRecord(
        id=row.id,
        task_id=row.task_id,
        round=row.round,
        attempt=row.attempt,
        stage=Stage(row.stage),
        deadline_ms=row.deadline_ms,
        base_model_id=row.base_model_id,
        started_ms=row.started_ms,
        reason=row.reason,
        model_id=row.model_id,
        num_selected=row.num_selected,
        num_trained=row.num_trained,
        num_reports=row.num_reports,
        upload_bytes=row.upload_bytes,
        metrics=json.loads(row.metrics_json),
        ended_ms=row.ended_ms,
    )


def _upload(row: UploadRow) -> UploadRecord:
    return UploadRecord(row.round_id, row.device_id, BlobId(row.sha256, row.size_bytes), row.committed_ms is not None)


def _merge_participant(
    session: Session, round_id: int, device_id: str, step: Step, error_code: str, now_ms: int
) -> None:
    row = session.get(ParticipantRow, (round_id, device_id))
    if row is None:
        row = ParticipantRow(round_id=round_id, device_id=device_id)
        session.add(row)
    row.step, row.changed_ms = step.value, now_ms
    row.error_code = error_code or row.error_code or ""
