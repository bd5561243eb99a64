"""An integrator's first minutes: README's words, with the extra `device` alone, to a verified pair."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from simulation.synthetic import committed_faces
from tests import wheel
from tests.helpers import ROOT

LIMIT_S = 300.0
PERSON = "african_0030"
"""A rendered person of whom SFace recognises every picture that is taken here; it was made for real ones."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def block(page: str, heading: str, language: str = "") -> str:
    """Return the first block of that language under a heading of a page."""
    text = (ROOT / page).read_text(encoding="utf-8").split(f"\n{heading}\n", 1)[1]
    found = re.search(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found, f"{page} shows no block under {heading}"
    return found[1]


class Terminal:
    """A shell in a folder of pictures, in which an environment is active; every line must end well."""

    def __init__(self, folder: Path, python: Path) -> None:
        self._folder = folder
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("MIEN_", "PYTHON", "DBUS_"))},
            "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
            "XDG_DATA_HOME": str(folder / "data"),
            "OMP_NUM_THREADS": "1",
        }

    def type(self, line: str) -> str:
        """Return what a line prints."""
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self._folder, env=self._environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}: {done.stderr[-2000:]}"
        return done.stdout


def test_readmes_start_verifies_a_pair_and_so_does_the_api(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install, *lines = block("README.md", "## Start").splitlines()
    assert "pip install '.[device]'" in install
    python = wheel.environment(tmp_path / "environment", wheel.distributions(tmp_path / "built")[1])

    folder = tmp_path / "pictures"
    (folder / "photos" / "ada").mkdir(parents=True)
    *kept, one, other, door = committed_faces("test")[PERSON]
    for name, picture in (("a.jpg", one), ("b.jpg", other), ("door.jpg", door)):
        shutil.copy(picture, folder / name)
    for picture in kept:
        shutil.copy(picture, folder / "photos" / "ada")

    terminal, began = Terminal(folder, python), time.monotonic()
    said = [terminal.type(lines[0])]
    verified_s = time.monotonic() - began
    said += [terminal.type(line) for line in lines[1:]]
    assert "Match" in said[0]
    assert "Ada" in said[-1]

    program = block("docs/device.md", "## In two minutes, without a fleet", "python")
    program = program.replace("ada1.jpg", "a.jpg").replace("ada2.jpg", "b.jpg")
    (folder / "pair.py").write_text(program, encoding="utf-8")
    assert terminal.type("python pair.py") == "True\n"
    with capsys.disabled():
        print(f" [{verified_s:.1f} s to a verified pair, {time.monotonic() - began:.1f} s to the end]", end="")
