"""Content of a coordinator's backup: keys, settings, database, models, states, contributions of rounds under way.

Whatever files the copy of the database names are linked (blobs and committed contributions never change), and where one
of them has been cleared away meanwhile, all is begun again from a newer copy.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import ClassVar, Final

import sqlalchemy as sa

from coordinator.home import archive
from coordinator.home.archive import Kind, Summary
from coordinator.home.backup import Backup
from coordinator.home.home import CoordinatorHome
from coordinator.store.audit import local_actor
from coordinator.store.database import sqlite_url
from coordinator.store.sealing import MasterKey
from coordinator.store.store import Store
from coordinator.store.tables import ROUNDS, UPLOADS
from mien.errors import ConfigError, CorruptDataError
from mien.log.audit import Anchor

_TRIES: Final = 10


class CoordinatorBackup(Backup[CoordinatorHome]):
    """Makes backups of a coordinator's folder, and the folder of a backup."""

    kind: ClassVar = Kind(
        "coordinator",
        re.compile(
            r"[a-z][a-z0-9-]*\.(key|pem|csr|crl|revoked|toml)|coordinator\.db"
            r"|(models|states)/[0-9a-f]{2}/[0-9a-f]{64}|spool/[0-9]{1,18}/[0-9a-f]{32}"
        ),
        by_hash=("models/", "states/"),
    )
    kept: ClassVar = (".key", ".pem", ".csr", ".crl", ".revoked", ".toml")

    def _check_embedded(self) -> None:
        config = self._home.resolve().config
        if config.database_url:
            raise ConfigError(
                "database_url names a database of its own: save that with its own tool (pg_dump for PostgreSQL, "
                ".backup for SQLite), then run backup --without-data for keys and settings"
            )
        if config.blobs_url:
            raise ConfigError(
                "blobs_url names a store of its own: save that with its own tool (versioning or a copy of the "
                "bucket), after the database, then run backup --without-data for keys and settings"
            )

    def _stage(self, folder: Path) -> Anchor:
        home = self._home
        copied = folder / home.database_path.name
        for _ in range(_TRIES):
            archive.copy_database(home.database_path, copied)
            with closing(home.open_store(sqlite_url(copied), self._clock)) as copy:
                head = copy.audit(lambda log, db: log.verify(db))
                named = _named_files(copy, has_spool=not home.resolve().config.spool_folder)
            if all(_link(home.folder / name, folder / name) for name in named):
                return head
        raise CorruptDataError(
            "files that the database names are missing, or rounds close too fast for a backup; run doctor, or try again"
        )

    def _settle(self, copy: CoordinatorHome, summary: Summary) -> Mapping[str, int]:
        """Raise unless keys, database and files fit each other, and the audit log stands where the backup says."""
        MasterKey.load(copy.store_key_path)
        head = summary.audit_head
        if head is None:
            return {}
        with closing(copy.open_store(sqlite_url(copy.database_path), self._clock)) as store:
            store.audit(lambda log, db: log.verify(db, [head]))
            missing = [name for name in _named_files(store, has_spool=False) if not (copy.folder / name).is_file()]
            if missing:
                raise CorruptDataError(
                    f"the backup lacks {len(missing)} files that its database names; use another copy"
                )
            store.log(local_actor(), "backup.restore", "coordinator", {"created_unix_s": summary.created_unix_s})
        return {}


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
