"""Blobs: named by their bytes, whole or absent, checked when read."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from coordinator.store.blobs import BlobStore
from mien.errors import ConfigError, CorruptDataError
from mien.protocol import CHUNK_BYTES
from mien.protocol.rounds import BlobId

DATA = bytes(range(256)) * 3000  # 768 000 bytes: three pieces


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(str(tmp_path / "blobs"))


def file_of(blobs: BlobStore, tmp_path: Path, sha256: str) -> Path:
    return tmp_path / "blobs" / sha256[:2] / sha256


def test_a_blob_is_named_by_its_bytes(blobs: BlobStore, tmp_path: Path) -> None:
    blob = blobs.put(DATA)
    assert blob == BlobId(hashlib.sha256(DATA).hexdigest(), len(DATA))
    assert blobs.put(DATA) == blob
    assert blobs.read(blob.sha256) == DATA
    assert list(blobs) == [blob.sha256]
    assert file_of(blobs, tmp_path, blob.sha256).read_bytes() == DATA


@pytest.mark.parametrize("offset", [0, 1, CHUNK_BYTES, len(DATA) - 1, len(DATA)])
def test_reading_resumes_at_any_byte(blobs: BlobStore, offset: int) -> None:
    pieces = list(blobs.stream(blobs.put(DATA).sha256, offset))
    assert b"".join(pieces) == DATA[offset:]
    assert all(len(piece) <= CHUNK_BYTES for piece in pieces)


def test_damage_is_noticed(blobs: BlobStore, tmp_path: Path) -> None:
    blob = blobs.put(DATA)
    file_of(blobs, tmp_path, blob.sha256).write_bytes(DATA[:-1] + b"x")
    with pytest.raises(CorruptDataError, match="damaged"):
        blobs.read(blob.sha256)
    with pytest.raises(CorruptDataError, match="damaged"):
        next(blobs.stream(blob.sha256, 700_000))


def test_missing_and_nonsense_names(blobs: BlobStore) -> None:
    with pytest.raises(CorruptDataError, match="missing"):
        blobs.read("0" * 64)
    with pytest.raises(CorruptDataError, match="missing"):
        next(blobs.stream("0" * 64))
    for name in ("", "../../etc/passwd", "A" * 64, "0" * 63):
        with pytest.raises(CorruptDataError):
            blobs.read(name)


def test_nothing_stays_of_a_blob_that_was_not_committed(blobs: BlobStore, tmp_path: Path) -> None:
    with blobs.writer() as writer:
        writer.write(b"half")
    with blobs.writer() as writer:
        writer.write(b"other")
        with pytest.raises(CorruptDataError, match="announced"):
            writer.commit(BlobId("0" * 64, 5))
    assert [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()] == []


def test_what_a_crash_left_is_cleared_away(blobs: BlobStore, tmp_path: Path) -> None:
    blob = blobs.put(b"whole")
    writer = blobs.writer()
    writer.write(b"half")  # never committed, as after a kill
    assert len(list((tmp_path / "blobs").glob(".*"))) == 1
    blobs.remove_unfinished()
    assert list((tmp_path / "blobs").glob(".*")) == []
    writer.abandon()
    assert blobs.read(blob.sha256) == b"whole"


def test_removed_blobs_are_gone(blobs: BlobStore) -> None:
    blob = blobs.put(b"whole")
    blobs.remove(blob.sha256)
    blobs.remove(blob.sha256)
    assert not blobs.exists(blob.sha256)


def test_any_file_system_by_url() -> None:
    blobs = BlobStore("memory://blobs-test")
    blob = blobs.put(DATA)
    assert b"".join(blobs.stream(blob.sha256, 5)) == DATA[5:]
    assert list(blobs) == [blob.sha256]
    with pytest.raises(ConfigError):
        BlobStore("nosuchprotocol://x")


def test_what_nothing_names_is_forgotten(blobs: BlobStore) -> None:
    kept, orphan = blobs.put(DATA), blobs.put(DATA[:-1])
    blobs.keep_only({kept.sha256, "0" * 64})
    assert list(blobs) == [kept.sha256]
    with pytest.raises(CorruptDataError):
        blobs.read(orphan.sha256)
