"""One process per state folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from mien.errors import AlreadyExistsError, StorageError
from mien.shell.files import remove_unfinished, storage_errors


@contextlib.contextmanager
def exclusive(path: Path, *, program: str, option: str = "--home", what: str = "folder") -> Iterator[None]:
    """Hold a lock file for as long as the block runs; raises AlreadyExistsError while another process holds it.

    `what` is locked, and `option` names it on the command line or in the settings. The kernel frees the lock when
    the process ends, however it ends; the file itself stays. Files that a killed process was writing beside it go, as
    far as they can be removed.
    """
    with lock_file(path) as handle:
        if not is_taken(handle):
            raise AlreadyExistsError(f"another {program} is using this {what}; stop it first or name another {option}")
        with contextlib.suppress(StorageError):  # what cannot go now is in nobody's way
            remove_unfinished(path.parent)
        yield


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a lock file while the block runs, waiting for whoever else holds it: for what takes a moment only."""
    with lock_file(path) as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def lock_file(path: Path) -> Iterator[int]:
    """Keep a lock file open while the block runs, made where there is none; what the block locks is free after it.

    Raises AlreadyExistsError where a link lies in its place: what it leads to is another one's.
    """
    try:
        with storage_errors(path.name):
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise AlreadyExistsError(f"{path} is a link, and a lock must be a file; remove it and run again") from error
    try:
        yield handle
    finally:
        os.close(handle)


def is_taken(handle: int) -> bool:
    """Take the lock of an open file and return whether it is ours now; False while another one holds it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
