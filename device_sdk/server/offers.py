"""A model as the coordinator offers it. Nothing here talks to a server: who looks at stored models loads no gRPC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mien.protocol.ids import ModelId
from mien.protocol.rounds import BlobId

Progress = Callable[[int, int], None]
"""Callback on (bytes done, bytes in all) as a transfer goes on."""


@dataclass(frozen=True)
class Manifest:
    """A model as the coordinator offers it; `unverified_spec_json` is checked by whoever uses it.

    `unverified_bundle_json` is what the release key signed with `bundle_signature`; `device_sdk.models.releases` checks
    it.
    """

    model_id: ModelId
    unverified_spec_json: bytes = field(repr=False)
    theta: BlobId
    public_shard: BlobId | None
    released: bool
    changes: BlobId | None = None
    unverified_bundle_json: bytes = field(default=b"", repr=False)
    bundle_signature: bytes = field(default=b"", repr=False)
