"""Records as rows of the coordinator's tables."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from enum import EnumType
from typing import Any, Final, Generic, TypeVar, get_args, get_origin, get_type_hints

import sqlalchemy as sa

from coordinator.store.audit import AuditedDatabase
from coordinator.store.tables import (
    AUDIT,
    BUNDLES,
    CANDIDATES,
    DEVICES,
    EVALUATIONS,
    MODELS,
    RELEASES,
    ROLL_OUTS,
    ROUNDS,
    STEPS,
    TASKS,
)
from mien.protocol.rounds import BlobId, Stage
from mien.rounds.records import (
    BundleRecord,
    CandidateRecord,
    DeviceRecord,
    EvaluationRecord,
    ModelRecord,
    ReleaseRecord,
    RoundRecord,
    StepRecord,
    TaskRecord,
    TaskState,
)
from mien.rounds.rollouts import RollOutRecord

R = TypeVar("R")


class RecordTable(Generic[R]):
    """One table's rows as records; methods take the connection of the caller's transaction.

    A field lies in the column of its name, an enumeration as its value; `columns` are those of another name. A blob
    takes two columns (`_sha256`, `_bytes`), numbers by name are JSON in one (`_json`).
    """

    def __init__(self, table: sa.Table, record: type[R], **columns: str) -> None:
        self._table, self._record, self._columns = table, record, columns
        kinds = get_type_hints(record)
        self._fields = tuple(kinds)
        self._enums = {name: kind for name, kind in kinds.items() if isinstance(kind, EnumType)}
        self._blobs = [name for name, kind in kinds.items() if BlobId in (kind, *get_args(kind))]
        self._numbers = [name for name, kind in kinds.items() if get_origin(kind) is Mapping]

    def values(self, record: R) -> dict[str, Any]:
        """Return a record's column values."""
        values: dict[str, Any] = {name: getattr(record, name) for name in self._fields}
        for name in self._blobs:
            blob = values.pop(name)
            values |= {f"{name}_sha256": blob and blob.sha256, f"{name}_bytes": blob and blob.size_bytes}
        for name in self._numbers:
            values[f"{name}_json"] = json.dumps(dict(values.pop(name)), allow_nan=False)
        for name in self._enums:
            values[name] = values[name].value
        return {self._columns.get(name, name): value for name, value in values.items()}

    def record(self, row: sa.Row[Any]) -> R:
        """Return a row as a record, without what the table alone knows."""
        values = dict(row._mapping)
        for name in self._blobs:
            sha256, size_bytes = values.pop(f"{name}_sha256"), values.pop(f"{name}_bytes")
            values[name] = BlobId(sha256, size_bytes) if sha256 else None
        for name in self._numbers:
            values[name] = json.loads(values.pop(f"{name}_json"))
        for name, column in self._columns.items():
            values[name] = values.pop(column)
        for name, enum in self._enums.items():
            values[name] = enum(values[name])
        return self._record(**{name: values[name] for name in self._fields})

    def find(
        self, db: sa.Connection, *where: sa.ColumnElement[bool], order: Any = (), limit: int | None = None
    ) -> list[R]:
        """Return the records that meet all conditions, in the order of a column or of several."""
        columns = order if isinstance(order, tuple) else (order,)
        wanted = sa.select(self._table).where(*where).order_by(*columns).limit(limit)
        return [self.record(row) for row in db.execute(wanted)]

    def first(self, db: sa.Connection, *where: sa.ColumnElement[bool], order: Any = ()) -> R | None:
        """Return the first such record, None where there is none."""
        return next(iter(self.find(db, *where, order=order, limit=1)), None)

    def add(self, db: sa.Connection, record: R) -> R:
        """Return a record once it is a row, with the number that the database gave it where it has one."""
        values = self.values(record)
        is_numbered = values.pop("id", None) is not None
        made = db.execute(sa.insert(self._table).values(**values)).inserted_primary_key
        assert made is not None
        return dataclasses.replace(record, id=made[0]) if is_numbered else record  # type: ignore[type-var]


MODEL_ROWS: Final = RecordTable(MODELS, ModelRecord)
RELEASE_ROWS: Final = RecordTable(RELEASES, ReleaseRecord)
CANDIDATE_ROWS: Final = RecordTable(CANDIDATES, CandidateRecord)
EVALUATION_ROWS: Final = RecordTable(EVALUATIONS, EvaluationRecord)
BUNDLE_ROWS: Final = RecordTable(BUNDLES, BundleRecord)
ROLL_OUT_ROWS: Final = RecordTable(ROLL_OUTS, RollOutRecord)
TASK_ROWS: Final = RecordTable(TASKS, TaskRecord)
ROUND_ROWS: Final = RecordTable(ROUNDS, RoundRecord, role="duty")
STEP_ROWS: Final = RecordTable(STEPS, StepRecord)
DEVICE_ROWS: Final = RecordTable(DEVICES, DeviceRecord)

MODEL_BLOBS: Final = (MODELS.c.theta_sha256, MODELS.c.shard_sha256, MODELS.c.changes_sha256)
TASK_GOES_ON: Final = TASKS.c.state.not_in([state.value for state in TaskState if state.is_over])
ROUND_GOES_ON: Final = ROUNDS.c.stage.not_in([stage.value for stage in Stage if stage.is_over])


class RecordStore(AuditedDatabase):
    """The coordinator's database of records."""

    _audit_log = AUDIT

    def _find(
        self, rows: RecordTable[R], *where: sa.ColumnElement[bool], order: Any = (), limit: int | None = None
    ) -> list[R]:
        with self._transaction() as db:
            return rows.find(db, *where, order=order, limit=limit)

    def _first(self, rows: RecordTable[R], *where: sa.ColumnElement[bool], order: Any = ()) -> R | None:
        with self._transaction() as db:
            return rows.first(db, *where, order=order)
