"""A gallery in one file under a password, to move it or keep it safe.

Format 1: `MIENGAL1`, the length of the header (4 bytes, big-endian), the header as canonical JSON (scrypt's cost and
salt), then the content sealed with AES-256-GCM under the derived key, everything before it as associated data.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from device_sdk.storage.sealing import SecretKey, seal
from mien.errors import ConfigError, CorruptDataError
from mien.protocol.canonical import parse_json, to_canonical_json
from mien.shell.keys import secret_bytes
from mien.shell.sealing import KEY_BYTES, Sealer

MAGIC: Final = b"MIENGAL1"
MIN_PASSWORD: Final = 10
# 128 MiB and about half a second: RFC 7914's r and p, N as OWASP advises for files.
SCRYPT_N: Final = 2**17
SCRYPT_R: Final = 8
SCRYPT_P: Final = 1
MAX_SCRYPT_N: Final = 2**20
_MAX_HEADER: Final = 1024


def seal_backup(plain: bytes, password: str) -> bytes:
    """Return the file's bytes; raises ConfigError for a password that is too short to protect faces."""
    if len(password) < MIN_PASSWORD:
        raise ConfigError(f"the password has {len(password)} characters; choose one of at least {MIN_PASSWORD}")
    salt = secret_bytes(16)
    header = to_canonical_json({"kdf": "scrypt", "n": SCRYPT_N, "r": SCRYPT_R, "p": SCRYPT_P, "salt": salt.hex()})
    prefix = MAGIC + struct.pack(">I", len(header)) + header
    key = _derive(password, salt, SCRYPT_N, SCRYPT_R, SCRYPT_P)
    return prefix + seal(key, plain, prefix)


def unseal_backup(data: bytes, password: str) -> bytes:
    """Return the input of `seal_backup`; raises CorruptDataError for a wrong password or a damaged file alike."""
    if not data.startswith(MAGIC) or len(data) < len(MAGIC) + 4:
        raise CorruptDataError("this is not an exported gallery; choose the file that `Device.export()` wrote")
    start = len(MAGIC) + 4
    (length,) = struct.unpack(">I", data[len(MAGIC) : start])
    if length > _MAX_HEADER:
        raise CorruptDataError("the exported gallery's header is damaged; export it again")
    prefix, sealed = data[: start + length], data[start + length :]
    key = _derive(password, *_parse_header(prefix[start:]))
    failing = (
        "the exported gallery does not open: the password is another one, or the file is damaged; type the password of "
        "this export, or take another copy of the file. Nobody was added, and who is enrolled stays"
    )
    return Sealer(key.unmasked(), failing=failing).open(sealed, place=prefix)


def _parse_header(header: bytes) -> tuple[bytes, int, int, int]:
    """Return salt and costs, refused where they would take more memory than a phone has."""
    fields: Any = parse_json(header, what="the exported gallery's header", remedy="export it again")
    known = isinstance(fields, dict) and fields.get("kdf") == "scrypt" and isinstance(fields.get("salt"), str)
    numbers = [fields.get(name) for name in ("n", "r", "p")] if known else []
    if not numbers or not all(isinstance(number, int) for number in numbers):
        raise CorruptDataError("the exported gallery's header is damaged; export it again")
    n, r, p = numbers
    if not 2 <= n <= MAX_SCRYPT_N or n & (n - 1) or r != SCRYPT_R or p != SCRYPT_P:
        raise CorruptDataError("the exported gallery asks for a password cost that is not allowed; export it again")
    try:
        return bytes.fromhex(fields["salt"]), n, r, p
    except ValueError as error:
        raise CorruptDataError("the exported gallery's header is damaged; export it again") from error


def _derive(password: str, salt: bytes, n: int, r: int, p: int) -> SecretKey:
    return SecretKey(Scrypt(salt=salt, length=KEY_BYTES, n=n, r=r, p=p).derive(password.encode()))
