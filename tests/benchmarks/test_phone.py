"""The benchmark of a phone's process measures a whole phone in a fleet, and says which command failed."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.phone import benchmark, run
from mien.errors import UnreachableError


@pytest.mark.slow
def test_a_phone_enrols_verifies_and_takes_part() -> None:
    found = benchmark(Namespace(quick=True))
    (row,) = found["rows"]
    assert row["engine"] == "onnxruntime"
    for command in ("join", "enroll", "verify", "participate", "participate_adapter"):
        assert row[f"{command}_cpu_s"] > 0
        assert 10 < row[f"{command}_peak_mb"] < 10_000
    assert found["participate_adapter_cpu_s"] == row["participate_adapter_cpu_s"]
    assert "participate_block_cpu_s" not in found, "a quick run has no time for it"
    assert found["home_mb"] > 30, "the model's parameters alone are 38 MB"


def test_a_command_that_fails_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match=r"mien-device verify ended with \d+: "):
        run(["mien-device", "verify", "Ada", "nowhere.jpg", "--home", str(tmp_path / "phone")])


def test_a_command_that_does_not_end_is_ended() -> None:
    with pytest.raises(UnreachableError, match=r"python -c ended with -9: "):
        run(["python", "-c", "import time; time.sleep(600)"], limit_s=0.5)
