"""Opening a database and bringing its schema up to date; shared by the programs of this package.

SQLite is set to what durability needs: write-ahead log, an fsync at every commit, foreign keys, and real transactions
around schema changes (the driver's own would end at the first CREATE TABLE). PostgreSQL is durable as it comes; a
connection that died is noticed before it is used, and one whose server is silent ends within a minute.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
import structlog
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, NoSuchModuleError

from mien.errors import (
    ConfigError,
    CorruptDataError,
    DatabaseError,
    DiskFullError,
    FileAccessError,
    MienError,
    UnreachableError,
    VersionError,
)
from mien.shell.lock import exclusive

_LOG: Final = structlog.get_logger()
_BUSY_TIMEOUT_MS: Final = 30_000
_RETRY_AFTER_S: Final = 5.0
_MOVED: Final = "moved"  # in place of a revision, where no program finds one that it knows
_MIGRATION_LOCK: Final = 0x4D49_454E  # "MIEN": the key of PostgreSQL's advisory lock, which is one database's own
_COMMANDS_LOCK: Final = 0x4D49_434F  # "MICO"

_POSTGRESQL: Final[dict[str, Any]] = {
    "pool_pre_ping": True,
    "connect_args": {
        "connect_timeout": 10,
        "application_name": "mien",
        "keepalives_idle": 15,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
    },
}

_WRONG_URL: Final = "the database refuses the user and password in its URL; correct them"

# What the databases say, in their words, and what it means for the person who runs the program.
_REFUSALS: Final[tuple[tuple[str, type[MienError], str], ...]] = (
    ("disk is full", DiskFullError, "no space left for the database; free some space and run again"),
    ("no space left", DiskFullError, "no space left for the database; free some space and run again"),
    (
        "disk i/o error",
        DiskFullError,
        "the disk refused a write to the database: it is full or failing; free some space",
    ),
    (
        "readonly",
        FileAccessError,
        "the database may not be written; check disk, owner and permissions of its folder",
    ),
    ("unable to open", FileAccessError, "the database cannot be opened; check the folder's owner and permissions"),
    ("malformed", CorruptDataError, "the database is damaged; restore it from a backup"),
    ("not a database", CorruptDataError, "the database file is damaged or not ours; restore it from a backup"),
    ("password authentication failed", ConfigError, _WRONG_URL),
    ("no password supplied", ConfigError, _WRONG_URL),
    ("no pg_hba.conf entry", ConfigError, "the database server lets nobody in from here; add this host to pg_hba.conf"),
    ("permission denied", ConfigError, "the database's user may not use its tables; make it the database's owner"),
    ("read-only transaction", ConfigError, "the database server only reads (a standby?); name the one that writes"),
)

# PostgreSQL's SQLSTATE codes, by their beginning: these may go another way when they are tried again.
_PASSING: Final = ("08", "40001", "40P01", "53300", "55P03", "57P")
_NO_SUCH_DATABASE: Final = re.compile(r'database "[^"]*" does not exist')


@dataclass(frozen=True)
class Schema:
    """A program's tables, the folder of the migrations that make them, and their newest revision."""

    tables: sa.MetaData
    migrations: Path
    head: str


def sqlite_url(path: Path) -> str:
    """Return the URL of a SQLite file."""
    return f"sqlite:///{path}"


@contextlib.contextmanager
def sole_server(url: str, *, program: str) -> Iterator[None]:
    """Hold a SQLite file for one server while the block runs; other databases are guarded elsewhere, or not at all.

    Raises AlreadyExistsError while another server uses the file, from a folder that was copied, say.
    """
    file = sa.make_url(url).database if url.startswith("sqlite:") else None
    if not file or file == ":memory:" or file.startswith("file:"):
        yield
        return
    path = Path(file).resolve()
    with exclusive(path.with_name(f"{path.name}.lock"), program=program, option="database", what="database"):
        yield


def open_engine(url: str, *, setting: str = "database_url") -> sa.Engine:
    """Return a connection pool for a database URL; raises ConfigError for one that cannot be used.

    A URL that begins with postgresql: means the driver that this program comes with. `setting` is where it was set.
    """
    try:
        parsed = sa.make_url(url)
        if parsed.drivername in ("postgresql", "postgres"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        options = _POSTGRESQL if parsed.drivername == "postgresql+psycopg" else {}
        engine = sa.create_engine(parsed, hide_parameters=True, **options)
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError, ValueError):
        raise ConfigError(
            f"{setting} cannot be used: give sqlite:///FILE, postgresql://USER:PASSWORD@HOST/DATABASE (special "
            "characters percent-encoded), or another URL and install its driver"
        ) from None  # the parser's error may quote the password
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def open_migrated(url: str, folder: Path, head: str, *, setting: str = "database_url") -> sa.Engine:
    """Return a connection pool for a database whose schema is now that of the migrations in `folder` at `head`."""
    engine = open_engine(url, setting=setting)
    try:
        migrate(engine, folder, head)
    except BaseException:
        engine.dispose()
        raise
    return engine


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # no transactions behind our back: _begin_sqlite starts them
    cursor = connection.cursor()
    try:
        for pragma in (
            f"busy_timeout = {_BUSY_TIMEOUT_MS}",
            "journal_mode = WAL",
            "synchronous = FULL",
            "foreign_keys = ON",
        ):
            cursor.execute(f"PRAGMA {pragma}")
    finally:
        cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


_TOO_LARGE: Final = "the request holds a number or a text that no database can hold; correct it"


@contextlib.contextmanager
def database_errors() -> Iterator[None]:
    """Turn a database's refusals into errors that say what to do; what was committed before is unchanged.

    UnreachableError leaves one thing open: whether a commit that was on its way has arrived.
    """
    try:
        yield
    except DBAPIError as error:
        raise _explained(error) from error
    except OverflowError as error:  # SQLite's driver: a number beyond 2^63
        raise ConfigError(_TOO_LARGE) from error


def _explained(error: DBAPIError) -> MienError:
    """Return the error for a refusal; DatabaseError for one that is a fault of this program."""
    text = str(error.orig).lower()
    for words, cls, message in _REFUSALS:
        if words in text:
            return cls(message)
    if _NO_SUCH_DATABASE.search(text):
        return ConfigError("there is no such database on that server; create it, or correct its name in the URL")
    state = getattr(error.orig, "sqlstate", None) or ""
    if error.connection_invalidated or state.startswith(_PASSING) or "connect" in text:
        return UnreachableError(
            "the database does not answer; check its address and that it runs", retry_after_s=_RETRY_AFTER_S
        )
    refusal = f"{type(error.orig).__name__} {state}".strip()
    if isinstance(error, DataError):  # a round's number beyond 2^31, say, or a text with a zero byte: callers send them
        _LOG.info("the database cannot hold a value", refusal=refusal, statement=error.statement)
        return ConfigError(_TOO_LARGE)
    _LOG.error("the database refused a statement", refusal=refusal, statement=error.statement)
    return DatabaseError(f"the database refused what it was told ({refusal}); report this with the program's log")


def schema_revision(engine: sa.Engine) -> str | None:
    """Return the revision of a database's schema, None for an empty database."""
    with database_errors(), engine.connect() as connection:
        return _revision(connection)


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
    if found == _MOVED:
        raise ConfigError(
            "this database's rows were moved into another one (move-database); name that one in the settings, or in "
            "the service's environment"
        )
    return None if found is None else str(found)


def mark_moved(connection: sa.Connection) -> None:
    """Let no program, of whatever version, open this database again: its rows are elsewhere."""
    connection.execute(sa.text("UPDATE alembic_version SET version_num = :moved"), {"moved": _MOVED})


def migrate(engine: sa.Engine, folder: Path, head: str) -> None:
    """Bring a database to revision `head` of the migrations in `folder`, wholly or not at all.

    Of several programs that begin at once one migrates, and the others wait for it. Raises VersionError for a database
    that a newer program (or another one) has migrated: it is not touched.
    """
    if schema_revision(engine) == head:
        return  # the usual case, without importing Alembic
    with database_errors(), engine.begin() as connection:  # on SQLite that takes the write lock
        _upgrade(connection, folder, head)


def hold_schema(connection: sa.Connection) -> None:
    """Let no other program make or change tables until the connection's transaction ends; SQLite locks by itself."""
    _hold(connection, _MIGRATION_LOCK)


def hold_commands(connection: sa.Connection) -> None:
    """Let no other replica take a model, begin a task, a release or a roll-out until the transaction ends.

    These look whether they may before they write, and would not see what another is about to commit. To be called
    first in a transaction, so that nobody waits for this with a lock in hand.
    """
    _hold(connection, _COMMANDS_LOCK)


def _hold(connection: sa.Connection, key: int) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))


def upgrade(connection: sa.Connection, schema: Schema) -> None:
    """Bring a database to a program's schema within the transaction of a connection; see `migrate`."""
    _upgrade(connection, schema.migrations, schema.head)


def _upgrade(connection: sa.Connection, folder: Path, head: str) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    hold_schema(connection)
    current = _revision(connection)
    if current is not None and current not in known:
        raise VersionError(
            f"the database was written by a newer program (schema {current}, this program knows {head}) or belongs "
            "to another one; upgrade this program, or name a database of its own"
        )
    if current != head:
        config.attributes["connection"] = connection
        command.upgrade(config, head)
