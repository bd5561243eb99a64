"""A coordinator that lies to all phones but one, as MIEN_LIE says: `python -m tests.attacks.lying_coordinator`.

MIEN_LIE is a JSON file with the id of the `victim`, which is told the truth, and what the others are told; while it is
absent, the coordinator is honest. Nothing but what is told differs: tasks, parameters and certificates are real.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Connection

from coordinator.commands import cli
from coordinator.keys.pki import Role as Peer
from coordinator.rounds.attempt import Attempt
from coordinator.rounds.task import Side
from coordinator.service.access import caller
from coordinator.service.log_keeper import EntryProof, LogKeeper
from coordinator.service.models import ModelsService
from coordinator.service.revocations import Revocations
from coordinator.service.rounds import RoundsService
from coordinator.store import round_log
from coordinator.store.releases import ReleaseStore
from coordinator.store.store import Store
from mien.contribution import Arrays
from mien.log.checkpoints import Checkpoint, Note
from mien.log.entries import LogEntry
from mien.log.merkle import leaf_hash, node_hash
from mien.protocol.canonical import to_canonical_json
from mien.protocol.ids import ModelId, PopulationId
from mien.protocol.rounds import BlobId
from mien.protocol.v1 import models_pb2, rounds_pb2
from mien.rounds.cohort_rules import CohortRules
from mien.rounds.records import ReleaseRecord, RoundChange, RoundRecord

LIE = Path(os.environ["MIEN_LIE"])
NOTHING = {"mean": 1e12, "scale": 1e12}
"""A face input in which every picture is -1 everywhere: what is trained on it is nothing."""

tell_manifest, tell_reply, tell_check_in = ModelsService.GetManifest, Side.reply_to, RoundsService.CheckIn
tell_proof, tell_entries, check_revoked = LogKeeper._prove, Attempt.entries, Revocations.check
may_read_model, may_read_blob = Store.may_read_model, Store.may_read_blob
log_release, based_on_newest = ReleaseStore._log_release, CohortRules.based_on_newest


def told_now() -> dict[str, Any]:
    """Return the lie as it is now; empty while the coordinator is honest."""
    told: dict[str, Any] = json.loads(LIE.read_text()) if LIE.exists() else {}
    return told


def lie_to(device_id: str) -> dict[str, Any]:
    """Return the lie that a device is told; empty for the truth."""
    lie = told_now()
    return {} if not lie or device_id == lie["victim"] else lie


async def lying_manifest(self: ModelsService, request: Any, context: Any) -> models_pb2.ModelManifest:
    """Return a manifest with another description of the same parameters, or other public faces."""
    reply, peer = await tell_manifest(self, request, context), caller()
    lie = lie_to(peer.id) if peer.role is Peer.DEVICE else {}
    if lie and reply.model_id == lie["model_id"]:
        told = json.loads(reply.spec_json)
        told["spec"]["input"].update(lie.get("input", {}))
        told["spec"].update(lie.get("spec", {}))
        reply.spec_json = to_canonical_json(told)
        if "shard" in lie:
            reply.public_shard.sha256, reply.public_shard.size_bytes = lie["shard"]
    return reply


async def lying_check_in(self: RoundsService, request: Any, context: Any) -> rounds_pb2.CheckInReply:
    """Send phones to another address."""
    reply = await tell_check_in(self, request, context)
    reply.owner_address = lie_to(caller().id).get("owner_address", reply.owner_address)
    return reply


async def lying_reply(self: Side, device_id: str) -> Arrays:
    """Return a reply with an array that its task's method tells nobody."""
    reply = await tell_reply(self, device_id)
    return {**reply, "class_embedding": np.ones(128, np.float32)} if lie_to(device_id).get("reply") else reply


async def lying_proof(self: LogKeeper, *asked: Any) -> EntryProof:
    """Return a proof under another history of the log, signed by the log's own key."""
    proof = await tell_proof(self, *asked)
    if not lie_to(caller().id).get("fork"):
        return proof
    (logged,) = await self._log(round_log.read, proof.position, 1)
    leaves = [leaf_hash(b"another past"), leaf_hash(logged.entry.data)]
    text = Checkpoint(self._signer.key.name, 2, node_hash(*leaves)).text
    return EntryProof(str(Note(text, (self._signer.sign(text),))), 1, [leaves[0]], [], proof.entry)


async def lying_entries(self: Attempt, change: RoundChange) -> tuple[LogEntry, ...]:
    """Return nothing for the log to hold."""
    return () if told_now().get("unlogged") else await tell_entries(self, change)


def lying_base(self: CohortRules, record: RoundRecord) -> RoundRecord:
    """Give all devices of a later round another model than the round before made."""
    told, honest = told_now(), based_on_newest(self, record)
    return replace(honest, base_model_id=told["swap"]) if "swap" in told and record.round > 1 else honest


def lying_model(self: Store, model_id: ModelId, population: PopulationId) -> bool:
    """Let phones read the other model, too."""
    return model_id == told_now().get("swap") or may_read_model(self, model_id, population)


def lying_blob(self: Store, sha256: str, population: PopulationId | None) -> BlobId | None:
    """Let phones read its parameters, too, as an operator may."""
    return may_read_blob(self, sha256, None if "swap" in told_now() else population)


def lying_release(self: ReleaseStore, db: Connection, release: ReleaseRecord) -> None:
    """Put a model in force, and nothing into the log."""
    if not told_now().get("unlogged_release"):
        log_release(self, db, release)


def lying_check(self: Revocations, serial: int) -> None:
    """Let revoked phones in."""
    if not told_now().get("admits_revoked"):
        check_revoked(self, serial)


if __name__ == "__main__":
    Revocations.check = lying_check  # type: ignore[method-assign]
    LogKeeper._prove = lying_proof  # type: ignore[method-assign]
    ReleaseStore._log_release = lying_release  # type: ignore[method-assign]
    Attempt.entries = lying_entries  # type: ignore[method-assign]
    CohortRules.based_on_newest = lying_base  # type: ignore[method-assign]
    Store.may_read_model = lying_model  # type: ignore[method-assign]
    Store.may_read_blob = lying_blob  # type: ignore[method-assign]
    RoundsService.CheckIn = lying_check_in  # type: ignore[method-assign]
    ModelsService.GetManifest = lying_manifest  # type: ignore[method-assign]
    Side.reply_to = lying_reply  # type: ignore[method-assign]
    cli.main()
