"""A researcher's first experiment, and first method: one command each, after which the recogniser is better."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT
from tests.newcomer.route import Route

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def line_of(page: str, begin: str) -> str:
    """Return the command that a page shows, without its comment."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith(begin)).partition("#")[0].strip()


def test_the_guides_first_experiment_improves_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "docs" / "examples").mkdir(parents=True)
    shutil.copy(ROOT / "docs" / "examples" / "statistics.toml", tmp_path / "docs" / "examples")
    route = Route(tmp_path, Path(sys.executable))
    line = line_of("docs/simulation.md", "mien-sim run docs/examples/statistics.toml")
    told = json.loads(route.type(f"{line} --out out --json").splitlines()[-1])
    assert told["eer_after"] < told["eer_before"] - 0.03, "15.1 % before and 8.5 % after, when it was written down"
    assert told["worse"] == ""
    with capsys.disabled():
        print(f" [a better model: {route.clock()}]", end="")
    assert len(route.typed) == 1


def test_the_guides_own_method_is_better_than_the_one_it_begins_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "examples").mkdir()
    for name in ("my_map.toml", "my_map.py"):  # a researcher's copy, of which the product knows nothing
        shutil.copy(ROOT / "examples" / name, tmp_path / "examples")
    route = Route(tmp_path, Path(sys.executable))
    route.type(line_of("docs/adding-a-method.md", "mien-sim sweep examples/my_map.toml"))
    rates: dict[str, dict[int, float]] = {}
    for file in (tmp_path / "out" / "my_map" / "records").glob("*.json"):
        record = json.loads(file.read_text("utf-8"))
        rates.setdefault(record["row"], {})[record["seed"]] = record["metrics"]["eer"]
        assert record["metrics"]["eer"] < record["metrics"]["eer_before"] - 0.05
    assert set(rates["my_map"]) == set(rates["statistics"]) == {0, 1, 2}
    gains = [rates["statistics"][seed] - rates["my_map"][seed] for seed in rates["my_map"]]
    assert min(gains) > 0.002, "0.53 to 0.74 points when it was written down"
    assert sum(gains) / 3 > 0.004
    with capsys.disabled():
        print(f" [a method of one's own that improves on its example: {route.clock()}]", end="")
    assert len(route.typed) == 1
