"""A process's use of the machine, as Linux tells it."""

from __future__ import annotations

import time
from pathlib import Path


def resident_bytes() -> int:
    """Return the memory that this process holds now; 0 where the system does not tell."""
    return _status("self", "VmRSS")


def peak_bytes(pid: int | str = "self") -> int:
    """Return the most memory that a process ever held; 0 where the system does not tell."""
    return _status(pid, "VmHWM")


def cpu_s() -> float:
    """Return the processor time that this process has taken."""
    return time.process_time()


def _status(pid: int | str, name: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)
