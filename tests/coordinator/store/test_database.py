"""The schema: migrations make exactly the tables that the program uses, and a newer database is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from coordinator.clock import Clock
from coordinator.store.database import database_errors, migrate, open_engine, schema_revision, sqlite_url
from coordinator.store.store import MIGRATIONS, SCHEMA, Store
from coordinator.store.tables import METADATA
from mien.errors import ConfigError, CorruptDataError, DiskFullError, VersionError


@pytest.fixture
def engine(tmp_path: Path) -> sa.Engine:
    engine = open_engine(sqlite_url(tmp_path / "c.db"))
    migrate(engine, MIGRATIONS, SCHEMA)
    return engine


def test_migrations_make_the_tables_of_the_program(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []


def test_head_is_the_newest_migration() -> None:
    assert ScriptDirectory(str(MIGRATIONS)).get_heads() == [SCHEMA]


def test_migrating_again_changes_nothing(engine: sa.Engine) -> None:
    migrate(engine, MIGRATIONS, SCHEMA)
    assert schema_revision(engine) == SCHEMA


def test_a_database_of_a_newer_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "c.db")
    Store.open(url, Clock()).close()
    engine = open_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    before = (tmp_path / "c.db").read_bytes()
    with pytest.raises(VersionError, match="newer program"):
        Store.open(url, Clock())
    assert (tmp_path / "c.db").read_bytes() == before


def test_a_failed_migration_leaves_nothing(tmp_path: Path) -> None:
    engine = open_engine(sqlite_url(tmp_path / "c.db"))
    with engine.begin() as connection:  # a table in the way, which the migration meets half-way through
        connection.execute(sa.text("CREATE TABLE devices (x INTEGER)"))
    with pytest.raises(sa.exc.OperationalError):
        migrate(engine, MIGRATIONS, SCHEMA)
    assert sa.inspect(engine).get_table_names() == ["devices"]
    engine.dispose()


def test_sqlite_is_set_to_survive(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        values = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")]
        assert values == ["wal", 2]
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1


def test_urls_and_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        open_engine("nonsense")
    with pytest.raises(ConfigError):
        open_engine("oracle+nothing://x")
    (tmp_path / "c.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(CorruptDataError):
        Store.open(sqlite_url(tmp_path / "c.db"), Clock())


def test_a_full_disk_is_told_as_such(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        connection.exec_driver_sql("ROLLBACK")
        connection.exec_driver_sql("PRAGMA max_page_count = 30")
        with pytest.raises(DiskFullError):
            _fill(connection)


def _fill(connection: sa.Connection) -> None:
    with database_errors():
        for _ in range(100):
            connection.exec_driver_sql("INSERT INTO settings VALUES (hex(randomblob(16)), hex(randomblob(4000)))")
