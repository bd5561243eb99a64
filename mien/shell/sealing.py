"""Bytes sealed with AES-256-GCM, bound to the place where they belong.

What is sealed opens only under its key and its context: moved to another row, person or file, it does not open. Every
failure to open gives the same error, whatever its cause.
"""

from __future__ import annotations

from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mien.errors import CorruptDataError
from mien.shell.keys import RandomBytes, secret_bytes

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
OVERHEAD_BYTES: Final = NONCE_BYTES + TAG_BYTES
"""Length of sealed bytes beyond plain ones: a nonce before, a tag after."""

Plain = bytes | bytearray | memoryview


class Sealer:
    """Seals and opens bytes under one key of 32 bytes.

    Nonces are random: a key may seal 2**32 records before a repeat becomes likelier than 2**-32 (NIST SP 800-38D).
    """

    def __init__(self, key: bytes, *, failing: str, random_bytes: RandomBytes = secret_bytes) -> None:
        """`failing` is what to say, and what to do, where sealed bytes do not open."""
        self._cipher, self._failing, self._random_bytes = AESGCM(key), failing, random_bytes

    def __repr__(self) -> str:
        return "Sealer(***)"

    def seal(self, data: Plain, *, place: bytes) -> bytes:
        """Return nonce, ciphertext and tag; only `open` with the same place gives the data back."""
        nonce = self._random_bytes(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, data, place)

    def seal_into(self, out: memoryview, data: Plain, *, place: bytes) -> int:
        """Lay down in `out` what `seal` returns, and return its length."""
        nonce, end = self._random_bytes(NONCE_BYTES), OVERHEAD_BYTES + len(data)
        out[:NONCE_BYTES] = nonce
        self._cipher.encrypt_into(nonce, data, place, out[NONCE_BYTES:end])
        return end

    def open(self, sealed: bytes | memoryview, *, place: bytes) -> bytes:
        """Return the data; raises CorruptDataError for other bytes, another place or another key alike."""
        view = bytes(sealed)
        try:
            return self._cipher.decrypt(view[:NONCE_BYTES], view[NONCE_BYTES:], place)
        except (InvalidTag, ValueError):  # ValueError: fewer bytes than a nonce or a tag
            raise CorruptDataError(self._failing) from None
