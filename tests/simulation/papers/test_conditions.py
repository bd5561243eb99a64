"""The study of hard conditions: rows that methods take, at both scales, and a figure for every column."""

from __future__ import annotations

from typing import Any

import pytest

from mien.methods import find_method
from mien.records import from_mapping
from mien.specs import TaskSpec
from simulation.faces.conditions import CONDITIONS
from simulation.papers.conditions import CLEAN, study
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
    ]


def test_nobody_is_in_two_groups() -> None:
    settings = FULL.rows[0].settings
    assert settings["phones"] + settings["public"] + settings["test"] == settings["max_people"]
