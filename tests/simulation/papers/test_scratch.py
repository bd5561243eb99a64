"""A small network from scratch: its start, the study's rows, and FedFace against everybody in all engines."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mien.layout import Vector
from mien.methods import find_method
from mien.records import from_mapping
from mien.specs import CohortSpec, LocalSpec, PrivacySpec, ServerSpec, TaskSpec
from simulation.engines.base import Engine, SequentialEngine
from simulation.engines.engine import run_task
from simulation.engines.fused import FusedEngine
from simulation.engines.stacked import StackedEngine
from simulation.faces.workbench import TRAINABLE, Workbench, open_small_network
from simulation.papers.conditions import GROUPS, trained
from simulation.papers.scratch import measure, started, study
from simulation.runs.experiment import Job

QUICK, FULL = study(quick=True, faces=None), study(quick=False, faces=None)
SIZES = tuple(QUICK.rows[0].settings[name] for name in GROUPS)
START = json.dumps(QUICK.rows[0].settings["start"])
MAX_PEOPLE = QUICK.rows[0].settings["max_people"]
TASK = TaskSpec(
    "scratch",
    method="fedface",
    rounds=2,
    cohort=CohortSpec(size=3, min_reports=3),
    local=LocalSpec(lr=0.1, flip=False),
    server=ServerSpec(momentum=0.5),
    privacy=PrivacySpec(min_cohort=3, reveals=("class_moment",)),
)


@pytest.fixture(scope="module")
def start() -> Workbench:
    return started(None, MAX_PEOPLE, SIZES, START, 0)[0]


@pytest.mark.parametrize("row", [row for each in (QUICK, FULL) for row in each.rows if "task" in row.settings])
def test_every_row_is_a_task_that_its_method_takes(row: Any, start: Workbench) -> None:
    task = from_mapping(TaskSpec, row.settings["task"])
    part = start.model.layout.part(TRAINABLE) if task.method == "statistics" else start.part
    layout = find_method(task.method).contribution_layout(task, part, start.dim)
    assert bool(layout.revealed) == (row.name == "fedface")
    assert ("rates" in row.settings) == (task.method != "statistics")
    held = {"control": "public", "statistics": "phones"}.get(row.name, "some")
    assert task.cohort.size == row.settings[held]


def test_both_scales_have_the_same_rows() -> None:
    assert [row.name for row in QUICK.rows] == [row.name for row in FULL.rows]
    assert sum(SIZES) <= MAX_PEOPLE


def test_a_seed_is_a_network_and_public_people_alone_train_the_start(start: Workbench) -> None:
    fresh = [open_small_network(None, seed, MAX_PEOPLE).theta for seed in (0, 0, 1)]
    np.testing.assert_array_equal(fresh[0], fresh[1])
    assert (fresh[0] != fresh[2]).sum() > 200_000
    adapter = start.model.layout.part(TRAINABLE)
    np.testing.assert_array_equal(adapter.gather(start.theta), adapter.gather(fresh[0]))  # the identity still
    phones, public, _, _ = start.split(0, *SIZES)
    bench = open_small_network(None, 0, MAX_PEOPLE)
    how = QUICK.rows[0].settings["start"]
    blank = bench.crops.copy()
    blank[np.isin(bench.labels, [bench.people.index(name) for name in phones])] = 0
    again = trained(replace(bench, crops=blank), public, how, 0, how["rates"][0])
    np.testing.assert_array_equal(again, start.theta)


def test_faces_are_read_once_a_process_whatever_network_begins(start: Workbench) -> None:
    crops = [open_small_network(None, seed, MAX_PEOPLE).crops for seed in (0, 1)]
    assert crops[0] is crops[1]
    assert not crops[0].flags.writeable
    fewer = open_small_network(None, 0, MAX_PEOPLE, 4)
    assert np.unique(fewer.labels, return_counts=True)[1].max() == 4 < len(start.crops) / len(start.people)


@pytest.mark.parametrize("name", ["everybody", "pooled"])
def test_a_row_trains_the_network_and_no_adapter(start: Workbench, name: str) -> None:
    (row,) = [row for row in QUICK.rows if row.name == name]
    changed = trained(start, start.split(0, *SIZES)[0], row.settings, 0, 0.1) != start.theta
    assert changed.sum() > 200_000
    assert start.part.gather(changed).sum() == changed.sum()


def test_statistics_make_the_adapter_alone(start: Workbench) -> None:
    (row,) = [row for row in QUICK.rows if row.name == "statistics"]
    bench = replace(start, part=start.model.layout.part(TRAINABLE))
    changed = trained(bench, start.split(0, *SIZES)[0], row.settings, 0) != start.theta
    assert changed.sum() == bench.part.gather(changed).sum() > 0
    found = measure(Job(row.name, 0, row.settings))
    assert found["start_rate"] == 0.05
    assert {"eer", "tar_1e-2"} <= found.keys()


@pytest.mark.parametrize("engine", [FusedEngine, StackedEngine])
def test_engines_agree_from_the_first_layer_on(start: Workbench, engine: type[Any]) -> None:
    names = start.people[:4]

    def after(running: Engine) -> Vector:
        cohort = start.cohort({name: (name,) for name in names})
        return run_task(TASK, start.part, start.dim, start.theta, cohort, running).state.theta

    one_by_one, together = after(SequentialEngine(start.runtime)), after(engine(start.runtime))
    moved = np.abs(one_by_one - start.theta).max()
    assert moved > 1e-4
    np.testing.assert_allclose(together, one_by_one, atol=1e-3 * moved)
