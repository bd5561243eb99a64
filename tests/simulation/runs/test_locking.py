"""One writer a folder: the second waits for a moment, then says who writes; a killed writer holds nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from mien.errors import AlreadyExistsError
from simulation.program import reproduce
from simulation.program.cli import app
from simulation.runs import reproduced
from simulation.runs.records import LOCK, only_writer
from tests.simulation.runs.test_experiment import SMALL

HOLD = (
    "import sys, time; from pathlib import Path; from simulation.runs.records import only_writer\n"
    "with only_writer(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
)
TASK = 'name = "small"\nmethod = "fedavg"\nrounds = 5\n[cohort]\nsize = 8\nmin_reports = 6\n[privacy]\nmin_cohort = 6\n'
LOCKED = {  # verb -> its arguments but for --out, and the folder below --out that it writes alone
    "run": (["{experiment}"], ""),
    "sweep": (["{experiment}", "--seeds", "1"], ""),
    "reproduce": (["fedgc", "--quick", "--seeds", "1"], "fedgc"),
    "fleet": (["{task}", "--phones", "50", "--days", "0.01"], ""),
}


def test_a_second_writer_is_told_who_writes_and_a_killed_one_holds_nothing(tmp_path: Path) -> None:
    first = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        with pytest.raises(AlreadyExistsError, match=f"process {first.pid};.*--out"), only_writer(tmp_path, wait_s=0):
            pass
        first.kill()
    with only_writer(tmp_path, wait_s=60):
        pass
    with only_writer(tmp_path, wait_s=0):
        pass


@pytest.mark.parametrize("verb", LOCKED)
def test_no_command_writes_into_a_folder_that_another_process_writes(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulation.runs.records.WAIT_S", 0.0)
    files = {"experiment": tmp_path / "small.toml", "task": tmp_path / "task.toml"}
    files["experiment"].write_text(SMALL)
    files["task"].write_text(TASK)
    arguments, below = LOCKED[verb]
    folder = tmp_path / "out" / below
    folder.mkdir(parents=True)
    words = [verb, *(word.format(**files) for word in arguments), "--out", str(tmp_path / "out")]
    with only_writer(folder):
        refused = CliRunner().invoke(app, words).exception
    assert isinstance(refused, AlreadyExistsError)
    assert f"process {os.getpid()}" in refused.message
    assert [path.name for path in folder.iterdir()] == [LOCK]


def test_every_command_that_writes_a_folder_is_in_the_test_above() -> None:
    """The demo and the phones hold a lock of their own, by which the processes that they started end with them."""
    commands = get_command(app).commands  # type: ignore[attr-defined]
    verbs = {name for name, verb in commands.items() if "out" in {option.name for option in verb.params}}
    assert verbs == {*LOCKED, "demo", "phones"}


def test_a_reproduction_leaves_the_records_of_another_command_alone(tmp_path: Path) -> None:
    (tmp_path / "fedgc").mkdir()
    (tmp_path / "fedgc" / "sweep.json").write_text(json.dumps({}))
    with pytest.raises(AlreadyExistsError, match=r"holds a sweep.*--out"):
        reproduce.reproduce(reproduced.Options("fedgc", quick=True, seeds=(0,)), tmp_path, jobs=1, tell=print)
    assert [path.name for path in (tmp_path / "fedgc").iterdir()] == ["sweep.json"]
