"""Backups of a server's folder: keys, settings, and whatever else its program keeps there, in one sealed `archive`.

Taken while the program serves: its database is copied by SQLite's online backup, at one instant. A restored copy has
forgotten what came after it.
"""

from __future__ import annotations

import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from coordinator.home import archive
from coordinator.home.archive import Kind, Origin, Summary
from coordinator.home.folder import ServerHome
from coordinator.store.audit import local_actor
from coordinator.store.database import sqlite_url
from mien.errors import AlreadyExistsError, NotFoundError
from mien.log.audit import Anchor
from mien.shell.clock import Clock
from mien.shell.files import storage_errors
from mien.shell.lock import exclusive
from mien.shell.ready import is_ready_file
from mien.shell.version import software

H = TypeVar("H", bound=ServerHome[Any, Any])


class Backup(ABC, Generic[H]):
    """Makes backups of one server's folder, and the folder of a backup."""

    kind: ClassVar[Kind]
    kept: ClassVar[tuple[str, ...]]
    """The endings of the files beside the database that belong to a backup."""

    def __init__(self, home: H, clock: Clock) -> None:
        self._home, self._clock = home, clock

    def make(self, out: Path, password: str, *, with_data: bool) -> Summary:
        """Write a backup and return its summary; without data it is keys, certificates and settings only.

        Raises ConfigError for data that lies elsewhere, AlreadyExistsError rather than overwrite a file.
        """
        home, program = self._home, f"mien-{self._home.name}"
        if not home.ca_key_path.is_file():
            raise NotFoundError(f"there is no {home.name} in {home.folder}; name another --home")
        if with_data:
            self._check_embedded()
        if out.exists():
            raise AlreadyExistsError(f"{out} exists already; name another file")
        with exclusive(home.folder / "backup.lock", program=f"{program} backup"):
            for left in home.folder.glob(".backup-*"):  # of one that was killed
                shutil.rmtree(left)
            with tempfile.TemporaryDirectory(prefix=".backup-", dir=home.folder) as folder, storage_errors(out.name):
                head = self._enter_and_stage(Path(folder)) if with_data else None
                origin = Origin(software(program), int(self._clock.now()), head)
                return archive.write(self.kind, self._files(Path(folder)), out, password, origin)

    def restore(self, file: Path, password: str) -> tuple[Summary, Mapping[str, int]]:
        """Make the folder of a backup; return what that held, and by name how many things were settled in it.

        Raises what `archive.restoring` raises; nothing is left where the backup does not hold.
        """
        with archive.restoring(self.kind, file, self._home.folder, password) as (made, summary):
            copy = type(self._home)(made)
            copy.authority()
            return summary, self._settle(copy, summary)

    @abstractmethod
    def _check_embedded(self) -> None:
        """Raise ConfigError unless everything lies in the folder: other stores have better tools of their own."""

    @abstractmethod
    def _stage(self, folder: Path) -> Anchor:
        """Put the data, its parts fitting each other, into a folder; return where the copy's audit log stands."""

    @abstractmethod
    def _settle(self, copy: H, summary: Summary) -> Mapping[str, int]:
        """Check a restored folder and enter the restoring in its audit log; return what more was settled there."""

    def _enter_and_stage(self, folder: Path) -> Anchor:
        with closing(self._home.open_store(sqlite_url(self._home.database_path), self._clock)) as store:
            store.log(local_actor(), "backup.make", self._home.name)
        return self._stage(folder)

    def _files(self, staged: Path) -> dict[str, Path]:
        """Return the files of a backup by their names in it."""
        kept = (path for path in sorted(self._home.folder.iterdir()) if path.suffix in self.kept and path.is_file())
        files = {path.name: path for path in kept if not is_ready_file(path)}
        data = (path for path in sorted(staged.rglob("*")) if path.is_file())
        return files | {path.relative_to(staged).as_posix(): path for path in data}
