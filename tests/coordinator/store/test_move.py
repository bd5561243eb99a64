"""Moving a server's rows from SQLite to a real PostgreSQL: databases of an earlier version, with history in them."""

from __future__ import annotations

import json
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from coordinator.home.folder import ServerHome
from coordinator.home.home import CoordinatorHome
from coordinator.registrar.home import RegistrarHome
from coordinator.store import account, move
from coordinator.store.database import open_engine, schema_revision, sqlite_url
from coordinator.store.tables import EVALUATIONS
from mien.errors import AlreadyExistsError, ConfigError, CorruptDataError
from mien.log.audit import Anchor
from mien.shell.clock import Clock
from mien.shell.lock import exclusive
from tests.helpers import ROOT
from tests.programs import call, run

FROZEN = ROOT / "tests" / "frozen"
FLEET = json.loads((FROZEN / "story.json").read_text(encoding="utf-8"))["fleet"]
KINDS: dict[str, type[ServerHome[Any, Any]]] = {"coordinator": CoordinatorHome, "registrar": RegistrarHome}
VARIABLES = {"coordinator": "MIEN_COORDINATOR_DATABASE_URL", "registrar": "MIEN_REGISTRAR_STORE_URL"}


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both servers' folders of then: settings, keys and databases."""
    folder = tmp_path_factory.mktemp("homes")
    with tarfile.open(FROZEN / "homes.tar.xz") as tar:
        members = [each for each in tar if each.name.split("/")[0] in KINDS and each.size < 1 << 20]
        tar.extractall(folder, members, filter="data")
    return folder


@pytest.fixture
def home_of(homes: Path, tmp_path: Path) -> Callable[[str], ServerHome[Any, Any]]:
    """What copies a server's folder."""

    def copy(name: str) -> ServerHome[Any, Any]:
        home = KINDS[name](tmp_path / name)
        home.folder.mkdir(mode=0o700)
        for path in (homes / name).iterdir():
            if path.is_file():
                (home.folder / path.name).write_bytes(path.read_bytes())
                (home.folder / path.name).chmod(0o600)
        return home

    return copy


def rows_of(url: str) -> dict[str, int]:
    """Return how many rows each table has, counted by the database itself."""
    engine = open_engine(url)
    with engine.connect() as db:
        names = [name for name in sa.inspect(db).get_table_names() if name != "alembic_version"]
        found = {name: db.execute(sa.text(f'SELECT count(*) FROM "{name}"')).scalar_one() for name in names}
    engine.dispose()
    return found


@pytest.mark.parametrize("name", ["coordinator", "registrar"])
def test_all_rows_arrive_and_the_file_is_left(
    home_of: Callable[[str], ServerHome[Any, Any]], name: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = home_of(name)
    if name == "registrar":  # a key that another one replaced, which comes behind it by its id
        with closing(sqlite3.connect(home.database_path)) as db, db:
            first, last = (db.execute(f"SELECT {f}(device_id) FROM devices").fetchone()[0] for f in ("min", "max"))
            db.execute("UPDATE devices SET successor_id = ? WHERE device_id = ?", (last, first))
    monkeypatch.setenv(VARIABLES[name], postgres_url)
    told = call(f"mien-{name}", "move-database", "--home", home.folder)
    assert told["tables"] == rows_of(postgres_url) == rows_of(sqlite_url(home.database_path))
    assert told["rows"] == sum(told["tables"].values()) > 20
    with pytest.raises(ConfigError, match="were moved into another one"):
        home.open_store(sqlite_url(home.database_path), Clock())
    monkeypatch.delenv(VARIABLES[name])
    refused = run(f"mien-{name}", "serve", "--home", home.folder)
    assert refused.code == 2
    assert "were moved into another one" in refused.err
    monkeypatch.setenv(VARIABLES[name], postgres_url)
    anchor = FLEET["audit_head" if name == "coordinator" else "registrar_audit_head"]["anchor"]
    verified = call(f"mien-{name}", "audit", "verify", "--anchor", anchor, "--home", home.folder)
    assert verified["verifies"] is True
    assert Anchor.parse(verified["anchor"]).position > Anchor.parse(anchor).position


def test_a_coordinator_goes_on_from_there(
    home_of: Callable[[str], ServerHome[Any, Any]], postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task and its ledger are there, and new rows are numbered behind the old ones."""
    home = home_of("coordinator")
    monkeypatch.setenv(VARIABLES["coordinator"], postgres_url)
    call("mien-coordinator", "move-database", "--home", home.folder)
    with home.store() as store:
        (task,) = store.tasks()
        assert (task.task_id, task.state.value) == (FLEET["task_id"], "done")
        assert [each.stage.value for each in store.rounds(task.task_id)] == ["closed", "closed"]
        numbers = sa.select(EVALUATIONS.c.id).order_by(EVALUATIONS.c.id)
        before = store.privacy(lambda db: db.scalars(numbers).all())
        assert before
        store.add_evaluation(FLEET["second_model"], b"{}", actor="alice")
        assert store.privacy(lambda db: db.scalars(numbers).all()) == [*before, before[-1] + 1]
        ledger = store.privacy(lambda db: account.read(db, FLEET["status"]["population"]))
    ledger.verify()
    assert [(each.round, each.attempt) for each in ledger.events] == [(1, 1), (2, 1)]


def test_a_database_that_is_not_empty_is_refused_and_left_alone(
    home_of: Callable[[str], ServerHome[Any, Any]], postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = home_of("registrar")
    home.open_store(postgres_url, Clock()).close()  # as by a registrar that was started too early
    before = rows_of(postgres_url)
    monkeypatch.setenv(VARIABLES["registrar"], postgres_url)
    refused = run("mien-registrar", "move-database", "--home", home.folder)
    assert "the database that store_url names is not empty" in refused.err
    assert rows_of(postgres_url) == before
    home.open_store(sqlite_url(home.database_path), Clock()).close()  # not moved


def test_an_interruption_at_any_instant_loses_nothing(
    home_of: Callable[[str], ServerHome[Any, Any]], postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = home_of("registrar")
    source = sqlite_url(home.database_path)
    home.open_store(source, Clock()).close()
    copy, copied = move._copy, list[str]()

    def stops(here: sa.Connection, there: sa.Connection, table: sa.Table) -> None:
        if len(copied) == 3:
            raise KeyboardInterrupt
        copied.append(table.name)
        copy(here, there, table)

    monkeypatch.setattr(move, "_copy", stops)
    with pytest.raises(KeyboardInterrupt):
        move.move(source, postgres_url, home.schema(), setting="store_url")
    monkeypatch.setattr(move, "_copy", copy)
    assert rows_of(postgres_url) == {}
    marks = move.mark_moved
    monkeypatch.setattr(move, "mark_moved", lambda here: stops(here, here, home.schema().tables.sorted_tables[0]))
    with pytest.raises(KeyboardInterrupt):  # between the two commits
        move.move(source, postgres_url, home.schema(), setting="store_url")
    monkeypatch.setattr(move, "mark_moved", marks)
    arrived = rows_of(postgres_url)
    assert arrived == rows_of(source)
    content = move.move(source, postgres_url, home.schema(), setting="store_url")
    assert content.counts == arrived == rows_of(postgres_url)
    engine = open_engine(source)
    with pytest.raises(ConfigError, match="were moved"):
        schema_revision(engine)
    engine.dispose()


def test_rows_that_arrive_otherwise_do_not_count(
    home_of: Callable[[str], ServerHome[Any, Any]], postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = home_of("registrar")
    source, copy = sqlite_url(home.database_path), move._copy
    home.open_store(source, Clock()).close()

    def spoils(here: sa.Connection, there: sa.Connection, table: sa.Table) -> None:
        copy(here, there, table)
        if table.name == "devices":
            there.execute(table.update().values(note="another"))

    monkeypatch.setattr(move, "_copy", spoils)
    with pytest.raises(CorruptDataError, match="differs from what was sent"):
        move.move(source, postgres_url, home.schema(), setting="store_url")
    assert rows_of(postgres_url) == {}


def test_not_beside_a_server_and_not_to_nowhere(home_of: Callable[[str], ServerHome[Any, Any]]) -> None:
    home = home_of("registrar")
    nowhere = run("mien-registrar", "move-database", "--home", home.folder)
    assert "store_url names no other database; set it to an empty one, in registrar.toml or by " in nowhere.err
    assert VARIABLES["registrar"] in nowhere.err
    own = f"sqlite:///{home.folder}/../{home.folder.name}/registrar.db"
    for target, told in {
        own: "store_url names the folder's own registrar.db; name another database",
        "sqlite://": "store_url names no lasting file",
        "sqlite:///here.db": "store_url names no lasting file",
        "sqlite:////here.db?mode=memory": "store_url names no lasting file",
        "postgresql://nobody@127.0.0.1:1/none": "the database does not answer",
    }.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(VARIABLES["registrar"], target)
            refused = run("mien-registrar", "move-database", "--home", home.folder)
        assert refused.code not in (0, 70)
        assert told in refused.err
    log = call("mien-registrar", "audit", "list", "--home", home.folder)["entries"]
    assert not [entry for entry in log if entry["action"] == "database.move"]
    with exclusive(home.lock_path, program="mien-registrar"), pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLES["registrar"], "postgresql://nobody@127.0.0.1:1/none")
        beside = run("mien-registrar", "move-database", "--home", home.folder)
    assert json.loads(beside.err.splitlines()[-1])["error"] == AlreadyExistsError.code
