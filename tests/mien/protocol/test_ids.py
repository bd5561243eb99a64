"""Ids are plain at run time, and the type checker tells them apart."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from mien.errors import ConfigError
from mien.protocol.ids import DeviceId, ModelId, RoundNumber
from mien.records import from_mapping, to_mapping
from tests.helpers import ROOT

REFUSED = {
    'RoundRef(ModelId("m"), RoundNumber(1), AttemptNumber(1))': ("ModelId", "TaskId"),
    'RoundRef("t", RoundNumber(1), AttemptNumber(1))': ("str", "TaskId"),
    'RoundRef(TaskId("t"), AttemptNumber(1), AttemptNumber(1))': ("AttemptNumber", "RoundNumber"),
    'RoundRef(TaskId("t"), RoundNumber(1), 1)': ("int", "AttemptNumber"),
    'StepRecord(PopulationId("p"), Stage.KEYS, b"")': ("PopulationId", "DeviceId"),
    'UploadRecord(RoundNumber(1), DeviceId("d"), BlobId("b", 1), is_committed=False)': ("RoundNumber", "RoundId"),
    'EvaluationRecord(TaskId("t"), b"", 1, "")': ("TaskId", "ModelId"),
}
"""Statements, each with what it gives and what is wanted."""

TAKEN = (
    'RoundRef(TaskId("t"), RoundNumber(1), AttemptNumber(1))',
    'StepRecord(DeviceId("d"), Stage.KEYS, b"").device_id.upper()',
    'print(RoundRef(TaskId("t"), RoundNumber(1), AttemptNumber(1)).round + 1)',
)
HEAD = """
from mien.protocol.ids import AttemptNumber, DeviceId, ModelId, PopulationId, RoundId, RoundNumber, TaskId
from mien.protocol.rounds import BlobId, RoundRef, Stage
from mien.rounds.records import EvaluationRecord, StepRecord, UploadRecord
"""
SOURCES = ("mien/protocol/ids.py", "mien/protocol/rounds.py", "mien/rounds/records.py")


def test_the_type_checker_refuses_another_things_id(tmp_path: Path) -> None:
    snippet = tmp_path / "snippet.py"
    lines = [*HEAD.splitlines(), *TAKEN, *REFUSED]
    snippet.write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file=", "--follow-imports=skip", "--cache-dir", str(tmp_path)]
    done = subprocess.run([*command, *SOURCES, str(snippet)], cwd=ROOT, capture_output=True, text=True, check=False)
    said = re.findall(r'snippet\.py:(\d+): error: .* incompatible type "(\w+)"; expected "(\w+)"', done.stdout)
    found = {lines[int(number) - 1]: (given, wanted) for number, given, wanted in said}
    assert found == REFUSED, done.stdout + done.stderr
    assert f"Found {len(REFUSED)} errors in 1 file" in done.stdout


@dataclass(frozen=True)
class Named:
    """A record that is read from plain data."""

    device: DeviceId
    model: ModelId | None = None
    rounds: tuple[RoundNumber, ...] = ()


def test_records_take_ids_from_plain_data_and_give_them_back() -> None:
    plain = {"device": "d", "model": "m", "rounds": (1, 2)}
    read = from_mapping(Named, plain)
    assert read == Named(DeviceId("d"), ModelId("m"), (RoundNumber(1), RoundNumber(2)))
    assert type(read.device) is str
    assert from_mapping(Named, to_mapping(read)) == read
    with pytest.raises(ConfigError, match=r"device is 3 \(int\); expected str"):
        from_mapping(Named, {"device": 3})
