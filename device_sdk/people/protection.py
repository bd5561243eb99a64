"""Keys of stored templates: each lies turned by a secret rotation of its own (`mien.template_protection`).

A template's key follows from a master key in the key store and a salt beside the template, so that the gallery's file,
even in clear, shows no reference that could be compared. A fact of the gallery tells whether the master key is the one
that its templates were made with: under another one they would be noise.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from device_sdk.storage.keystore import KeyStore
from device_sdk.storage.sealing import SecretKey
from device_sdk.storage.vault import Reader, Writer
from mien.errors import AlreadyExistsError, KeyStoreError
from mien.shell.keys import secret_bytes
from mien.template_protection import rotate, unrotate

LABEL: Final = "rotation"
SALT_BYTES: Final = 16
_FACT: Final = "rotation"

Rows = NDArray[np.float32]


class TemplateKeys:
    """The keys of one gallery's templates."""

    def __init__(self, key_store: KeyStore) -> None:
        self._key_store = key_store
        self._master: SecretKey | None = None

    def new_salt(self, change: Writer) -> bytes:
        """Return a salt for a template that is about to be stored; the first one makes the master key."""
        if _FACT not in change.facts:
            if not self._key_store.exists(LABEL):
                with contextlib.suppress(AlreadyExistsError):  # another process was first
                    self._key_store.create(LABEL)
            change.set_fact(_FACT, _check_value(self._key_store.read(LABEL)))
        return secret_bytes(SALT_BYTES)

    def turn(self, view: Reader, vectors_ND: Rows, salts: Sequence[bytes]) -> Rows:
        """Return vectors (N, D) as they are stored under these salts; errors as `turn_back`."""
        return rotate(vectors_ND, self._keys(view, salts))

    def turn_back(self, view: Reader, stored_ND: Rows, salts: Sequence[bytes]) -> Rows:
        """Return vectors (N, D) that lie under these salts; raises KeyStoreError without the gallery's master key."""
        return unrotate(stored_ND, self._keys(view, salts))

    def destroy(self) -> None:
        """Destroy the master key: no template can be turned back afterwards."""
        self._key_store.destroy(LABEL)

    def _keys(self, view: Reader, salts: Sequence[bytes]) -> list[bytes]:
        if not salts:  # templates of an earlier program need no key, and there may be none
            return []
        master = self._master or self._key_store.read(LABEL)
        if view.facts.get(_FACT) != _check_value(master):
            raise KeyStoreError(
                "the key that turns stored templates is another one than they were made with; restore the right key, "
                "or wipe the gallery and enrol again"
            )
        self._master = master
        return [hmac.digest(master.unmasked(), b"template/" + salt, "sha256") for salt in salts]


def _check_value(master: SecretKey) -> str:
    """Return a check value that tells one master key from another and nothing else of it."""
    return hashlib.sha256(hmac.digest(master.unmasked(), b"which key", "sha256")).hexdigest()[:16]
