"""The parts below the pages: reading, drawing, saying, telling."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from starlette.types import Message

from coordinator.dashboard import words
from coordinator.dashboard.guard import host_name
from coordinator.dashboard.live import MAX_OF_ONE, EventStream, Live, News
from coordinator.dashboard.reading import Reader, revision
from coordinator.dashboard.views.fleet import HOUR_MS, read
from coordinator.store.database import open_engine
from coordinator.store.store import Store
from mien.errors import (
    ConfigError,
    DatabaseError,
    FileAccessError,
    MienError,
    NotFoundError,
    RateLimitedError,
    VersionError,
)
from mien.log.audit import Entry
from mien.shell.clock import Clock
from mien.shell.pages import Bars, Cell, Chart, Column, Series, Table, charts

# Reading


def test_a_reader_cannot_write(database_url: str) -> None:
    store = Store.open(database_url, Clock())
    store.log("alice", "task.submit", "t1")
    reader = Reader.open(database_url)
    try:
        assert reader.ask(lambda db: revision(db, 0)).audit_position == 1
        for statement in ("DELETE FROM audit_entries", "INSERT INTO settings VALUES ('a', 'b')", "DROP TABLE tasks"):
            with pytest.raises((ConfigError, FileAccessError, DatabaseError)):
                reader.ask(lambda db, statement=statement: db.exec_driver_sql(statement))
        assert reader.ask(lambda db: revision(db, 0)).audit_position == 1
    finally:
        reader.close()
        store.close()


def test_readers_and_the_writer_do_not_wait_for_each_other(database_url: str) -> None:
    store = Store.open(database_url, Clock())
    reader = Reader.open(database_url)
    try:

        def look(db: sa.Connection) -> tuple[int, int]:
            before = revision(db, 0).audit_position
            store.log("alice", "task.submit", "t1")  # commits while the snapshot is open
            return before, revision(db, 0).audit_position

        assert reader.ask(look) == (0, 0)
        assert reader.ask(lambda db: revision(db, 0)).audit_position == 1
    finally:
        reader.close()
        store.close()


def test_the_revision_follows_what_pages_show(database_url: str) -> None:
    store = Store.open(database_url, Clock())
    reader = Reader.open(database_url)
    try:
        first = reader.ask(lambda db: revision(db, 7)).id
        assert reader.ask(lambda db: revision(db, 7)).id == first
        assert reader.ask(lambda db: revision(db, 8)).id != first
        store.log("alice", "task.submit", "t1")
        assert reader.ask(lambda db: revision(db, 7)).id != first
    finally:
        reader.close()
        store.close()


def test_the_fleet_is_counted_alike_on_both_databases(database_url: str) -> None:
    store = Store.open(database_url, Clock())
    reader = Reader.open(database_url)
    try:
        store.saw_devices([("a" * 32, "default", "x 1"), ("b" * 32, "default", "x 1"), ("c" * 32, "beta", "x 2")])
        now_ms = Clock().now_ms()
        found = reader.ask(lambda db: read(db, now_ms))
        assert [(each.name, each.known, each.day) for each in found.populations] == [("beta", 1, 1), ("default", 2, 2)]
        assert sum(found.by_hour) == 3
        late = reader.ask(lambda db: read(db, now_ms + 30 * HOUR_MS))
        assert (sum(late.by_hour), late.day, late.populations[1].week) == (0, 0, 2)
        assert found.software == (("x 1", 2), ("x 2", 1))
    finally:
        reader.close()
        store.close()


def test_a_database_of_another_schema_or_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="init"):
        Reader.open(f"sqlite:///{tmp_path / 'none.db'}")
    url = f"sqlite:///{tmp_path / 'old.db'}"
    engine = open_engine(url)
    with engine.begin() as db:
        db.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32))")
        db.exec_driver_sql("INSERT INTO alembic_version VALUES ('0001')")
    engine.dispose()
    with pytest.raises(VersionError, match="schema 0001"):
        Reader.open(url)


# Drawing


def test_axes_hold_all_values_between_round_marks() -> None:
    axis = charts.linear([0.113, 0.871])
    assert (axis.low, axis.high) == (0.0, 1.0)
    assert [words_ for _, words_ in axis.ticks] == ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    same = charts.linear([3.0, 3.0])
    assert same.low < 3.0 < same.high
    assert charts.linear([], words=str, zero=True).low == 0.0
    assert charts.linear([float("nan"), 2.0, 4.0], words=str).high >= 4.0
    whole = charts.whole_numbers(1, 12)
    assert [mark for _, mark in whole.ticks] == ["1", "3", "6", "9", "12"]
    assert charts.whole_numbers(5, 5).place(5.0) == 0.5
    for most, marks in (
        (0, ["0", "1"]),
        (1, ["0", "1"]),
        (5, ["0", "2", "4", "6"]),
        (90, ["0", "25", "50", "75", "100"]),
    ):
        axis = charts.counts([0, most])
        assert ([mark for _, mark in axis.ticks], axis.low) == (marks, 0.0)
        assert axis.high >= most
    log = charts.decades(-4, -1, words.rate)
    assert [log.place(value) for value in (1e-4, 1e-1, 0.0, 1.0)] == [0.0, 1.0, 0.0, 1.0]
    assert log.place(1e-3) == pytest.approx(1 / 3)


def test_drawings_need_no_style_and_escape_their_words() -> None:
    axis = charts.linear([0.0, 1.0], words=lambda value: f"<{value:g}>")
    series = (Series("a", ((0.0, 0.0), (0.5, 1.0), (1.0, 0.5)), told=("<1>", "", "")), Series("b", ((0.0, 1.0),)))
    drawing = Chart(series, axis, axis, "<x>", "y & z").drawing
    assert "style=" not in drawing
    assert "<x>" not in drawing
    assert "&lt;0&gt;" in drawing
    assert "y &amp; z" in drawing
    assert "<title>&lt;1&gt;</title>" in drawing
    (curve,) = re.findall(r'class="curve s1" points="([^"]*)"', drawing)
    assert len(curve.split()) == 3
    bars = Bars(("<a>", ""), (("<b>", (0.0, 2.0)),), charts.linear([2.0], words=str, zero=True), "n").drawing
    assert "<a>" not in bars
    assert "<b>" not in bars
    heights = [float(height) for height in re.findall(r'class="bar s1"[^>]*height="([\d.]+)%"', bars)]
    assert heights == [0.0, charts.BOTTOM - charts.TOP]


def test_a_table_with_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ConfigError, match="2 cells for 1 columns"):
        Table("a", "T", "c", (Column("x"),), ((Cell("1"), Cell("2")),))


# Saying


def test_words() -> None:
    hour = 3_600_000
    told = [words.ago(10 * hour - back, 10 * hour).replace("\u00a0", " ") for back in (5000, 600_000, 9 * hour)]
    assert told == ["5 s ago", "10 min ago", "9 h ago"]
    assert words.ago(None, 5) == "never"
    assert words.lasting(8.4) == "8.4\u202fs"
    assert words.lasting(5 * 3600 + 12 * 60) == "5 h 12 min"
    assert words.lasting(19 * 86_400) == "19 days"
    assert words.who("device:" + "ab" * 16) == "device:abababab…"
    assert words.who("alice") == "alice"
    entry = Entry(1, 0, "a", "round.aborted", "t1/3/2", json.dumps({"reason": "too few"}), "0" * 64)
    assert words.told(entry, {"t1": "spring"}) == "Task spring: round 3 was aborted (attempt 2): too few"
    assert words.subject_words(entry, {"t1": "spring"}) == "spring, round 3, attempt 2"
    assert words.subject_words(entry, {}) == "t1/3/2"
    long = Entry(1, 0, "a", "x.y", "f" * 64, json.dumps({"sha256": "e" * 64, "why": "because " * 9}), "0" * 64)
    assert words.detail_words(long) == f"sha256 {'e' * 12}…, why {'because ' * 9}"


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost", "localhost"), ("LOCALHOST:8443", "localhost"), ("[::1]:8443", "::1"), ("127.0.0.1", "127.0.0.1"),
        ("evil.example#localhost", ""), ("user@localhost", ""), ("localhost/x", ""), ("localhost:99999", ""),
        ("[::1", ""), ("", ""), ("localhost:8x", ""),
    ],
)  # fmt: skip
def test_a_host_header_is_read_strictly(host: str, name: str) -> None:
    assert host_name(host) == name


# Telling


class Store_:  # noqa: N801 - a stand-in for what changes
    """News that a test sets."""

    def __init__(self) -> None:
        self.news = News("r1")
        self.num_looks = 0
        self.error: MienError | None = None

    async def look(self) -> News:
        self.num_looks += 1
        if self.error is not None:
            raise self.error
        return self.news


async def _welcome() -> bool:
    return True


async def _next(events: AsyncIterator[bytes]) -> bytes:
    return await asyncio.wait_for(anext(events), 30)


def test_listeners_hear_of_the_newest_state_only() -> None:
    async def scenario() -> None:
        store = Store_()
        live = Live(store.look, poll_s=0.005, beat_s=60)
        worker = asyncio.create_task(live.run())
        live.admit("alice")
        events = live.events("r1", _welcome)
        assert await _next(events) == b"retry: 3000\n\n"
        waiting = asyncio.create_task(_next(events))
        store.news = News("r2", "Task spring: round 1 closed")
        assert b"id: r2\n" in await waiting
        for number in range(3, 9):
            store.news = News(f"r{number}")
            looks = store.num_looks
            while store.num_looks < looks + 2:
                await asyncio.sleep(0.001)
        assert b"id: r8\n" in await _next(events)
        late = live.events("r5", _welcome)  # comes back with what it saw last
        await _next(late)
        assert b"id: r8\n" in await _next(late)
        await live.close()
        with pytest.raises(StopAsyncIteration):
            await _next(events)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)

    asyncio.run(scenario())


def test_nobody_looks_while_nobody_listens_and_a_lost_store_is_asked_again() -> None:
    async def scenario() -> None:
        store = Store_()
        live = Live(store.look, poll_s=0.001, beat_s=60)
        worker = asyncio.create_task(live.run())
        await asyncio.sleep(0.05)
        assert store.num_looks == 0
        live.admit("alice")
        store.error = NotFoundError("away")
        while store.num_looks < 3:
            await asyncio.sleep(0.001)
        store.error = None
        events = live.events("", _welcome)
        await _next(events)
        assert b"id: r1\n" in await _next(events)
        live.dismiss("alice")
        assert live.num_listeners == 0
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)

    asyncio.run(scenario())


def test_beats_keep_a_line_open_until_the_listener_is_no_longer_welcome() -> None:
    async def scenario() -> None:
        answers = iter([True, False])

        async def is_welcome() -> bool:
            return next(answers)

        live = Live(Store_().look, beat_s=0.01)
        events = live.events("r1", is_welcome)
        await _next(events)
        assert await _next(events) == b": beat\n\n"
        assert (await _next(events)).startswith(b"event: end")
        with pytest.raises(StopAsyncIteration):
            await _next(events)

    asyncio.run(scenario())


def test_one_person_listens_so_often_and_no_more() -> None:
    live = Live(Store_().look)
    for _ in range(MAX_OF_ONE):
        live.admit("alice")
    with pytest.raises(RateLimitedError):
        live.admit("alice")
    live.admit("bob")
    live.dismiss("alice")
    live.admit("alice")


def test_a_browser_that_makes_no_room_for_events_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.dashboard.live.SEND_S", 0.02)
    sent, done = list[str](), list[bool]()

    async def send(message: Message) -> None:
        sent.append(message["type"])
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()  # its buffer is full, and stays so

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def scenario() -> None:
        live = Live(Store_().look)
        stream = EventStream(live.events("", _welcome), lambda: done.append(True))
        await asyncio.wait_for(stream({"type": "http"}, receive, send), 30)

    asyncio.run(scenario())
    assert (sent, done) == (["http.response.start", "http.response.body"], [True])
