"""FedGC from a network's first layer on: its rows, one start for all of them, lengths and nearness."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mien.methods import find_method
from mien.methods.proxies import class_means
from mien.records import from_mapping
from mien.specs import LocalSpec, TaskSpec
from simulation.faces.workbench import Workbench, open_small_network
from simulation.papers.fedgc import Made, train
from simulation.papers.fedgc_scratch import measure, nearest, study
from simulation.runs.experiment import Job

QUICK, FULL = study(quick=True, faces=None), study(quick=False, faces=None)
ROWS = {row.name: row for row in QUICK.rows}


@pytest.fixture(scope="module")
def bench() -> Workbench:
    settings = QUICK.rows[0].settings
    return open_small_network(None, 0, settings["max_people"], settings["max_images"])


@pytest.mark.parametrize("row", [row for each in (QUICK, FULL) for row in each.rows if "task" in row.settings])
def test_every_row_is_a_task_that_its_method_takes(row: Any, bench: Workbench) -> None:
    task = from_mapping(TaskSpec, {**row.settings["task"]})
    layout = find_method(task.method).contribution_layout(task, bench.part, bench.dim)
    assert bool(layout.revealed) == ("class_embeddings" in task.privacy.reveals)
    assert ("class_moment" in task.privacy.reveals) == row.name.endswith("everybody")


def test_both_scales_have_the_same_rows_and_the_papers_strengths() -> None:
    assert [row.name for row in QUICK.rows] == [row.name for row in FULL.rows]
    found = {row.name: row.settings["task"]["options"]["correction"] for row in FULL.rows if "task" in row.settings}
    assert [found[name]["strength"] for name in ("strength_1", "short_5", "fedgc", "short_everybody")] == [1, 5, 20, 20]


def test_central_training_has_the_clients_start_and_their_epochs() -> None:
    for row in (row for row in FULL.rows if "task" in row.settings):
        central, settings = next(each.settings for each in FULL.rows if each.name == "central"), row.settings
        local = from_mapping(LocalSpec, central["local"])
        assert replace(local, batch_size=1) == replace(from_mapping(LocalSpec, settings["task"]["local"]), batch_size=1)
        assert central["start"] == settings["task"]["options"]["start"]
        assert central["rounds"] == settings["task"]["rounds"]


@pytest.mark.parametrize("name", ["central", "fixed", "fedgc", "short_everybody"])
def test_a_row_has_a_class_embedding_for_each_person_and_its_figures(name: str, bench: Workbench) -> None:
    job = Job(name, 0, ROWS[name].settings)
    made = train(bench, job)
    assert made.classes is not None
    assert made.classes.shape == (job.settings["people"], bench.dim)
    assert (made.theta != bench.theta).sum() > 200_000
    assert sorted(name for held in made.clients.values() for name in held) == sorted(
        bench.split(0, job.settings["people"], job.settings["public"], job.settings["test"])[0]
    )
    figures = measure(job)
    lengths = np.linalg.norm(made.classes, axis=1)
    assert figures["length_w"] == pytest.approx(lengths.mean())
    if name == "fixed":  # as they were drawn: N(0, 0.01) in each of `dim` directions
        assert lengths.mean() == pytest.approx(0.01 * bench.dim**0.5, rel=0.1)
    assert figures["class_to_own"] == pytest.approx(_cosine_to_own(bench, made), abs=1e-5)
    features_ND = bench.runtime.features(made.theta, bench.labelled(made.test)[0])
    assert figures["length_f"] == pytest.approx(np.linalg.norm(features_ND, axis=1).mean())
    assert -1 <= figures["nearest_own"] <= 1


def _cosine_to_own(bench: Workbench, made: Made) -> float:
    """Return the mean cosine of class embeddings to the mean embeddings of the people that a task numbers so."""
    assert made.classes is not None
    found, rows = [], iter(made.classes.astype(np.float64))
    for name in (name for held in made.clients.values() for name in held):
        mean = bench.runtime.embed(made.theta, bench.crops_of(name)).mean(axis=0, dtype=np.float64)
        row = next(rows)
        found.append(row @ mean / np.linalg.norm(row) / np.linalg.norm(mean))
    return float(np.mean(found))


def test_central_training_s_class_embeddings_are_in_the_clients_order(bench: Workbench) -> None:
    """They were in the order of people's names: each is nearer to its own person than to the next client's."""
    settings = ROWS["central"].settings
    made = train(bench, Job("central", 0, {**settings, "rounds": 12}))
    assert made.classes is not None
    ordered = _cosine_to_own(bench, made)
    assert ordered > _cosine_to_own(bench, replace(made, classes=np.roll(made.classes, 1, axis=0))) + 0.1


def test_class_embeddings_begin_at_the_length_that_a_row_says(bench: Workbench) -> None:
    made = {name: train(bench, Job(name, 0, ROWS[name].settings)).classes for name in ("long_fixed", "long_fedpe")}
    fixed, moving = made["long_fixed"], made["long_fedpe"]
    assert fixed is not None
    assert moving is not None
    np.testing.assert_allclose(np.linalg.norm(fixed, axis=1), 1.5, rtol=1e-5)
    assert (np.linalg.norm(fixed[:, None] - fixed[None], axis=2) + 9 * np.eye(len(fixed)) > 1).all()  # all differ
    moved = np.linalg.norm(moving - fixed, axis=1)
    assert (moved > 0).all()  # from the same ones: trained, they are near where they began
    assert moved.max() < 1.5


def test_the_nearest_class_embedding_is_told_by_client(bench: Workbench) -> None:
    one, two, three, four = bench.people[:4]
    classes = np.zeros((4, bench.dim), np.float32)
    classes[:, :3] = [[2, 0, 0], [0, 1, 0], [4, 3, 0], [0, 0, 1]]
    figures = nearest(bench, Made(bench.theta, {"a": (one, two), "b": (three, four)}, (), classes))
    assert figures["class_nearest_own"] == pytest.approx(0)
    assert figures["class_nearest_other"] == pytest.approx((0.8 + 0.6 + 0.8 + 0) / 4)


def test_the_nearest_person_is_told_by_client(bench: Workbench) -> None:
    one, two, three, four = bench.people[:4]
    crops = bench.crops.copy()
    rows = {name: np.flatnonzero(bench.labels == bench.people.index(name)) for name in (one, three)}
    crops[rows[three]] = crops[rows[one][: len(rows[three])]]  # two people whose pictures are the same
    same = replace(bench, crops=crops)
    apart = nearest(same, Made(bench.theta, {"a": (one, two), "b": (three, four)}, ()))
    together = nearest(same, Made(bench.theta, {"a": (one, three), "b": (two, four)}, ()))
    # One of the two is at another client, or at the same; the third and fourth have their nearest wherever it is.
    assert apart["nearest_other"] > apart["nearest_own"]
    assert together["nearest_own"] > together["nearest_other"]
    mean_KD = class_means(same.runtime.embed(same.theta, crops), same.labels, len(same.people)).astype(np.float64)
    cos_KK = mean_KD @ mean_KD.T  # numbers 0 ... 3 are the four people; 0 and 2 look alike
    others = [max(cos_KK[0, 2:4]), max(cos_KK[1, 2:4]), max(cos_KK[2, 0:2]), max(cos_KK[3, 0:2])]
    assert apart["nearest_other"] == pytest.approx(np.mean(others))
    assert apart["nearest_own"] == pytest.approx((cos_KK[0, 1] + cos_KK[2, 3]) / 2)
