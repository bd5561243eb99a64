"""Two runs side by side: figures and settings; runs that cannot be compared are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mien.errors import ConfigError, NotFoundError
from simulation.runs.compared import compare
from simulation.runs.run import run_experiment
from simulation.runs.spec import parse
from tests.simulation.runs.test_experiment import SMALL


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of two rounds."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    run_experiment(parse(SMALL.replace("rounds = 3", "rounds = 1")), folder, folder.parent, tell=lambda _text: None)
    return folder


@pytest.fixture
def runs(finished: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Return two copies of the run, the second to be changed."""
    return tuple(Path(shutil.copytree(finished, tmp_path / name)) for name in ("first", "second"))  # type: ignore[return-value]


def change(folder: Path, file: str, *path: str, value: Any) -> None:
    """Change one value of a run's file."""
    data = json.loads((folder / file).read_text())
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    (folder / file).write_text(json.dumps(data))


def test_the_same_run_twice_differs_in_nothing(runs: tuple[Path, Path]) -> None:
    found = compare(*runs)
    assert (found.settings, found.may_be_chance) == ({}, True)
    assert list(found.figures) == ["EER", "TAR at FMR 10 %", "TAR at FMR 1 %", "TAR at FMR 0.1 %"]
    assert all(first == second for _, first, second in found.figures.values())
    assert found.text.endswith("The settings are the same.")
    assert "+0.00 points" in found.text


def test_what_differs_is_named(runs: tuple[Path, Path]) -> None:
    change(runs[1], "experiment.json", "task", "local", "lr", value=0.25)
    for name, value in (("eer", 0.9), ("eer_low", 0.8), ("eer_high", 1.0)):
        change(runs[1], "evaluation.json", "after", name, value=value)
    for name, value in (("eer", 0.5), ("eer_low", 0.4), ("eer_high", 0.6)):
        change(runs[0], "evaluation.json", "after", name, value=value)
    found = compare(*runs)
    assert found.settings == {"task.local.lr": ("0.01", "0.25")}
    assert not found.may_be_chance
    assert "50.00% (40.00% to 60.00%) | 90.00% (80.00% to 100.00%) | +40.00 points" in found.text
    assert "- task.local.lr: 0.01 | 0.25" in found.text


@pytest.mark.parametrize(
    ("file", "path", "value", "says"),
    [
        ("experiment.json", ("partition", "seed"), 7, "partition.seed differs"),
        ("experiment.json", ("evaluation", "max_people"), 5, "evaluation.max_people differs"),
        ("evaluation.json", ("run", "data_sha256"), "0" * 64, "of other faces"),
        ("evaluation.json", ("before", "model_id"), "0" * 64, "began with other models"),
    ],
)
def test_runs_of_other_people_or_models_are_refused(
    runs: tuple[Path, Path], file: str, path: tuple[str, ...], value: Any, says: str
) -> None:
    change(runs[1], file, *path, value=value)
    with pytest.raises(ConfigError, match=says):
        compare(*runs)


def test_an_unfinished_run_is_refused(runs: tuple[Path, Path], tmp_path: Path) -> None:
    (runs[1] / "evaluation.json").unlink()
    with pytest.raises(NotFoundError, match="holds no finished run"):
        compare(*runs)
    with pytest.raises(NotFoundError, match="holds no run"):
        compare(runs[0], tmp_path / "nowhere")
