"""mien-device the way people run it: in this process, or, where it is to die or its disk to be full, as its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.programs import run_as_is

_CHANGED = {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_COLOR": "1"}
ENVIRONMENT = {**os.environ, **_CHANGED}


_DIES = """
import os, signal, sys
write = sys.stdout.write
def last_word(text):
    write(text)
    if '"event": "{event}"' in text:
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
sys.stdout.write = last_word
"""
_LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size_bytes},) * 2)\n"


def command(*arguments: str | Path, largest_file: int | None = None, dies_at: str | None = None) -> list[str]:
    """Return the command line; with `largest_file` none of its files may grow beyond that, as on a full disk.

    With `dies_at` a `mien-device … --json` ends as by a power cut at the instant at which it tells of that event.
    """
    code = "" if largest_file is None else _LIMIT.format(size_bytes=largest_file)
    code += "" if dies_at is None else _DIES.format(event=dies_at)
    return [sys.executable, "-c", f"{code}from device_sdk.program.cli import main; main()", *map(str, arguments)]


def mien_device(
    *arguments: str | Path, largest_file: int | None = None, timeout_s: float = 240
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return what it printed; a process of its own is for a full disk alone."""
    if largest_file is None:
        done = run_as_is("mien-device", *arguments, environment=_CHANGED)
        return subprocess.CompletedProcess(["mien-device", *map(str, arguments)], done.code, done.out, done.err)
    return subprocess.run(
        command(*arguments, largest_file=largest_file),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=timeout_s,
        check=False,
    )


def start_mien_device(*arguments: str | Path, dies_at: str | None = None) -> subprocess.Popen[str]:
    """Start a command, which may die as `command` says, and return its process; stdout is a pipe, stderr joins it."""
    return subprocess.Popen(
        command(*arguments, dies_at=dies_at),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=ENVIRONMENT,
    )


def has_died(process: subprocess.Popen[str], limit_s: float = 240) -> bool:
    """Return whether a command that was to die at an event has, once it is over."""
    process.communicate(timeout=limit_s)
    return process.returncode == -signal.SIGKILL
