"""The coordinator's tables. Times are Unix milliseconds, hashes lower-case hex; large values are blobs, by hash.

Every change here comes with a migration in `coordinator/migrations/versions`; a test compares the two. SQLAlchemy's
object mapper is left out: it would be a quarter of the time that the program takes to start.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Named,
    String,
    Table,
    Text,
    TypedColumns,
    UniqueConstraint,
)

from coordinator.store.audit import AuditLog

_NAMING: Final = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
METADATA: Final = MetaData(naming_convention=_NAMING)
"""All tables; constraint names are fixed so that migrations can name them."""

# SQLite numbers rows only in columns of type INTEGER; everywhere else such numbers are 64 bits.
_ROW_ID: Final = BigInteger().with_variant(Integer, "sqlite")
_HASH: Final = String(64)


class _ModelColumns(TypedColumns):
    model_id: Named[str] = Column(_HASH, primary_key=True)
    spec_json: Named[bytes]
    layout_sha256: Named[str] = Column(_HASH)
    theta_sha256: Named[str] = Column(_HASH, index=True)
    theta_bytes: Named[int] = Column(BigInteger)
    shard_sha256: Named[str | None] = Column(_HASH, index=True)
    shard_bytes: Named[int | None] = Column(BigInteger)
    changes_sha256: Named[str | None] = Column(_HASH, index=True)
    changes_bytes: Named[int | None] = Column(BigInteger)
    parent_model_id: Named[str | None] = Column(ForeignKey("models.model_id"), type_=_HASH)
    population: Named[str | None] = Column(String(64), index=True)
    task_id: Named[str | None] = Column(String(32))
    round: Named[int | None]
    created_ms: Named[int] = Column(BigInteger)
    removed_ms: Named[int | None] = Column(BigInteger)


MODELS: Final = Table("models", METADATA, _ModelColumns)
"""Models: description with layout (canonical JSON), and the blobs of parameters, public faces and changed tensors.

`population` is that of the devices that made it; null for an imported model. Once `removed_ms` is set, its
blobs are gone.
"""


class _ReleaseColumns(TypedColumns):
    id: Named[int] = Column(_ROW_ID, primary_key=True, autoincrement=True)
    model_id: Named[str] = Column(ForeignKey("models.model_id"), type_=_HASH)
    population: Named[str | None] = Column(String(64))
    released_ms: Named[int] = Column(BigInteger)
    released_by: Named[str] = Column(String(64))
    share: Named[float] = Column(Double)
    is_rollback: Named[bool] = Column(Boolean)


RELEASES: Final = Table("releases", METADATA, _ReleaseColumns)
"""History of releases: the newest row of a population (or of all, where population is null) is in force.

One with a share below 1 is for that share of the devices; the others have the newest row with share 1.
"""


class _CandidateColumns(TypedColumns):
    task_id: Named[str] = Column(ForeignKey("tasks.task_id"), type_=String(32), primary_key=True)
    round: Named[int] = Column(primary_key=True, autoincrement=False)
    model_id: Named[str] = Column(ForeignKey("models.model_id"), type_=_HASH, index=True)
    state: Named[str] = Column(String(16))
    reason: Named[str] = Column(String(400))
    arrays_sha256: Named[str | None] = Column(_HASH)
    revealed_sha256: Named[str | None] = Column(_HASH)
    offered_ms: Named[int] = Column(BigInteger)
    decided_ms: Named[int | None] = Column(BigInteger)


CANDIDATES: Final = Table("candidates", METADATA, _CandidateColumns)
"""Tasks' models that are offered for release, what the gates say of them, and the server state to go back to."""


class _EvaluationColumns(TypedColumns):
    id: Named[int] = Column(_ROW_ID, primary_key=True, autoincrement=True)
    model_id: Named[str] = Column(ForeignKey("models.model_id"), type_=_HASH, index=True)
    record_json: Named[bytes]
    made_ms: Named[int] = Column(BigInteger)
    made_by: Named[str] = Column(String(64))


EVALUATIONS: Final = Table("evaluations", METADATA, _EvaluationColumns)
"""Measurements of models, each a canonical JSON record with its provenance; only ever added to."""


class _BundleColumns(TypedColumns):
    sequence: Named[int] = Column(BigInteger, primary_key=True, autoincrement=False)
    model_id: Named[str] = Column(ForeignKey("models.model_id"), type_=_HASH, index=True)
    manifest_json: Named[bytes]
    signature: Named[bytes]
    spec_json: Named[bytes]
    added_ms: Named[int] = Column(BigInteger)
    added_by: Named[str] = Column(String(64))


BUNDLES: Final = Table("bundles", METADATA, _BundleColumns)
"""Signed bundles of releases, by the sequence numbers that the operator's release key gave them; only ever added to."""


class _RollOutColumns(TypedColumns):
    id: Named[int] = Column(_ROW_ID, primary_key=True, autoincrement=True)
    model_id: Named[str] = Column(ForeignKey("models.model_id"), type_=_HASH)
    reference_model_id: Named[str] = Column(ForeignKey("models.model_id"), type_=_HASH)
    population: Named[str] = Column(String(64), index=True)
    spec_json: Named[bytes]
    state: Named[str] = Column(String(16), index=True)
    stage: Named[int]
    attempt: Named[int]
    task_id: Named[str | None] = Column(ForeignKey("tasks.task_id"), type_=String(32))
    reason: Named[str] = Column(String(400))
    figures_json: Named[str]
    started_ms: Named[int] = Column(BigInteger)
    started_by: Named[str] = Column(String(64))
    changed_ms: Named[int] = Column(BigInteger)
    version: Named[int]


ROLL_OUTS: Final = Table("roll_outs", METADATA, _RollOutColumns)
"""Staged roll-outs: the operator's words (canonical JSON), how far each is, and what phones said last, in short.

The whole of what they said is in `evaluations`, under the model. `version` grows with every change.
"""


class _TaskColumns(TypedColumns):
    task_id: Named[str] = Column(String(32), primary_key=True)
    name: Named[str] = Column(String(80))
    population: Named[str] = Column(String(64), index=True)
    task_json: Named[bytes]
    idempotency_token: Named[str] = Column(String(80), unique=True)
    state: Named[str] = Column(String(16), index=True)
    reason: Named[str] = Column(String(400))
    base_model_id: Named[str] = Column(ForeignKey("models.model_id"), type_=_HASH)
    model_id: Named[str] = Column(ForeignKey("models.model_id"), type_=_HASH)
    rounds_closed: Named[int]
    aborted_in_a_row: Named[int]
    arrays_sha256: Named[str | None] = Column(_HASH)
    revealed_sha256: Named[str | None] = Column(_HASH)
    submitted_by: Named[str] = Column(String(64))
    created_ms: Named[int] = Column(BigInteger)
    ended_ms: Named[int | None] = Column(BigInteger)
    candidates_sha256: Named[str | None] = Column(_HASH)


TASKS: Final = Table("tasks", METADATA, _TaskColumns)
"""Training tasks: what was submitted, how far it is, and where its server state lies.

`arrays_sha256` is the blob of what anyone may see (momentum), `revealed_sha256` the sealed one of what devices showed,
`candidates_sha256` the sealed one of a trainers' total whose candidates validators have yet to judge.
"""


class _RoundColumns(TypedColumns):
    id: Named[int] = Column(_ROW_ID, primary_key=True, autoincrement=True)
    task_id: Named[str] = Column(ForeignKey("tasks.task_id"), type_=String(32))
    round: Named[int]
    attempt: Named[int]
    stage: Named[str] = Column(String(16))
    deadline_ms: Named[int | None] = Column(BigInteger)
    reason: Named[str] = Column(String(400))
    base_model_id: Named[str] = Column(ForeignKey("models.model_id"), type_=_HASH)
    model_id: Named[str | None] = Column(ForeignKey("models.model_id"), type_=_HASH)
    num_selected: Named[int]
    num_trained: Named[int]
    num_reports: Named[int]
    upload_bytes: Named[int] = Column(BigInteger)
    metrics_json: Named[str]
    started_ms: Named[int] = Column(BigInteger)
    ended_ms: Named[int | None] = Column(BigInteger)
    version: Named[int]
    duty: Named[str] = Column(String(16))
    base_version: Named[int]


ROUNDS: Final = Table(
    "rounds",
    METADATA,
    _RoundColumns,
    UniqueConstraint("task_id", "round", "attempt"),
    Index("ix_rounds_task_id_stage", "task_id", "stage"),
)
"""Attempts of rounds. `version` grows with every change, so that two writers cannot overwrite each other.

A round with validators has attempts of two roles (`duty`): once one of "train" has closed, those of "validate" follow.
`base_version` is how many rounds of the task had closed when the attempt's devices were chosen.
"""


class _ParticipantColumns(TypedColumns):
    round_id: Named[int] = Column(ForeignKey("rounds.id"), type_=_ROW_ID, primary_key=True)
    device_id: Named[str] = Column(String(32), primary_key=True)
    step: Named[str] = Column(String(16))
    error_code: Named[str] = Column(String(40))
    changed_ms: Named[int] = Column(BigInteger)
    labelled: Named[bool] = Column(Boolean)


PARTICIPANTS: Final = Table("participants", METADATA, _ParticipantColumns)
"""Progress of each selected device in an attempt; `labelled` is what it said of itself when it was chosen."""


class _UploadColumns(TypedColumns):
    round_id: Named[int] = Column(ForeignKey("rounds.id"), type_=_ROW_ID, primary_key=True)
    device_id: Named[str] = Column(String(32), primary_key=True)
    sha256: Named[str] = Column(_HASH)
    size_bytes: Named[int] = Column(BigInteger)
    announced_ms: Named[int] = Column(BigInteger)
    committed_ms: Named[int | None] = Column(BigInteger)
    held_by: Named[str | None] = Column(String(32))


UPLOADS: Final = Table("uploads", METADATA, _UploadColumns)
"""Contributions that were announced; `committed_ms` is set once every byte was checked and is durable.

`held_by` is the replica that took a contribution in and can add it up; any other finds it in the bucket.
"""


class _StepColumns(TypedColumns):
    id: Named[int] = Column(_ROW_ID, primary_key=True, autoincrement=True)
    round_id: Named[int] = Column(ForeignKey("rounds.id"), type_=_ROW_ID)
    device_id: Named[str] = Column(String(32))
    stage: Named[str] = Column(String(16))
    message: Named[bytes]


STEPS: Final = Table("steps", METADATA, _StepColumns, UniqueConstraint("round_id", "stage", "device_id"))
"""Devices' messages at the stages of secure aggregation, in the order of acceptance, while a round lasts.

Public keys, sealed shares, signatures, and at the end the shares that open the sum; no vector.
"""


class _DeviceColumns(TypedColumns):
    device_id: Named[str] = Column(String(32), primary_key=True)
    population: Named[str] = Column(String(64), index=True)
    software: Named[str] = Column(String(80))
    first_seen_ms: Named[int] = Column(BigInteger)
    last_seen_ms: Named[int] = Column(BigInteger)
    stays_out_since_ms: Named[int | None] = Column(BigInteger)
    told_json: Named[str | None] = Column(Text)


DEVICES: Final = Table("devices", METADATA, _DeviceColumns)
"""Devices that have called: their certificates' contents, and their newest capabilities (`told_json`)."""


AUDIT: Final = AuditLog.of(METADATA)
"""Log of actions, actors and times, a hash chain (`mien.log.audit`); append-only, no secrets or biometric data."""


class _LogEntryColumns(TypedColumns):
    position: Named[int] = Column(BigInteger, primary_key=True, autoincrement=False)
    at_ms: Named[int] = Column(BigInteger)
    kind: Named[str] = Column(String(20))
    subject: Named[str] = Column(String(120), index=True)
    entry: Named[bytes]


LOG_ENTRIES: Final = Table("log_entries", METADATA, _LogEntryColumns)
"""Entries of the public log of rounds (`mien.log.entries`), by position from 0; only ever added to."""


class _LogNodeColumns(TypedColumns):
    level: Named[int] = Column(primary_key=True, autoincrement=False)
    position: Named[int] = Column(BigInteger, primary_key=True, autoincrement=False)
    hash: Named[bytes]


LOG_NODES: Final = Table("log_nodes", METADATA, _LogNodeColumns)
"""Hashes of the complete subtrees over these entries (`mien.log.merkle`); only ever added to."""


class _LogHeadColumns(TypedColumns):
    id: Named[int] = Column(primary_key=True, autoincrement=False)
    size: Named[int] = Column(BigInteger)
    cosigned: Named[str] = Column(Text)
    cosigned_size: Named[int] = Column(BigInteger)
    certificates_after: Named[int] = Column(BigInteger)


LOG_HEAD: Final = Table("log_head", METADATA, _LogHeadColumns)
"""One row: the log's size, its newest cosigned checkpoint, and how far the registrar's certificates are in it."""


class _SettingColumns(TypedColumns):
    name: Named[str] = Column(String(80), primary_key=True)
    value: Named[str]


SETTINGS: Final = Table("settings", METADATA, _SettingColumns)
"""Values that the program itself remembers, e.g. which key sealed its data."""


class _PrivacyEventColumns(TypedColumns):
    id: Named[int] = Column(_ROW_ID, primary_key=True, autoincrement=True)
    population: Named[str] = Column(String(64))
    position: Named[int]
    task_id: Named[str] = Column(ForeignKey("tasks.task_id"), type_=String(32))
    round: Named[int]
    attempt: Named[int]
    event_json: Named[bytes]
    sha256: Named[str] = Column(_HASH)


PRIVACY_EVENTS: Final = Table(
    "privacy_events",
    METADATA,
    _PrivacyEventColumns,
    UniqueConstraint("population", "position"),
    UniqueConstraint("task_id", "round", "attempt"),
)
"""Every sum that was opened, a hash chain for each population (`mien.dp.ledger`); only ever added to."""


class _PrivacyParticipationColumns(TypedColumns):
    task_id: Named[str] = Column(ForeignKey("tasks.task_id"), type_=String(32), primary_key=True)
    device_id: Named[str] = Column(String(32), primary_key=True)
    round: Named[int] = Column(primary_key=True, autoincrement=False)
    attempt: Named[int] = Column(primary_key=True, autoincrement=False)


PRIVACY_PARTICIPATIONS: Final = Table("privacy_participations", METADATA, _PrivacyParticipationColumns)
"""Devices in each opened sum, of tasks with differential privacy and of those in which a device counts once."""


class _PrivacyClipColumns(TypedColumns):
    task_id: Named[str] = Column(ForeignKey("tasks.task_id"), type_=String(32), primary_key=True)
    round: Named[int] = Column(primary_key=True, autoincrement=False)
    l2_clip: Named[float] = Column(Double)


PRIVACY_CLIPS: Final = Table("privacy_clips", METADATA, _PrivacyClipColumns)
"""The L2 clip that a closed round leaves to the next one, where the clip is adaptive."""


class _ReplicaColumns(TypedColumns):
    replica_id: Named[str] = Column(String(32), primary_key=True)
    name: Named[str] = Column(String(80))
    address: Named[str] = Column(String(255))
    software: Named[str] = Column(String(80))
    started_ms: Named[int] = Column(BigInteger)
    seen_ms: Named[int] = Column(BigInteger)


REPLICAS: Final = Table("replicas", METADATA, _ReplicaColumns)
"""Processes that share this database, by an id of each start; `address` is for the others. Times are the database's."""


class _LeaseColumns(TypedColumns):
    population: Named[str] = Column(String(64), primary_key=True)
    replica_id: Named[str] = Column(String(32))
    epoch: Named[int] = Column(BigInteger)
    until_ms: Named[int] = Column(BigInteger)


LEASES: Final = Table("leases", METADATA, _LeaseColumns)
"""Leases of populations' tasks: owner, end by the database's clock; `epoch` grows with every new owner."""
