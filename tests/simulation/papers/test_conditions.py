"""The study of hard conditions: rows that methods take, at both scales, and a figure for every column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mien.layout import Vector
from mien.methods import find_method
from mien.records import from_mapping
from mien.specs import TaskSpec
from simulation.faces.conditions import CONDITIONS
from simulation.faces.models import Model
from simulation.faces.workbench import Workbench
from simulation.papers import conditions
from simulation.papers.conditions import CLEAN, GROUPS, measure, study
from simulation.runs.experiment import Job
from tests.tiny import tiny_adapted

QUICK, FULL = study(quick=True, faces=None), study(quick=False, faces=None)
ADAPTED = tiny_adapted(64)


@pytest.mark.parametrize("row", [row for each in (QUICK, FULL) for row in each.rows if "task" in row.settings])
def test_every_row_is_a_task_that_its_method_takes(row: Any) -> None:
    task = from_mapping(TaskSpec, row.settings["task"])
    layout = find_method(task.method).contribution_layout(task, ADAPTED.part(), 64)
    assert bool(layout.revealed) == (row.name == "fedface")
    held = row.settings["public" if row.settings.get("held") else "phones"]
    assert task.cohort.size * (task.rounds if task.method == "statistics" else 1) == held


def test_both_scales_have_the_same_methods_and_all_conditions() -> None:
    assert [row.name for row in QUICK.rows] == [row.name for row in FULL.rows]
    metrics = [column.metric for table in FULL.tables for column in table.columns]
    assert metrics == [
        *(f"{name}_tar_1e-3" for name in CONDITIONS),
        *(f"{name}_eer" for name in CONDITIONS),
        *(f"{name}_{CLEAN}_tar_1e-3" for name in CONDITIONS),
        *(f"{name}_rate" for name in CONDITIONS),
    ]


def test_nobody_is_in_two_groups() -> None:
    for row in (QUICK.rows[0], FULL.rows[0]):
        assert sum(row.settings[name] for name in GROUPS) == row.settings["max_people"]


def test_what_trains_counts_with_the_rate_that_validation_people_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three rates one leaves the model as it is, and the others one number of 64, by which nobody is told apart."""
    labels = np.repeat(np.arange(20), 4)
    rng = np.random.default_rng(0)
    features = (rng.normal(0, 1, (20, 64))[labels] + rng.normal(0, 0.3, (80, 64))).astype(np.float32)
    model = Model(ADAPTED.spec, ADAPTED.layout, ADAPTED.theta)
    names = tuple(f"{i:02d}" for i in range(20))
    whole = Workbench(model, ADAPTED.part(), ADAPTED.runtime(), np.zeros((80, 1, 1, 3), np.uint8), labels, names, "")
    ready = dict.fromkeys((CLEAN, *CONDITIONS), features)
    monkeypatch.setattr(conditions, "open_features", lambda *_: (whole, ready))

    def trained(bench: Workbench, *others: object, **_: object) -> Vector:
        return bench.theta if others[-1] == 0.2 else np.where(np.arange(len(bench.theta)) == 0, bench.theta, 0)

    monkeypatch.setattr(conditions, "trained", trained)
    row = next(row for row in QUICK.rows if row.name == "pooled")
    found = measure(Job("pooled", 0, {**row.settings, "rates": [0.1, 0.2, 0.3]}))
    assert {found[f"{name}_rate"] for name in CONDITIONS} == {0.2}
    assert {found[f"{name}_eer"] for name in CONDITIONS} == {0.0}
