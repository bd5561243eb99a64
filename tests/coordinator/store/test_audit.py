"""The audit log in a database: in one transaction with the deed, found out when rows are changed behind its back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from coordinator.store import audit
from coordinator.store.database import migrate, open_engine, sqlite_url
from coordinator.store.store import MIGRATIONS, Store
from coordinator.store.tables import AUDIT
from mien.errors import CorruptDataError, NotFoundError
from mien.log.audit import Anchor
from mien.shell.clock import Clock
from tests.coordinator.store.test_store import model, task

ENTRIES, HEAD = AUDIT.entries, AUDIT.head


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """A store, on each engine, whose log has five entries."""
    store = Store.open(database_url, Clock())
    store.add_model(model("a"), actor="alice")
    for number in range(4):
        store.log("bob", "test.deed", f"s{number}", {"number": number})
    yield store
    store.close()


def verified(store: Store, *anchors: Anchor) -> Anchor:
    return store.audit(lambda log, db: log.verify(db, anchors))


def behind_its_back(store: Store, statement: sa.Executable) -> None:
    store.audit(lambda _, db: db.execute(statement))


def test_deeds_are_entered_in_order(store: Store) -> None:
    entries = store.audit(lambda log, db: log.read(db))
    assert [(e.position, e.actor, e.action) for e in entries][:2] == [
        (1, "alice", "model.import"),
        (2, "bob", "test.deed"),
    ]
    assert entries[1].detail_json == '{"number":0}'
    assert verified(store) == entries[-1].anchor
    assert [e.position for e in store.audit(lambda log, db: log.read(db, after=1, last=2))] == [4, 5]
    assert [e.position for e in store.audit(lambda log, db: log.read(db, subject="s1"))] == [3]


def test_a_deed_that_fails_leaves_no_entry(store: Store) -> None:
    before = verified(store)
    with pytest.raises(NotFoundError):
        store.release("f" * 64, population=None, actor="alice")
    with pytest.raises(NotFoundError):
        store.save_task(task("unknown"), actor="alice", action="task.paused")
    assert verified(store) == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda: sa.update(ENTRIES).where(ENTRIES.c.position == 3).values(actor="eve"), "entry 3 .* was edited"),
        (lambda: sa.delete(ENTRIES).where(ENTRIES.c.position == 3), "from entry 2 to 4"),
        (lambda: sa.delete(ENTRIES).where(ENTRIES.c.position == 5), "ends at entry 4"),
        (lambda: sa.update(ENTRIES).where(ENTRIES.c.position == 1).values(position=-7), "from entry 0 to -7"),
        (lambda: sa.delete(HEAD), "head is gone"),
    ],
)
def test_changed_rows_are_found(store: Store, change: Callable[[], sa.Executable], words: str) -> None:
    behind_its_back(store, change())
    with pytest.raises(CorruptDataError, match=words):
        verified(store)


def test_cutting_off_with_the_head_is_found_by_an_anchor(store: Store) -> None:
    anchor = verified(store)
    fourth = store.audit(lambda log, db: log.read(db))[3].anchor
    behind_its_back(store, sa.delete(ENTRIES).where(ENTRIES.c.position == 5))
    behind_its_back(store, sa.update(HEAD).values(position=4, sha256=fourth.sha256))
    assert verified(store, fourth) == fourth
    with pytest.raises(CorruptDataError, match="before the anchor at 5"):
        verified(store, anchor)


def test_a_long_log_is_read_in_pieces(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_AT_ONCE", 2)
    assert verified(store).position == 5


def test_writers_beside_each_other_take_different_places(store: Store, database_url: str) -> None:
    """As a command does beside the coordinator that serves."""
    others = [Store.open(database_url, Clock()) for _ in range(3)]

    def write(other: Store) -> None:
        for number in range(10):
            other.log("carol", "test.deed", f"n{number}")

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, others))
    for other in others:
        other.close()
    assert verified(store).position == 5 + 30


def test_older_events_are_chained_by_the_migration(tmp_path: Path) -> None:
    engine = open_engine(sqlite_url(tmp_path / "c.db"))
    migrate(engine, MIGRATIONS, "0003")
    columns = "(at_ms, actor, action, subject, detail_json)"
    insert = sa.text(f"INSERT INTO events {columns} VALUES (:at, 'alice', 'task.submit', :subject, :detail)")
    with engine.begin() as db:
        for number in range(3):
            values = {"at": number, "subject": f"t{number}", "detail": '{"name": "é"}'}
            db.execute(insert, values)
    engine.dispose()
    store = Store.open(sqlite_url(tmp_path / "c.db"), Clock())
    assert verified(store).position == 3
    store.log("alice", "test.deed", "new")
    assert verified(store).position == 4
    assert [action for _, _, action in store.events("t1")] == ["task.submit"]
    store.close()
