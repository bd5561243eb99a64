"""The audit log in a database: appended to in the transaction of the deed, read and verified as a stream.

Coordinator and registrar each have their own, of the same two tables. Actors are `<name>` for an operator,
`device:<id>` for a phone, `system:<program>` for the program itself and `local:<user id>` for whoever runs a command
that works on the program's folder without asking it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import sqlalchemy as sa

from coordinator.store.database import database_errors
from mien.errors import CorruptDataError
from mien.log.audit import Anchor, Entry, verify
from mien.log.chain import canonical_json
from mien.protocol.ids import TaskId
from mien.shell.clock import Clock

COORDINATOR: Final = "system:coordinator"
REGISTRAR: Final = "system:registrar"
LEFT_OUT: Final = "task.left_out"
"""Action: a device was found to spoil a task's sums, and is not asked any more."""

_ONLY_ROW: Final = 1
_AT_ONCE: Final = 1000
_LENGTHS: Final = {"actor": 80, "action": 40, "subject": 120}


def local_actor() -> str:
    """Return the user who runs this command, as the operating system knows them."""
    return f"local:{os.getuid()}"


@dataclass(frozen=True)
class AuditLog:
    """One program's audit log: the entries, and a single row that says up to which one it was written.

    Every method takes the connection of the caller's transaction.
    """

    entries: sa.Table
    head: sa.Table

    @classmethod
    def of(cls, metadata: sa.MetaData) -> AuditLog:
        """Return the log whose tables belong to `metadata`."""
        texts = [sa.Column(name, sa.String(length), nullable=False) for name, length in _LENGTHS.items()]
        entries = sa.Table(
            "audit_entries",
            metadata,
            sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("at_ms", sa.BigInteger, nullable=False),
            *texts,
            sa.Column("detail_json", sa.Text, nullable=False),
            sa.Column("previous_sha256", sa.String(64), nullable=False),
            sa.Column("sha256", sa.String(64), nullable=False),
            sa.Index("ix_audit_entries_subject", "subject"),
        )
        head = sa.Table(
            "audit_head",
            metadata,
            sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("position", sa.BigInteger, nullable=False),
            sa.Column("sha256", sa.String(64), nullable=False),
        )
        return cls(entries, head)

    def append(
        self,
        db: sa.Connection,
        *,
        at_ms: int,
        actor: str,
        action: str,
        subject: str,
        detail: Mapping[str, object] | None = None,
    ) -> Entry:
        """Return the new entry; the head is locked until the transaction ends, so that no two take one place."""
        last = self.read_head(db, for_update=True)
        entry = Entry(
            position=last.position + 1,
            at_ms=at_ms,
            actor=actor[: _LENGTHS["actor"]],
            action=action[: _LENGTHS["action"]],
            subject=subject[: _LENGTHS["subject"]],
            detail_json=canonical_json(dict(detail or {})).decode(),
            previous_sha256=last.sha256,
        )
        values = {name: getattr(entry, name) for name in Entry.__dataclass_fields__}
        db.execute(sa.insert(self.entries).values(**values, sha256=entry.sha256))
        moved = sa.update(self.head).where(self.head.c.id == _ONLY_ROW)
        db.execute(moved.values(position=entry.position, sha256=entry.sha256))
        return entry

    def read_head(self, db: sa.Connection, *, for_update: bool = False) -> Anchor:
        """Return the place of the newest entry, as the log's own row has it."""
        wanted = sa.select(self.head.c.position, self.head.c.sha256).where(self.head.c.id == _ONLY_ROW)
        row = db.execute(wanted.with_for_update() if for_update else wanted).one_or_none()
        if row is None:
            raise CorruptDataError("the audit log's head is gone from the database; restore it from a backup")
        return Anchor(row.position, row.sha256)

    def read(
        self, db: sa.Connection, *, after: int = 0, last: int | None = None, subject: str | None = None
    ) -> list[Entry]:
        """Return entries behind position `after`, oldest first: all, or only the `last` so many of them."""
        wanted = [self.entries.c.position > after, *([] if subject is None else [self.entries.c.subject == subject])]
        return self.find(db, *wanted) if last is None else self.find(db, *wanted, newest=last)[::-1]

    def find(
        self, db: sa.Connection, *where: sa.ColumnElement[bool], newest: int | None = None, oldest: int | None = None
    ) -> list[Entry]:
        """Return the entries that meet all conditions, oldest first; or so many of the `newest`, newest first."""
        position = self.entries.c.position
        wanted = self._columns().where(*where).order_by(position if newest is None else position.desc())
        return [_entry(row) for row in db.execute(wanted.limit(oldest if newest is None else newest))]

    def read_with_hashes(self, db: sa.Connection, *, after: int, limit: int) -> list[tuple[Entry, str]]:
        """Return the next entries behind a position, each with the hash that is stored beside it."""
        wanted = self._columns(self.entries.c.sha256).where(self.entries.c.position > after)
        rows = db.execute(wanted.order_by(self.entries.c.position).limit(limit)).all()
        return [(_entry(row), row.sha256) for row in rows]

    def verify(self, db: sa.Connection, anchors: Collection[Anchor] = ()) -> Anchor:
        """Return the newest entry's place; raises CorruptDataError that names the first fault."""
        return verify(self._stream(db), self.read_head(db), anchors)

    def _stream(self, db: sa.Connection) -> Iterator[tuple[Entry, str]]:
        last = -(2**63)
        while entries := self.read_with_hashes(db, after=last, limit=_AT_ONCE):
            yield from entries
            last = entries[-1][0].position

    def _columns(self, *more: sa.Column[Any]) -> sa.Select[Any]:
        return sa.select(*(self.entries.c[name] for name in Entry.__dataclass_fields__), *more)


class AuditedDatabase:
    """A database with an audit log; every public method of a class that is one is one transaction."""

    _audit_log: ClassVar[AuditLog]

    def __init__(self, engine: sa.Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def close(self) -> None:
        """Close the database."""
        self._engine.dispose()

    @contextmanager
    def _transaction(self, of_task: TaskId | None = None) -> Iterator[sa.Connection]:
        """Hold a transaction; `of_task` is the id of the task that it changes, rounds included."""
        with database_errors(), self._engine.begin() as connection:
            yield connection

    def _log(
        self, db: sa.Connection, actor: str, action: str, subject: str, detail: Mapping[str, object] | None = None
    ) -> None:
        now_ms = self._clock.now_ms()
        self._audit_log.append(db, at_ms=now_ms, actor=actor, action=action, subject=subject, detail=detail)


def _entry(row: sa.Row[Any]) -> Entry:
    return Entry(**{name: getattr(row, name) for name in Entry.__dataclass_fields__})
