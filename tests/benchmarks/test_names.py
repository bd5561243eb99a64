"""The program that runs benchmarks: it keeps their results, and tells of those that fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import __main__ as program


def test_a_benchmark_that_ran_leaves_its_result(tmp_path: Path) -> None:
    assert program.run(["round_log"], tmp_path, quick=True) == 0
    (path,) = tmp_path.iterdir()
    assert path.name == "round_log.json"
    assert json.loads(path.read_text())["quick"] is True


def test_one_that_cannot_run_counts_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIEN_DATA", raising=False)  # real faces are not shipped
    assert program.run(["lfw"], tmp_path, quick=True) == 1
    assert list(tmp_path.iterdir()) == []
