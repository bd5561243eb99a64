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
    for command in ("join", "enroll", "verify", "participate"):
        assert row[f"{command}_cpu_s"] > 0
        assert 10 < row[f"{command}_peak_mb"] < 10_000
    assert found["home_mb"] > 30, "the model's parameters alone are 38 MB"


def test_a_command_that_fails_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match=r"mien-device verify ended with \d+: "):
        run(["mien-device", "verify", "Ada", "nowhere.jpg", "--home", str(tmp_path / "phone")])
