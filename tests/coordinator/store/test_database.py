"""The schema: migrations make exactly the tables that the program uses, and a newer database is left alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from coordinator.registrar import store as registrar
from coordinator.store.database import database_errors, migrate, open_engine, schema_revision, sole_server, sqlite_url
from coordinator.store.store import MIGRATIONS, SCHEMA, Store
from coordinator.store.tables import METADATA
from mien.errors import (
    AlreadyExistsError,
    ConfigError,
    CorruptDataError,
    DatabaseError,
    DiskFullError,
    NotFoundError,
    UnreachableError,
    VersionError,
)
from mien.shell.clock import Clock
from simulation.testing import free_port
from tests.servers.postgres import PASSWORD, PostgresServer


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    engine = open_engine(database_url)
    migrate(engine, MIGRATIONS, SCHEMA)
    yield engine
    engine.dispose()


@pytest.fixture
def sqlite_engine(tmp_path: Path) -> Iterator[sa.Engine]:
    engine = open_engine(sqlite_url(tmp_path / "c.db"))
    migrate(engine, MIGRATIONS, SCHEMA)
    yield engine
    engine.dispose()


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


def test_a_failed_migration_leaves_nothing(database_url: str) -> None:
    engine = open_engine(database_url)
    with engine.begin() as connection:  # a table in the way, which the migration meets half-way through
        connection.execute(sa.text("CREATE TABLE devices (x INTEGER)"))
    with pytest.raises(DatabaseError, match="refused what it was told"):
        migrate(engine, MIGRATIONS, SCHEMA)
    assert sa.inspect(engine).get_table_names() == ["devices"]
    engine.dispose()


def test_sqlite_is_set_to_survive(sqlite_engine: sa.Engine) -> None:
    with sqlite_engine.connect() as connection:
        values = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")]
        assert values == ["wal", 2]
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1


def test_a_database_of_another_program_is_refused_and_left_alone(database_url: str) -> None:
    registrar.Store.open(database_url).close()
    with pytest.raises(VersionError, match="a database of its own"):
        Store.open(database_url, Clock())
    registrar.Store.open(database_url).close()


def test_programs_that_begin_at_once_migrate_once(postgres_url: str) -> None:
    """Two processes open an empty database together: none fails, and the schema is that of the program."""
    begin = "import sys; from mien.shell.clock import Clock; from coordinator.store.store import Store; input()"
    command = [sys.executable, "-c", f"{begin}; Store.open(sys.argv[1], Clock()).close()", postgres_url]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    errors = [process.communicate(timeout=120)[1] for process in started]
    assert [process.returncode for process in started] == [0] * 2, errors
    engine = open_engine(postgres_url)
    assert schema_revision(engine) == SCHEMA
    engine.dispose()


def test_what_postgresql_refuses_says_what_to_do(postgres_server: PostgresServer, postgres_url: str) -> None:
    with pytest.raises(ConfigError, match="user and password"):
        Store.open(postgres_server.url("postgres", password="wrong"), Clock())
    with pytest.raises(ConfigError, match="no such database"):
        Store.open(postgres_server.url("nowhere"), Clock())
    silent = postgres_server.url("postgres").replace(f":{postgres_server.port}/", f":{free_port()}/")
    with pytest.raises(UnreachableError, match="does not answer") as caught:
        Store.open(silent, Clock())
    assert PASSWORD not in str(caught.value)
    engine = open_engine(postgres_url)
    assert PASSWORD not in repr(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("SET TRANSACTION READ ONLY")
        with pytest.raises(ConfigError, match="standby"), database_errors():
            connection.exec_driver_sql("CREATE TABLE t (x INTEGER)")
        connection.rollback()
    engine.dispose()


@pytest.mark.parametrize("value", [2**64 - 1, "a\x00b"])
def test_what_no_database_can_hold_is_the_callers_fault(database_url: str, value: object) -> None:
    """Numbers and texts in requests come from devices and operators; SQLite takes a zero byte, PostgreSQL does not."""
    store = Store.open(database_url, Clock())
    try:
        if isinstance(value, str):
            with pytest.raises((ConfigError, NotFoundError)) as caught:
                store.model(value)
            assert caught.value.message.isprintable()
        else:
            with pytest.raises(ConfigError, match="no database can hold"):
                store.round("t", int(str(value)), 1)
    finally:
        store.close()


def test_a_connection_that_died_is_replaced(postgres_server: PostgresServer, postgres_url: str) -> None:
    store = Store.open(postgres_url, Clock())
    store.remember("a", "1")
    postgres_server.stop(crash=True)
    with pytest.raises(UnreachableError):
        store.setting("a")
    postgres_server.start()
    assert store.setting("a") == "1"
    store.close()


def test_urls_and_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        open_engine("nonsense")
    with pytest.raises(ConfigError):
        open_engine("oracle+nothing://x")
    (tmp_path / "c.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(CorruptDataError):
        Store.open(sqlite_url(tmp_path / "c.db"), Clock())


def test_a_full_disk_is_told_as_such(sqlite_engine: sa.Engine) -> None:
    with sqlite_engine.connect() as connection:
        connection.exec_driver_sql("ROLLBACK")
        connection.exec_driver_sql("PRAGMA max_page_count = 30")
        with pytest.raises(DiskFullError):
            _fill(connection)


def _fill(connection: sa.Connection) -> None:
    with database_errors():
        for _ in range(100):
            connection.exec_driver_sql("INSERT INTO settings VALUES (hex(randomblob(16)), hex(randomblob(4000)))")


def test_a_sqlite_file_has_one_server_whichever_folder_names_it(tmp_path: Path) -> None:
    file, link = tmp_path / "a.db", tmp_path / "link"
    link.symlink_to(tmp_path)
    with sole_server(sqlite_url(file), program="mien-coordinator"):
        for url in (sqlite_url(file), sqlite_url(link / "a.db")):
            with (
                pytest.raises(AlreadyExistsError, match="another mien-coordinator is using this database"),
                sole_server(url, program="mien-coordinator"),
            ):
                raise AssertionError("two servers")
        with sole_server(sqlite_url(tmp_path / "b.db"), program="mien-coordinator"):
            pass
    with sole_server(sqlite_url(file), program="mien-coordinator"):
        pass
