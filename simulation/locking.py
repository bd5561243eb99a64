"""One writer a folder: who writes holds a lock, which the kernel frees when the process ends, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mien.errors import AlreadyExistsError
from mien.shell.files import storage_errors

LOCK: Final = "lock"
WAIT_S: Final = 10.0
"""How long a writer waits: what a killed command has started ends a moment after it."""
_TICK_S: Final = 0.1


@contextlib.contextmanager
def only_writer(folder: Path, *, wait_s: float | None = None) -> Iterator[None]:
    """Be the only process that writes into an existing folder while the block runs.

    Waits `wait_s` seconds (default: `WAIT_S`) for another one; raises AlreadyExistsError, with its number, if it stays.
    """
    end = time.monotonic() + (WAIT_S if wait_s is None else wait_s)
    with storage_errors(LOCK):
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while not _taken(handle):
            if time.monotonic() >= end:
                who = os.pread(handle, 20, 0).decode("ascii", "replace").strip() or "another one"
                raise AlreadyExistsError(
                    f"{folder} is being written by process {who}; wait for it, stop it, or name a new folder with --out"
                )
            time.sleep(_TICK_S)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
