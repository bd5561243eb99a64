"""The device's keys, and records sealed under them, each bound to its place (`mien.shell.sealing`)."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from mien.errors import KeyStoreError
from mien.shell.keys import RandomBytes, secret_bytes
from mien.shell.sealing import KEY_BYTES, Sealer


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
    def generate(cls) -> SecretKey:
        """Return a fresh key."""
        return cls(secret_bytes(KEY_BYTES))

    def unmasked(self) -> bytes:
        """Return the key's bytes, for a key store or for wrapping; never for a log."""
        return self._bytes


def bind(*parts: str | int) -> bytes:
    """Return the context of a record as bytes, each part with its length, so that no two contexts look alike."""
    encoded = [str(part).encode() for part in parts]
    return b"".join(struct.pack(">I", len(part)) + part for part in encoded)


def seal(key: SecretKey, plain: bytes, context: bytes, *, random_bytes: RandomBytes = secret_bytes) -> bytes:
    """Return nonce (12 bytes), ciphertext and tag (16 bytes) of `plain`."""
    return Sealer(key.unmasked(), failing="", random_bytes=random_bytes).seal(plain, place=context)


def unseal(key: SecretKey, sealed: bytes, context: bytes, *, what: str) -> bytes:
    """Return the input of `seal`; raises CorruptDataError naming `what` for any other key, context or bytes."""
    failing = (
        f"{what} does not open: it is damaged, was tampered with, or belongs to another key; "
        "restore it from a copy, or wipe and enrol again"
    )
    return Sealer(key.unmasked(), failing=failing).open(sealed, place=context)
