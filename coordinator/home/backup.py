"""A coordinator's backup: keys, settings, database, models, states, and contributions of rounds under way.

Taken while the coordinator serves. The database is copied by SQLite's online backup, at one instant; whatever files
that copy names are then linked (blobs and committed contributions never change), and where one of them has been cleared
away meanwhile, all is begun again from a newer copy. The file is an `archive`.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from coordinator.home import archive
from coordinator.home.archive import Kind, Origin, Summary
from coordinator.home.home import CoordinatorHome
from coordinator.store.audit import local_actor
from coordinator.store.database import sqlite_url
from coordinator.store.sealing import MasterKey
from coordinator.store.store import Store
from coordinator.store.tables import ROUNDS, UPLOADS
from mien.errors import AlreadyExistsError, ConfigError, CorruptDataError, NotFoundError
from mien.log.audit import Anchor
from mien.shell.clock import Clock
from mien.shell.files import storage_errors
from mien.shell.lock import exclusive
from mien.shell.version import software

_DATABASE: Final = "coordinator.db"
_KEPT: Final = (".key", ".pem", ".csr", ".crl", ".revoked", ".toml")
KIND: Final = Kind(
    "coordinator",
    re.compile(
        r"[a-z][a-z0-9-]*\.(key|pem|csr|crl|revoked|toml)|coordinator\.db"
        r"|(models|states)/[0-9a-f]{2}/[0-9a-f]{64}|spool/[0-9]{1,18}/[0-9a-f]{32}"
    ),
    by_hash=("models/", "states/"),
)
_TRIES: Final = 10


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
            origin = Origin(software("mien-coordinator"), int(clock.now()), head)
            return archive.write(KIND, _files(home, Path(folder)), out, password, origin)


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
        archive.copy_database(home.folder / _DATABASE, folder / _DATABASE)
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


def _files(home: CoordinatorHome, staged: Path) -> dict[str, Path]:
    """Return the files of a backup by their names in it."""
    files = {path.name: path for path in sorted(home.folder.iterdir()) if path.suffix in _KEPT and path.is_file()}
    return files | {path.relative_to(staged).as_posix(): path for path in sorted(staged.rglob("*")) if path.is_file()}


# Giving one back


def restore_backup(file: Path, home: CoordinatorHome, password: str, clock: Clock) -> Summary:
    """Make a coordinator's folder of a backup and return what it held; nothing is left where it does not hold.

    Raises AlreadyExistsError unless the folder is new or empty, CorruptDataError for a damaged, truncated or forged
    file and for another password alike, VersionError for a newer program's.
    """
    with archive.restoring(KIND, file, home.folder, password) as (made, summary):
        _check(summary.audit_head, CoordinatorHome(made), clock)
    if summary.audit_head is not None:
        store = Store.open(sqlite_url(home.folder / _DATABASE), clock)
        store.log(local_actor(), "backup.restore", "coordinator", {"created_unix_s": summary.created_unix_s})
        store.close()
    return summary


def _check(head: Anchor | None, made: CoordinatorHome, clock: Clock) -> None:
    """Raise unless keys, database and files fit each other, and the audit log stands where the backup says."""
    MasterKey.load(made.store_key_path)
    made.authority()
    if head is None:
        return
    store = Store.open(sqlite_url(made.folder / _DATABASE), clock)
    try:
        store.audit(lambda log, db: log.verify(db, [head]))
        missing = [name for name in _named_files(store, has_spool=False) if not (made.folder / name).is_file()]
    finally:
        store.close()
    if missing:
        raise CorruptDataError(f"the backup lacks {len(missing)} files that its database names; use another copy")
