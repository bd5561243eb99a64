"""mien-sim as people and scripts run it: help, usage errors, one JSON object, one clear sentence."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from typer.testing import CliRunner

from mien.errors import TABLE, AlreadyExistsError, ConfigError, EmptyFolderError, NotFoundError
from mien.protocol.tensors import PublicShard
from mien.specs import FaceInputSpec
from simulation.program.cli import app
from simulation.synthetic import committed_faces
from tests.programs import Answer, run_as_is


def mien_sim(*arguments: object, cwd: Path) -> Answer:
    """Run the program to its end, in a folder, without settings from outside."""
    with contextlib.chdir(cwd), mock.patch.dict(os.environ):
        for name in [name for name in os.environ if name.startswith("MIEN_")]:
            del os.environ[name]
        return run_as_is("mien-sim", *arguments)


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """Two people with two pictures each."""
    root = tmp_path / "people"
    for name, files in list(committed_faces("public").items())[:2]:
        (root / name).mkdir(parents=True)
        for path in files[:2]:
            shutil.copy(path, root / name)
    return root


class TestHelp:
    @pytest.mark.parametrize("command", [["demo"], ["data", "pack"]])
    def test_every_command_has_an_example(self, command: list[str]) -> None:
        done = CliRunner().invoke(app, [*command, "--help"])
        assert done.exit_code == 0
        assert "Example: mien-sim " + " ".join(command) in " ".join(done.stdout.split())
        assert "--json" in done.stdout

    def test_without_a_command_help_is_shown(self) -> None:
        done = CliRunner().invoke(app, [])
        assert done.exit_code == 2
        for name in ("demo", "data"):
            assert name in done.output

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["demo", "--phone", "4"], "No such option: --phone"),
            (["demo", "--phones", "3"], "'--phones': Input should be greater than or equal to 4"),
            (["demo", "--phones", "many"], "'--phones': Input should be a valid integer"),
            (["demo", "--rounds", "0"], "'--rounds': Input should be greater than or equal to 1"),
            (["demmo"], "No such command 'demmo'"),
            (["data", "pack", "x", "--out", "y"], "Missing option '--licence'"),
        ],
    )
    def test_usage_errors_name_what_is_wrong(self, arguments: list[str], says: str) -> None:
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 2
        assert says in done.stderr

    def test_a_file_that_is_not_there_is_told_of_before_torch_is_loaded(self, tmp_path: Path) -> None:
        code = (
            "import sys; from typer.testing import CliRunner; from simulation.program.cli import app\n"
            "done = CliRunner().invoke(app, sys.argv[1:]); print(repr(done.exception), 'torch' in sys.modules)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, "run", str(tmp_path / "absent.toml")],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "there is no file" in done.stdout
        assert done.stdout.endswith("False\n")

    def test_help_needs_neither_torch_nor_faces(self) -> None:
        code = (
            "import sys, simulation.program.cli; print(*{'torch', 'cv2', 'jinja2', 'grpc', 'numpy'} & set(sys.modules))"
        )
        loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        assert loaded.split() == []


class TestPack:
    def test_answer_for_machines(self, people: Path, tmp_path: Path) -> None:
        out = tmp_path / "shard.safetensors"
        options = ("--out", out, "--licence", "CC0", "--source", "renders", "--json")
        done = mien_sim("data", "pack", people, *options, cwd=tmp_path)
        assert (done.code, done.err) == (0, "")
        (line,) = done.out.splitlines()
        answer = json.loads(line)
        assert (answer["identities"], answer["images"], answer["fte"]) == (2, 4, 0)
        assert len(PublicShard.from_bytes(out.read_bytes(), FaceInputSpec()).crops) == 4

        again = mien_sim("data", "pack", people, *options, cwd=tmp_path)
        assert again.code == TABLE[AlreadyExistsError].exit_code
        assert again.out == ""
        (line,) = again.err.splitlines()
        assert json.loads(line)["error"] == "already_exists"

    def test_answer_for_people_is_printed_as_it_is(self, people: Path, tmp_path: Path) -> None:
        out = tmp_path / "[bold]odd[/].safetensors"
        out.parent.mkdir()
        done = mien_sim("data", "pack", people, "--out", out, "--licence", "CC0", "--source", "renders", cwd=tmp_path)
        assert (done.code, done.err) == (0, "")
        assert f"{out}: 4 crops of 2 people, 0 refused" in done.out

    def test_error_for_people_is_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "a folder whose name is long enough to be wrapped in a terminal of eighty columns").mkdir()
        (folder,) = tmp_path.iterdir()
        done = mien_sim("data", "pack", folder, "--out", "x", "--licence", "CC0", "--source", "y", cwd=tmp_path)
        assert done.code == TABLE[EmptyFolderError].exit_code
        (line,) = done.err.splitlines()
        assert line.startswith("error (empty_folder): ")
        assert folder.name in line


class TestDemoRefuses:
    """Before anything is started, so that nothing is left behind either."""

    def refused(self, tmp_path: Path, *arguments: object) -> dict[str, str]:
        done = mien_sim("demo", "--out", tmp_path / "out", *arguments, "--json", cwd=tmp_path)
        assert done.out == ""
        answer: dict[str, str] = json.loads(done.err.splitlines()[-1])
        assert done.code == {cls.code: row.exit_code for cls, row in TABLE.items()}[answer["error"]]
        assert not (tmp_path / "out" / "state").exists()
        return answer

    def test_faces_that_are_not_there(self, tmp_path: Path) -> None:
        answer = self.refused(tmp_path, "--faces", tmp_path / "none")
        assert answer["error"] == NotFoundError.code
        assert "holds a folder of images per person" in answer["message"]

    def test_too_few_people(self, people: Path, tmp_path: Path) -> None:
        answer = self.refused(tmp_path, "--faces", people)
        assert answer["error"] == EmptyFolderError.code

    def test_more_phones_than_the_synthetic_set_has(self, tmp_path: Path) -> None:
        answer = self.refused(tmp_path, "--phones", 11)
        assert answer["error"] == EmptyFolderError.code
        assert "10 phones" in answer["message"]

    @pytest.mark.parametrize(
        ("text", "error", "says"),
        [
            (None, NotFoundError, "there is no file"),
            ("name = ", ConfigError, "not valid TOML"),
            ('name = "demo"\nmethod = "fedfoo"\n', ConfigError, "fedfoo"),
            ('name = "demo"\nrond = 3\n', ConfigError, "rond"),
        ],
    )
    def test_task_that_is_none(self, tmp_path: Path, text: str | None, error: type[Exception], says: str) -> None:
        if text is not None:
            (tmp_path / "task.toml").write_text(text)
        answer = self.refused(tmp_path, "--task", tmp_path / "task.toml")
        assert answer["error"] == error.code  # type: ignore[attr-defined]
        assert says in answer["message"]

    def test_folder_that_is_not_the_demos(self, tmp_path: Path) -> None:
        precious = tmp_path / "mine" / "state" / "precious"
        precious.parent.mkdir(parents=True)
        precious.write_text("keep")
        done = mien_sim("demo", "--out", tmp_path / "mine", "--json", cwd=tmp_path)
        assert done.code == TABLE[AlreadyExistsError].exit_code
        assert precious.read_text() == "keep"

    def test_file_in_the_way(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("keep")
        done = mien_sim("demo", "--out", tmp_path / "file", "--json", cwd=tmp_path)
        assert done.code == TABLE[AlreadyExistsError].exit_code
        assert (tmp_path / "file").read_text() == "keep"


@pytest.mark.parametrize("module", ["simulation", "simulation.program.cli"])
def test_the_program_runs_as_a_module(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True)
    assert "reproduce" in done.stdout
