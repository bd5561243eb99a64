"""Provenance of a measurement: the commit of the code that ran, and the command line that ran it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path


def commit() -> str:
    """Return the first 12 digits of the code's commit, `unknown` where it lies in no repository."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parent,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


def command(*program: str) -> str:
    """Return this process's command line as a shell takes it, `program` standing for how it was started."""
    return shlex.join([*program, *sys.argv[1:]])
