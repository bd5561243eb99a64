"""A researcher's first experiment: one command, after which the recogniser is better and nothing says otherwise."""

from __future__ import annotations

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
