"""Parts shared by the services: checked fields, and records as messages."""

from __future__ import annotations

import re
from typing import Final

from mien.errors import CorruptDataError, NotFoundError
from mien.protocol.canonical import parse_json, to_canonical_json
from mien.protocol.ids import AttemptNumber, RoundNumber, TaskId
from mien.protocol.messages import STAGES, blob_message
from mien.protocol.rounds import RoundRef
from mien.protocol.v1 import models_pb2, operator_pb2, rounds_pb2
from mien.rounds import machine
from mien.rounds.records import BundleRecord, DeviceRecord, ModelRecord
from mien.rounds.rollouts import RollOutRecord

STEP_STAGES: Final = {STAGES[stage]: stage for stage in machine.STEP_STAGES}
"""Stages of secure aggregation at which a device sends a message, by their value on the wire."""

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_MAX_TEXT: Final = 80
_MAX_TOLD: Final = 64


def check_hash(text: str) -> str:
    """Return a SHA-256 in lower-case hex; raises CorruptDataError for anything else."""
    if not _SHA256.fullmatch(text):
        raise CorruptDataError("a hash in the message is not 64 lower-case hex digits; send it again")
    return text


def check_id(text: str) -> str:
    """Return an id that a caller names; raises NotFoundError for what none can be, and no database has to see."""
    if len(text) > _MAX_TEXT or not text.isprintable():
        raise NotFoundError("an id in the message is not one: it is too long or unprintable; check in again")
    return text


def round_ref(message: rounds_pb2.RoundRef) -> RoundRef:
    """Return the attempt that a caller names; raises NotFoundError as `check_id` does."""
    return RoundRef(TaskId(check_id(message.task_id)), RoundNumber(message.round), AttemptNumber(message.attempt))


def printable(text: str) -> str:
    """Return what a caller says of itself, cut off and without what no log or database should have to take."""
    return "".join(character for character in text[:_MAX_TEXT] if character.isprintable())


def told_json(request: rounds_pb2.CheckInRequest) -> str:
    """Return the capabilities of a device as JSON, as they are stored; empty where it names none."""
    objectives = {name for part in request.parts for name in part.objectives}
    told = {"engines": request.engines, "backbones": request.backbones, "objectives": sorted(objectives)}
    clean: dict[str, object] = {what: [printable(name) for name in names][:_MAX_TOLD] for what, names in told.items()}
    if request.labelled:
        clean["labelled"] = True
    return to_canonical_json(clean).decode() if any(clean.values()) else ""


def seen_device(device: DeviceRecord) -> operator_pb2.SeenDevice:
    """Return a device that has called as a message."""
    told = {} if device.told_json is None else parse_json(device.told_json.encode(), what="what a device told")
    return operator_pb2.SeenDevice(
        device_id=device.device_id,
        population=device.population,
        software=device.software,
        first_seen_unix_ms=device.first_seen_ms,
        last_seen_unix_ms=device.last_seen_ms,
        stays_out_since_unix_ms=device.stays_out_since_ms or 0,
        **told,
    )


def manifest(
    model: ModelRecord, *, is_released: bool, bundle: BundleRecord | None = None, as_signed: bool = True
) -> models_pb2.ModelManifest:
    """Return a model as a message, with what the release key signed of it.

    Devices get the description `as_signed`, operators the one that thresholds were added to since.
    """
    return models_pb2.ModelManifest(
        model_id=model.model_id,
        spec_json=bundle.spec_json if bundle is not None and as_signed else model.spec_json,
        theta=blob_message(model.theta),
        public_shard=blob_message(model.shard),
        changes=blob_message(model.changes),
        parent_model_id=model.parent_model_id or "",
        created_unix_s=model.created_ms // 1000,
        released=is_released,
        bundle_manifest=b"" if bundle is None else bundle.manifest_json,
        bundle_signature=b"" if bundle is None else bundle.signature,
    )


def roll_out_status(roll_out: RollOutRecord) -> operator_pb2.RollOutStatus:
    """Return a roll-out as a message."""
    return operator_pb2.RollOutStatus(
        id=roll_out.id,
        model_id=roll_out.model_id,
        reference_model_id=roll_out.reference_model_id,
        population=roll_out.population,
        state=roll_out.state.value,
        reason=roll_out.reason,
        share=roll_out.share,
        stage=roll_out.stage,
        stages=roll_out.spec.stages,
        task_id=roll_out.task_id or "",
        figures=roll_out.figures,
        started_unix_ms=roll_out.started_ms,
        started_by=roll_out.started_by,
        changed_unix_ms=roll_out.changed_ms,
        roll_out_json=roll_out.spec_json,
    )
