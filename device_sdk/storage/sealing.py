"""Bytes sealed with AES-256-GCM, bound to the place where they belong.

A sealed record opens only under its key and its context: moved to another row, person or file, it does not open. Every
failure to open gives the same error, whatever its cause.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mien.errors import CorruptDataError, KeyStoreError
from mien.shell.keys import RandomBytes, secret_bytes

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16


@dataclass(frozen=True)
class SecretKey:
    """A 256-bit key that never shows itself."""

    _bytes: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self._bytes) != KEY_BYTES:
            raise KeyStoreError(f"key has {len(self._bytes)} bytes, needs {KEY_BYTES}; restore it, or wipe and enrol")

    def __str__(self) -> str:
        return "SecretKey(***)"

    __repr__ = __str__

    @classmethod
    def generate(cls, random_bytes: RandomBytes = secret_bytes) -> SecretKey:
        """Return a fresh key."""
        return cls(random_bytes(KEY_BYTES))

    def unmasked(self) -> bytes:
        """Return the key's bytes, for a key store or for wrapping; never for a log."""
        return self._bytes


def bind(*parts: str | int) -> bytes:
    """Return the context of a record as bytes, each part with its length, so that no two contexts look alike."""
    encoded = [str(part).encode() for part in parts]
    return b"".join(struct.pack(">I", len(part)) + part for part in encoded)


def seal(key: SecretKey, plain: bytes, context: bytes, *, random_bytes: RandomBytes = secret_bytes) -> bytes:
    """Return nonce (12 bytes), ciphertext and tag (16 bytes) of `plain`.

    Nonces are random: a key may seal 2**32 records before a repeat becomes likelier than 2**-32 (NIST SP 800-38D).
    """
    nonce = random_bytes(NONCE_BYTES)
    return nonce + AESGCM(key.unmasked()).encrypt(nonce, plain, context)


def unseal(key: SecretKey, sealed: bytes, context: bytes, *, what: str) -> bytes:
    """Return what `seal` was given; raises CorruptDataError naming `what` for any other key, context or bytes."""
    try:
        return AESGCM(key.unmasked()).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], context)
    except (InvalidTag, ValueError):
        # ValueError: fewer bytes than a nonce or a tag.
        raise CorruptDataError(
            f"{what} does not open: it is damaged, was tampered with, or belongs to another key; "
            "restore it from a copy, or wipe and enrol again"
        ) from None
