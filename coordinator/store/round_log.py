"""The public log of rounds in the database: entries, the tree's nodes, and one row that says where it stands.

An entry is appended in the transaction of what it tells of. That locks the one row until the transaction ends, always
behind the audit log's where both are written, so that no two transactions wait for each other. Nothing is made again at
a start: an append and a proof read O(log n) nodes by their keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from coordinator.store.tables import LOG_ENTRIES, LOG_HEAD, LOG_NODES
from mien.errors import CorruptDataError, TransparencyError
from mien.log.checkpoints import Checkpoint, Note
from mien.log.entries import LogEntry, task_entry
from mien.log.merkle import (
    appended,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    tree_root,
)

T = TypeVar("T")

_ONLY_ROW: Final = 1
_AT_ONCE: Final = 1000
_GONE: Final = "the log of rounds is damaged in the database; restore it from a backup"


@dataclass(frozen=True)
class LogHead:
    """Where a log stands: its entries, the newest checkpoint that a witness cosigned (a note, empty before the first)
    with its size, and how far the registrar's list of certificates is in it.
    """

    size: int
    cosigned: str
    cosigned_size: int
    certificates_after: int


@dataclass(frozen=True)
class LoggedEntry:
    """An entry where it stands in the log."""

    position: int
    at_ms: int
    entry: LogEntry


def read_head(db: sa.Connection, *, for_update: bool = False) -> LogHead:
    """Return where the log stands."""
    wanted = sa.select(LOG_HEAD).where(LOG_HEAD.c.id == _ONLY_ROW)
    row = db.execute(wanted.with_for_update() if for_update else wanted).one_or_none()
    if row is None:
        raise CorruptDataError(_GONE)
    return LogHead(row.size, row.cosigned, row.cosigned_size, row.certificates_after)


def append(db: sa.Connection, at_ms: int, entries: Iterable[LogEntry]) -> None:
    """Append entries, in order; the head is locked until the transaction ends."""
    entries = tuple(entries)
    if not entries:
        return
    size = read_head(db, for_update=True).size
    for position, entry in enumerate(entries, size):
        values = {"position": position, "at_ms": at_ms, "kind": entry.kind, "subject": entry.subject}
        db.execute(sa.insert(LOG_ENTRIES).values(**values, entry=entry.data))
        for level, index, made in tuple(appended(lambda *at: _node(db, *at), position, leaf_hash(entry.data))):
            db.execute(sa.insert(LOG_NODES).values(level=level, position=index, hash=made))
    _set_head(db, size=size + len(entries))


def of_attempt(db: sa.Connection, entries: Iterable[LogEntry]) -> Iterator[LogEntry]:
    """Yield an attempt's entries, its task's before the first statement of the task.

    A task that is in the log without an entry of its own began before there were such entries, and gets none. Nor has
    an attempt a result there whose statement is older than the log.
    """
    for entry in entries:
        task = entry.subject.split("/")[0]
        if entry.kind == "round" and position_of(db, "task", task) is None and not _has_statements(db, task):
            yield task_entry(task, entry.told["model_sha256"])
        if entry.kind != "result" or position_of(db, "round", entry.subject) is not None:
            yield entry


def _has_statements(db: sa.Connection, task: str) -> bool:
    mine = sa.and_(LOG_ENTRIES.c.kind == "round", LOG_ENTRIES.c.subject.startswith(f"{task}/"))
    return db.execute(sa.select(LOG_ENTRIES.c.position).where(mine).limit(1)).first() is not None


def append_certificates(
    db: sa.Connection, at_ms: int, entries: Iterable[LogEntry], *, after: int, reached: int
) -> None:
    """Append what the registrar told of the certificates behind `after`, once, however often it is told."""
    if read_head(db, for_update=True).certificates_after == after:
        append(db, at_ms, entries)
        _set_head(db, certificates_after=reached)


def keep_cosigned(db: sa.Connection, note: str, size: int) -> None:
    """Keep a cosigned checkpoint unless one of a larger log is kept."""
    if read_head(db, for_update=True).cosigned_size <= size:
        _set_head(db, cosigned=note, cosigned_size=size)


def root(db: sa.Connection, size: int) -> bytes:
    """Return the root over the first `size` entries."""
    return tree_root(lambda *at: _node(db, *at), size)


def prove_inclusion(db: sa.Connection, position: int, size: int) -> list[bytes]:
    """Return the proof that the first `size` entries have this one at `position`."""
    return inclusion_proof(lambda *at: _node(db, *at), position, size)


def prove_consistency(db: sa.Connection, first: int, size: int) -> list[bytes]:
    """Return the proof that the first `size` entries begin with the first `first`."""
    return consistency_proof(lambda *at: _node(db, *at), first, size)


def position_of(db: sa.Connection, kind: str, subject: str) -> int | None:
    """Return where the newest entry about a subject stands."""
    wanted = sa.select(sa.func.max(LOG_ENTRIES.c.position))
    return db.scalar(wanted.where(LOG_ENTRIES.c.kind == kind, LOG_ENTRIES.c.subject == subject))


def release_of(db: sa.Connection, model_id: str, population: str | None) -> LoggedEntry | None:
    """Return the newest release of a model to a population, or to all; None where the log has none."""
    wanted = sa.select(LOG_ENTRIES).where(LOG_ENTRIES.c.kind == "release", LOG_ENTRIES.c.subject == model_id)
    rows = db.execute(wanted.order_by(LOG_ENTRIES.c.position.desc()))
    return next((each for each in map(_logged, rows) if each.entry.releases(model_id, population)), None)


def read(db: sa.Connection, first: int, limit: int = _AT_ONCE) -> list[LoggedEntry]:
    """Return up to `limit` entries from position `first` on."""
    wanted = sa.select(LOG_ENTRIES).where(LOG_ENTRIES.c.position >= first).order_by(LOG_ENTRIES.c.position)
    return [_logged(row) for row in db.execute(wanted.limit(limit))]


def _logged(row: sa.Row[Any]) -> LoggedEntry:
    return LoggedEntry(row.position, row.at_ms, LogEntry(row.kind, row.subject, row.entry))


@dataclass(frozen=True)
class Verified:
    """How many entries were hashed again and found to be what the tree was made of, and what the next ones need."""

    size: int = 0
    nodes: Mapping[tuple[int, int], bytes] = field(default_factory=dict, repr=False)


def verify_more(db: sa.Connection, before: Verified) -> Verified:
    """Return the same of up to a thousand entries more, all of them where it returns what it was given.

    In O(log n) memory. Raises CorruptDataError naming the first fault.
    """
    nodes, size, head = dict(before.nodes), before.size, read_head(db)
    for each in read(db, size):
        if each.position != size:
            raise CorruptDataError(f"entry {size} is gone from the log of rounds; restore it from a backup")
        for level, index, made in tuple(appended(lambda *at: nodes[at], size, leaf_hash(each.entry.data))):
            if _node(db, level, index) != made:
                raise CorruptDataError(f"entry {size} of the log of rounds was changed; restore it from a backup")
            nodes[level, index] = made
            if index % 2:  # nothing above reads the pair again, but its parent alone
                nodes.pop((level - 1, 2 * index), None)
                nodes.pop((level - 1, 2 * index + 1), None)
        size += 1
    if size > before.size:
        return Verified(size, nodes)
    if size != head.size:
        raise CorruptDataError(f"the log of rounds has {size} entries, and was written up to {head.size}; restore it")
    if head.cosigned_size > size:
        raise CorruptDataError("the log of rounds is shorter than what the registrar cosigned; restore a later backup")
    if head.cosigned and _cosigned_root(head) != root(db, head.cosigned_size):
        raise CorruptDataError("the registrar cosigned another log of rounds than this one; restore it from a backup")
    return before


def verify(db: sa.Connection) -> tuple[int, bytes]:
    """Return size and root of a log whose every entry was hashed again; raises CorruptDataError naming the first fault.

    It reads everything, a thousand entries at a time.
    """
    before, found = Verified(), verify_more(db, Verified())
    while found != before:
        before, found = found, verify_more(db, found)
    return found.size, root(db, found.size)


def newest(db: sa.Connection, limit: int) -> list[LoggedEntry]:
    """Return the newest entries, the newest first."""
    return read(db, max(read_head(db).size - limit, 0), limit)[::-1]


def _cosigned_root(head: LogHead) -> bytes:
    try:
        return Checkpoint.parse(Note.parse(head.cosigned).text).root
    except TransparencyError as error:
        raise CorruptDataError(_GONE) from error


def _node(db: sa.Connection, level: int, position: int) -> bytes:
    wanted = sa.select(LOG_NODES.c.hash).where(LOG_NODES.c.level == level, LOG_NODES.c.position == position)
    found: bytes | None = db.scalar(wanted)
    if found is None:
        raise CorruptDataError(_GONE)
    return found


def _set_head(db: sa.Connection, **values: object) -> None:
    db.execute(sa.update(LOG_HEAD).where(LOG_HEAD.c.id == _ONLY_ROW).values(**values))
