"""Appending to a file in whole blocks, past the system's page cache where the file system allows that (`O_DIRECT`).

What is written once and read back minutes later only costs in the page cache: a copy of every byte, pages that push
others out, and a stall at `sync` when all of it goes to the disk at once. Past it, bytes are on their way as they come.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from mien.shell.files import sync_folder

BLOCK_BYTES: Final = 4096
"""Alignment of offsets in the file, and of memory: disks and file systems ask it of a direct write."""

_DIRECT: Final = getattr(os, "O_DIRECT", 0)  # not everywhere
_sync_data: Final = getattr(os, "fdatasync", os.fsync)


def whole_blocks(size_bytes: int) -> int:
    """Return a length rounded up to whole blocks."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


class Buffers:
    """Lends memory that direct writes can start from; as many pieces of it as are lent at the same time."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = whole_blocks(size_bytes)
        self._free: deque[mmap.mmap] = deque()

    @contextmanager
    def lent(self) -> Iterator[memoryview]:
        """Lend a buffer while the block runs; what an earlier borrower left in it is still there."""
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = mmap.mmap(-1, self._size_bytes)  # begins at a page
        try:
            with memoryview(buffer) as view:
                yield view
        finally:
            self._free.append(buffer)


class Entries:
    """Has the names of new files on stable storage: one sync of a folder for all that were made before it."""

    def __init__(self) -> None:
        self._lock, self._syncing = threading.Lock(), threading.Lock()
        self._num_made = 0
        self._synced: dict[Path, int] = {}

    def made(self) -> int:
        """Return the number of a file that was opened, perhaps made, just now."""
        with self._lock:
            self._num_made += 1
            return self._num_made

    def sync(self, folder: Path, number: int) -> None:
        """Return once the name of a numbered file is on stable storage."""
        if self._synced.get(folder, 0) >= number:
            return
        with self._syncing:
            if self._synced.get(folder, 0) >= number:
                return
            made = self._num_made
            sync_folder(folder)
            self._synced[folder] = made

    def forget(self, folder: Path) -> None:
        """Drop the entry of a folder that is no more."""
        self._synced.pop(folder, None)


class BlockFile:
    """A file that grows by whole blocks. One writer at a time."""

    def __init__(self, path: Path, *, is_direct: bool) -> None:
        """Opens the file, or makes a private one; `is_direct` is a wish, which not every file system grants."""
        self.path = path
        self._file = _open_direct(path) if is_direct else _open(path, 0)
        self.end = self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def append(self, blocks: memoryview) -> None:
        """Write whole blocks of a lent buffer behind the rest; where that fails, the file is as it was."""
        start, left = self.end, blocks
        try:
            while left:
                written = os.pwrite(self._file.fileno(), left, self.end)
                written -= written % BLOCK_BYTES  # the system may take less than it is given
                if written == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                left = left[written:]
                self.end += written
        except OSError:
            self.cut(start)
            raise

    def cut(self, end: int) -> None:
        """Let the file end at a block's start: what lies behind is dropped, what is missing is zeros."""
        os.ftruncate(self._file.fileno(), end)
        self.end = end

    def sync(self) -> None:
        """Return once everything that was appended is on stable storage."""
        _sync_data(self._file.fileno())


def _open_direct(path: Path) -> IO[bytes]:
    try:
        return _open(path, _DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return _open(path, 0)


def _open(path: Path, flags: int) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o600), "r+b", buffering=0)
