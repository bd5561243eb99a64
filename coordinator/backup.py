"""One file that holds a coordinator: keys, settings, database, models, states, and contributions of rounds under way.

Taken while the coordinator serves. The database is copied by SQLite's online backup, at one instant; whatever files
that copy names are then linked (blobs and committed contributions never change), and where one of them has been cleared
away meanwhile, all is begun again from a newer copy. The file is a tar archive sealed under a password (`sealed_file`).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, cast

import sqlalchemy as sa

from coordinator.audit import local_actor
from coordinator.clock import Clock
from coordinator.home import CoordinatorHome
from coordinator.sealed_file import OpeningReader, SealingWriter
from coordinator.service.messages import software
from coordinator.store.database import sqlite_url
from coordinator.store.sealing import MasterKey
from coordinator.store.store import Store
from coordinator.store.tables import ROUNDS, UPLOADS
from mien.audit import Anchor
from mien.chain import canonical_json
from mien.errors import AlreadyExistsError, ConfigError, CorruptDataError, NotFoundError, VersionError
from mien.shell.files import storage_errors, sync_folder
from mien.shell.lock import exclusive

_FORMAT: Final = 1
_MANIFEST: Final = "manifest.json"
_MANIFEST_FIELDS: Final = {"format", "software", "created_unix_s", "audit_head", "files"}
_DATABASE: Final = "coordinator.db"
_KEPT: Final = (".key", ".pem", ".csr", ".crl", ".toml")
_NAME: Final = re.compile(
    r"[a-z][a-z0-9-]*\.(key|pem|csr|crl|toml)|coordinator\.db"
    r"|(models|states)/[0-9a-f]{2}/[0-9a-f]{64}|spool/[0-9]{1,18}/[0-9a-f]{32}"
)
_TRIES: Final = 10
_MAX_MANIFEST_BYTES: Final = 64 * 1024 * 1024
_PIECE: Final = 1024 * 1024
_UNLIKE: Final = "the file's content is not that of a coordinator's backup; choose the file that backup wrote"


@dataclass(frozen=True)
class Summary:
    """What a backup holds. `audit_head` is where the audit log stood, None without data."""

    files: int
    size_bytes: int
    created_unix_s: int
    audit_head: Anchor | None


# Taking one


def make_backup(home: CoordinatorHome, out: Path, password: str, clock: Clock, *, with_data: bool) -> Summary:
    """Write a backup and return what it holds; without data it is keys, certificates and settings only.

    Raises ConfigError for a database or blobs that lie elsewhere, AlreadyExistsError rather than overwrite a file.
    """
    if not home.ca_key_path.is_file():
        raise NotFoundError(f"there is no coordinator in {home.folder}; name another --home")
    if with_data:
        _check_embedded(home)
    if out.exists():
        raise AlreadyExistsError(f"{out} exists already; name another file")
    with exclusive(home.folder / "backup.lock", program="mien-coordinator backup"):
        for left in home.folder.glob(".backup-*"):  # of one that was killed
            shutil.rmtree(left)
        with tempfile.TemporaryDirectory(prefix=".backup-", dir=home.folder) as folder, storage_errors(out.name):
            head = _stage(home, Path(folder), clock) if with_data else None
            return _write(home, Path(folder), out, password, Summary(0, 0, int(clock.now()), head))


def _check_embedded(home: CoordinatorHome) -> None:
    """Raise ConfigError unless everything lies in the folder: other stores have better tools of their own."""
    config = home.resolve().config
    if config.database_url:
        raise ConfigError(
            "database_url names a database of its own: save that with its own tool (pg_dump for PostgreSQL, .backup "
            "for SQLite), then run backup --without-data for keys and settings"
        )
    if config.blobs_url:
        raise ConfigError(
            "blobs_url names a store of its own: save that with its own tool (versioning or a copy of the bucket), "
            "after the database, then run backup --without-data for keys and settings"
        )


def _stage(home: CoordinatorHome, folder: Path, clock: Clock) -> Anchor:
    """Put database, blobs and contributions that fit each other into a folder; return where the audit log stands."""
    store = Store.open(sqlite_url(home.folder / _DATABASE), clock)
    store.log(local_actor(), "backup.make", "coordinator")
    store.close()
    for _ in range(_TRIES):
        _copy_database(home.folder / _DATABASE, folder / _DATABASE)
        copy = Store.open(sqlite_url(folder / _DATABASE), clock)
        try:
            head = copy.audit(lambda log, db: log.verify(db))
            named = _named_files(copy, has_spool=not home.resolve().config.spool_folder)
        finally:
            copy.close()
        if all(_link(home.folder / name, folder / name) for name in named):
            return head
    raise CorruptDataError(
        "files that the database names are missing, or rounds close too fast for a backup; run doctor, or try again"
    )


def _copy_database(source: Path, target: Path) -> None:
    """Copy a database that may be in use, as it is at one instant."""
    target.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(source)) as serving, contextlib.closing(sqlite3.connect(target)) as copy:
        serving.backup(copy)
    target.chmod(0o600)


def _named_files(store: Store, *, has_spool: bool) -> list[str]:
    """Return the files that a database needs, by their paths in the folder."""
    models = [f"models/{sha256[:2]}/{sha256}" for sha256 in store.model_blobs()]
    states = [f"states/{sha256[:2]}/{sha256}" for sha256 in store.state_blobs()]
    live = sa.and_(UPLOADS.c.round_id == ROUNDS.c.id, UPLOADS.c.committed_ms.is_not(None), ROUNDS.c.ended_ms.is_(None))
    wanted = sa.select(UPLOADS.c.round_id, UPLOADS.c.device_id).where(live)
    uploads = store.privacy(lambda db: db.execute(wanted).all()) if has_spool else []
    return [*models, *states, *(f"spool/{round_id}/{device_id}" for round_id, device_id in uploads)]


def _link(source: Path, target: Path) -> bool:
    """Give a file that never changes a second name, and return whether it was there."""
    if target.exists():
        return True
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except FileNotFoundError:
        return False
    except OSError:  # a file system without links
        try:
            shutil.copy2(source, target)
        except FileNotFoundError:
            return False
    return True


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o600
    archive.addfile(info, io.BytesIO(data))


def _add_file(archive: tarfile.TarFile, name: str, path: Path) -> None:
    with path.open("rb") as file:
        found, info = os.fstat(file.fileno()), tarfile.TarInfo(name)
        info.size, info.mtime, info.mode = found.st_size, found.st_mtime, 0o600
        archive.addfile(info, file)


def _write(home: CoordinatorHome, staged: Path, out: Path, password: str, summary: Summary) -> Summary:
    """Write the sealed archive, whole or not at all."""
    files = {path.name: path for path in sorted(home.folder.iterdir()) if path.suffix in _KEPT and path.is_file()}
    files |= {path.relative_to(staged).as_posix(): path for path in sorted(staged.rglob("*")) if path.is_file()}
    files = {name: path for name, path in files.items() if _NAME.fullmatch(name)}
    manifest = {
        "format": _FORMAT,
        "software": software(),
        "created_unix_s": summary.created_unix_s,
        "audit_head": None if summary.audit_head is None else str(summary.audit_head),
        "files": sorted(files),
    }
    partial = out.with_name(f".{out.name}.part")
    partial.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            writer = SealingWriter(file, password)
            with tarfile.open(fileobj=cast("IO[bytes]", writer), mode="w|", format=tarfile.PAX_FORMAT) as archive:
                _add(archive, _MANIFEST, canonical_json(manifest))
                for name, path in files.items():
                    _add_file(archive, name, path)
            writer.finish()
            file.flush()
            os.fsync(file.fileno())
        partial.rename(out)
        sync_folder(out.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return Summary(len(files), out.stat().st_size, summary.created_unix_s, summary.audit_head)


# Giving one back


def restore_backup(file: Path, home: CoordinatorHome, password: str, clock: Clock) -> Summary:
    """Make a coordinator's folder of a backup and return what it held; nothing is left where it does not hold.

    Raises AlreadyExistsError unless the folder is new or empty, CorruptDataError for a damaged, truncated or forged
    file and for another password alike, VersionError for a newer program's.
    """
    folder = home.folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise AlreadyExistsError(f"{folder} is not empty; name a new --home, nothing was changed")
    if not file.is_file():
        raise NotFoundError(f"there is no file {file}; name the one that backup wrote")
    with storage_errors(str(folder)):
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.restore-", dir=folder.parent))
    try:
        with storage_errors(str(folder)), file.open("rb") as sealed:
            manifest = _unpack(OpeningReader(sealed, password), made)
            head = _check(manifest, CoordinatorHome(made), clock)
            if folder.exists():
                folder.rmdir()
            made.rename(folder)
            sync_folder(folder.parent)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    summary = Summary(len(manifest["files"]), file.stat().st_size, manifest["created_unix_s"], head)
    if head is not None:
        store = Store.open(sqlite_url(folder / _DATABASE), clock)
        store.log(local_actor(), "backup.restore", "coordinator", {"created_unix_s": summary.created_unix_s})
        store.close()
    return summary


def _unpack(reader: OpeningReader, folder: Path) -> dict[str, Any]:
    """Write an archive's files into a folder and return its manifest, once all of it has proved authentic."""
    manifest: dict[str, Any] | None = None
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", reader), mode="r|") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isreg() else None
                if content is None:
                    raise CorruptDataError(_UNLIKE)
                if manifest is None:
                    manifest = _manifest(member, content)
                else:
                    _extract(member, content, folder)
    except (tarfile.TarError, FileExistsError) as error:
        raise CorruptDataError(_UNLIKE) from error
    reader.finish()
    found = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    if manifest is None or found != manifest["files"]:
        raise CorruptDataError(_UNLIKE)
    return manifest


def _manifest(member: tarfile.TarInfo, content: IO[bytes]) -> dict[str, Any]:
    if member.name != _MANIFEST or member.size > _MAX_MANIFEST_BYTES:
        raise CorruptDataError(_UNLIKE)
    try:
        manifest = json.loads(content.read())
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(_UNLIKE) from error
    if not isinstance(manifest, dict) or set(manifest) != _MANIFEST_FIELDS:
        raise CorruptDataError(_UNLIKE)
    if manifest["format"] != _FORMAT:
        raise VersionError(f"the backup has format {manifest['format']}, this program knows {_FORMAT}; upgrade it")
    return manifest


def _extract(member: tarfile.TarInfo, content: IO[bytes], folder: Path) -> None:
    """Write one file; names of other forms are refused, so that none leaves the folder."""
    if not _NAME.fullmatch(member.name):
        raise CorruptDataError(_UNLIKE)
    path, digest = folder / member.name, hashlib.sha256()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        while piece := content.read(_PIECE):
            file.write(piece)
            digest.update(piece)
        file.flush()
        os.fsync(file.fileno())
    if member.name.startswith(("models/", "states/")) and digest.hexdigest() != path.name:
        raise CorruptDataError(f"{member.name[:20]}… in the backup is damaged; use another copy")
    os.utime(path, (member.mtime, member.mtime))


def _check(manifest: dict[str, Any], made: CoordinatorHome, clock: Clock) -> Anchor | None:
    """Return where the audit log stood, once keys, database and files fit each other."""
    MasterKey.load(made.store_key_path)
    made.authority()
    if manifest["audit_head"] is None:
        return None
    head = Anchor.parse(str(manifest["audit_head"]))
    store = Store.open(sqlite_url(made.folder / _DATABASE), clock)
    try:
        store.audit(lambda log, db: log.verify(db, [head]))
        missing = [name for name in _named_files(store, has_spool=False) if not (made.folder / name).is_file()]
    finally:
        store.close()
    if missing:
        raise CorruptDataError(f"the backup lacks {len(missing)} files that its database names; use another copy")
    return head
