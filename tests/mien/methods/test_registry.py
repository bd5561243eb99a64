"""Methods of other packages: entry points are taken, faults keep nobody from theirs, names are unique."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mien.errors import ConfigError
from mien.methods import registry
from mien.methods.fedavg import FEDAVG
from mien.methods.registry import METHODS, enter, find_method, is_outside
from tests.examples.by_path import EXAMPLES, example


def installed(folder: Path, points: str) -> Path:
    """Return a folder that holds the example method as an installed package with these entry points."""
    (folder / "my_method.py").write_text((EXAMPLES / "my_method.py").read_text(encoding="utf-8"), encoding="utf-8")
    about = folder / "my_method-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-method\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{registry.OUTSIDE_GROUP}]\n{points}\n")
    return folder


class TestInOneProcess:
    def test_a_method_is_entered_once_and_is_outside(self) -> None:
        method = example("my_method").FEDADAM
        enter(method)
        enter(method)
        assert find_method("fedadam") is METHODS["fedadam"] is method
        assert is_outside(method)
        assert not is_outside(FEDAVG)

    def test_a_name_that_is_taken_is_refused(self) -> None:
        enter(example("my_method").FEDADAM)
        with pytest.raises(ConfigError, match="there is a method 'fedadam' already"):
            enter(example("my_method").FEDADAM)

    def test_what_is_no_method_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"is no mien\.methods\.base\.Method"):
            enter("fedadam")  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("points", "says"),
        [
            ("mine = nowhere_at_all:X", "cannot be loaded: ModuleNotFoundError"),
            ("mine = my_method:ABSENT", "cannot be loaded: AttributeError"),
            ("mine = my_method:FEDADAM", "its name is 'fedadam'; name the entry point so"),
        ],
    )
    def test_a_faulty_entry_point_is_told_when_a_task_asks_for_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, points: str, says: str
    ) -> None:
        monkeypatch.syspath_prepend(str(installed(tmp_path, points)))
        registry._enter_installed()
        with pytest.raises(ConfigError, match=says):
            find_method("mine")
        assert find_method("fedavg") is FEDAVG


def test_an_installed_method_is_known_to_every_program(tmp_path: Path) -> None:
    code = "from mien.methods import find_method; print(find_method('fedadam').source)"
    environment = {"PYTHONPATH": str(installed(tmp_path, "fedadam = my_method:FEDADAM"))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "Reddi et al. 2021, Algorithm 2"), done.stderr
