"""The example method that docs/adding-a-method.md walks through: it runs, and its step is the paper's."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from mien.methods import registry
from mien.methods.base import Method
from mien.specs import CohortSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.engines.engine import Cohort, run_task
from tests.examples.by_path import EXAMPLES, example
from tests.tiny import made_up_crops, tiny_cnn

PAGE = Path(__file__).resolve().parents[2] / "docs" / "adding-a-method.md"
TASK = TaskSpec(
    "example",
    method="fedadam",
    rounds=1,
    cohort=CohortSpec(size=3, min_reports=2),
    privacy=PrivacySpec(min_cohort=2, secure_aggregation="off"),
    local=LocalSpec(lr=0.05),
    options={"beta1": 0.8},
)


@pytest.fixture
def fedadam(monkeypatch: pytest.MonkeyPatch) -> Method:
    """Return the example, entered among the methods as the page says: nothing else of the product changes."""
    method: Method = example("my_method").FEDADAM
    entered = MappingProxyType({**registry.METHODS, method.name: method})
    monkeypatch.setattr(registry, "METHODS", entered)
    return method


def test_the_page_shows_the_example_as_it_is_and_all_of_its_code() -> None:
    code = (EXAMPLES / "my_method.py").read_text(encoding="utf-8")
    pieces = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    method = code[code.index("@dataclass") : code.index('if __name__ == "__main__":')]
    assert "\n\n\n".join(piece.strip() for piece in pieces) == method.strip()


@pytest.mark.parametrize("name", ["my_method", "my_map"])
def test_an_example_that_is_run_by_hand_says_how_it_is_used(name: str) -> None:
    done = subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], capture_output=True, text=True, check=True)
    assert f'method = "{name}.py:' in done.stdout
    assert "mien-sim sweep examples/my_map.toml" in done.stdout


@pytest.mark.usefixtures("fedadam")
def test_one_round_of_the_example_is_the_papers_step() -> None:
    tiny = tiny_cnn()
    part = tiny.part()
    cohort = Cohort({f"phone-{i}": made_up_crops(4, seed=i) for i in range(3)})

    def after(task: TaskSpec) -> np.ndarray:
        run = run_task(task, part, tiny.spec.input.dim, tiny.theta, cohort, tiny.runtime())
        return part.gather(run.state.theta).astype(np.float64)

    before = part.gather(tiny.theta).astype(np.float64)
    mean = after(replace(TASK, method="fedavg", options={})) - before
    assert np.abs(mean).max() > 1e-5
    first, second = 0.2 * mean, 0.99 * 1e-3**2 + 0.01 * mean**2
    expected = before + first / (np.sqrt(second) + 1e-3)
    np.testing.assert_allclose(after(TASK), expected, atol=2e-5)
