"""No command of mien-sim writes into a folder that holds another one's records."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mien.errors import TABLE, AlreadyExistsError
from simulation.program.cli import app
from simulation.runs.records import KNOWN

EXPERIMENT = "simulation/papers/fedface/phones.toml"
TASK = "name = 'tiny'\nrounds = 2\n[cohort]\nsize = 8\nmin_reports = 6\n[privacy]\nmin_cohort = 6\n"
GO_ON = {("fleet", "summary.json"), ("sweep", "sweep.json")}  # a fleet takes the place of a fleet, a sweep goes on
FLEET = ("--phones", "50", "--days", "0.005")


def holds(folder: Path, name: str) -> bytes:
    """Put records into a folder."""
    folder.mkdir()
    (folder / name).write_bytes(b"{}")
    (folder / "records.jsonl").write_bytes(b"mine\n")
    return b"mine\n"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (command, name)
        for command in ("phones", "fleet", "run", "sweep")
        for name in sorted(KNOWN)
        if (command, name) not in GO_ON
    ],
)
def test_records_of_another_command_stay(command: str, name: str, tmp_path: Path) -> None:
    task, out = tmp_path / "task.toml", tmp_path / "out"
    task.write_text(TASK)
    kept = holds(out, name)
    arguments = {"phones": ("--local",), "fleet": (str(task), *FLEET), "run": (EXPERIMENT,), "sweep": (EXPERIMENT,)}[
        command
    ]
    done = CliRunner().invoke(app, [command, *arguments, "--out", str(out)])
    assert isinstance(done.exception, AlreadyExistsError)
    assert "--out" in done.exception.message
    assert (out / "records.jsonl").read_bytes() == kept
    assert {path.name for path in out.iterdir()} == {name, "records.jsonl"}


@pytest.mark.parametrize("name", sorted(KNOWN.keys() - {"leakage.md"}))
def test_the_leakage_study_leaves_records_of_another_command(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    kept = holds(out, name)
    monkeypatch.setattr("sys.argv", ["leakage", "--quick", "--seeds", "1", "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("simulation.papers.leakage", run_name="__main__")
    assert ended.value.code == TABLE[AlreadyExistsError].exit_code
    assert "--out" in capsys.readouterr().err
    assert (out / "records.jsonl").read_bytes() == kept
    assert {path.name for path in out.iterdir()} == {name, "records.jsonl"}


def test_phones_and_run_do_not_share_a_folder_by_default() -> None:
    shown = " ".join(CliRunner().invoke(app, ["phones", "--help"], env={"COLUMNS": "200"}).stdout.split())
    assert "out/load" in shown
    assert "out/phones" not in shown


def test_a_fleet_takes_the_place_of_a_whole_fleet(tmp_path: Path) -> None:
    task, out = tmp_path / "task.toml", tmp_path / "out"
    task.write_text(TASK)
    for change in ("cohort.size=7", "cohort.size=9"):
        done = CliRunner().invoke(app, ["fleet", str(task), *FLEET, "--set", change, "--out", str(out)])
        assert done.exit_code == 0, done.output
    names = {path.name for path in out.glob("*.attempts.jsonl")}
    assert len(names) == 2
    assert not any("size=7" in name for name in names)
