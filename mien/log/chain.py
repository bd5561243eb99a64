"""Chains of records, each of which holds the hash of the one before: a change anywhere shows further on."""

from __future__ import annotations

import hashlib
import json
from typing import Final

GENESIS: Final = "0" * 64
"""Hash of the predecessor that the first record names."""


def canonical_json(value: object) -> bytes:
    """Return UTF-8 JSON with sorted keys, no spaces, and no NaN or infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode()


def link_sha256(kind: str, canonical: bytes) -> str:
    """Return the hex SHA-256 of a record's canonical bytes; records of another `kind` never share one."""
    return hashlib.sha256(f"mien/{kind}/1\n".encode() + canonical).hexdigest()
