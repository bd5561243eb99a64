"""An operator's quick start: three commands from an empty folder to a closed round of five emulated phones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from simulation.testing import free_port

PROGRAMS = Path(sys.executable).parent
LIMIT_S = 300.0
PHONES = 5

pytestmark = pytest.mark.slow


class Terminal:
    """What a newcomer types, counted; every command must end well."""

    def __init__(self, folder: Path, programs: Path = PROGRAMS) -> None:
        self.folder = folder
        self._programs = programs
        self.typed: list[str] = []
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("MIEN_")}
        self.environment |= {"OMP_NUM_THREADS": "1"}

    def run(self, line: str) -> dict[str, Any]:
        """Return the answer of a command."""
        done = subprocess.run(
            self._words(f"{line} --json"),
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer

    @contextmanager
    def staying(self, line: str) -> Iterator[dict[str, Any]]:
        """Start a command that stays up, and give what it says once it is ready; it must end well on SIGTERM."""
        with subprocess.Popen(
            self._words(f"{line} --json"), cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            try:
                yield json.loads(child.stdout.readline() or "{}")
            finally:
                child.send_signal(signal.SIGTERM)
                child.communicate(timeout=LIMIT_S)
        assert child.returncode == 0

    def _words(self, line: str) -> list[str]:
        self.typed.append(line)
        program, *rest = line.split()
        return [str(self._programs / program), *rest]


def test_three_commands_to_a_closed_round_and_a_restart_that_goes_on(tmp_path: Path) -> None:
    terminal, port = Terminal(tmp_path), free_port()
    with terminal.staying(f"mien-coordinator quickstart ./fleet --port {port}") as ready:
        assert ready["ready"]
        submitted = terminal.run("mien-coordinator task submit fleet/task.toml --home fleet/coordinator")
        found = terminal.run(
            f"mien-sim phones --invites fleet/invites.txt --count {PHONES} --rounds 1 --out fleet/phones"
        )
        assert found["rounds_closed"] == 1
        assert found["uploads"] == PHONES
        assert len(terminal.typed) == 3

    with terminal.staying("mien-coordinator quickstart ./fleet") as again:
        assert (again["model_id"], again["coordinator"]) == (ready["model_id"], ready["coordinator"])
        (task,) = terminal.run("mien-coordinator task list --home fleet/coordinator")["tasks"]
        assert (task["task_id"], task["state"]) == (submitted["task_id"], "done")
        model = terminal.run("mien-coordinator model show released --home fleet/coordinator")
        assert min(each["fmr"] for each in model["thresholds"]) <= 1e-3  # it recognises people as it is
        assert {"manifest.sig", "embed.onnx", "public_shard.safetensors"} <= {
            path.name for path in (tmp_path / "fleet" / "model").iterdir()
        }
        made, signing = task["model_id"], "--key fleet/release.key --data fleet/public"
        terminal.run(f"mien-coordinator model release {made} {signing} --home fleet/coordinator")
        model = terminal.run("mien-coordinator model show released --home fleet/coordinator")
        assert model["model_id"] == made
        assert min(each["fmr"] for each in model["thresholds"]) <= 1e-3
