"""The file that says a program is ready: there while it is, gone after it stopped, and never taken for another's."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mien.errors import AlreadyExistsError, CorruptDataError, NotFoundError
from mien.shell.files import read_limited, write_atomically

_MAX_BYTES = 64 * 1024


@contextlib.contextmanager
def ready_file(path: Path | None) -> Iterator[Callable[[Mapping[str, object]], None]]:
    """Yield what writes the file once the program is ready; at the block's end the file is removed.

    A file that a killed program left is removed at the start, so that nobody takes it for this program's. Raises
    AlreadyExistsError where the program that wrote it still runs, NotFoundError where there is no folder for it. `path`
    None: nothing is written.
    """
    if path is None:
        yield lambda _told: None
        return
    if not path.parent.is_dir():
        raise NotFoundError(f"there is no folder {path.parent}; make it, or name another --ready-file")
    if path.exists():
        if is_live(path):
            raise AlreadyExistsError(f"{path} belongs to a program that runs; stop it, or name another --ready-file")
        path.unlink(missing_ok=True)
    own = {"pid": os.getpid(), "started": started(os.getpid())}
    try:
        yield lambda told: write_atomically(path, json.dumps({**told, **own}).encode() + b"\n")
    finally:
        if _read(path) == own:
            path.unlink(missing_ok=True)


def is_live(path: Path) -> bool:
    """Return whether the process that wrote a ready file still runs: its id may be another's by now."""
    own = _read(path)
    return own["started"] is not None and own["started"] == started(own["pid"])


def is_ready_file(path: Path) -> bool:
    """Return whether a file says that some program is ready, or was: what it tells holds for that program only."""
    return path.is_file() and isinstance(_read(path)["pid"], int)


def started(pid: object) -> str | None:
    """Return a process's mark among others that had its id: boot and start time; None where there is none.

    Reads /proc; on systems without it every file counts as left behind.
    """
    if not isinstance(pid, int):
        return None
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return f"{boot}/{stat.rpartition(')')[2].split()[19]}"  # field 22; a program's name may hold spaces and brackets


def _read(path: Path) -> dict[str, Any]:
    """Return which process a ready file names."""
    try:
        told = json.loads(read_limited(path, _MAX_BYTES, what=path.name))
    except (OSError, ValueError, RecursionError, CorruptDataError):
        told = {}
    told = told if isinstance(told, dict) else {}
    return {"pid": told.get("pid"), "started": told.get("started")}
