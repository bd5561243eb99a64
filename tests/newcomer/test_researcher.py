"""A researcher's first experiment, and first method: one command each, after which the recogniser is better."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests import programs
from tests.helpers import ROOT

pytestmark = pytest.mark.slow


def test_the_guides_first_experiment_improves_the_model(tmp_path: Path) -> None:
    experiment = ROOT / "docs" / "examples" / "statistics.toml"
    told = programs.run("mien-sim", "run", experiment, "--out", tmp_path / "out").told
    assert told["eer_after"] < told["eer_before"] - 0.03, "15.1 % before and 8.5 % after, when it was written down"
    assert told["worse"] == ""
    assert f"mien-sim run {experiment.relative_to(ROOT)}" in (ROOT / "docs" / "simulation.md").read_text("utf-8")


def test_the_guides_own_method_is_better_than_the_one_it_begins_from(tmp_path: Path) -> None:
    for name in ("my_map.toml", "my_map.py"):  # a researcher's copy, of which the product knows nothing
        shutil.copy(ROOT / "examples" / name, tmp_path / name)
    assert "mien-sim sweep examples/my_map.toml" in (ROOT / "docs" / "adding-a-method.md").read_text("utf-8")
    answer = programs.run("mien-sim", "sweep", tmp_path / "my_map.toml", "--out", tmp_path / "out")
    assert answer.code == 0, answer.err
    rates: dict[str, dict[int, float]] = {}
    for file in (tmp_path / "out" / "records").glob("*.json"):
        record = json.loads(file.read_text("utf-8"))
        rates.setdefault(record["row"], {})[record["seed"]] = record["metrics"]["eer"]
        assert record["metrics"]["eer"] < record["metrics"]["eer_before"] - 0.05
    assert set(rates["my_map"]) == set(rates["statistics"]) == {0, 1, 2}
    gains = [rates["statistics"][seed] - rates["my_map"][seed] for seed in rates["my_map"]]
    assert min(gains) > 0.002, "0.53 to 0.74 points when it was written down"
    assert sum(gains) / 3 > 0.004
