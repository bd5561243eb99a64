"""A run's steps beside its rounds: on which device it trains, and how long it says that it will take."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mien.errors import MissingDependencyError
from simulation.runs.run import dry_run, run_experiment, seconds_left
from simulation.runs.spec import parse
from tests.simulation.runs.test_experiment import SMALL, quiet


def test_the_first_round_tells_nothing_of_the_others() -> None:
    """36 s of features that are computed once, then rounds of 1 s: 18 minutes were told where 29 s were left."""
    assert seconds_left([0.0, 37.0], 29) is None
    assert seconds_left([0.0, 37.0, 38.0], 28) == 28.0
    assert seconds_left([0.0, 37.0, 38.0, 41.0], 27) == 54.0
    assert seconds_left([0.0, 37.0], 0) == 0.0


def test_rounds_that_grow_slower_are_told_by_the_last_ones() -> None:
    quick = [float(second) for second in range(50)]
    slow = [quick[-1] + 10.0 * number for number in range(1, 21)]
    assert seconds_left([*quick, *slow], 3) == 30.0


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_device_that_is_not_there_is_refused_by_a_dry_run_as_by_a_start(tmp_path: Path) -> None:
    with pytest.raises(MissingDependencyError, match="no CUDA"):
        dry_run(parse(SMALL), tmp_path, on="cuda")
    with pytest.raises(MissingDependencyError, match="no CUDA"):
        run_experiment(parse(SMALL), tmp_path / "out", tmp_path, tell=quiet, on="cuda")
    assert not (tmp_path / "out" / "records.jsonl").exists()


def test_the_evaluation_says_on_what_it_was_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIEN_SIM_DEVICE", "cuda")  # what is named comes before it
    told: list[str] = []
    found = run_experiment(parse(SMALL), tmp_path / "out", tmp_path, tell=told.append, on="cpu")
    assert found["run"]["engine"]["device"] == "cpu"
    rounds = [line for line in told if line.startswith("round ")]
    assert "left" not in rounds[0]
    assert rounds[1].endswith(" s left")
