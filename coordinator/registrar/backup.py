"""A registrar's backup: its authority, settings, and the database of invites, devices and revocations.

Taken while the registrar serves: the database is copied by SQLite's online backup, at one instant. A restored copy has
forgotten what came after it; invites that were open then may have been used since, so none of them is good any more.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

from coordinator.home import archive
from coordinator.home.archive import Kind, Origin, Summary
from coordinator.registrar.home import RegistrarHome
from coordinator.registrar.store import Store
from coordinator.store.audit import local_actor
from coordinator.store.database import sqlite_url
from mien.errors import AlreadyExistsError, ConfigError, NotFoundError
from mien.log.audit import Anchor
from mien.shell.files import storage_errors
from mien.shell.lock import exclusive
from mien.shell.ready import is_ready_file
from mien.shell.version import software

KIND: Final = Kind("registrar", re.compile(r"[a-z][a-z0-9-]*\.(key|pem|json)|registrar\.(toml|db)"))
_DATABASE: Final = "registrar.db"
_KEPT: Final = (".key", ".pem", ".json", ".toml")


def make_backup(
    home: RegistrarHome, out: Path, password: str, clock: Callable[[], datetime], *, with_data: bool
) -> Summary:
    """Write a backup and return what it holds; without data it is keys, certificates and settings only.

    Raises ConfigError for a database that lies elsewhere, AlreadyExistsError rather than overwrite a file.
    """
    if not home.ca_key_path.is_file():
        raise NotFoundError(f"there is no registrar in {home.folder}; name another --home")
    if with_data and home.config().config.store_url:
        raise ConfigError(
            "store_url names a database of its own: save that with its own tool (pg_dump for PostgreSQL), then run "
            "backup --without-data for keys and settings"
        )
    if out.exists():
        raise AlreadyExistsError(f"{out} exists already; name another file")
    with exclusive(home.folder / "backup.lock", program="mien-registrar backup"):
        for left in home.folder.glob(".backup-*"):  # of one that was killed
            shutil.rmtree(left)
        with tempfile.TemporaryDirectory(prefix=".backup-", dir=home.folder) as folder, storage_errors(out.name):
            kept = (path for path in sorted(home.folder.iterdir()) if path.suffix in _KEPT)
            files = {path.name: path for path in kept if not is_ready_file(path)}
            now, head = int(clock().timestamp()), None
            if with_data:
                files[_DATABASE] = Path(folder) / _DATABASE
                head = _copy(home.folder / _DATABASE, files[_DATABASE], now)
            return archive.write(KIND, files, out, password, Origin(software("mien-registrar"), now, head))


def restore_backup(
    file: Path, home: RegistrarHome, password: str, clock: Callable[[], datetime]
) -> tuple[Summary, int]:
    """Make a registrar's folder of a backup; return what it held and how many open invites were ended.

    Raises what `archive.restoring` raises; nothing is left where the backup does not hold.
    """
    ended = 0
    with archive.restoring(KIND, file, home.folder, password) as (made, summary):
        RegistrarHome(made).authority()
        if summary.audit_head is not None:
            ended = _settle(made / _DATABASE, summary.audit_head, summary.created_unix_s, int(clock().timestamp()))
    return summary, ended


def _copy(source: Path, target: Path, now: int) -> Anchor:
    """Copy the database, its backup entered in the audit log; return where the copy's log stands."""
    store = Store.open(sqlite_url(source))
    try:
        with store.begin() as transaction:
            transaction.log(now, local_actor(), "backup.make", "registrar")
    finally:
        store.close()
    archive.copy_database(source, target)
    copy = Store.open(sqlite_url(target))
    try:
        with copy.begin() as transaction:
            return transaction.audit(lambda log, db: log.verify(db))
    finally:
        copy.close()


def _settle(database: Path, head: Anchor, created_unix_s: int, now: int) -> int:
    """Check a restored database, end its open invites and enter the restoring; return how many invites ended.

    Its next revocation list gets a larger number than any that coordinators may hold, or they would not take it.
    """
    store = Store.open(sqlite_url(database))
    try:
        with store.begin() as transaction:
            transaction.audit(lambda log, db: log.verify(db, [head]))
            ended = transaction.end_open_invites(now)
            transaction.skip_list_numbers(now)
            detail = {"created_unix_s": created_unix_s, "invites_ended": ended}
            transaction.log(now, local_actor(), "backup.restore", "registrar", detail)
        return ended
    finally:
        store.close()
