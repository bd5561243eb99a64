"""mien-device as its own process, the way people run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_COLOR": "1"}


def command(*arguments: str | Path, largest_file: int | None = None) -> list[str]:
    """Return the command line; with `largest_file` none of its files may grow beyond that, as on a full disk."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({largest_file},) * 2); "
    code = (limit if largest_file is not None else "") + "from device_sdk.cli import main; main()"
    return [sys.executable, "-c", code, *map(str, arguments)]


def mien_device(
    *arguments: str | Path, largest_file: int | None = None, timeout_s: float = 240
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return what it printed."""
    return subprocess.run(
        command(*arguments, largest_file=largest_file),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=timeout_s,
        check=False,
    )


def start_mien_device(*arguments: str | Path) -> subprocess.Popen[str]:
    """Start a command and return its process; stdout is a pipe, stderr joins it."""
    return subprocess.Popen(
        command(*arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=ENVIRONMENT,
    )


def kill_at(process: subprocess.Popen[str], event: str) -> None:
    """End a `mien-device … --json` as a power cut would, once it tells of an event."""
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["event"] == event:
            process.kill()
            break
    process.communicate()
