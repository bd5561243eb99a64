"""Ends a program's children, and removes its keys, where it could not do so itself: it was killed.

`python -m simulation.demo.guard PARENT [FOLDER]` reads lines: "+PID" for a child that began, "-PID" for one that has
ended, and "." when the program leaves in order. An input that ends without it means that the program is gone.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

LOCK: Final = ".lock"
"""Beside the folder: whoever uses it holds this lock."""
STOP_S: Final = 20.0
POLL_S: Final = 0.05


def main() -> None:
    """Wait for the program's end, and do what is left to do."""
    # Told, and not asked for: a program that was killed while this one started is nobody's parent any more.
    program, running = int(sys.argv[1]), set[int]()
    for line in sys.stdin:
        if line == ".\n":
            return
        (running.add if line[0] == "+" else running.discard)(int(line[1:]))
    _end(running)
    while os.getppid() == program:  # it holds the lock to its very end
        time.sleep(POLL_S)
    if sys.argv[2:]:
        _remove(Path(sys.argv[2]))


def _end(pids: Collection[int]) -> None:
    """End these processes: SIGTERM, then after `STOP_S` SIGKILL for those that do not listen."""
    deadline = time.monotonic() + STOP_S
    left = {pid for pid in pids if _send(pid, signal.SIGTERM)}
    while left and time.monotonic() < deadline:
        time.sleep(POLL_S)
        left = {pid for pid in left if _send(pid, 0)}
    for pid in left:
        _send(pid, signal.SIGKILL)


def _send(pid: int, number: int) -> bool:
    """Send a signal; tells whether there is such a process of ours."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _remove(folder: Path) -> None:
    """Remove the folder, unless the next program has it already and has emptied it."""
    from mien.errors import MienError
    from mien.shell.lock import exclusive

    with suppress(MienError), exclusive(folder.parent / LOCK, program="guard"):
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
