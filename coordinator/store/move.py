"""Moving a server's rows from the SQLite file in its folder into an empty database elsewhere: all of them, or none.

What arrives is committed only after it was read back and compared. Then the file is marked, so that no program takes it
for the server's database again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from coordinator.store.database import Schema, database_errors, hold_schema, mark_moved, open_engine, upgrade
from mien.errors import AlreadyExistsError, ConfigError, CorruptDataError
from mien.shell.doing import counting

_AT_ONCE: Final = 500
_HASHES: Final = 2**256


@dataclass(frozen=True)
class Content:
    """A database's rows: how many each table has, and the sum of all rows' SHA-256, in which no order counts."""

    counts: Mapping[str, int]
    sum: int

    @property
    def digest(self) -> str:
        """The sum as 64 hexadecimal digits."""
        return f"{self.sum:064x}"


def check_target(target_url: str, source: Path, *, setting: str, again: bool) -> None:
    """Raise ConfigError for a target that rows would not stay in, AlreadyExistsError for one that holds tables.

    `again` lets an earlier run have made them. Errors of connecting are those of `database_errors`.
    """
    if target_url.startswith("sqlite"):
        url = sa.make_url(target_url)
        file = Path(url.database or "")
        if not file.is_absolute() or url.query:
            raise ConfigError(f"{setting} names no lasting file; name a PostgreSQL database, or sqlite:////PATH")
        if file.resolve() == source.resolve():
            raise ConfigError(f"{setting} names the folder's own {source.name}; name another database, an empty one")
    engine = open_engine(target_url, setting=setting)
    try:
        with database_errors(), engine.connect() as there:
            if not again and sa.inspect(there).get_table_names():
                raise _not_empty(setting)
    finally:
        engine.dispose()


def move(source_url: str, target_url: str, schema: Schema, *, setting: str) -> Content:
    """Move all rows of a SQLite database at the newest revision into another database, and return what was moved.

    Run again after an interruption it begins anew, or only marks the source where everything had arrived. Raises
    AlreadyExistsError, changing nothing, for a target that holds anything else; CorruptDataError where what arrived
    differs from what was sent. `setting` names the target in errors.
    """
    source, target = open_engine(source_url), open_engine(target_url, setting=setting)
    try:
        with database_errors(), source.begin() as here:  # which keeps every writer out
            content = _content(here, schema)
            with target.begin() as there:
                _fill(here, there, schema, content, setting)
            mark_moved(here)
    finally:
        source.dispose()
        target.dispose()
    return content


def _fill(here: sa.Connection, there: sa.Connection, schema: Schema, content: Content, setting: str) -> None:
    """Copy all rows into an empty database; into one that holds exactly these, nothing."""
    hold_schema(there)  # before looking: a server that starts there meanwhile would make the tables
    held = set(sa.inspect(there).get_table_names())
    if held:
        if held >= set(schema.tables.tables) and _content(there, schema) == content:
            return  # an earlier run came so far
        raise _not_empty(setting)
    upgrade(there, schema)
    for table in reversed(schema.tables.sorted_tables):
        there.execute(table.delete())  # migrations put first rows into some
    for table in counting("Copying the tables", schema.tables.sorted_tables):
        _copy(here, there, table)
    if _content(there, schema) != content:
        raise CorruptDataError(f"what arrived where {setting} points differs from what was sent; nothing was changed")


def _not_empty(setting: str) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"the database that {setting} names is not empty, and nothing was changed; create a new one and name that. "
        "Only if this command was interrupted at its very end and the server has run on that database since, keep it: "
        "it has the newer rows"
    )


def _copy(here: sa.Connection, there: sa.Connection, table: sa.Table) -> None:
    """Copy a table, references to its own rows last, and let numbering go on behind the largest number."""
    own = [c.name for c in table.columns if any(key.column.table is table for key in c.foreign_keys)]
    key = [c.name for c in table.primary_key.columns]
    later: list[dict[str, Any]] = []
    for rows in _rows(here, table):
        values = [dict(row._mapping) for row in rows]
        later += [{f"key_{n}": row[n] for n in key} | {n: row[n] for n in own} for row in values if _has(row, own)]
        there.execute(table.insert(), [row | dict.fromkeys(own) for row in values])
    if later:
        which = [table.c[name] == sa.bindparam(f"key_{name}") for name in key]
        there.execute(table.update().where(*which).values({name: sa.bindparam(name) for name in own}), later)
    numbered = table.autoincrement_column
    if numbered is not None and there.dialect.name == "postgresql":
        largest = sa.select(sa.func.max(numbered)).scalar_subquery()
        sequence = sa.func.pg_get_serial_sequence(table.name, numbered.name)
        there.execute(sa.select(sa.func.setval(sequence, largest)))  # of an empty table: null, which sets nothing


def _has(row: Mapping[str, Any], names: list[str]) -> bool:
    return any(row[name] is not None for name in names)


def _rows(db: sa.Connection, table: sa.Table) -> Iterator[Any]:
    wanted = sa.select(table).order_by(*table.primary_key.columns)
    return db.execute(wanted, execution_options={"yield_per": _AT_ONCE}).partitions()


def _content(db: sa.Connection, schema: Schema) -> Content:
    counts, total = dict[str, int](), 0
    for table in counting("Counting and hashing the tables' rows", schema.tables.sorted_tables):
        counts[table.name] = 0
        for rows in _rows(db, table):
            counts[table.name] += len(rows)
            for row in rows:
                told = repr((table.name, tuple(row))).encode("utf-8", "surrogatepass")
                total += int.from_bytes(hashlib.sha256(told).digest(), "big")
    return Content(counts, total % _HASHES)
