"""Encryption of what the coordinator stores but must not leak: contributions as they arrive, and what devices reveal.

AES-256-GCM under keys derived (HKDF-SHA256) from one master key, which lies in a file of its own (mode 0600). Every
sealed thing is bound to its purpose and place by the associated data, so that nothing can be swapped for another.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from mien.errors import KeyStoreError
from mien.shell.files import create_private, read_private
from mien.shell.keys import secret_bytes
from mien.shell.sealing import KEY_BYTES, Sealer

_FAILING: Final = "sealed data of the coordinator is damaged or its key is another one; restore both from one backup"


class MasterKey:
    """The key that everything sealed in one coordinator's store depends on."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise KeyStoreError(
                f"the store's key has {len(key)} bytes instead of {KEY_BYTES}; restore it from a backup"
            )
        self._key = key

    def __repr__(self) -> str:
        return "MasterKey(***)"

    @classmethod
    def create(cls, path: Path) -> MasterKey:
        """Return a new key, written to a private file that must not exist yet."""
        key = secret_bytes(KEY_BYTES)
        create_private(path, key)
        return cls(key)

    @classmethod
    def load(cls, path: Path) -> MasterKey:
        """Return the key in a private file; raises KeyStoreError."""
        return cls(read_private(path, what="the store's key"))

    @property
    def check(self) -> str:
        """A digest that tells two keys apart and gives neither away."""
        return hashlib.sha256(b"mien/coordinator/check/v1" + self._key).hexdigest()[:16]

    def sealer(self, purpose: str, salt: bytes = b"") -> Sealer:
        """Return what seals for one purpose."""
        info = f"mien/coordinator/{purpose}/v1".encode()
        key = HKDF(SHA256(), KEY_BYTES, salt=salt or None, info=info).derive(self._key)
        return Sealer(key, failing=_FAILING)
