"""A coordinator that lies to all phones but one, as MIEN_LIE says: `python -m tests.attacks.lying_coordinator`.

MIEN_LIE is a JSON file with the id of the `victim`, which is told the truth, and what the others are told; while it is
absent, the coordinator is honest. Nothing but what is told differs: tasks, parameters and certificates are real.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.commands import cli
from coordinator.keys.pki import Role as Peer
from coordinator.rounds.task import Side
from coordinator.service.access import caller
from coordinator.service.models import ModelsService
from mien.contribution import Arrays
from mien.protocol.canonical import to_canonical_json
from mien.protocol.v1 import models_pb2

LIE = Path(os.environ["MIEN_LIE"])
NOTHING = {"mean": 1e12, "scale": 1e12}
"""A face input in which every picture is -1 everywhere: what is trained on it is nothing."""

tell_manifest, tell_reply = ModelsService.GetManifest, Side.reply_to


def lie_to(device_id: str) -> dict[str, Any]:
    """Return the lie that a device is told; empty for the truth."""
    lie: dict[str, Any] = json.loads(LIE.read_text()) if LIE.exists() else {}
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


async def lying_reply(self: Side, device_id: str) -> Arrays:
    """Return a reply with an array that its task's method tells nobody."""
    reply = await tell_reply(self, device_id)
    return {**reply, "class_embedding": np.ones(128, np.float32)} if lie_to(device_id).get("reply") else reply


if __name__ == "__main__":
    ModelsService.GetManifest = lying_manifest  # type: ignore[method-assign]
    Side.reply_to = lying_reply  # type: ignore[method-assign]
    cli.main()
