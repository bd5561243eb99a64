"""Blobs in an S3-compatible store, over HTTP to a real server: the same promises as a folder's."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from coordinator.store.blobs import BlobStore
from mien.errors import ConfigError, CorruptDataError, KeyStoreError, UnreachableError
from mien.protocol import CHUNK_BYTES
from mien.protocol.rounds import BlobId
from simulation.testing import free_port
from tests.servers.s3 import S3Server

DATA = os.urandom(3 * CHUNK_BYTES + 17)
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    return s3_server.new_bucket()


@pytest.fixture
def blobs(s3_server: S3Server, bucket: str, tmp_path: Path) -> BlobStore:
    return BlobStore(f"s3://{bucket}/prefix/models", endpoint=s3_server.endpoint, staging=tmp_path / "staging")


def staged(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "staging").iterdir())


def overwrite(blobs: BlobStore, data: bytes) -> None:
    """Damage the one blob behind the store's back."""
    blobs._fs.pipe_file(blobs._path(SHA256), data)


def test_a_blob_is_named_by_its_bytes(blobs: BlobStore, tmp_path: Path) -> None:
    assert list(blobs) == []
    assert blobs.put(DATA) == blobs.put(DATA) == BlobId(SHA256, len(DATA))
    assert blobs.exists(SHA256)
    assert blobs.read(SHA256) == DATA
    assert list(blobs) == [SHA256]
    assert staged(tmp_path) == []
    blobs.remove(SHA256)
    blobs.remove(SHA256)
    assert not blobs.exists(SHA256)


@pytest.mark.parametrize("offset", [0, 1, CHUNK_BYTES, len(DATA) - 1, len(DATA)])
def test_reading_resumes_at_any_byte(blobs: BlobStore, offset: int) -> None:
    pieces = list(blobs.stream(blobs.put(DATA).sha256, offset))
    assert b"".join(pieces) == DATA[offset:]
    assert all(len(piece) <= CHUNK_BYTES for piece in pieces)


def test_damage_and_loss_are_noticed(blobs: BlobStore) -> None:
    with pytest.raises(CorruptDataError, match="missing"):
        blobs.read(SHA256)
    with pytest.raises(CorruptDataError, match="missing"):
        next(blobs.stream(SHA256))
    blobs.put(DATA)
    overwrite(blobs, DATA[:-1] + bytes([DATA[-1] ^ 1]))
    with pytest.raises(CorruptDataError, match="damaged"):
        blobs.read(SHA256)
    with pytest.raises(CorruptDataError, match="damaged"):
        next(blobs.stream(SHA256, 700_000))


def test_two_kinds_in_one_bucket_do_not_meet(blobs: BlobStore, s3_server: S3Server, bucket: str) -> None:
    states = BlobStore(f"s3://{bucket}/prefix/states", endpoint=s3_server.endpoint)
    blobs.put(DATA)
    states.put(DATA[1:])
    states.keep_only(())
    assert (list(blobs), list(states)) == ([SHA256], [])


def test_nothing_appears_before_its_commit(blobs: BlobStore, tmp_path: Path) -> None:
    with blobs.writer() as writer:
        writer.write(DATA)
        assert list(blobs) == []
        with pytest.raises(CorruptDataError, match="announced"):
            writer.commit(BlobId("0" * 64, 5))
    assert (list(blobs), staged(tmp_path)) == ([], [])


def test_a_broken_line_leaves_nothing_half_done(blobs: BlobStore, s3_server: S3Server, tmp_path: Path) -> None:
    kept = blobs.put(b"kept")
    s3_server.cut()
    try:
        for call in (lambda: blobs.put(DATA), lambda: blobs.read(kept.sha256)):
            with pytest.raises(UnreachableError, match="does not answer"):
                call()
    finally:
        s3_server.mend()
    assert staged(tmp_path) == []
    assert list(blobs) == [kept.sha256]
    assert blobs.put(DATA).sha256 == SHA256


def test_credentials_that_are_refused(blobs: BlobStore, s3_server: S3Server, bucket: str) -> None:
    blobs.put(DATA)
    with s3_server.checking_credentials():
        again = lambda: BlobStore(f"s3://{bucket}/x", endpoint=s3_server.endpoint)  # noqa: E731
        for call in (lambda: blobs.put(b"x"), lambda: blobs.read(SHA256), again):
            with pytest.raises(KeyStoreError, match="credentials") as caught:
                call()
            assert "test-secret" not in str(caught.value)
    assert list(blobs) == [SHA256]


def test_credentials_that_are_missing(
    s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(KeyStoreError, match="AWS_ACCESS_KEY_ID"):
        BlobStore(f"s3://{bucket}/x", endpoint=s3_server.endpoint)


def test_a_bucket_that_is_not_there(s3_server: S3Server) -> None:
    with pytest.raises(ConfigError, match="there is no bucket nobodys"):
        BlobStore("s3://nobodys/x", endpoint=s3_server.endpoint)
    with pytest.raises(ConfigError, match="s3://BUCKET/PREFIX"):
        BlobStore("s3://no bucket!/x", endpoint=s3_server.endpoint)
    with pytest.raises(UnreachableError, match="blobs_endpoint"):
        BlobStore("s3://bucket/x", endpoint=f"http://127.0.0.1:{free_port()}")


def test_the_endpoint_may_come_from_the_environment(
    s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    assert BlobStore(f"s3://{bucket}/by-environment").put(DATA).sha256 == SHA256
