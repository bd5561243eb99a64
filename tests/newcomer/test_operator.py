"""An operator's quick start: the guide's three commands, from what a clone installs without torch to a closed round."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.commands.quickstart import _check_free, _configs
from mien.errors import ConfigError
from simulation.testing import free_port
from tests import wheel
from tests.newcomer.test_integrator import block

PROGRAMS = Path(sys.executable).parent
LIMIT_S = 300.0
PHONES = 5

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


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

    @contextlib.contextmanager
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


def quick_port() -> int:
    """Return a port at which a quick start finds all of its ports free."""
    while True:
        with contextlib.suppress(ConfigError):
            _check_free(*_configs("127.0.0.1", port := free_port()), "")
            return port


@pytest.fixture(name="programs", scope="module")
def installed_without_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs that `pip install '.[coordinator,device]'` brings."""
    folder = tmp_path_factory.mktemp("operator")
    _, built = wheel.distributions(folder / "built")
    return wheel.environment(folder / "environment", built, wheel.COORDINATOR_LOCK, wheel.DEVICE_LOCK).parent


def test_three_commands_to_a_closed_round_and_a_restart_that_goes_on(
    tmp_path: Path, programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not (programs.parent / "lib" / f"python3.{sys.version_info.minor}" / "site-packages" / "torch").exists()
    lines = block("docs/operator.md", "## Quick start").splitlines()
    readme = block("README.md", "### You run a fleet: registrar, coordinator, invites, tasks").splitlines()
    assert [line.partition("#")[0].rstrip() for line in readme] == lines
    assert len(lines) <= 3
    first, submit, phones = lines
    assert f"--count {PHONES} --rounds 1" in phones

    terminal, began = Terminal(tmp_path, programs), time.monotonic()
    with terminal.staying(f"{first} --port {quick_port()}") as ready:
        assert ready["ready"]
        up_s = time.monotonic() - began
        submitted = terminal.run(submit)
        found = terminal.run(phones)
        assert found["rounds_closed"] == 1
        assert found["uploads"] == PHONES
        assert len(terminal.typed) == len(lines)
        closed_s = time.monotonic() - began
    with capsys.disabled():
        print(f" [{len(lines)} commands: {up_s:.1f} s to a fleet, {closed_s:.1f} s to a closed round]", end="")

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
