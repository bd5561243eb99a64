"""The coordinator's database, opened for reading only: nothing that the dashboard does can hold up or change a round.

SQLite opens the file read-only and refuses whatever would write; its write-ahead log lets readers and the writer go on
side by side. PostgreSQL runs every transaction read-only, on one snapshot, and ends a statement that takes too long.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import sqlalchemy as sa

from coordinator.store.database import database_errors, open_engine, schema_revision
from coordinator.store.store import SCHEMA
from coordinator.store.tables import AUDIT, ROUNDS
from mien.errors import NotFoundError, VersionError

T = TypeVar("T")

_SQLITE: Final = "sqlite:///"
_STATEMENT_LIMIT_MS: Final = 20_000
_BUSY_TIMEOUT_S: Final = 5.0
_NEWEST_ATTEMPTS: Final = 1000


class Reader:
    """Answers questions about the store, each from one snapshot of it."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    @classmethod
    def open(cls, url: str) -> Self:
        """Return the reader of a database; raises NotFoundError for none, VersionError for another schema."""
        reader = cls(_open_sqlite(url) if url.startswith(_SQLITE) else _open_server(url))
        try:
            reader.check_schema()
        except BaseException:
            reader.close()
            raise
        return reader

    def check_schema(self) -> str:
        """Return the schema's revision; raises VersionError unless it is this program's."""
        found = schema_revision(self._engine)
        if found != SCHEMA:
            raise VersionError(
                f"the database has schema {found}, this program reads {SCHEMA}; mien-coordinator serve migrates an "
                "older one, a newer one needs a newer program"
            )
        return found

    def ask(self, question: Callable[[sa.Connection], T]) -> T:
        """Return the answer to a question from one snapshot."""
        with database_errors(), self._engine.begin() as db:
            return question(db)

    def close(self) -> None:
        """Close the database."""
        self._engine.dispose()


@dataclass(frozen=True)
class Revision:
    """The store's state that a page shows: `id` changes whenever something that pages show has changed."""

    id: str
    audit_position: int


def revision(db: sa.Connection, minute: int) -> Revision:
    """Return the revision of the store; it also changes every minute, with the times that pages tell.

    Whatever matters is in the audit log, and progress within a stage in the versions of the newest attempts.
    """
    position = AUDIT.read_head(db).position
    newest = db.scalar(sa.select(sa.func.max(ROUNDS.c.id))) or 0
    recent = sa.select(sa.func.sum(ROUNDS.c.version)).where(ROUNDS.c.id > newest - _NEWEST_ATTEMPTS)
    state = f"{position}/{newest}/{db.scalar(recent) or 0}/{minute}"
    return Revision(hashlib.sha256(state.encode()).hexdigest()[:16], position)


def _open_sqlite(url: str) -> sa.Engine:
    path = Path(url.removeprefix(_SQLITE))
    if not path.is_file():
        raise NotFoundError(f"there is no database {path.name} yet; mien-coordinator init makes it")

    def connect() -> sqlite3.Connection:
        address = f"file:{quote(str(path.absolute()))}?mode=ro"
        return sqlite3.connect(
            address, uri=True, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )

    engine = sa.create_engine("sqlite://", creator=connect, poolclass=sa.QueuePool, hide_parameters=True)
    sa.event.listen(engine, "connect", _refuse_writes)
    sa.event.listen(engine, "begin", _begin)
    return engine


def _refuse_writes(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA query_only = ON").close()


def _begin(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def _open_server(url: str) -> sa.Engine:
    """Return a pool whose every transaction is read-only, whatever the database's user may do."""
    engine = open_engine(url)
    if engine.dialect.name == "postgresql":
        options = f"-c default_transaction_read_only=on -c statement_timeout={_STATEMENT_LIMIT_MS}"
        address = engine.url.update_query_dict({"options": options}).render_as_string(hide_password=False)
        engine.dispose()
        engine = open_engine(address).execution_options(isolation_level="REPEATABLE READ")
    return engine
