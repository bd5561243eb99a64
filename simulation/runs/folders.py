"""Folders that `--out` names: no command writes its records over another's, and one process at a time writes them.

Who writes holds a lock, which the kernel frees when the process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from mien.errors import AlreadyExistsError
from mien.shell.lock import is_taken, lock_file

KNOWN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "experiment.json": "a run of mien-sim run",
        "sweep.json": "a sweep",
        "study.json": "a reproduction",
        "phones.json": "the records of mien-sim phones",
        "summary.json": "the records of mien-sim fleet",
        "leakage.md": "a study of what the server can learn",
    }
)
"""The file by which the folder of each command is known."""


def refuse_others(folder: Path, *, but: str = "") -> None:
    """Raise AlreadyExistsError for a folder that holds a command's records, except those known by the file `but`."""
    for name, what in KNOWN.items():
        if name != but and (folder / name).exists():
            raise AlreadyExistsError(f"{folder} holds {what}, which stay; name another folder with --out")


LOCK: Final = "lock"
WAIT_S: Final = 10.0
"""Time that a writer waits: what a killed command has started ends a moment after it."""
_TICK_S: Final = 0.1


@contextlib.contextmanager
def only_writer(folder: Path, *, wait_s: float | None = None) -> Iterator[None]:
    """Be the only process that writes into an existing folder while the block runs.

    Waits `wait_s` seconds (default: `WAIT_S`) for another one; raises AlreadyExistsError, with its number, if it stays.
    """
    end = time.monotonic() + (WAIT_S if wait_s is None else wait_s)
    with lock_file(folder / LOCK) as handle:
        while not is_taken(handle):
            if time.monotonic() >= end:
                who = os.pread(handle, 20, 0).decode("ascii", "replace").strip() or "another one"
                raise AlreadyExistsError(
                    f"{folder} is being written by process {who}; wait for it, stop it, or name a new folder with --out"
                )
            time.sleep(_TICK_S)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
