"""`mien-sim phones` starts both servers and processes of phones, reports, and leaves nothing behind."""

from __future__ import annotations

import dataclasses
import json
import queue
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mien.errors import ConfigError, InviteError, MienError
from simulation.demo.programs import Programs
from simulation.faces.importing import ImportSource, import_faces
from simulation.faces.writer import StoreTerms
from simulation.phones.client import Faults
from simulation.phones.fleet import FleetOptions
from simulation.phones.run import PhonesOptions, _until_joined, run_phones, task_for, why_too_few
from simulation.program.cli import app
from tests.simulation.faces.archives import folder_of_people

PROGRAM = Path(sys.executable).parent / "mien-sim"


def test_phones_on_this_machine(tmp_path: Path) -> None:
    """Two processes of phones that hold a data set's faces send random updates through one masked round."""
    source = ImportSource.of(folder_of_people(tmp_path / "faces"), aligned=True)
    import_faces(source, tmp_path / "set", StoreTerms("CC0", "made up", is_synthetic=True))
    out = tmp_path / "out"
    command = [PROGRAM, "phones", "--local", "--count", "6", "--processes", "2", "--rounds", "1", "--replay-updates"]
    done = subprocess.run(
        [*map(str, command), "--faces", str(tmp_path / "set"), "--images", "2", "--out", str(out), "--json"],
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["phones"], found["processes"], found["rounds_closed"]) == (6, 2, 1)
    assert found["uploads"] == 6
    assert found["coordinator_peak_mb"] > 10
    (record,) = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
    assert (record["end"], record["num_reports"], record["num_uploads"]) == ("closed", 6, 6)
    assert set(record["stage_s"]) >= {"keys", "shares", "upload", "unmask"}
    assert json.loads((out / "phones.json").read_text()) == found
    assert not (out / "state").exists()  # keys, invites, certificates, the coordinator


def test_where_phones_come_from_must_be_said() -> None:
    done = CliRunner().invoke(app, ["phones", "--count", "2"])
    assert isinstance(done.exception, ConfigError)
    assert "--local" in done.exception.message


def test_invites_that_were_used_are_told_with_what_makes_others() -> None:
    said: queue.Queue[Any] = queue.Queue()
    said.put({"joined": 4})
    said.put(InviteError("this invite was used by another device"))
    with pytest.raises(InviteError, match=r"used by another device; .* --operator fleet/operator"):
        _until_joined(said, 2)


def test_phones_that_stop_early_say_why() -> None:
    fleet = FleetOptions(2, 60.0, False, 0, Faults(0, 0, 0, 1))
    assert why_too_few(2, fleet) == ""
    assert "after 1 of 2 rounds" in why_too_few(1, fleet)
    assert "nothing of one was heard for 60 s" in why_too_few(1, fleet)
    unlimited = dataclasses.replace(fleet, rounds=0)
    assert why_too_few(1, unlimited) == ""
    assert "after 0 rounds" in why_too_few(0, unlimited)


def options(count: int, task: Path | None = None) -> PhonesOptions:
    return PhonesOptions(
        Path("out"), count, 1, FleetOptions(1, 60.0, False, 0, Faults(0, 0, 0, 1)), local=True, task=task
    )


@pytest.mark.parametrize("count", [3, 4, 5, 6, 7, 31, 32, 33, 1000])
def test_every_count_that_is_taken_has_a_task(count: int) -> None:
    task = task_for(options(count))
    assert 3 <= task.privacy.min_cohort <= task.cohort.min_reports <= task.cohort.size == count


def test_counts_that_can_never_work_are_refused_before_anything_starts(tmp_path: Path) -> None:
    file, out = tmp_path / "task.toml", tmp_path / "out"
    file.write_text(
        'name = "t"\nmethod = "fedavg"\n[cohort]\nsize = 40\nmin_reports = 20\n[privacy]\nmin_cohort = 16\n'
    )
    for wanted, words in (
        (options(19, file), "--count is 19.*min_reports.*20"),
        (options(4, tmp_path / "none"), "none"),
    ):
        with pytest.raises(MienError, match=words):
            run_phones(dataclasses.replace(wanted, out=out), as_json=True)
        assert not out.exists()
    assert task_for(options(20, file)).cohort.min_reports == 20
    with pytest.raises(ConfigError, match="fewer than 3"):
        options(2)


@pytest.mark.parametrize("command", ["phones"])
def test_it_has_an_example(command: str) -> None:
    shown = " ".join(CliRunner().invoke(app, [command, "--help"]).stdout.split())
    assert f"Example: mien-sim {command}" in shown
    assert "pure load" in shown
    assert "phones-worker" not in CliRunner().invoke(app, ["--help"]).stdout


def test_what_a_worker_refuses_is_told_of_the_command_that_was_typed(tmp_path: Path) -> None:
    with Programs(tmp_path / "logs") as programs, pytest.raises(MienError) as refused:
        list(programs.lines("mien-sim", "phones-worker", str(tmp_path / "gone.json"), called="phones"))
    assert refused.value.message.startswith("mien-sim phones: ")
    assert "worker" not in refused.value.message
