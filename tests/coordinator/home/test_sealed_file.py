"""A sealed stream: what goes in comes out, and nothing of it can be changed, moved, dropped or cut off."""

from __future__ import annotations

import io
import json
import struct

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from coordinator.home import sealed_file
from coordinator.home.sealed_file import MAGIC, OpeningReader, SealingWriter
from mien.errors import ConfigError, CorruptDataError

PASSWORD = "correct horse battery"
CHUNK = 64


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cheap scrypt and short chunks: the format's numbers are tested by the first test alone."""
    monkeypatch.setattr(sealed_file, "_SCRYPT", {"n": 16, "r": 8, "p": 1})
    monkeypatch.setattr(sealed_file, "CHUNK_BYTES", CHUNK)


def sealed(data: bytes, *, piece: int = 50) -> bytes:
    file = io.BytesIO()
    writer = SealingWriter(file, PASSWORD)
    for start in range(0, len(data), piece):
        writer.write(data[start : start + piece])
    writer.finish()
    return file.getvalue()


def opened(data: bytes, password: str = PASSWORD) -> bytes:
    reader = OpeningReader(io.BytesIO(data), password)
    found = b"".join(iter(lambda: reader.read(33), b""))
    reader.finish()
    return found


def body(data: bytes) -> int:
    """Return where the chunks begin."""
    return len(MAGIC) + 4 + int(struct.unpack(">I", data[len(MAGIC) : len(MAGIC) + 4])[0])


@pytest.mark.parametrize("length", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 1000])
def test_what_goes_in_comes_out(length: int) -> None:
    data = bytes(range(256)) * 4
    assert opened(sealed(data[:length])) == data[:length]


def test_the_format_is_what_its_description_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opened by hand, with the real costs."""
    monkeypatch.undo()
    data = sealed(b"x" * 300_000, piece=70_000)
    start = body(data)
    header = json.loads(data[len(MAGIC) + 4 : start])
    assert {name: header[name] for name in ("kdf", "n", "r", "p", "chunk")} == {
        "kdf": "scrypt",
        "n": 2**17,
        "r": 8,
        "p": 1,
        "chunk": 262144,
    }
    key = Scrypt(salt=bytes.fromhex(header["salt"]), length=32, n=2**17, r=8, p=1).derive(PASSWORD.encode())
    first, second = data[start : start + 262144 + 16], data[start + 262144 + 16 :]
    assert AESGCM(key).decrypt(bytes(12), first, data[:start]) == b"x" * 262144
    assert AESGCM(key).decrypt(bytes(10) + b"\x01\x01", second, data[:start]) == b"x" * (300_000 - 262144)


def test_every_changed_byte_and_every_cut_is_found() -> None:
    data = sealed(bytes(200))
    for position in range(len(data)):
        changed = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
        with pytest.raises(CorruptDataError):
            opened(changed)
        with pytest.raises(CorruptDataError):
            opened(data[:position])
    with pytest.raises(CorruptDataError):
        opened(data + b"\0")


def test_chunks_cannot_be_moved_dropped_or_repeated() -> None:
    data = sealed(bytes(4 * CHUNK))
    start, size = body(data), CHUNK + 16
    chunks = [data[at : at + size] for at in range(start, len(data), size)]
    for order in ([1, 0, 2, 3], [0, 2, 3], [0, 1, 2], [0, 1, 1, 2, 3], [3]):
        with pytest.raises(CorruptDataError):
            opened(data[:start] + b"".join(chunks[number] for number in order))


def test_another_password_and_a_short_one() -> None:
    with pytest.raises(CorruptDataError, match="password is another one"):
        opened(sealed(b"secret"), "correct horse batters")
    with pytest.raises(ConfigError, match="at least 10"):
        SealingWriter(io.BytesIO(), "short")


def test_a_header_cannot_ask_for_memory() -> None:
    header = json.dumps({"kdf": "scrypt", "n": 2**30, "r": 8, "p": 1, "salt": "00" * 16, "chunk": CHUNK}).encode()
    with pytest.raises(CorruptDataError):
        opened(MAGIC + struct.pack(">I", len(header)) + header + bytes(100))
    with pytest.raises(CorruptDataError):
        opened(MAGIC + struct.pack(">I", 2**32 - 1) + header)
