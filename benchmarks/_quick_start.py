"""A fleet as `mien-coordinator quickstart` serves it, for benchmarks of programs as their users run them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from mien.errors import UnreachableError
from simulation.demo.programs import free_ports

PROGRAMS: Final = Path(sys.executable).parent
LAST_WORDS: Final = 300


@contextmanager
def quick_start(folder: Path) -> Iterator[Path]:
    """Serve a quick start while the block runs, and give its folder."""
    fleet = folder / "fleet"
    command = [str(PROGRAMS / "mien-coordinator"), "quickstart", str(fleet), "--json", "--port", str(free_ports(1)[0])]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log) as server:
        assert server.stdout is not None
        try:
            if not server.stdout.readline():
                raise UnreachableError(f"the servers did not start: {(folder / 'log').read_text()[-LAST_WORDS:]}")
            yield fleet
        finally:
            server.send_signal(signal.SIGTERM)
            server.communicate()
