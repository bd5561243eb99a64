"""The studies of FedFace and FedGC: rows that methods take, scales that fit the faces, clients that share nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mien.layout import ParameterEntry, ParameterLayout
from mien.methods import find_method
from mien.records import from_mapping
from mien.specs import TaskSpec
from simulation.papers import fedface, fedgc
from simulation.runs.experiment import Experiment, Job
from simulation.runs.spec import load

NUM_PEOPLE = 1000  # of the synthetic faces that the studies are made for
STUDIES = {
    module: {quick: module.study(quick=quick, faces=None) for quick in (True, False)} for module in (fedface, fedgc)
}
DIM = 128
ADAPTER = ParameterLayout((ParameterEntry("adapter.weight", (DIM, DIM)), ParameterEntry("adapter.bias", (DIM,)))).part(
    ("adapter.*",)
)
HERE = Path(fedface.__file__).parent


def tasks(study: Experiment) -> dict[str, TaskSpec]:
    return {row.name: from_mapping(TaskSpec, row.settings["task"]) for row in study.rows if "task" in row.settings}


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("module", STUDIES)
def test_every_row_is_a_task_that_its_method_takes(module: Any, quick: bool) -> None:
    study = STUDIES[module][quick]
    assert study.claims
    for name, task in tasks(study).items():
        layout = find_method(task.method).contribution_layout(task, ADAPTER, DIM)
        assert bool(layout.revealed) == ("class_embeddings" in task.privacy.reveals), name
        assert task.trainable == ("adapter.*",)


@pytest.mark.parametrize("module", STUDIES)
def test_the_whole_scale_fits_a_thousand_people(module: Any) -> None:
    groups = ("phones", "people", "public", "validation", "test")
    for row in STUDIES[module][False].rows:
        assert sum(row.settings.get(name, 0) for name in groups) <= NUM_PEOPLE


def test_the_private_rows_show_no_class_embedding_and_the_published_ones_do() -> None:
    faces, clients = tasks(STUDIES[fedface][False]), tasks(STUDIES[fedgc][False])
    against = {name: task for name, task in clients.items() if "everybody" in name}
    assert set(against) == {"softmax_everybody", "cosface_everybody", "everybody_c0.25", "unbalanced_everybody"}
    assert {task.privacy.reveals for task in against.values()} == {("class_moment",)}
    shown = {name for name, task in {**faces, **clients}.items() if task.privacy.reveals}
    assert {"fedface", "no_mean_init", "softmax_fedgc", "cosface_fedcos"} <= shown
    assert shown.isdisjoint({"private", "fedavg", "fixed", "softmax_private", "cosface_private", "cosface_fedpe"})


@pytest.mark.parametrize("head", ["softmax", "cosface", "arcface"])
def test_central_training_starts_as_the_clients_do(head: str) -> None:
    """Central softmax began at mean features, and its clients at random: what was compared was the start."""
    rows = {row.name: row.settings for row in STUDIES[fedgc][False].rows}
    assert rows[f"{head}_central"]["start"] == rows[f"{head}_fedgc"]["task"]["options"]["start"]


def test_without_mean_initialisation_it_has_the_papers_share_of_rounds() -> None:
    found = tasks(STUDIES[fedface][False])
    assert found["no_mean_init"].rounds / found["fedface"].rounds == 450 / 200
    assert found["same_rounds"].rounds == found["fedface"].rounds


def test_the_papers_strengths_participation_and_clients() -> None:
    found = tasks(STUDIES[fedgc][False])
    assert [found[row].options["correction"]["strength"] for row in ("strength_1", "cosface_fedgc", "strength_50")] == [
        1.0,
        20.0,
        50.0,
    ]
    assert [found[f"fedgc_c{share}"].cohort.size for share in (0.25, 0.5, 0.75)] == [9, 18, 27]
    assert found["cosface_fedgc"].cohort.size == 36


@pytest.mark.parametrize("unbalanced", [False, True])
def test_clients_of_fedgc_share_nobody(unbalanced: bool) -> None:
    people = [f"person{i}" for i in range(612)]
    clients = fedgc._clients(people, 36, seed=1, unbalanced=unbalanced)
    assert sorted(name for held in clients.values() for name in held) == sorted(people)
    sizes = np.array([len(held) for held in clients.values()])
    assert sizes.min() >= 2
    assert (sizes.max() > 4 * sizes.min()) == unbalanced


@pytest.mark.parametrize("name", ["fedface", "statistics", "statistics_public"])
def test_a_toy_run_gives_every_figure(name: str) -> None:
    settings = next(row.settings for row in STUDIES[fedface][True].rows if row.name == name)
    found = fedface.measure(Job(name, 0, settings))
    assert {"eer", "fmr_released", "cos_non_mated", "rounds_to_target", "trace"} <= set(found)
    assert len(found["trace"]) == 1
    assert ("loss_first" in found) == (name == "fedface"), "no phone trains for statistics"
    assert all(np.isfinite(value) for figure, value in found.items() if figure != "trace")


@pytest.mark.parametrize("name", ["fedgc_c0.25", "softmax_fedgc"])
def test_a_toy_run_of_fedgc_gives_every_figure_also_where_clients_never_took_part(name: str) -> None:
    settings = next(row.settings for row in STUDIES[fedgc][True].rows if row.name == name)
    found = fedgc.measure(Job(name, 0, settings))
    assert {"eer", "loss_first", "loss_last", "angles"} <= found.keys()


def test_the_control_of_statistics_is_a_cohort_of_public_people() -> None:
    rows = {row.name: row for row in STUDIES[fedface][False].rows}
    found = tasks(STUDIES[fedface][False])
    assert [found[name].cohort.size for name in ("statistics", "statistics_public")] == [600, 40]
    assert rows["statistics_public"].settings["held"] == "public"
    assert {"statistics_centre", "statistics_wccn", "statistics_plda"} <= set(rows)
    assert all(task.rounds == 1 for name, task in found.items() if "statistics" in name)


@pytest.mark.parametrize(("name", "phones"), [("phones", 10), ("phones_800", 800), ("phones_lfw", 573)])
def test_an_experiment_file_has_as_many_phones_as_it_says(name: str, phones: int) -> None:
    spec = load(HERE / f"{name}.toml")
    assert (spec.partition.clients, spec.task.cohort.size) == (phones, phones)
    assert spec.partition.test
