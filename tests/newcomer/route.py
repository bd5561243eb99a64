"""A newcomer's terminal, with a clock: what is typed, how often, and what it costs until the aim is reached."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from pathlib import Path
from typing import Final

LIMIT_S: Final = 900.0


class Route:
    """A shell in a folder, in which an environment is active; every line must end well.

    No test asserts its times: they are shown, for they follow the machine's load. What a route is held to is how many
    lines it takes; processor time is that of all processes that these lines started.
    """

    def __init__(self, folder: Path, python: Path) -> None:
        self._folder = folder
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("MIEN_", "PYTHON", "DBUS_"))},
            "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
            "XDG_DATA_HOME": str(folder / "data"),
            "OMP_NUM_THREADS": "1",
        }
        self.typed: list[str] = []
        self._began_s, self._used_s = time.monotonic(), _children_s()

    def type(self, line: str, *, answers: int = 0) -> str:
        """Return what a line prints, which ends with the exit code `answers`."""
        self.typed.append(line)
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self._folder, env=self._environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == answers, f"{line}: {done.stderr[-2000:]}"
        return done.stdout

    def clock(self) -> str:
        """Return what was typed so far, and what it took."""
        lines = f"{len(self.typed)} command{'' if len(self.typed) == 1 else 's'}"
        return f"{lines}, {time.monotonic() - self._began_s:.1f} s, {_children_s() - self._used_s:.1f} of the processor"


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
