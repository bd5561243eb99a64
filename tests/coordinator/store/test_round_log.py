"""The log of rounds in a database: appended with the deed, proved from its rows, found out when they are changed."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from coordinator.store import round_log
from coordinator.store.store import Store
from coordinator.store.tables import LOG_ENTRIES, LOG_HEAD, LOG_NODES
from mien.errors import CorruptDataError, NotFoundError
from mien.log.checkpoints import Checkpoint, Note, Signature
from mien.log.entries import LogEntry, certificate_entry, release_entry, result_entry, round_entry, task_entry
from mien.log.merkle import check_consistency, check_inclusion, leaf_hash
from mien.shell.clock import Clock
from tests.coordinator.store.test_store import model


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    store = Store.open(database_url, Clock())
    yield store
    store.close()


def append(store: Store, *entries: LogEntry) -> None:
    store.round_log(lambda db: round_log.append(db, 1, entries))


def numbered(count: int, first: int = 0) -> list[LogEntry]:
    return [certificate_entry(f"{number:064x}") for number in range(first, first + count)]


def test_entries_are_proved_under_every_later_size(store: Store) -> None:
    entries = numbered(13)
    append(store, *entries[:5])
    append(store, *entries[5:])
    assert store.round_log(round_log.read_head).size == 13
    roots = [store.round_log(lambda db, size=size: round_log.root(db, size)) for size in range(14)]
    for size in (1, 6, 8, 13):
        for position in range(size):
            proof = store.round_log(lambda db, at=position, of=size: round_log.prove_inclusion(db, at, of))
            check_inclusion(leaf_hash(entries[position].data), position, size, proof, roots[size])
        proof = store.round_log(lambda db, of=size: round_log.prove_consistency(db, of, 13))
        check_consistency(size, roots[size], 13, roots[13], proof)
    assert store.round_log(round_log.verify) == (13, roots[13])
    assert store.round_log(lambda db: round_log.position_of(db, "certificate", f"{7:064x}")) == 7
    assert store.round_log(lambda db: round_log.position_of(db, "round", f"{7:064x}")) is None
    assert [each.position for each in store.round_log(lambda db: round_log.read(db, 4, 3))] == [4, 5, 6]


def test_a_release_is_logged_and_one_that_fails_is_not(store: Store) -> None:
    store.add_model(model("a"), actor="alice")
    model_id = model("a").model_id
    store.release(model_id, population=None, actor="alice")
    with pytest.raises(NotFoundError):
        store.release("f" * 64, population=None, actor="alice")
    (logged,) = store.round_log(lambda db: round_log.read(db, 0))
    assert logged.entry == release_entry(model_id, None, 1.0)
    assert LogEntry.read(logged.entry.data) == logged.entry


def test_a_release_is_found_by_whom_it_was_for(store: Store) -> None:
    to_all, to_one, again = (release_entry("a" * 64, *whose) for whose in ((None, 1.0), ("p", 0.5), (None, 0.25)))
    append(store, to_all, to_one, release_entry("b" * 64, "p", 1.0), again, release_entry("c" * 64, "p", 1.0))
    for asked, position in ((("a", "p"), 3), (("a", "q"), 3), (("c", "p"), 4), (("c", "q"), None), (("d", "p"), None)):
        found = store.round_log(lambda db, asked=asked: round_log.release_of(db, asked[0] * 64, asked[1]))
        assert (found and found.position) == position


def test_releases_from_before_the_log_are_entered_once(store: Store) -> None:
    for name, population, share in (("a", None, 1.0), ("b", "p", 1.0), ("c", "q", 0.5)):
        store.add_model(model(name), actor="alice")
        store.release(model(name).model_id, population=population, actor="alice", share=share)
    as_released = store.round_log(lambda db: round_log.read(db, 0))
    store.round_log(lambda db: forget_entries(db))
    for _ in range(2):
        store.log_releases()
        found = store.round_log(lambda db: round_log.read(db, 0))
        assert {each.entry.data for each in found} == {each.entry.data for each in as_released}
        assert len(found) == 3
        store.round_log(round_log.verify)


def forget_entries(db: sa.Connection) -> None:
    """Leave a log as it was when it began."""
    for table in (LOG_ENTRIES, LOG_NODES):
        db.execute(sa.delete(table))
    db.execute(sa.update(LOG_HEAD).values(size=0))


TASK = "ab" * 16
HASHES = dict.fromkeys(("task_sha256", "layout_sha256", "statement_sha256"), "1" * 64)


def statement(number: int, model_sha256: str, task: str = TASK) -> LogEntry:
    return round_entry(task, number, 1, model_sha256=model_sha256, **HASHES)


def append_of_attempt(store: Store, *entries: LogEntry) -> list[LogEntry]:
    """Return the entries that the log has got by these."""
    size = store.round_log(round_log.read_head).size
    store.round_log(lambda db: round_log.append(db, 1, round_log.of_attempt(db, entries)))
    return [each.entry for each in store.round_log(lambda db: round_log.read(db, size))]


def test_a_task_is_named_with_its_first_model_once_before_its_first_statement(store: Store) -> None:
    first, second = statement(1, "a" * 64), statement(2, "b" * 64)
    made = result_entry(TASK, 1, 1, model_sha256="b" * 64)
    assert append_of_attempt(store, first) == [task_entry(TASK, "a" * 64), first]
    assert append_of_attempt(store, made) == [made]
    assert append_of_attempt(store, second) == [second]
    assert append_of_attempt(store) == []


def test_what_began_before_the_log_knew_of_it_is_left_as_it_is(store: Store) -> None:
    append(store, statement(7, "a" * 64))
    assert append_of_attempt(store, statement(8, "b" * 64)) == [statement(8, "b" * 64)]
    assert append_of_attempt(store, result_entry(TASK, 6, 1, model_sha256="a" * 64)) == []
    longer = statement(1, "b" * 64, TASK + "00")
    assert append_of_attempt(store, longer) == [task_entry(TASK + "00", "b" * 64), longer]


def test_certificates_are_taken_once_however_often_they_are_told(store: Store) -> None:
    def told() -> None:
        store.round_log(lambda db: round_log.append_certificates(db, 1, numbered(2), after=0, reached=9))

    told()
    told()
    head = store.round_log(round_log.read_head)
    assert (head.size, head.certificates_after) == (2, 9)


def test_an_older_cosigned_checkpoint_takes_no_newer_ones_place(store: Store) -> None:
    append(store, *numbered(3))
    store.round_log(lambda db: round_log.keep_cosigned(db, "new", 3))
    store.round_log(lambda db: round_log.keep_cosigned(db, "old", 2))
    assert store.round_log(round_log.read_head).cosigned == "new"


def test_threads_append_one_behind_the_other(database_url: str) -> None:
    stores = [Store.open(database_url, Clock()) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda each: [append(each, entry) for entry in numbered(8)], stores))
    assert stores[0].round_log(round_log.verify)[0] == 24
    for each in stores:
        each.close()


OTHER = str(Note(Checkpoint("mien-log-0", 9, bytes(32)).text, (Signature("mien-log-0", bytes(68)),)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (sa.update(LOG_ENTRIES).where(LOG_ENTRIES.c.position == 3).values(entry=b"{}"), "entry 3 .* was changed"),
        (sa.delete(LOG_ENTRIES).where(LOG_ENTRIES.c.position == 3), "entry 3 is gone"),
        (sa.delete(LOG_ENTRIES).where(LOG_ENTRIES.c.position > 5), "has 6 entries, and was written up to 9"),
        (sa.delete(LOG_NODES).where(LOG_NODES.c.level == 2), "damaged"),
        (sa.update(LOG_HEAD).values(cosigned_size=20), "shorter than what the registrar cosigned"),
        (sa.update(LOG_HEAD).values(cosigned=OTHER, cosigned_size=9), "cosigned another log of rounds than this"),
        (sa.delete(LOG_HEAD), "damaged"),
    ],
    ids=["edited", "removed", "cut", "nodes", "cosigned", "another", "head"],
)
def test_rows_that_were_changed_are_named(store: Store, change: sa.Executable, words: str) -> None:
    append(store, *numbered(9))
    store.round_log(lambda db: db.execute(change))
    with pytest.raises(CorruptDataError, match=words):
        store.round_log(round_log.verify)
