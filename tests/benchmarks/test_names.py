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


def test_ratios_of_two_runs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = "step_over_torch"
    runs = {
        "quick": {
            "a_ratio": 1.05,
            torch: {"onnxruntime": 2.0},
            "duration_s": 1.0,
            "over_bare": 3,
            "aims": {"ratio": 9.0},
        },
        "whole": {
            "a_ratio": 1.0,
            torch: {"onnxruntime": 1.0},
            "duration_s": 9.0,
            "over_bare": 3,
            "aims": {"ratio": 1.0},
        },
    }
    for name, result in runs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "device.json").write_text(json.dumps(result))
    (tmp_path / "quick" / "dp.json").write_text(json.dumps({"a_ratio": 1.0}))  # the other run left it out
    assert program.agree(tmp_path / "whole", tmp_path / "whole")
    capsys.readouterr()
    assert not program.agree(tmp_path / "quick", tmp_path / "whole")
    assert capsys.readouterr().out.splitlines() == [
        "device: a_ratio 1.05 quick, 1 whole",
        "device: over_bare 3 quick, 3 whole",
        "device: step_over_torch.onnxruntime 2 quick, 1 whole, differs",
    ]


def test_folders_without_a_ratio_in_common_do_not_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not program.agree(tmp_path / "mistyped", tmp_path)
    assert "have no ratio in common" in capsys.readouterr().err
