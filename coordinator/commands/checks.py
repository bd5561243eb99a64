"""Checks of the folder for both servers' doctors, in the order in which faults should be mended."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, TypeVar

from coordinator.home.folder import ServerHome
from coordinator.keys import pki
from mien.errors import MienError, NotFoundError, VersionError
from mien.format import several
from mien.shell.doctor import Finding

CA_WARNING_DAYS: Final = 180
OPERATOR_WARNING_DAYS: Final = 30

H = TypeVar("H", bound=ServerHome[Any, Any])


class FolderChecks(Generic[H]):
    """The checks of one server's folder; each returns what it found, or raises what to do.

    `ORDER` names them, in the order in which faults should be mended; "audit log" is the method `audit_log`.
    """

    ORDER: ClassVar[tuple[str, ...]]

    def __init__(self, home: H, clock: Callable[[], datetime]) -> None:
        self._home, self._clock = home, clock

    async def examine(self) -> list[Finding]:
        """Return one finding per check; raises NotFoundError where there is no folder, of which each would tell."""
        if not self._home.folder.is_dir():
            self._home.resolve()
        findings = []
        for name in self.ORDER:
            try:
                findings.append(Finding(name, await self._look(name)))
            except MienError as error:
                findings.append(Finding(name, error.message, error))
        return findings

    async def _look(self, name: str) -> str:
        """Return what one check finds, or raise what to do."""
        found: str = await getattr(self, re.sub(r"\W+", "_", name))()
        return found

    async def folder(self) -> str:
        """Check that folder and keys are the owner's alone."""
        self._home.check_private()
        return "folder and keys are private"

    async def authority(self) -> str:
        """Check that the authority's key is there and its certificate lasts."""
        certificate = self._home.authority().certificate
        what = "the authority's certificate"
        pki.check_validity(certificate, self._clock(), what=what, warn_days=CA_WARNING_DAYS)
        return f"fingerprint {pki.fingerprint(certificate)}, until {certificate.not_valid_after_utc:%Y-%m-%d}"

    async def operator(self) -> str:
        """Check that the owner's credentials are of the authority for operators, and last."""
        leaf = pki.load_certificate(self._home.public(self._home.operator_path))
        pki.operator_identity(leaf, self._home.operators(self._clock()).certificate, self._clock())
        what = "the operator's certificate (operator renew)"
        pki.check_validity(leaf, self._clock(), what=what, warn_days=OPERATOR_WARNING_DAYS)
        return f"until {leaf.not_valid_after_utc:%Y-%m-%d}"

    async def audit_log(self) -> str:
        """Check that the audit log is unchanged."""
        with self._store() as store:
            newest = store.audit(lambda log, db: log.verify(db))
        return f"{several(newest.position, 'entry', 'entries')}, each following from the one before"

    def _database(self) -> str:
        """Return the database's URL; raises NotFoundError for a file that is not there, which to open would make."""
        url = self._home.database_url(self._home.resolve().config)
        if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).is_file():
            raise NotFoundError("there is no database; it is made by init and by serve")
        return url

    def _store(self) -> contextlib.closing[Any]:
        """Return the store of a database that is there, open while a block runs; errors as in `_revision`."""
        self._revision()
        return self._home.store()

    def _revision(self) -> str:
        """Return the schema's revision; raises NotFoundError for no database, VersionError for another revision.

        To open a store would make the one and change the other.
        """
        from coordinator.store.database import open_engine, schema_revision

        engine = open_engine(self._database())
        try:
            found, head = schema_revision(engine), self._home.schema().head
        finally:
            engine.dispose()
        if found is None:
            raise NotFoundError("the database is empty; serve makes its tables, move-database fills them")
        if found != head:
            raise VersionError(f"schema is {found}, this program's {head}; serve migrates an older one")
        return found
