"""Content of a registrar's backup: its authority, settings, and the database of invites, devices and revocations.

Invites that were open when it was taken may have been used since, so a restored copy takes none of them any more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import ClassVar

from coordinator.home import archive
from coordinator.home.archive import Kind, Summary
from coordinator.home.backup import Backup
from coordinator.registrar.home import RegistrarHome
from coordinator.store.audit import local_actor
from coordinator.store.database import sqlite_url
from mien.errors import ConfigError
from mien.log.audit import Anchor


class RegistrarBackup(Backup[RegistrarHome]):
    """Makes backups of a registrar's folder, and the folder of a backup."""

    kind: ClassVar = Kind("registrar", re.compile(r"[a-z][a-z0-9-]*\.(key|pem|json)|registrar\.(toml|db)"))
    kept: ClassVar = (".key", ".pem", ".json", ".toml")

    def _check_embedded(self) -> None:
        if self._home.resolve().config.store_url:
            raise ConfigError(
                "store_url names a database of its own: save that with its own tool (pg_dump for PostgreSQL), then run "
                "backup --without-data for keys and settings"
            )

    def _stage(self, folder: Path) -> Anchor:
        copied = folder / self._home.database_path.name
        archive.copy_database(self._home.database_path, copied)
        with closing(self._home.open_store(sqlite_url(copied), self._clock)) as copy:
            return copy.audit(lambda log, db: log.verify(db))

    def _settle(self, copy: RegistrarHome, summary: Summary) -> Mapping[str, int]:
        """Check the audit log, and end the invites that are open.

        The next revocation list gets a larger number than any that coordinators may hold, or they would not take it.
        """
        head, now = summary.audit_head, int(self._clock.now())
        if head is None:
            return {"invites_ended": 0}
        with (
            closing(copy.open_store(sqlite_url(copy.database_path), self._clock)) as store,
            store.begin() as transaction,
        ):
            transaction.audit(lambda log, db: log.verify(db, [head]))
            ended = transaction.end_open_invites(now)
            transaction.skip_list_numbers(now)
            detail = {"created_unix_s": summary.created_unix_s, "invites_ended": ended}
            transaction.log(now, local_actor(), "backup.restore", "registrar", detail)
        return {"invites_ended": ended}
