"""A stream of bytes in one file under a password, of any length in little memory.

Format 1: `MIENCOB1`, the length of the header (4 bytes, big-endian), the header as canonical JSON (scrypt's cost and
salt, the size of a chunk), then the content in chunks, each sealed with AES-256-GCM under the derived key. A chunk's
nonce is its number (11 bytes, big-endian) and a byte that is 1 for the last one only, its associated data everything
before the first chunk: so chunks cannot be changed, swapped, dropped, or cut off at the end (the STREAM construction of
Hoang, Reyhanitabar, Rogaway and Vizár, as the file format `age` uses it). The random salt makes the key one file's own.
"""

from __future__ import annotations

import json
import struct
from typing import IO, Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from mien.errors import ConfigError, CorruptDataError
from mien.log.chain import canonical_json
from mien.shell.keys import secret_bytes

MAGIC: Final = b"MIENCOB1"
MIN_PASSWORD: Final = 10
CHUNK_BYTES: Final = 256 * 1024
# 128 MiB and about half a second: RFC 7914's r and p, N as OWASP advises for files.
_SCRYPT: Final = {"n": 2**17, "r": 8, "p": 1}
_MAX_HEADER: Final = 1024
_TAG_BYTES: Final = 16
_DAMAGED: Final = "this backup is damaged, truncated, or its password is another one; use another copy"


class SealingWriter:
    """Writes bytes sealed into an open file; what is written is good only once `finish` has returned."""

    def __init__(self, file: IO[bytes], password: str) -> None:
        """Raises ConfigError for a password that is too short to protect keys."""
        if len(password) < MIN_PASSWORD:
            raise ConfigError(f"the password has {len(password)} characters; choose one of at least {MIN_PASSWORD}")
        salt = secret_bytes(16)
        header = canonical_json({"kdf": "scrypt", **_SCRYPT, "salt": salt.hex(), "chunk": CHUNK_BYTES})
        self._prefix = MAGIC + struct.pack(">I", len(header)) + header
        self._file, self._cipher, self._number = file, _cipher(password, salt), 0
        self._rest = bytearray()
        file.write(self._prefix)

    def write(self, data: bytes) -> int:
        """Take the next bytes and return how many that were."""
        self._rest += data
        while len(self._rest) > CHUNK_BYTES:  # not >=: the last chunk must not be written before it is known to be last
            self._seal(bytes(self._rest[:CHUNK_BYTES]), is_last=False)
            del self._rest[:CHUNK_BYTES]
        return len(data)

    def finish(self) -> None:
        """Write the last chunk."""
        self._seal(bytes(self._rest), is_last=True)
        self._rest.clear()

    def _seal(self, chunk: bytes, *, is_last: bool) -> None:
        self._file.write(self._cipher.encrypt(_nonce(self._number, is_last=is_last), chunk, self._prefix))
        self._number += 1


class OpeningReader:
    """Reads what `SealingWriter` wrote; every byte that it returns is authentic, and `finish` that there are no more.

    Raises CorruptDataError for a wrong password, damage and truncation alike.
    """

    def __init__(self, file: IO[bytes], password: str) -> None:
        start = file.read(len(MAGIC) + 4)
        if not start.startswith(MAGIC) or len(start) < len(MAGIC) + 4:
            raise CorruptDataError("this is not a backup of a coordinator; choose the file that backup wrote")
        (length,) = struct.unpack(">I", start[len(MAGIC) :])
        header = file.read(min(length, _MAX_HEADER))
        salt = _salt_of(header, length)
        self._prefix = start + header
        self._file, self._cipher, self._number = file, _cipher(password, salt), 0
        self._next = file.read(CHUNK_BYTES + _TAG_BYTES)
        self._rest, self._is_over = b"", False

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes, fewer only at the end."""
        pieces, missing = [], size
        while missing > 0 and (self._rest or self._open_next()):
            pieces.append(self._rest[:missing])
            self._rest = self._rest[missing:]
            missing -= len(pieces[-1])
        return b"".join(pieces)

    def finish(self) -> None:
        """Raise CorruptDataError unless the file goes on to its true end."""
        while self.read(CHUNK_BYTES):
            pass

    def _open_next(self) -> bool:
        if self._is_over:
            return False
        sealed, self._next = self._next, self._file.read(CHUNK_BYTES + _TAG_BYTES)
        self._is_over = not self._next
        try:
            self._rest = self._cipher.decrypt(_nonce(self._number, is_last=self._is_over), sealed, self._prefix)
        except (InvalidTag, ValueError):
            raise CorruptDataError(_DAMAGED) from None
        self._number += 1
        return bool(self._rest)


def _nonce(number: int, *, is_last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([is_last])


def _cipher(password: str, salt: bytes) -> AESGCM:
    key = Scrypt(salt=salt, length=32, **_SCRYPT).derive(password.encode())
    return AESGCM(key)


def _salt_of(header: bytes, length: int) -> bytes:
    """Return the salt of a header; other costs than format 1 has are refused, or a file could ask for any memory."""
    try:
        fields: Any = json.loads(header) if length == len(header) else None
        if isinstance(fields, dict) and isinstance(fields.get("salt"), str):
            salt = bytes.fromhex(fields.pop("salt"))
            if fields == {"kdf": "scrypt", **_SCRYPT, "chunk": CHUNK_BYTES} and len(salt) == 16:
                return salt
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(_DAMAGED) from error
    raise CorruptDataError(_DAMAGED)
