"""The audit log's chain: what was done to it is found and named, and an anchor finds what the chain alone cannot."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from mien.errors import ConfigError, CorruptDataError
from mien.log.audit import Anchor, Entry, verify
from mien.log.chain import GENESIS

Rows = list[tuple[Entry, str]]


def chain(count: int, *, salt: str = "") -> Rows:
    """Return a log of `count` entries as it is stored."""
    rows: Rows = []
    for position in range(1, count + 1):
        previous = rows[-1][1] if rows else GENESIS
        entry = Entry(position, 1000 + position, "alice", "task.submit", f"t{position}{salt}", "{}", previous)
        rows.append((entry, entry.sha256))
    return rows


def head(rows: Rows) -> Anchor:
    return rows[-1][0].anchor if rows else Anchor()


def test_an_entrys_hash_is_over_its_canonical_json() -> None:
    """Written out by hand: a second implementation has to come to the same."""
    entry = Entry(1, 5, "alice", "task.submit", "t1", '{"name":"é"}', GENESIS)
    written = (
        'mien/audit-entry/1\n{"action":"task.submit","actor":"alice","at_ms":5,'
        '"detail_json":"{\\"name\\":\\"é\\"}","position":1,"previous_sha256":"' + "0" * 64 + '","subject":"t1"}'
    )
    assert entry.sha256 == hashlib.sha256(written.encode()).hexdigest()


@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_log_that_nobody_touched_holds(count: int) -> None:
    rows = chain(count)
    anchors = [Anchor(), *(entry.anchor for entry, _ in rows)]
    assert verify(rows, head(rows), anchors) == head(rows)


def edited(rows: Rows) -> Rows:
    return [*rows[:2], (replace(rows[2][0], actor="bob"), rows[2][1]), *rows[3:]]


def edited_with_its_hash(rows: Rows) -> Rows:
    entry = replace(rows[2][0], actor="bob")
    return [*rows[:2], (entry, entry.sha256), *rows[3:]]


def swapped(rows: Rows) -> Rows:
    first, second = rows[1][0], rows[2][0]
    moved = [replace(second, position=2), replace(first, position=3)]
    return [rows[0], *((entry, entry.sha256) for entry in moved), *rows[3:]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (edited, "entry 3 of the audit log was edited"),
        (edited_with_its_hash, "entry 4 of the audit log does not follow"),
        (lambda rows: rows[:2] + rows[3:], "from entry 2 to 4"),
        (lambda rows: rows[1:], "from entry 0 to 2"),
        (lambda rows: [rows[0], rows[2], rows[1], *rows[3:]], "from entry 1 to 3"),
        (swapped, "entry 2 of the audit log does not follow"),
        (lambda rows: [rows[0], *rows], "from entry 1 to 1"),
        (lambda rows: rows[:4], "ends at entry 4, but it was written up to 5"),
        (lambda rows: [], "ends at entry 0, but it was written up to 5"),
    ],
)
def test_a_change_is_found_and_named(change: Callable[[Rows], Rows], words: str) -> None:
    rows = chain(5)
    with pytest.raises(CorruptDataError, match=words):
        verify(change(rows), head(rows))


def test_a_change_of_the_newest_entry_is_found_by_the_head() -> None:
    rows = chain(5)
    entry = replace(rows[-1][0], actor="bob")
    with pytest.raises(CorruptDataError, match="written up to 5"):
        verify([*rows[:-1], (entry, entry.sha256)], head(rows))


def test_an_anchor_finds_what_was_made_anew_or_cut_off_with_its_head() -> None:
    rows, anew = chain(5), chain(5, salt="x")
    anchor = rows[3][0].anchor
    assert verify(anew, head(anew)) == head(anew)
    with pytest.raises(CorruptDataError, match="entry 4 of the audit log is not the one that the anchor names"):
        verify(anew, head(anew), [anchor])
    with pytest.raises(CorruptDataError, match="ends at entry 3, before the anchor at 4"):
        verify(rows[:3], head(rows[:3]), [anchor])
    assert verify(chain(9)[:9], head(chain(9)), [anchor]).position == 9


def test_anchors_are_written_and_read() -> None:
    anchor = head(chain(3))
    assert Anchor.parse(f" {anchor}\n") == anchor
    for text in ("", "3", f"{anchor}0", f"-1:{'a' * 64}", f"3:{'A' * 64}"):
        with pytest.raises(ConfigError, match="audit head"):
            Anchor.parse(text)
