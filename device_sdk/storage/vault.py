"""A file of sealed records that is never half-written, and notices when a record was swapped, altered or set back.

SQLite gives atomic transactions; every record's content is sealed (AES-256-GCM) under the vault's data key with its
table, id, person and tag as context, so a record moved elsewhere does not open. A sealed root lists the nonces of all
records: because no nonce is ever used twice, a record set back to an older version, removed or added behind the
program's back no longer matches the root. (The whole file set back to an older copy does match: only destroying the
key, as `wipe` and `rotate_key` do, makes old copies worthless.) In clear are: how many records there are, their sizes,
the ids and tags. The data key lies in the file wrapped by a key of the key store.

That key has one of two labels; the file says which. `rotate_key` makes the other one, seals everything anew under it in
one transaction, and destroys the first: a crash leaves the file under one of them, and the next opening destroys the
other.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from device_sdk.storage.keystore import KeyStore
from device_sdk.storage.sealing import SecretKey, bind, seal, unseal
from mien.errors import (
    CorruptDataError,
    DiskFullError,
    FileAccessError,
    KeyStoreError,
    StorageError,
    UnreachableError,
    VersionError,
)
from mien.protocol.canonical import parse_json, to_canonical_json
from mien.records import to_mapping
from mien.shell.files import storage_errors, sync_folder
from mien.shell.lock import is_taken, lock_file
from mien.shell.sealing import NONCE_BYTES

SCHEMA_VERSION: Final = 1
APPLICATION_ID: Final = 0x4D69656E  # "Mien"
BUSY_TIMEOUT_S: Final = 10.0
_CONTEXT: Final = "mien/vault/1"

_FULL: Final = frozenset((sqlite3.SQLITE_FULL,))
_BUSY: Final = frozenset((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED))
_REFUSED: Final = frozenset((sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM))


def _bytes(column: str) -> str:
    """Return SQL for a column as bytes: SQLite lets a tamperer put any type anywhere."""
    return f"coalesce(CAST({column} AS BLOB), x'')"


_PLACE: Final = f"CAST(person AS INTEGER), CAST(tag AS TEXT), {_bytes('nonce')}"


@dataclass(frozen=True)
class VaultKind:
    """Kind of a vault: the key store's label of its key, its tables, and words for messages.

    `what` is what it is called, `repair` what its owner does when it is damaged.
    """

    label: str
    tables: tuple[str, ...]
    what: str
    repair: str

    @property
    def labels(self) -> tuple[str, str]:
        """The labels that its key may have: every rotation goes from one to the other."""
        return self.label, f"{self.label}-2"

    def other_label(self, label: str) -> str:
        """Return the label that is not in use."""
        first, second = self.labels
        return second if label == first else first


@dataclass(frozen=True)
class Record:
    """One record: where it belongs, and its content in clear."""

    table: str
    id: int
    person: int
    tag: str
    content: bytes = field(repr=False)


@dataclass(frozen=True)
class _Root:
    """Root sealed beside the records: a digest over all of them, the next free id, and the owner's facts."""

    digest: str
    next_id: int
    facts: Mapping[str, str]


class Vault:
    """An open vault; every use of it is a `reading()` or `writing()` block. Threads take turns."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path,
        key_store: KeyStore,
        kind: VaultKind,
        file: tuple[int, int] | None,
    ) -> None:
        self._connection = connection
        self._path = path
        self._file = file
        self._key_store = key_store
        self._kind = kind
        self._opened = _unwrap(connection, key_store, kind)
        self._turn = threading.RLock()
        self._num_writes = 0

    @classmethod
    def open(cls, path: Path, key_store: KeyStore, kind: VaultKind) -> Vault:
        """Return the vault in `path`, made anew where there is none, after checking that every record is in place.

        Raises KeyStoreError when the key is missing or another one, CorruptDataError when the file is damaged or was
        tampered with, VersionError when a newer program wrote it.
        """
        _check_no_folder(path, kind)
        with storage_errors(path.name):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked_folder(path.parent):
                if not path.exists():
                    _create(path, key_store, kind)
        file = _file_at(path)
        with _connected(path, kind) as connection:
            vault = cls(connection, path, key_store, kind, file)
            with vault.reading():
                pass
            vault._destroy_unused_key()
            return vault

    @staticmethod
    def wipe(path: Path, key_store: KeyStore, kind: VaultKind) -> None:
        """Make the vault unreadable for good: the key first, then the file. May be repeated after a crash."""
        for label in kind.labels:
            key_store.destroy(label)
        _check_no_folder(path, kind)
        with storage_errors(path.name):
            for name in (
                path.name,
                f"{path.name}-journal",
                f".{path.name}.new",
                f".{path.name}.new-journal",
                f".{path.name}.rotation",
            ):
                path.with_name(name).unlink(missing_ok=True)
        if path.parent.exists():
            sync_folder(path.parent)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @contextlib.contextmanager
    def reading(self) -> Iterator[Reader]:
        """A block that sees one consistent state; raises KeyStoreError once the file was wiped or replaced."""
        with self._turn, _database_errors(self._kind):
            self._check_in_place()
            self._connection.execute("BEGIN")
            try:
                yield Reader(self._connection, self._current_key(), self._kind)
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    @contextlib.contextmanager
    def writing(self) -> Iterator[Writer]:
        """A block whose changes are all stored at its end, or none of them; errors as `reading`.

        What was written into a file that another process wiped meanwhile is not stored, and must not seem to be.
        """
        with self._turn, _database_errors(self._kind):
            self._check_in_place()
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                writer = Writer(self._connection, self._current_key(), self._kind)
                yield writer
                writer.seal_root()
                self._connection.execute("COMMIT")
                self._num_writes += 1
                self._check_in_place()
            except sqlite3.Error:
                self._check_in_place()  # SQLite misses the journal, and would speak of the disk
                raise
            finally:
                # Also what a refused COMMIT (full disk) leaves open.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    @property
    def version(self) -> tuple[int, int]:
        """Version that changes whenever this file may have changed, by this connection or another: cheap to ask for."""
        with self._turn, _database_errors(self._kind):
            self._check_in_place()
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0]), self._num_writes

    def rotate_key(self) -> None:
        """Seal everything anew under a new data key and a new key of the key store, then destroy the old one.

        Copies of the file from before can never be read again. A crash at any instant leaves the file whole, under the
        old key or the new one. Raises UnreachableError when another process rotates it already.
        """
        with self._rotating() as may:
            if not may:
                raise UnreachableError(f"another program is changing the key of {self._kind.what}; run again later")
            old = self._opened.label
            new = self._kind.other_label(old)
            self._key_store.destroy(new)  # what a crash may have left
            wrapping, key = self._key_store.create(new), SecretKey.generate()
            with self.writing() as change:
                change.seal_anew(key)
                _write_key(self._connection, wrapping, key, new, self._kind)
            self._key_store.destroy(old)

    def _destroy_unused_key(self) -> None:
        """Destroy what a rotation that was interrupted left in the key store, if that can be done now."""
        if not self._key_store.exists(self._kind.other_label(self._opened.label)):
            return
        with contextlib.suppress(StorageError), self._rotating() as may:
            if may:
                self._key_store.destroy(self._kind.other_label(self._opened.label))

    @contextlib.contextmanager
    def _rotating(self) -> Iterator[bool]:
        """A block that one process at a time may be in; tells whether this one is. The key in use is then known."""
        with lock_file(self._path.with_name(f".{self._path.name}.rotation")) as lock:
            if not is_taken(lock):
                yield False
                return
            with self.reading():
                pass
            yield True

    def _check_in_place(self) -> None:
        """Raise KeyStoreError where the open file is no longer the one at its path: what it holds is gone for others.

        An open file outlives its name, and the system gives its number to no other as long as it is open.
        """
        if self._file is None or _file_at(self._path) != self._file:
            raise KeyStoreError(
                f"{self._kind.what} was wiped or replaced by another program while this one had it open, and nothing "
                "more is read from it or stored in it; run again"
            )

    def _current_key(self) -> SecretKey:
        """Return the data key of the state that the transaction sees: another process may have rotated it."""
        if _meta(self._connection, "wrapped_key", self._kind) != self._opened.wrapped:
            self._opened = _unwrap(self._connection, self._key_store, self._kind)
        return self._opened.key


class Reader:
    """Operations of a `reading()` block."""

    def __init__(self, connection: sqlite3.Connection, key: SecretKey, kind: VaultKind) -> None:
        self._connection = connection
        self._key = key
        self._kind = kind
        self._root = self._read_root()

    @property
    def facts(self) -> Mapping[str, str]:
        """The owner's few facts about the whole vault."""
        return self._root.facts

    @property
    def state(self) -> str:
        """A digest that changes with every change of a record."""
        return self._root.digest

    def select(self, table: str, *, person: int | None = None, tag: str | None = None) -> Iterator[Record]:
        """Yield a table's records, oldest first, of one person or tag if given."""
        yield from self._rows(table, "(?1 IS NULL OR person = ?1) AND (?2 IS NULL OR tag = ?2)", person, tag)

    def _rows(self, table: str, where: str, *values: int | str | None) -> Iterator[Record]:
        self._check_table(table)
        rows = self._connection.execute(
            f"SELECT id, {_PLACE}, {_bytes('sealed')} FROM {table} WHERE {where} ORDER BY id",  # noqa: S608  (names of ours)
            values,
        )
        for row in rows:
            yield self._open(table, *row)

    def _ids(self, table: str) -> list[int]:
        return [int(row[0]) for row in self._connection.execute(f"SELECT id FROM {table} ORDER BY id")]  # noqa: S608

    def counts(self, table: str) -> dict[int, int]:
        """Return the number of records that a table holds, by person."""
        self._check_table(table)
        return dict(self._connection.execute(f"SELECT person, count(*) FROM {table} GROUP BY person"))  # noqa: S608

    def _open(self, table: str, row_id: int, person: int, tag: str, nonce: bytes, sealed: bytes) -> Record:
        context = bind(_CONTEXT, table, row_id, person, tag)
        content = unseal(self._key, nonce + sealed, context, what=f"a record of {self._kind.what} ({table} {row_id})")
        return Record(table, row_id, person, tag, content)

    def _check_table(self, table: str) -> None:
        if table not in self._kind.tables:
            raise ValueError(f"no table {table!r}")

    def _read_root(self) -> _Root:
        """Return the root after checking it against the records."""
        kind = self._kind
        sealed = _meta(self._connection, "root", kind)
        plain = unseal(self._key, sealed, bind(_CONTEXT, "root"), what=kind.what)
        root = _Root(**parse_json(plain, what=f"{kind.what}'s root"))
        if root.digest != _digest(self._connection, kind.tables):
            raise CorruptDataError(
                f"{kind.what} was changed by something other than this program (a record is missing, added or older "
                f"than it should be); {kind.repair}"
            )
        return root


class Writer(Reader):
    """Operations of a `writing()` block."""

    def __init__(self, connection: sqlite3.Connection, key: SecretKey, kind: VaultKind) -> None:
        super().__init__(connection, key, kind)
        self._next_id = self._root.next_id
        self._new_facts = dict(self._root.facts)

    @property
    def facts(self) -> Mapping[str, str]:
        """The owner's facts, with what this block has set."""
        return self._new_facts

    def insert(self, table: str, content: bytes, *, person: int | None = None, tag: str = "") -> int:
        """Store a new record and return its id; without `person` the record is a person, of its own id."""
        self._check_table(table)
        row_id, self._next_id = self._next_id, self._next_id + 1
        owner = row_id if person is None else person
        self._connection.execute(
            f"INSERT INTO {table}(id, person, tag, nonce, sealed) VALUES (?, ?, ?, ?, ?)",  # noqa: S608
            (row_id, owner, tag, *self._seal(table, row_id, owner, tag, content)),
        )
        return row_id

    def replace(self, record: Record, content: bytes, *, tag: str | None = None) -> None:
        """Store new content (and tag) in a record's place."""
        new_tag = record.tag if tag is None else tag
        self._connection.execute(
            f"UPDATE {record.table} SET tag = ?, nonce = ?, sealed = ? WHERE id = ?",  # noqa: S608
            (new_tag, *self._seal(record.table, record.id, record.person, new_tag, content), record.id),
        )

    def delete(self, table: str, *, person: int | None = None, tag: str | None = None) -> None:
        """Remove a table's records of one person or tag, or all of them."""
        self._check_table(table)
        self._connection.execute(
            f"DELETE FROM {table} WHERE (?1 IS NULL OR person = ?1) AND (?2 IS NULL OR tag = ?2)",  # noqa: S608
            (person, tag),
        )

    def set_fact(self, name: str, value: str) -> None:
        """Store one of the owner's facts."""
        self._new_facts[name] = value

    def seal_anew(self, key: SecretKey) -> None:
        """Seal every record under another key, one in memory at a time; the root follows at the block's end."""
        for table in self._kind.tables:
            for row_id in self._ids(table):
                (record,) = self._rows(table, "id = ?", row_id)
                sealed = self._seal(table, row_id, record.person, record.tag, record.content, key)
                self._connection.execute(f"UPDATE {table} SET nonce = ?, sealed = ? WHERE id = ?", (*sealed, row_id))  # noqa: S608
        self._key = key

    def seal_root(self) -> None:
        """Write the root that fits the records as they are now."""
        root = _Root(_digest(self._connection, self._kind.tables), self._next_id, self._new_facts)
        _write_root(self._connection, self._key, root)

    def _seal(
        self, table: str, row_id: int, person: int, tag: str, content: bytes, key: SecretKey | None = None
    ) -> tuple[bytes, bytes]:
        context = bind(_CONTEXT, table, row_id, person, tag)
        sealed = seal(key or self._key, content, context)
        return sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]


@contextlib.contextmanager
def _connected(path: Path, kind: VaultKind) -> Iterator[sqlite3.Connection]:
    """A connection that is closed again if the block fails."""
    with _database_errors(kind):
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        try:
            # A rollback journal keeps everything in one file; EXTRA is FULL plus a sync of the folder.
            for pragma in (
                "journal_mode = DELETE",
                "synchronous = EXTRA",
                "secure_delete = ON",
                "trusted_schema = OFF",
            ):
                connection.execute(f"PRAGMA {pragma}")
            yield connection
        except BaseException:
            connection.close()
            raise


def _file_at(path: Path) -> tuple[int, int] | None:
    """Return which file lies at a path, None where there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _check_no_folder(path: Path, kind: VaultKind) -> None:
    if path.is_dir():
        raise CorruptDataError(f"{path.name} is a folder where {kind.what}'s file should be; move it away, run again")


def _create(path: Path, key_store: KeyStore, kind: VaultKind) -> None:
    """Make an empty vault with a fresh data key. A key of the key store that a crash left unused is used.

    Made beside its place and renamed, so that a vault cut down to nothing is never taken for a new one. No indices:
    the root would not cover them, so a doctored one could hide a record from `delete`.
    """
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    # Created by us first, so that it is private before SQLite writes to it.
    os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    label = _label_to_start_with(key_store, kind)
    wrapping = key_store.read(label) if key_store.exists(label) else key_store.create(label)
    key = SecretKey.generate()
    with _connected(draft, kind) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("CREATE TABLE meta(name TEXT PRIMARY KEY, value BLOB NOT NULL)")
        for table in kind.tables:
            connection.execute(
                f"CREATE TABLE {table}(id INTEGER PRIMARY KEY, person INTEGER NOT NULL, tag TEXT NOT NULL, "
                "nonce BLOB NOT NULL, sealed BLOB NOT NULL)"
            )
        _write_key(connection, wrapping, key, label, kind)
        _write_root(connection, key, _Root(_digest(connection, kind.tables), 1, {}))
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
        connection.close()
    # What a writer that was killed left of an earlier vault: SQLite would roll it back into this one.
    path.with_name(f"{path.name}-journal").unlink(missing_ok=True)
    draft.replace(path)
    sync_folder(path.parent)


@dataclass(frozen=True)
class _Opened:
    """The data key, the label of the key that wraps it, and how it lies in the file."""

    key: SecretKey
    label: str
    wrapped: bytes = field(repr=False)


def _label_to_start_with(key_store: KeyStore, kind: VaultKind) -> str:
    """Return the label of a new vault's key: one that is there is used, for the vault that it opens may come back.

    Raises KeyStoreError where both are there: one of them opens a vault that was being given another key.
    """
    there = [label for label in kind.labels if key_store.exists(label)]
    if len(there) > 1:
        raise KeyStoreError(
            f"there are keys of {kind.what}, but its file is not here; put it back, or wipe it and begin anew"
        )
    return there[0] if there else kind.label


def _unwrap(connection: sqlite3.Connection, key_store: KeyStore, kind: VaultKind) -> _Opened:
    """Return the data key of an existing vault."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > SCHEMA_VERSION:
        raise VersionError(f"{kind.what} was written by a newer program (format {version}); upgrade mien")
    label, wrapped = _label(connection, kind), _meta(connection, "wrapped_key", kind)
    wrapping = key_store.read(label)
    try:
        key = SecretKey(unseal(wrapping, wrapped, bind(_CONTEXT, "data key", label), what=kind.what))
    except CorruptDataError:
        raise KeyStoreError(
            f"the {label} key does not open {kind.what}; restore the right key, or else {kind.repair}"
        ) from None
    return _Opened(key, label, wrapped)


def _label(connection: sqlite3.Connection, kind: VaultKind) -> str:
    """Return which of its two keys a vault is under: before the first rotation the file does not say."""
    row = connection.execute(f"SELECT {_bytes('value')} FROM meta WHERE name = 'key_label'").fetchone()  # noqa: S608
    label = kind.label if row is None else bytes(row[0]).decode(errors="replace")
    if label not in kind.labels:
        raise CorruptDataError(f"{kind.what} names a key that cannot be; {kind.repair}")
    return label


def _write_key(
    connection: sqlite3.Connection, wrapping: SecretKey, key: SecretKey, label: str, kind: VaultKind
) -> None:
    """Store the data key, wrapped by the key store's key of that label."""
    wrapped = seal(wrapping, key.unmasked(), bind(_CONTEXT, "data key", label))
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('wrapped_key', ?)", (wrapped,))
    if label != kind.label or _label(connection, kind) != label:
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('key_label', ?)", (label.encode(),))


def _meta(connection: sqlite3.Connection, name: str, kind: VaultKind) -> bytes:
    """Return one of the entries beside the records."""
    row = connection.execute(f"SELECT {_bytes('value')} FROM meta WHERE name = ?", (name,)).fetchone()  # noqa: S608
    if row is None:
        raise CorruptDataError(f"{kind.what} has lost its {name}; {kind.repair}")
    return bytes(row[0])


def _digest(connection: sqlite3.Connection, tables: tuple[str, ...]) -> str:
    """Return the hash over place and nonce of every record: 16 bytes each, so cheap against reading the records."""
    digest = hashlib.sha256()
    for table in tables:
        digest.update(bind(table))
        for row in connection.execute(f"SELECT id, {_PLACE} FROM {table} ORDER BY id"):  # noqa: S608
            digest.update(bind(row[0], row[1], row[2], len(row[3])) + row[3])
    return digest.hexdigest()


def _write_root(connection: sqlite3.Connection, key: SecretKey, root: _Root) -> None:
    sealed = seal(key, to_canonical_json(to_mapping(root)), bind(_CONTEXT, "root"))
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('root', ?)", (sealed,))


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """A block that one process at a time may be in, for one folder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def _database_errors(kind: VaultKind) -> Iterator[None]:
    """Turn SQLite's refusals into errors that say what to do."""
    name = kind.what
    try:
        yield
    except sqlite3.ProgrammingError:
        raise  # a mistake of ours, such as use after close
    except sqlite3.Error as error:
        # The low byte is the primary code, the rest says more.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code in _FULL:
            raise DiskFullError(f"no space left while writing {name}; free some space and run again") from error
        if code in _BUSY:
            raise UnreachableError(f"{name} is in use by another program; run again when it has ended") from error
        if code in _REFUSED:
            raise FileAccessError(f"may not write {name}; check disk, owner and permissions of its folder") from error
        if code == sqlite3.SQLITE_IOERR:
            raise DiskFullError(f"the disk refused while reading or writing {name}; check it, run again") from error
        raise CorruptDataError(f"{name} is damaged ({type(error).__name__}); {kind.repair}") from error
    except UnicodeDecodeError:  # SQLite's words for a damaged schema quote its bytes
        raise CorruptDataError(f"{name} is damaged (its schema); {kind.repair}") from None
