"""Content-addressed files on any fsspec file system: a folder by default, an object store by URL.

A blob's name is the SHA-256 of its bytes. Whatever is written is whole or absent; whatever is read is checked.
A new blob is gathered in a local file, and appears under its name in one step: a rename, or one upload.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import tempfile
import threading
import uuid
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Final

import fsspec

from coordinator.store.buckets import bucket_errors, is_bucket, open_bucket
from mien.errors import ConfigError, CorruptDataError, DiskFullError
from mien.protocol import CHUNK_BYTES
from mien.protocol.rounds import BlobId
from mien.shell.files import storage_errors, sync_folder, write_atomically

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_OWNER: Final = "store-id"


class BlobStore:
    """Blobs under one URL. Every method may be called from any thread.

    `endpoint` is the address of an S3-compatible store; `staging` is a local folder for blobs on their way to another
    machine (default: the system's temporary one). Methods raise UnreachableError when an object store does not answer
    and KeyStoreError when it refuses the credentials; nothing has changed then.
    """

    def __init__(self, url: str, *, endpoint: str = "", staging: Path | None = None) -> None:
        self._errors: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        if is_bucket(url):
            self._errors = bucket_errors
            self._fs, root = open_bucket(url, endpoint)
        else:
            try:
                self._fs, root = fsspec.core.url_to_fs(url)
            except (ValueError, ImportError) as error:
                raise ConfigError("blobs_url cannot be used: give a folder, or a URL and install its driver") from error
        self._root = str(root).rstrip("/")
        self._checked: set[str] = set()
        self._lock = threading.Lock()
        self._is_local = "file" in (self._fs.protocol if isinstance(self._fs.protocol, tuple) else (self._fs.protocol,))
        self._staging = Path(self._root) if self._is_local else staging or Path(tempfile.gettempdir())
        with write_errors("the blob folder"):
            self._staging.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _path(self, sha256: str) -> str:
        if not _SHA256.fullmatch(sha256):
            raise CorruptDataError("this is not the hash of a blob; fetch the manifest again")
        return f"{self._root}/{sha256[:2]}/{sha256}"

    def exists(self, sha256: str) -> bool:
        """Return whether a blob is there."""
        with self._errors():
            return bool(self._fs.exists(self._path(sha256)))

    def put(self, data: bytes | memoryview) -> BlobId:
        """Return the address of `data`, which is durable when this returns."""
        view = memoryview(data)
        with self.writer() as writer:
            for start in range(0, len(view), CHUNK_BYTES):
                writer.write(view[start : start + CHUNK_BYTES])
            return writer.commit()

    def writer(self) -> BlobWriter:
        """Return a new blob in the making; nothing of it stays unless it is committed."""
        return BlobWriter(self._staging / f".{uuid.uuid4().hex}", self._move if self._is_local else self._upload)

    def _move(self, temporary: Path, sha256: str) -> None:
        path = Path(self._path(sha256))
        path.parent.mkdir(exist_ok=True)
        temporary.replace(path)
        sync_folder(path.parent)
        sync_folder(path.parent.parent)

    def _upload(self, temporary: Path, sha256: str) -> None:
        with self._errors():
            self._fs.put_file(str(temporary), self._path(sha256))
        temporary.unlink()

    def read(self, sha256: str) -> bytes:
        """Return a blob's bytes, checked; raises CorruptDataError when it is missing or damaged."""
        data: bytes = self._read(sha256)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise _damaged(sha256)
        return data

    def _read(self, sha256: str) -> Any:
        try:
            with self._errors():
                return self._fs.cat_file(self._path(sha256))
        except FileNotFoundError as error:
            raise _missing(sha256) from error

    def verify(self, sha256: str) -> None:
        """Check a blob's bytes once in the life of this store; raises CorruptDataError."""
        with self._lock:
            if sha256 in self._checked:
                return
        digest = hashlib.sha256()
        for piece in self._pieces(sha256, 0):
            digest.update(piece)
        if digest.hexdigest() != sha256:
            raise _damaged(sha256)
        with self._lock:
            self._checked.add(sha256)

    def stream(self, sha256: str, offset: int = 0) -> Iterator[bytes]:
        """Yield a blob's bytes from `offset` in pieces of `CHUNK_BYTES`, checked before the first one."""
        self.verify(sha256)
        yield from self._pieces(sha256, offset)

    def _pieces(self, sha256: str, offset: int) -> Iterator[bytes]:
        try:
            with self._errors(), self._fs.open(self._path(sha256), "rb") as file:
                file.seek(offset)
                while piece := file.read(CHUNK_BYTES):
                    yield piece
        except FileNotFoundError as error:
            raise _missing(sha256) from error

    def remove(self, sha256: str) -> None:
        """Forget a blob, if it is there."""
        with contextlib.suppress(FileNotFoundError), self._errors():
            self._fs.rm_file(self._path(sha256))
        with self._lock:
            self._checked.discard(sha256)

    def remove_unfinished(self) -> None:
        """Clear away what a crash left half-written; only while no other program writes here."""
        for path in self._staging.glob("." + "[0-9a-f]" * 32):
            path.unlink(missing_ok=True)

    def keep_only(self, hashes: Collection[str]) -> None:
        """Forget everything else: what a crash or a refused import left between a blob and its commit."""
        for sha256 in [sha256 for sha256 in self if sha256 not in hashes]:
            self.remove(sha256)

    def owner(self) -> str | None:
        """Return the id of the database that the blobs belong to, None where no id was given yet."""
        try:
            with self._errors():
                data: bytes = self._fs.cat_file(f"{self._root}/{_OWNER}")
        except FileNotFoundError:
            return None
        return data.decode("ascii", "replace")

    def give_to(self, owner: str) -> None:
        """Write down whose the blobs are, beside them."""
        if self._is_local:
            write_atomically(Path(self._root) / _OWNER, owner.encode(), private=True)
            return
        with self._errors():
            self._fs.pipe_file(f"{self._root}/{_OWNER}", owner.encode())

    def __iter__(self) -> Iterator[str]:
        """Yield the hashes of all blobs."""
        with self._errors():
            paths = self._fs.find(self._root)
        for path in paths:
            name = str(path).rpartition("/")[2]
            if _SHA256.fullmatch(name):
                yield name


class BlobWriter:
    """A blob in the making. Use as a context manager, from one thread at a time."""

    def __init__(self, temporary: Path, publish: Callable[[Path, str], None]) -> None:
        """`publish` takes the whole file and its hash, and lets it appear under its name in one step."""
        self._temporary, self._publish = temporary, publish
        self._digest = hashlib.sha256()
        self._size = 0
        self._is_open = True
        with write_errors("a blob"):
            self._file = os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")

    def __enter__(self) -> BlobWriter:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.abandon()

    def write(self, piece: bytes | memoryview) -> None:
        """Take the next piece; raises DiskFullError."""
        with write_errors("a blob"):
            self._file.write(piece)
        self._digest.update(piece)
        self._size += len(piece)

    def commit(self, expected: BlobId | None = None) -> BlobId:
        """Return the blob's address; it is durable now.

        Raises CorruptDataError, leaving nothing behind, when it is not the blob that was `expected`.
        """
        blob = BlobId(self._digest.hexdigest(), self._size)
        if expected is not None and blob != expected:
            raise CorruptDataError("the bytes are not those that were announced; send them again")
        with write_errors("a blob"):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._publish(self._temporary, blob.sha256)
        self._is_open = False
        return blob

    def abandon(self) -> None:
        """Leave nothing behind, unless the blob was committed."""
        if not self._is_open:
            return
        self._is_open = False
        with contextlib.suppress(OSError):  # what could not be written cannot be flushed either: it is thrown away
            self._file.close()
        with contextlib.suppress(OSError):
            self._temporary.unlink()


@contextlib.contextmanager
def write_errors(what: str) -> Iterator[None]:
    """Like `storage_errors`, and takes a file that may not grow (a limit of the process) for a full disk."""
    with storage_errors(what):
        try:
            yield
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise DiskFullError(f"{what} may not grow any more (a limit of the system); raise the limit") from error
            raise


def _missing(sha256: str) -> CorruptDataError:
    return CorruptDataError(f"blob {sha256[:12]} is missing; restore the blob folder from a backup")


def _damaged(sha256: str) -> CorruptDataError:
    return CorruptDataError(f"blob {sha256[:12]} is damaged; restore the blob folder from a backup")
