"""PFM from a network's first layer on: as many steps in every row, parties alone, and one row of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from mien.layout import Vector
from mien.methods import find_method
from mien.methods.pfm_fv import PfmFvOptions
from mien.records import from_mapping
from mien.specs import TaskSpec
from simulation.centralised.systems import Faces
from simulation.faces.workbench import Workbench, open_small_network
from simulation.papers.pfm_fv import DOMAINS, _pooled, _split, measured
from simulation.papers.pfm_scratch import measure, study
from simulation.runs.experiment import Experiment, Job

QUICK, FULL = study(quick=True, faces=None), study(quick=False, faces=None)
ROWS = {row.name: row for row in QUICK.rows}


@pytest.fixture(scope="module")
def bench() -> Workbench:
    settings = QUICK.rows[0].settings
    return open_small_network(None, 0, settings["max_people"], settings["max_images"])


@pytest.mark.parametrize("each", [QUICK, FULL])
def test_every_row_takes_as_many_steps_with_the_central_head(each: Experiment, bench: Workbench) -> None:
    assert [row.name for row in each.rows] == [row.name for row in QUICK.rows]
    for row in (row for row in each.rows if "task" in row.settings):
        task = from_mapping(TaskSpec, row.settings["task"])
        options = from_mapping(PfmFvOptions, task.options, where="options.")
        assert task.rounds * task.local.steps == row.settings["steps"]
        assert {name: getattr(options, name) for name in row.settings["head"]} == row.settings["head"]
        assert (task.local.lr, task.local.batch_size) == (row.settings["lr"], row.settings["batch"])
        assert not find_method(task.method).contribution_layout(task, bench.part, bench.dim).revealed


def test_the_intervals_are_10_50_and_250_and_the_people_are_there() -> None:
    rows = {row.name: row.settings for row in FULL.rows}
    assert [rows[f"pfm_{k}"]["task"]["local"]["steps"] for k in ("low", "middle", "high")] == [10, 50, 250]
    sizes = rows["start"]
    assert sizes["people"] + sizes["validators"] + sizes["validation"] + sizes["test"] // 3 <= 333


def _alone(bench: Workbench, people: Sequence[str], job: Job) -> tuple[Vector, float]:
    return _pooled(bench, Faces(*bench.labelled(people)), 1, job.settings, 0)


def test_a_party_alone_sees_nobody_elses_faces(bench: Workbench) -> None:
    job = Job("solo", 0, ROWS["solo"].settings)
    groups = _split(bench, job.settings, 0)
    own = groups["asian"]["people"]
    crops = bench.crops.copy()
    crops[~np.isin(bench.labels, [bench.people.index(name) for name in own])] = 0
    theta, loss = _alone(bench, own, job)
    again, _ = _alone(replace(bench, crops=crops), own, job)
    np.testing.assert_array_equal(again, theta)
    others = [_alone(bench, groups[name]["people"], job) for name in DOMAINS if name != "asian"]
    test = sorted(name for group in groups.values() for name in group["test"])
    eers = [bench.verification(each, test)["eer"] for each in (theta, *(theta for theta, _ in others))]
    found = measured(bench, job)
    assert found["eer"] == pytest.approx(np.mean(eers))
    assert found["loss_last"] == pytest.approx(np.mean([loss, *(loss for _, loss in others)]))


@pytest.mark.parametrize("name", ["pooled", "fedavg_low", "pfm_middle"])
def test_one_row_of_each_kind_gives_its_figures(name: str) -> None:
    found = measure(Job(name, 0, ROWS[name].settings))
    assert found["loss_last"] > 0
    assert 0 < found["eer"] < 1
