"""Opening a database and bringing its schema up to date; shared by the programs of this package.

SQLite is set to what durability needs: write-ahead log, an fsync at every commit, foreign keys, and real transactions
around schema changes (the driver's own would end at the first CREATE TABLE).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from mien.errors import ConfigError, CorruptDataError, DiskFullError, KeyStoreError, UnreachableError, VersionError

_BUSY_TIMEOUT_MS: Final = 30_000

# What the databases say, in their words, and what it means for the person who runs the program.
_REFUSALS: Final[tuple[tuple[str, type[DiskFullError | KeyStoreError | CorruptDataError], str], ...]] = (
    ("disk is full", DiskFullError, "no space left for the database; free some space and run again"),
    ("no space left", DiskFullError, "no space left for the database; free some space and run again"),
    (
        "disk i/o error",
        DiskFullError,
        "the disk refused a write to the database: it is full or failing; free some space",
    ),
    ("readonly", KeyStoreError, "the database may not be written; check the folder's owner and permissions"),
    ("unable to open", KeyStoreError, "the database cannot be opened; check the folder's owner and permissions"),
    ("malformed", CorruptDataError, "the database is damaged; restore it from a backup"),
    ("not a database", CorruptDataError, "the database file is damaged or not ours; restore it from a backup"),
)


def sqlite_url(path: Path) -> str:
    """Return the URL of a SQLite file."""
    return f"sqlite:///{path}"


def open_engine(url: str) -> sa.Engine:
    """Return a connection pool for a database URL; raises ConfigError for one that cannot be used."""
    try:
        engine = sa.create_engine(url, hide_parameters=True)
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        raise ConfigError(
            "database_url cannot be used: give sqlite:///FILE, or another URL and install its driver"
        ) from error
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
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


@contextlib.contextmanager
def database_errors() -> Iterator[None]:
    """Turn a database's refusals into errors that say what to do; what was committed before is unchanged."""
    try:
        yield
    except DBAPIError as error:
        text = str(error.orig).lower()
        for words, cls, message in _REFUSALS:
            if words in text:
                raise cls(message) from error
        if error.connection_invalidated or "connect" in text:
            raise UnreachableError("the database does not answer; check its address and that it runs") from error
        raise


def schema_revision(engine: sa.Engine) -> str | None:
    """Return the revision of a database's schema, None for an empty database."""
    with database_errors(), engine.connect() as connection:
        if not sa.inspect(connection).has_table("alembic_version"):
            return None
        return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar_one_or_none()


def migrate(engine: sa.Engine, folder: Path, head: str) -> None:
    """Bring a database to revision `head` of the migrations in `folder`, wholly or not at all.

    Raises VersionError for a database that a newer program has migrated: it is not touched.
    """
    current = schema_revision(engine)
    if current == head:
        return  # the usual case, without importing Alembic
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if current is not None and current not in known:
        raise VersionError(
            f"the database was written by a newer program (schema {current}, this program knows {head}); "
            "upgrade this program"
        )
    with database_errors(), engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, head)
