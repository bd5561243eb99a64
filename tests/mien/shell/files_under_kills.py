"""A process that is killed at each of its steps while it creates a private file, as `test_files` reads of it.

`python -m tests.mien.shell.files_under_kills FOLDER WAY` forks a child a step, each of which ends itself with SIGKILL
before or after the n-th call that leaves Python, until one comes to its end; a step's files lie in `FOLDER/n`. What a
kill left is printed as JSON. WAY is `nameless`, `beside` (no files without names), `moved` (no links either) or
`replaced` (`write_atomically` over an older one).
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from mien.shell.files import create_private, remove_unfinished, write_atomically

DATA, OLDER = b"whole", b"older"
UMASK = 0o022


def refused(*_args: Any, **_options: Any) -> None:
    """Refuse as a file system without links does."""
    raise OSError(errno.EPERM, "no links here")


def work(way: str, path: Path) -> Callable[[], None]:
    """Return what writes the file that way, the system changed to what the way is for."""
    if way == "replaced":
        return lambda: write_atomically(path, DATA, private=True)
    if way != "nameless":
        del os.O_TMPFILE
    if way == "moved":
        os.link = refused
    return lambda: create_private(path, DATA)


def child(way: str, path: Path, fatal: int) -> None:
    """Write, and be killed at the event of that number."""
    seen = 0
    write = work(way, path)

    def at(_frame: FrameType, event: str, _what: object) -> None:
        nonlocal seen
        if event in ("c_call", "c_return", "c_exception"):
            seen += 1
            if seen == fatal:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(at)
    write()
    sys.setprofile(None)


def step(folder: Path, way: str, fatal: int) -> bool:
    """Return whether the kill of that number came, having printed what it left."""
    folder.mkdir()
    path = folder / "a.key"
    if way == "replaced":
        path.write_bytes(OLDER)
        path.chmod(0o600)
    pid = os.fork()
    if pid == 0:
        child(way, path, fatal)
        os._exit(0)
    killed = os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    left = sorted(each.name for each in folder.iterdir())
    others = [each.stat().st_mode & 0o777 for each in folder.iterdir() if each != path]
    remove_unfinished(folder)
    told = {
        "killed": killed,
        "left": left,
        "content": path.read_bytes().decode() if path.exists() else None,
        "mode": path.stat().st_mode & 0o777 if path.exists() else None,
        "names": path.stat().st_nlink if path.exists() else 0,
        "others_modes": others,
        "after": sorted(each.name for each in folder.iterdir()),
    }
    print(json.dumps(told))
    return killed


if __name__ == "__main__":
    os.umask(UMASK)
    number = 1
    while step(Path(sys.argv[1]) / str(number), sys.argv[2], number):
        number += 1
