"""The LFW benchmark: what it prints, what it counts, what it says without data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import names
from benchmarks.lfw import QUICK_TEST, QUICK_THRESHOLD
from mien.evaluation.protocols import lfw

ROOT = Path(__file__).resolve().parents[2]
DATA = os.environ.get("MIEN_DATA")
needs_lfw = pytest.mark.skipif(not DATA, reason="MIEN_DATA is unset: LFW's images are not read")


def lfw_folder() -> Path:
    assert DATA
    return Path(DATA) / "lfw"


def run(*arguments: str, data: str | None) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "MIEN_DATA"} | ({"MIEN_DATA": data} if data else {})
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.lfw", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def test_without_data_it_says_so() -> None:
    done = run("--quick", data=None)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "MIEN_DATA is unset" in done.stderr
    assert "Traceback" not in done.stderr


def test_with_incomplete_data_it_names_what_is_missing(tmp_path: Path) -> None:
    done = run("--quick", data=str(tmp_path / "nowhere"))
    assert done.returncode == 17
    assert "is not a folder" in done.stderr
    done = run("--quick", data=str(tmp_path))
    assert done.returncode == 17
    assert "pairs.txt cannot be read" in done.stderr


def test_it_is_listed() -> None:
    assert "lfw" in names()
    assert not [name for name in names() if name.startswith("_")]


@needs_lfw
def test_quick_pairs_are_fold_one_and_a_hundred_of_fold_two() -> None:
    pairs = lfw.parse_pairs((lfw_folder() / "protocol" / "pairs.txt").read_text())
    assert (pairs.folds[list(QUICK_TEST)] == 0).all()
    assert (pairs.folds[list(QUICK_THRESHOLD)] == 1).all()
    assert pairs.mated[list(QUICK_TEST)].sum() == 300
    assert pairs.mated[list(QUICK_THRESHOLD)].tolist() == [True] * 50 + [False] * 50


@needs_lfw
@pytest.mark.slow
@pytest.mark.timeout(960)
def test_quick_run() -> None:
    done = run("--quick", "--json", data=DATA)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    assert result["pairs"] == 600
    assert result["fte"] == 0
    assert result["accuracy"] > 0.98
    assert 0 < result["std"] < 0.01
    assert result["protocol"].startswith("quick")
