"""A coordinator's backup: what it holds, and what it refuses, leaving nothing behind."""

from __future__ import annotations

import dataclasses
import io
import json
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, cast

import pytest

from coordinator.home import sealed_file
from coordinator.home.config import SETTINGS, CoordinatorConfig
from coordinator.home.coordinator_backup import CoordinatorBackup
from coordinator.home.home import CoordinatorHome
from coordinator.home.sealed_file import SealingWriter
from coordinator.serve import open_stores
from mien.errors import AlreadyExistsError, ConfigError, CorruptDataError, MienError, NotFoundError, VersionError
from mien.protocol.rounds import BlobId
from mien.rounds.records import ModelRecord
from mien.shell.clock import Clock

PASSWORD = "correct horse battery"
CONFIG = CoordinatorConfig("localhost:7443")


@pytest.fixture(autouse=True)
def _cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_file, "_SCRYPT", {"n": 16, "r": 8, "p": 1})
    monkeypatch.setattr(sealed_file, "CHUNK_BYTES", 4096)


@pytest.fixture
def home(tmp_path: Path) -> CoordinatorHome:
    """A coordinator with one model, a blob that nothing names, and a contribution that nothing counts."""
    home = CoordinatorHome.create(tmp_path / "C", CONFIG, datetime.now(UTC))
    stores = open_stores(home, CONFIG, Clock())
    blob = stores.models.put(b"parameters" * 1000)
    stores.models.put(b"nobody's")
    with stores.spool.open(1, "a" * 32) as file:
        file.append(b"pending", offset=0)
        file.sync()
    stores.store.add_model(ModelRecord("a" * 64, b"{}", "1" * 64, blob, 1), actor="alice")
    stores.thread.close()
    stores.store.close()
    return home


def back(home: CoordinatorHome, name: str = "b.mien", *, with_data: bool = True) -> Path:
    out = home.folder.parent / name
    CoordinatorBackup(home, Clock()).make(out, PASSWORD, with_data=with_data)
    return out


def restored(file: Path, folder: Path, password: str = PASSWORD) -> CoordinatorHome:
    CoordinatorBackup(CoordinatorHome(folder), Clock()).restore(file, password)
    return CoordinatorHome(folder)


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_keys_settings_history_and_named_blobs_come_back(home: CoordinatorHome, tmp_path: Path) -> None:
    (home.folder / "registrar.revoked").write_text("{}")
    file = back(home)
    assert file.stat().st_mode & 0o077 == 0
    assert b"parameters" not in file.read_bytes()
    copy = restored(file, tmp_path / "D")
    before, after = files(home.folder), files(copy.folder)
    for name in (
        "ca.key",
        "ca.pem",
        "store.key",
        "operator.key",
        "operator.pem",
        "registrar.revoked",
        "coordinator.toml",
    ):
        assert after[name] == before[name]
    blobs = [name for name in after if name.startswith(("models/", "states/", "spool/"))]
    assert [after[name] for name in blobs] == [b"parameters" * 1000]
    assert all((copy.folder / name).stat().st_mode & 0o077 == 0 for name in after)
    stores = open_stores(copy, CONFIG, Clock())
    actions = [entry.action for entry in stores.store.audit(lambda log, db: log.read(db))]
    assert actions == ["model.import", "backup.make", "backup.restore"]
    stores.store.audit(lambda log, db: log.verify(db))
    assert stores.models.read(stores.store.model("a" * 64).theta.sha256) == b"parameters" * 1000
    stores.thread.close()
    stores.store.close()
    assert not list(home.folder.glob(".backup-*"))


def test_without_data_only_keys_and_settings(home: CoordinatorHome, tmp_path: Path) -> None:
    after = files(restored(back(home, with_data=False), tmp_path / "D").folder)
    assert "ca.key" in after
    assert not any(name.startswith("models/") or name.endswith(".db") for name in after)


@pytest.mark.parametrize(
    ("setting", "words"),
    [({"database_url": "postgresql://db/mien"}, "pg_dump"), ({"blobs_url": "s3://bucket"}, "copy of the bucket")],
)
def test_stores_of_their_own_are_told_apart(home: CoordinatorHome, setting: dict[str, str], words: str) -> None:
    SETTINGS.write(home.config_path, dataclasses.replace(CONFIG, **setting))
    with pytest.raises(ConfigError, match=words):
        back(home)
    back(home, with_data=False)


def test_nothing_is_overwritten(home: CoordinatorHome, tmp_path: Path) -> None:
    file = back(home)
    with pytest.raises(AlreadyExistsError, match="exists already"):
        back(home)
    with pytest.raises(AlreadyExistsError, match="not empty"):
        restored(file, home.folder)
    with pytest.raises(NotFoundError):
        restored(tmp_path / "nowhere", tmp_path / "D")
    with pytest.raises(NotFoundError):
        back(CoordinatorHome(tmp_path / "nobody"), "c.mien")
    with pytest.raises(ConfigError, match="at least 10"):
        CoordinatorBackup(home, Clock()).make(tmp_path / "d.mien", "short", with_data=True)
    assert {path.name for path in tmp_path.iterdir()} == {"C", "b.mien"}


def test_damage_truncation_and_another_password_leave_nothing(home: CoordinatorHome, tmp_path: Path) -> None:
    file = back(home)
    data, bad = file.read_bytes(), tmp_path / "bad.mien"
    for changed in (
        data[:-1],
        data[: len(data) // 2],
        data[:100],
        b"",
        data + b"x",
        data[:5000] + bytes([data[5000] ^ 1]) + data[5001:],
    ):
        bad.write_bytes(changed)
        with pytest.raises(CorruptDataError):
            restored(bad, tmp_path / "D")
    with pytest.raises(CorruptDataError, match="password is another one"):
        restored(file, tmp_path / "D", "another password")
    assert {path.name for path in tmp_path.iterdir()} == {"C", "b.mien", "bad.mien"}


def forged(path: Path, *members: tuple[str, bytes], **manifest: object) -> Path:
    """Write an archive as somebody who knows the password could."""
    names = sorted(name for name, _ in members)
    head = {"format": 1, "software": "x", "created_unix_s": 1, "audit_head": None, "files": names, **manifest}
    with path.open("wb") as file:
        writer = SealingWriter(file, PASSWORD)
        with tarfile.open(fileobj=cast("IO[bytes]", writer), mode="w|") as archive:
            for name, data in (("manifest.json", json.dumps(head).encode()), *members):
                info = tarfile.TarInfo(name)
                if data == b"link":
                    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
                    archive.addfile(info)
                else:
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
        writer.finish()
    return path


@pytest.mark.parametrize(
    "members",
    [
        (("../evil.key", b"x"),),
        (("/tmp/evil.key", b"x"),),
        (("models/../../evil.key", b"x"),),
        (("coordinator.lock", b"x"),),
        (("ca.key", b"link"),),
        (("ca.key", b"x"), ("ca.key", b"y")),
        ((f"models/aa/{'a' * 64}", b"not its hash"),),
        (("ca.key", b"x"),),
    ],
)
def test_a_forged_archive_leaves_nothing(tmp_path: Path, members: tuple[tuple[str, bytes], ...]) -> None:
    file = forged(tmp_path / "forged.mien", *members)
    with pytest.raises(MienError):
        restored(file, tmp_path / "D")
    assert [path.name for path in tmp_path.iterdir()] == ["forged.mien"]


def test_a_newer_format_says_so(tmp_path: Path) -> None:
    with pytest.raises(VersionError, match="format 2"):
        restored(forged(tmp_path / "f.mien", format=2), tmp_path / "D")


def test_a_blob_that_is_missing_stops_a_backup(home: CoordinatorHome) -> None:
    stores = open_stores(home, CONFIG, Clock())
    gone = BlobId("f" * 64, 1)
    stores.store.add_model(ModelRecord("b" * 64, b"{}", "1" * 64, gone, 1), actor="alice")
    stores.thread.close()
    stores.store.close()
    with pytest.raises(CorruptDataError, match="missing"):
        back(home)
    assert not (home.folder.parent / "b.mien").exists()
