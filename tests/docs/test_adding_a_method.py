"""The example method of docs/adding-a-method.md: it runs, and its step is the paper's."""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

import mien.methods
from mien.methods.base import Method
from mien.specs import CohortSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.engines.engine import Cohort, run_task
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
def fedadam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Method:
    """Return the page's method, entered among the methods as the page says."""
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    file = tmp_path / "fedadam.py"
    file.write_text(code, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("fedadam", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "fedadam", module)
    spec.loader.exec_module(module)
    method: Method = module.FEDADAM
    entered = MappingProxyType({**mien.methods.METHODS, method.name: method})
    monkeypatch.setattr(mien.methods, "METHODS", entered)
    return method


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
