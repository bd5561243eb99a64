"""The coordinator's tables. Times are Unix milliseconds, hashes lower-case hex; large values are blobs, by hash.

Every change of these classes comes with a migration in `coordinator/migrations/versions`; a test compares the two.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, LargeBinary, MetaData, String, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAMING: Final = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

# SQLite numbers rows only in columns of type INTEGER; everywhere else such numbers are 64 bits.
RowId = BigInteger().with_variant(Integer, "sqlite")


class Base(DeclarativeBase):
    """Root of the coordinator's tables; constraint names are fixed so that migrations can name them."""

    metadata = MetaData(naming_convention=NAMING)


class ModelRow(Base):
    """A model: its description with layout (canonical JSON), and the blobs of its parameters and public faces."""

    __tablename__ = "models"

    model_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    spec_json: Mapped[bytes] = mapped_column(LargeBinary)
    layout_sha256: Mapped[str] = mapped_column(String(64))
    theta_sha256: Mapped[str] = mapped_column(String(64), index=True)
    theta_bytes: Mapped[int] = mapped_column(BigInteger)
    shard_sha256: Mapped[str | None] = mapped_column(String(64), index=True)
    shard_bytes: Mapped[int | None] = mapped_column(BigInteger)
    parent_model_id: Mapped[str | None] = mapped_column(ForeignKey("models.model_id"))
    population: Mapped[str | None] = mapped_column(String(64), index=True)
    """The population whose devices made it; None for an imported model, which every operator may release."""
    task_id: Mapped[str | None] = mapped_column(String(32))
    round: Mapped[int | None] = mapped_column(Integer)
    created_ms: Mapped[int] = mapped_column(BigInteger)


class ReleaseRow(Base):
    """History of releases: the newest row of a population (or of all, where population is None) is in force."""

    __tablename__ = "releases"

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    model_id: Mapped[str] = mapped_column(ForeignKey("models.model_id"))
    population: Mapped[str | None] = mapped_column(String(64))
    released_ms: Mapped[int] = mapped_column(BigInteger)
    released_by: Mapped[str] = mapped_column(String(64))


class TaskRow(Base):
    """A training task: what was submitted, how far it is, and where its server state lies."""

    __tablename__ = "tasks"

    task_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(80))
    population: Mapped[str] = mapped_column(String(64), index=True)
    task_json: Mapped[bytes] = mapped_column(LargeBinary)
    idempotency_token: Mapped[str] = mapped_column(String(80), unique=True)
    state: Mapped[str] = mapped_column(String(16), index=True)
    reason: Mapped[str] = mapped_column(String(400), default="")
    base_model_id: Mapped[str] = mapped_column(ForeignKey("models.model_id"))
    model_id: Mapped[str] = mapped_column(ForeignKey("models.model_id"))
    rounds_closed: Mapped[int] = mapped_column(Integer, default=0)
    aborted_in_a_row: Mapped[int] = mapped_column(Integer, default=0)
    arrays_sha256: Mapped[str | None] = mapped_column(String(64))
    """Blob of what the server carries from round to round and anyone may see (momentum)."""
    revealed_sha256: Mapped[str | None] = mapped_column(String(64))
    """Sealed blob of what devices showed in clear; None unless the task opted in."""
    submitted_by: Mapped[str] = mapped_column(String(64))
    created_ms: Mapped[int] = mapped_column(BigInteger)
    ended_ms: Mapped[int | None] = mapped_column(BigInteger)


class RoundRow(Base):
    """One attempt of one round. `version` grows with every change, so that two writers cannot overwrite each other."""

    __tablename__ = "rounds"
    __table_args__ = (
        UniqueConstraint("task_id", "round", "attempt"),
        Index("ix_rounds_task_id_stage", "task_id", "stage"),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.task_id"))
    round: Mapped[int] = mapped_column(Integer)
    attempt: Mapped[int] = mapped_column(Integer)
    stage: Mapped[str] = mapped_column(String(16))
    deadline_ms: Mapped[int | None] = mapped_column(BigInteger)
    reason: Mapped[str] = mapped_column(String(400), default="")
    base_model_id: Mapped[str] = mapped_column(ForeignKey("models.model_id"))
    model_id: Mapped[str | None] = mapped_column(ForeignKey("models.model_id"))
    num_selected: Mapped[int] = mapped_column(Integer, default=0)
    num_trained: Mapped[int] = mapped_column(Integer, default=0)
    num_reports: Mapped[int] = mapped_column(Integer, default=0)
    upload_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    metrics_json: Mapped[str] = mapped_column(String, default="{}")
    started_ms: Mapped[int] = mapped_column(BigInteger)
    ended_ms: Mapped[int | None] = mapped_column(BigInteger)
    version: Mapped[int] = mapped_column(Integer, default=1)

    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012  (SQLAlchemy's own way to declare it)


class ParticipantRow(Base):
    """How far one selected device got in one attempt."""

    __tablename__ = "participants"

    round_id: Mapped[int] = mapped_column(RowId, ForeignKey("rounds.id"), primary_key=True)
    device_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    step: Mapped[str] = mapped_column(String(16))
    error_code: Mapped[str] = mapped_column(String(40), default="")
    changed_ms: Mapped[int] = mapped_column(BigInteger)


class UploadRow(Base):
    """A contribution that a device has announced; `committed_ms` is set once every byte was checked and is durable."""

    __tablename__ = "uploads"

    round_id: Mapped[int] = mapped_column(RowId, ForeignKey("rounds.id"), primary_key=True)
    device_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64))
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    announced_ms: Mapped[int] = mapped_column(BigInteger)
    committed_ms: Mapped[int | None] = mapped_column(BigInteger)


class DeviceRow(Base):
    """A device that has called: the coordinator knows no more of it than its certificate says."""

    __tablename__ = "devices"

    device_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    population: Mapped[str] = mapped_column(String(64), index=True)
    software: Mapped[str] = mapped_column(String(80), default="")
    first_seen_ms: Mapped[int] = mapped_column(BigInteger)
    last_seen_ms: Mapped[int] = mapped_column(BigInteger)


class EventRow(Base):
    """Who did what when, in order: the material of the audit log. Never holds secrets or biometric data."""

    __tablename__ = "events"

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    at_ms: Mapped[int] = mapped_column(BigInteger)
    actor: Mapped[str] = mapped_column(String(80))
    action: Mapped[str] = mapped_column(String(40))
    subject: Mapped[str] = mapped_column(String(120), index=True)
    detail_json: Mapped[str] = mapped_column(String, default="{}")


class SettingRow(Base):
    """A value that the program itself remembers, e.g. which key sealed its data."""

    __tablename__ = "settings"

    name: Mapped[str] = mapped_column(String(80), primary_key=True)
    value: Mapped[str] = mapped_column(String)
