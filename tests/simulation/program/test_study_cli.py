"""mien-sim run, sweep, export and report as people use them: help, one object of JSON, errors that say what to do."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mien.errors import AlreadyExistsError, ConfigError, DiskFullError, MienError, NotFoundError
from simulation.program.cli import app
from simulation.runs.records import RunFolder
from simulation.runs.run import run_experiment
from simulation.runs.spec import parse
from tests.simulation.pages.synthetic_sweep import write_sweep_folder
from tests.simulation.runs.test_sweep import BASE, PROGRAM


def refused(*arguments: object) -> MienError:
    """Return the error with which a command ends."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert isinstance(done.exception, MienError), done.output
    return done.exception


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "e.toml"
    path.write_text(BASE)
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep that nobody ran."""
    out = tmp_path_factory.mktemp("made_up")
    write_sweep_folder(out)
    return out


@pytest.mark.parametrize("command", ["run", "sweep", "export", "report"])
def test_help_has_an_example(command: str) -> None:
    done = CliRunner().invoke(app, [command, "--help"])
    assert done.exit_code == 0
    assert f"Example: mien-sim {command}" in " ".join(done.stdout.split())
    assert "--json" in done.stdout


class TestErrors:
    def test_a_field_that_is_unknown(self, experiment: Path) -> None:
        error = refused("sweep", experiment, "--set", "task.local.lrr=1,2")
        assert isinstance(error, ConfigError)
        assert "unknown field 'task.local.lrr'; did you mean 'task.local.lr'" in error.message

    def test_faces_that_are_not_there(self, experiment: Path, tmp_path: Path) -> None:
        experiment.write_text(BASE.replace('kind = "shipped"', 'path = "nowhere"'))
        for command in ("run", "sweep"):
            error = refused(command, experiment, "--out", tmp_path / "out", "--faces", tmp_path)
            assert isinstance(error, NotFoundError)
            assert "nowhere" in error.message
            assert "--faces" in error.message
            assert not (tmp_path / "out").exists()

    def test_a_folder_of_another_experiment(self, finished: Path, experiment: Path) -> None:
        error = refused("sweep", experiment, "--out", finished)
        assert isinstance(error, AlreadyExistsError)
        assert "another experiment" in error.message
        error = refused("run", experiment, "--out", finished / "runs" / "private-s0", "--resume")
        assert "holds a run with other settings" in error.message
        error = refused("run", experiment, "--out", finished / "runs" / "private-s0")
        assert "--resume" in error.message

    def test_a_folder_without_records(self, tmp_path: Path) -> None:
        for command in (["report", tmp_path], ["export", tmp_path, "--csv", tmp_path / "x.csv"]):
            assert "holds no records" in refused(*command).message

    def test_a_folder_of_runs_has_a_report_of_each(self, finished: Path) -> None:
        runs = sorted(each.parent for each in (finished / "runs").glob("*/experiment.json"))
        assert len(runs) > 1
        done = CliRunner().invoke(app, ["report", str(finished / "runs"), "--json"])
        assert json.loads(done.stdout)["written"] == [str(run / "report.html") for run in runs]
        assert all((run / "report.html").is_file() for run in runs)
        assert "--markdown is for the tables" in refused("report", finished / "runs", "--markdown", "x.md").message

    def test_a_file_in_the_way(self, finished: Path, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("keep")
        error = refused("export", finished, "--tensorboard", tmp_path / "file" / "x")
        assert isinstance(error, AlreadyExistsError)
        assert (tmp_path / "file").read_text() == "keep"


def test_answers_for_machines(finished: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["export", str(finished), "--csv", str(tmp_path / "x.csv"), "--json"])
    assert json.loads(done.stdout) == {"runs": 9, "written": [str(tmp_path / "x.csv")]}
    assert (tmp_path / "x.csv").read_text().count("after.eer,") == 9
    done = CliRunner().invoke(app, ["report", str(finished), "--json"])
    assert json.loads(done.stdout) == {"written": [str(finished / "report.html")]}


def test_run_says_that_the_sweep_is_left_out(experiment: Path, tmp_path: Path) -> None:
    experiment.write_text(BASE.replace("rounds = 2", "rounds = 1") + "[sweep]\nseeds = [3, 4]\n")
    options = ["--out", str(tmp_path / "out"), "--tensorboard", str(tmp_path / "events"), "--json"]
    before = set(threading.enumerate())
    done = CliRunner().invoke(app, ["run", str(experiment), *options])
    assert done.exit_code == 0, done.output
    assert set(threading.enumerate()) <= before, "who writes the events has ended"
    assert "mien-sim sweep runs all of it" in done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["cpu_s"] > 0
    assert list((tmp_path / "events").glob("events.out.*"))


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    """Let this process write no larger file, as on a disk with no more room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_run_goes_on_after_a_full_disk(tmp_path: Path) -> None:
    spec = parse(BASE)
    with files_of_at_most(200_000), pytest.raises(DiskFullError, match="free some space"):  # a checkpoint is larger
        run_experiment(spec, tmp_path / "run", tmp_path, tell=lambda _text: None)
    run_experiment(spec, tmp_path / "run", tmp_path, resume=True, tell=lambda _text: None)
    assert [record["round"] for record in RunFolder(tmp_path / "run").records()] == [1, 2]


@pytest.mark.parametrize(
    ("command", "says"),
    [("run", r"stopped after round \d+; go on with --resume"), ("sweep", r"stopped after \d+ of 400 rounds; the same")],
)
def test_ctrl_c_ends_with_130_and_says_how_to_go_on(command: str, says: str, experiment: Path, tmp_path: Path) -> None:
    """The signal goes to the whole group, as a terminal sends it; the folder can be taken up again."""
    experiment.write_text(BASE.replace("rounds = 2", "rounds = 400").replace("every = 1", "every = 0"))
    out = tmp_path / "out"
    arguments = [str(PROGRAM), command, str(experiment), "--out", str(out)]
    program = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    with program:
        end = time.monotonic() + 240
        while not list(out.rglob("checkpoint.bin")):
            assert program.poll() is None, "it ended too early"
            assert time.monotonic() < end, "it did not come to a round"
            time.sleep(0.05)
        os.killpg(program.pid, signal.SIGINT)
        _, told = program.communicate(timeout=120)
    assert program.returncode == 130
    lines = told.decode().splitlines()
    assert re.fullmatch(f"{says}.*", lines[-1]), lines[-1]
    assert "Traceback" not in told.decode()
