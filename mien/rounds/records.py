"""Records that the store hands out and takes in: frozen, one per row, in the words of the domain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from mien.dp.ledger import Opening
from mien.errors import ReplayError
from mien.log.entries import LogEntry
from mien.protocol.ids import AttemptNumber, DeviceId, ModelId, PopulationId, RoundId, RoundNumber, TaskId
from mien.protocol.rounds import BlobId, Role, RoundRef, Stage
from mien.rounds.machine import RoundState, Step


class TaskState(StrEnum):
    """State of a task; `CHECKING`: once the gates have judged its newest candidate."""

    RUNNING = "running"
    CHECKING = "checking"
    PAUSED = "paused"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        """True if the task can never run again."""
        return self in (TaskState.DONE, TaskState.CANCELLED, TaskState.FAILED)


@dataclass(frozen=True)
class ModelRecord:
    """A model and where its parts lie; `changes` are the tensors that training changed.

    `population` and `changes` are None for an imported model. Once `removed_ms` is set its blobs are gone.
    """

    model_id: ModelId
    spec_json: bytes = field(repr=False)
    layout_sha256: str
    theta: BlobId
    created_ms: int
    shard: BlobId | None = None
    changes: BlobId | None = None
    parent_model_id: ModelId | None = None
    population: PopulationId | None = None
    task_id: TaskId | None = None
    round: RoundNumber | None = None
    removed_ms: int | None = None


@dataclass(frozen=True)
class TaskRecord:
    """A task: what was submitted and how far it is.

    `candidates_sha256` is set between the two stages of a round with validators: what its trainers made is summed, and
    the candidates in it are yet to be judged.
    """

    task_id: TaskId
    name: str
    population: PopulationId
    task_json: bytes = field(repr=False)
    idempotency_token: str = field(repr=False)
    state: TaskState
    base_model_id: ModelId
    model_id: ModelId
    submitted_by: str
    created_ms: int
    reason: str = ""
    rounds_closed: int = 0
    aborted_in_a_row: int = 0
    arrays_sha256: str | None = None
    revealed_sha256: str | None = None
    ended_ms: int | None = None
    candidates_sha256: str | None = None

    @property
    def state_blobs(self) -> set[str]:
        """The hashes of the server state that the task goes on from."""
        return {sha256 for sha256 in (self.arrays_sha256, self.revealed_sha256, self.candidates_sha256) if sha256}

    def ended(self, state: TaskState, reason: str, now_ms: int) -> TaskRecord:
        """Return the task when it is over: it goes on from nothing, so its server state may be forgotten."""
        return replace(
            self,
            state=state,
            reason=reason,
            ended_ms=now_ms,
            arrays_sha256=None,
            revealed_sha256=None,
            candidates_sha256=None,
        )


@dataclass(frozen=True)
class RoundRecord:
    """One attempt of one round, as it stood when it was last committed.

    `base_version` is how many rounds of the task had closed when its devices were chosen. In asynchronous mode `round`
    numbers cohorts in the order in which they were opened.
    """

    id: RoundId
    task_id: TaskId
    round: RoundNumber
    attempt: AttemptNumber
    stage: Stage
    deadline_ms: int | None
    base_model_id: ModelId
    started_ms: int
    reason: str = ""
    model_id: ModelId | None = None
    num_selected: int = 0
    num_trained: int = 0
    num_reports: int = 0
    upload_bytes: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    ended_ms: int | None = None
    version: int = 1
    role: Role = Role.TRAIN
    base_version: int = 0

    @property
    def ref(self) -> RoundRef:
        """The attempt's name."""
        return RoundRef(self.task_id, self.round, self.attempt)


@dataclass(frozen=True)
class UploadRecord:
    """A contribution that a device announced, and whether it counts."""

    round_id: RoundId
    device_id: DeviceId
    blob: BlobId
    is_committed: bool

    def agreeing(self, blob: BlobId) -> UploadRecord:
        """Return the upload; raises ReplayError unless it is of these bytes."""
        if self.blob != blob:
            raise ReplayError(
                "this device already began to send another contribution for this round; "
                "abandon the round and check in again"
            )
        return self


@dataclass(frozen=True)
class StepRecord:
    """A device's message of one stage of secure aggregation, as it was accepted; its vector lies in the spool."""

    device_id: DeviceId
    stage: Stage
    message: bytes = field(repr=False)


@dataclass(frozen=True)
class ReleaseRecord:
    """A model put in force, for one population or (None) for all, and for that share of its devices."""

    model_id: ModelId
    population: PopulationId | None
    released_ms: int
    released_by: str
    share: float = 1.0
    is_rollback: bool = False


class CandidateState(StrEnum):
    """State of a candidate at the gates; `UNCHECKED`: there were none."""

    UNCHECKED = "unchecked"
    WAITING = "waiting"
    PASSED = "passed"
    FAILED = "failed"


@dataclass(frozen=True)
class CandidateRecord:
    """Candidate: a task's model that is offered for release, its state, and the server state to go back to with it."""

    model_id: ModelId
    task_id: TaskId
    round: RoundNumber
    state: CandidateState
    offered_ms: int
    arrays_sha256: str | None = None
    revealed_sha256: str | None = None
    reason: str = ""
    decided_ms: int | None = None


@dataclass(frozen=True)
class BundleRecord:
    """A release as the operator's release key signed it; `spec_json` is the description that the signature covers."""

    sequence: int
    model_id: ModelId
    manifest_json: bytes = field(repr=False)
    signature: bytes = field(repr=False)
    spec_json: bytes = field(repr=False)
    added_ms: int = 0
    added_by: str = ""


@dataclass(frozen=True)
class EvaluationRecord:
    """A measurement of a model with its provenance, as canonical JSON."""

    model_id: ModelId
    record_json: bytes = field(repr=False)
    made_ms: int
    made_by: str


@dataclass(frozen=True)
class DeviceRecord:
    """A device that has called."""

    device_id: DeviceId
    population: PopulationId
    software: str
    first_seen_ms: int
    last_seen_ms: int
    stays_out_since_ms: int | None = None
    told_json: str | None = None


class DeviceCall(NamedTuple):
    """A call of a device: `told_json` holds its capabilities as canonical JSON, empty where it sent none."""

    device_id: DeviceId
    population: PopulationId
    software: str
    told_json: str = ""


@dataclass(frozen=True)
class SumOpening:
    """A sum that can be opened from now on, for the privacy ledger of a population; `device_ids` are in it.

    With `counts_once` none of them may be in another sum of the task.
    """

    population: PopulationId
    opening: Opening
    device_ids: tuple[DeviceId, ...]
    counts_once: bool = False


@dataclass(frozen=True)
class RoundChange:
    """One transition of a round, committed as a whole or not at all.

    `record` is the round as it was read; `steps` are the participants that changed; `committed` those whose uploads
    count from now on, `messages` what devices said at a stage of secure aggregation. `sum_opening` goes into the
    privacy ledger before anybody can open the sum; `next_clip` is what an adaptive clip becomes. `task` is the task as
    it is afterwards, `model` what the round made: both only where the transition changes them. `candidate` is the model
    as the gates see it, where it is due to be one. `evaluations` are what the round measured of models, `logged` what
    the public log is to hold of the round. `left_out` are devices that were found to spoil sums and are not asked any
    more.
    """

    record: RoundRecord
    state: RoundState
    steps: Mapping[DeviceId, Step] = field(default_factory=dict)
    error_codes: Mapping[DeviceId, str] = field(default_factory=dict)
    committed: tuple[DeviceId, ...] = ()
    messages: tuple[StepRecord, ...] = ()
    sum_opening: SumOpening | None = None
    next_clip: float | None = None
    task: TaskRecord | None = None
    model: ModelRecord | None = None
    candidate: CandidateRecord | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    evaluations: tuple[EvaluationRecord, ...] = field(default=(), repr=False)
    logged: tuple[LogEntry, ...] = ()
    left_out: frozenset[DeviceId] = frozenset()
