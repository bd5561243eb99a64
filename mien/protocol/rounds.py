"""The words of a round, as the coordinator, phones and the simulator share them; `messages` puts them on the wire."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from mien.protocol.ids import AttemptNumber, RoundNumber, TaskId


class Stage(enum.StrEnum):
    """Stage of a round."""

    SELECTING = "selecting"
    TRAINING = "training"
    KEYS = "keys"
    SHARES = "shares"
    UPLOAD = "upload"
    CONSISTENCY = "consistency"
    UNMASK = "unmask"
    CLOSING = "closing"
    CLOSED = "closed"
    ABORTED = "aborted"

    @property
    def is_over(self) -> bool:
        """True if nothing can happen any more."""
        return self in (Stage.CLOSED, Stage.ABORTED)


class Role(enum.StrEnum):
    """Role of a round's devices, and of a device that checks in: to train, or to judge what trainers made."""

    TRAIN = "train"
    VALIDATE = "validate"


@dataclass(frozen=True)
class RoundRef:
    """Reference to one attempt of one round of a task."""

    task_id: TaskId
    round: RoundNumber
    attempt: AttemptNumber

    def __str__(self) -> str:
        again = f", attempt {self.attempt}" if self.attempt > 1 else ""
        return f"round {self.round}{again}"


@dataclass(frozen=True)
class BlobId:
    """A blob's content address, its SHA-256 in lower-case hex, and its length."""

    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class Wait:
    """The device is not wanted now and is to come back after a pause; `cannot_train` says that a task is not for it."""

    retry_after_s: float
    reason: str
    cannot_train: bool = False
