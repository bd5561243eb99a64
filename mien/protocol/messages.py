"""The words of a round as messages, and back: the same on both ends of the wire."""

from __future__ import annotations

from typing import Final

from mien.protocol.rounds import BlobId, Role, RoundRef, Stage
from mien.protocol.v1 import common_pb2, rounds_pb2

STAGES: Final = {
    Stage.SELECTING: rounds_pb2.SELECTING,
    Stage.TRAINING: rounds_pb2.TRAINING,
    Stage.KEYS: rounds_pb2.KEYS,
    Stage.SHARES: rounds_pb2.SHARES,
    Stage.UPLOAD: rounds_pb2.UPLOAD,
    Stage.CONSISTENCY: rounds_pb2.CONSISTENCY,
    Stage.UNMASK: rounds_pb2.UNMASK,
    Stage.CLOSING: rounds_pb2.UPLOAD,
    Stage.CLOSED: rounds_pb2.CLOSED,
    Stage.ABORTED: rounds_pb2.ABORTED,
}
"""Stages in messages to devices; CLOSING is the coordinator's own affair: devices have nothing to do."""

REPORTED_STAGES: Final = {**STAGES, Stage.CLOSING: rounds_pb2.CLOSING}
"""Stages in messages to operators."""

TOLD_STAGES: Final = {number: stage for stage, number in STAGES.items() if stage is not Stage.CLOSING}
"""Stages that a device knows by their number; it does without those that a newer server has."""

ROLES: Final = {Role.TRAIN: rounds_pb2.TRAIN, Role.VALIDATE: rounds_pb2.VALIDATE}
"""Protocol values of a round's roles."""


def round_message(ref: RoundRef) -> rounds_pb2.RoundRef:
    """Return an attempt's name for the wire."""
    return rounds_pb2.RoundRef(task_id=ref.task_id, round=ref.round, attempt=ref.attempt)


def blob_message(blob: BlobId | None) -> common_pb2.BlobRef | None:
    """Return a blob's address for the wire, None where there is none."""
    return None if blob is None else common_pb2.BlobRef(sha256=blob.sha256, size_bytes=blob.size_bytes)
