"""`mien-sim phones` starts both servers and processes of phones, reports, and leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mien.errors import ConfigError
from simulation.cli import app
from simulation.stores.importing import ImportSource, import_faces
from simulation.stores.writer import StoreTerms
from tests.simulation.stores.archives import folder_of_people

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


@pytest.mark.parametrize("command", ["phones"])
def test_it_has_an_example(command: str) -> None:
    shown = " ".join(CliRunner().invoke(app, [command, "--help"]).stdout.split())
    assert f"Example: mien-sim {command}" in shown
    assert "pure load" in shown
    assert "phones-worker" not in CliRunner().invoke(app, ["--help"]).stdout
