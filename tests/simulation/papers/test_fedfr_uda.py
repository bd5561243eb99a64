"""FedFR-UDA's experiment: who is in which group, what tables hold, and links instead of copies for real faces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mien.errors import EmptyFolderError
from mien.methods.clustering import c_finch, pure_distance
from mien.methods.fedfr_uda import constraint_of
from simulation.faces.datasets import people_of
from simulation.papers import fedfr_uda_real
from simulation.papers.fedfr_uda import measure, study
from simulation.papers.fedfr_uda.faces import data_of, divide, faces_of, open_domains, prepared
from simulation.papers.fedfr_uda.run import (
    GRID,
    MIN_SAMPLES,
    STAGES_2_AND_3,
    _dbscan,
    _fold_accuracy,
    _kmeans,
    _rank_1,
    _task,
    chosen_clusterer,
    open_scene,
)
from simulation.runs.experiment import Experiment, Job

PEOPLE = tuple(f"{domain}_{i:03d}" for domain in ("african", "asian", "caucasian") for i in range(20))
SETTINGS = {
    "source": ["caucasian", "asian"],
    "target": "african",
    "source_people": 16,
    "target_people": 10,
    "validation": 4,
    "test": 6,
}


def test_groups_are_disjoint_and_of_their_domain() -> None:
    found = divide(PEOPLE, SETTINGS, 1)
    groups = (found.source, found.target, found.validation, found.source_test, found.target_test)
    assert [len(group) for group in groups] == [16, 10, 4, 6, 6]
    assert len(set().union(*groups)) == 42
    assert {name.split("_")[0] for name in found.target + found.validation + found.target_test} == {"african"}
    assert sum(name.startswith("asian") for name in found.source) == 8
    assert sum(name.startswith("asian") for name in found.source_test) == 3
    assert divide(PEOPLE, SETTINGS, 1) == found != divide(PEOPLE, SETTINGS, 2)


def test_too_few_people_are_named_by_domain() -> None:
    with pytest.raises(EmptyFolderError, match="domain african has 20 people and this experiment needs 30"):
        divide(PEOPLE, {**SETTINGS, "target_people": 20}, 1)


def test_parameters_may_be_chosen_on_people_of_the_source_alone() -> None:
    found = divide(PEOPLE, {**SETTINGS, "source": ["caucasian"], "source_people": 8, "validation_of": "source"}, 1)
    groups = (found.source, found.target, found.validation, found.source_test, found.target_test)
    assert [len(group) for group in groups] == [8, 10, 4, 6, 6]
    assert len(set().union(*groups)) == 34
    assert {name.split("_")[0] for name in found.validation} == {"caucasian"}


def test_real_faces_are_linked_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    for person in ("celeba112/7", "bollywood112/Ada"):
        (tmp_path / "data" / person).mkdir(parents=True)
    folder, real = prepared(tmp_path / "data")
    assert real
    assert folder is not None
    assert sorted(path.name for path in folder.iterdir()) == ["bollywood_Ada", "celeba_7"]
    assert all(path.is_symlink() for path in folder.iterdir())
    assert prepared(tmp_path / "data") == (folder, True)
    assert prepared(tmp_path) == (tmp_path, False)
    assert prepared(None) == (None, False)


def test_every_row_has_its_settings_and_every_claim_its_rows() -> None:
    found = study(quick=True, faces=None)
    names = {row.name for row in found.rows}
    assert {"s_source_only", "s_fl", "s_dcl", "s_dbscan", "s_no_source", "s_k1", "s_k6", "s_e1"} <= names
    assert all(row.settings["source"] == ["caucasian"] for row in found.rows)
    assert len(found.claims) == 16


@pytest.mark.parametrize("name", ["s", "l"])
def test_a_drift_is_held_as_in_as_many_steps_as_the_paper_takes(name: str) -> None:
    """lambda goes with the steps of a round: at a seventy-fifth of them, 75 times as large; as printed it has a row."""
    rows = {row.name: row for row in study(quick=False, faces=None).rows}
    printed = {"s": 0.002, "l": 0.01}[name]
    at = {}
    for system in ("dcl", "dcl_printed"):
        settings = rows[f"{name}_{system}"].settings
        at[system] = constraint_of(_task(settings, 2, settings["domain_constraint"], 0), 1000)
    assert at == pytest.approx({"dcl": printed * 1500 / 20, "dcl_printed": printed})
    # Rounds and fine-tuning have the same clusters.
    assert rows[f"{name}_fine_tune"].settings["clients"] == rows[f"{name}_fl"].settings["clients"]


def test_rows_of_real_faces_change_what_they_say_and_start_alike() -> None:
    found = fedfr_uda_real.study(quick=False, faces=None)
    rows = {row.name: row.settings for row in found.rows}
    assert found.name == "fedfr_uda_real"
    assert {name.split("_")[0] for name in rows} == {"few", "bollywood", "lfw", "dark", "masks"}
    assert rows["bollywood_fl"]["max_levels"] == 2
    assert rows["bollywood_exhausted"]["max_levels"] == 0
    assert rows["bollywood_printed_d"]["distance"] == 1.2
    assert rows["masks_dcl"]["constraint_steps"] == 15000
    # What DCL holds goes by rate, lambda and steps together; the paper's 1,500 steps are at a rate of 0.1.
    held = [
        settings["lr"] * settings["domain_constraint"] * settings["constraint_steps"]
        for settings in (rows["dark_dcl"], rows["few_dcl"])
    ]
    assert held == pytest.approx([0.1 * 0.002 * 1500, 0.1 * 0.01 * 1500])
    assert rows["bollywood_dcl_printed"]["constraint_steps"] == 0
    for name, settings in rows.items():
        of = name.split("_")[0]
        shared = {key for key in settings if key not in STAGES_2_AND_3}
        assert {key: settings[key] for key in shared} == {key: rows[f"{of}_fl"][key] for key in shared}
    # A benchmark has no row that it is without, in no table, and no claim on one.
    assert not rows.keys() & {"lfw_true_labels", "lfw_printed_d"}
    assert not {row for claim in found.claims for row in claim.rows} - rows.keys()
    # CelebA has 271 people with four pictures or more, Bollywood 32, LFW 467.
    fl = rows["bollywood_fl"]
    assert fl["source_people"] + fl["source_test"] + fl["validation"] <= 271
    assert fl["target_people"] + fl["test"] <= 32
    assert rows["lfw_fl"]["target_people"] + rows["lfw_fl"]["test"] <= 467
    # The paper's L has ten times as much of the source, and one target client.
    assert rows["few_fl"]["clients"] == 1
    assert rows["few_fl"]["domain_constraint"] == 0.01
    assert not {name for name in rows if name.startswith("few")} & {"few_kmeans", "few_finch", "few_no_source"}


def test_sets_stand_beside_each_other_and_the_target_alone_is_in_a_condition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    shipped = people_of(None)
    for name, (folder, num) in {"1": ("celeba112", 4), "2": ("bollywood112", 4), "3": ("lfw/images", 10)}.items():
        files = list(shipped.values())[int(name)]
        for i in range(num):
            at = tmp_path / "data" / folder / name / f"{i}.jpg"
            at.parent.mkdir(parents=True, exist_ok=True)
            at.write_bytes(files[i % len(files)].read_bytes())
    few = tmp_path / "data/lfw/images/few"
    few.mkdir()
    (few / "0.jpg").write_bytes((tmp_path / "data/lfw/images/3/0.jpg").read_bytes())
    clean = open_domains(tmp_path / "data", ("celeba", "lfw"))
    dark = open_domains(tmp_path / "data", ("celeba", "lfw"), "dark")
    assert clean.people == ("celeba_1", "lfw_3")
    assert np.bincount(clean.labels).tolist() == [4, 10]
    seen = [bench.runtime.embed(bench.theta, bench.crops) for bench in (clean, dark)]
    same = (seen[0] * seen[1]).sum(axis=1) > 0.999
    assert same.tolist() == [True] * 4 + [False] * 10
    other = open_domains(tmp_path / "data", ("celeba", "bollywood"))
    assert other.people == ("celeba_1", "bollywood_2")
    assert np.array_equal(other.runtime.embed(other.theta, other.crops)[:4], seen[0][:4])
    assert len({data_of(tmp_path / "data"), clean.dataset_sha256, other.dataset_sha256}) == 3


def test_a_named_parameter_is_taken_and_none_is_chosen() -> None:
    rows = {row.name: row for row in fedfr_uda_real.study(quick=True, faces=None).rows}
    found = {
        name: measure(Job(name, 0, rows[f"dark_{name}"].settings)) for name in ("fl", "dbscan", "finch", "source_d")
    }
    assert {name: figures["parameter"] for name, figures in found.items() if name != "source_d"} == {
        "fl": 0.95,
        "dbscan": 0.95,
        "finch": 0.0,
    }
    assert found["source_d"]["parameter"] in GRID


def test_a_pure_distance_is_chosen_on_the_source_as_the_target_is_seen() -> None:
    """It is what a task with this purity has for public faces of the source in the dark, and a target as large."""
    rows = {row.name: row.settings for row in fedfr_uda_real.study(quick=True, faces=None).rows}
    found = {}
    for name in ("fl_pure", "fl_pure_clean"):
        settings = dict(rows[f"dark_{name}"])
        scene = open_scene(Job(name, 0, settings), settings)
        assert (scene.labelled is scene.bench) == (name == "fl_pure_clean")
        faces = faces_of(scene.labelled, scene.domains.source, settings["max_images"])
        embeddings = scene.labelled.runtime.embed(scene.pretrained, faces.crops)
        images = len(scene.target.crops) // settings["clients"]
        expected = pure_distance(embeddings, faces.labels, settings["purity"], group_images=images, max_levels=2)
        clusterer, found[name] = chosen_clusterer(scene, "c_finch")
        assert found[name] == expected
        np.testing.assert_array_equal(clusterer(embeddings, 0), c_finch(embeddings, expected, max_levels=2))
    assert found["fl_pure"] != found["fl_pure_clean"]


def test_fine_tuning_and_rounds_have_the_same_clusters() -> None:
    """In the paper's Table 5 federated rounds are what is added to fine-tuning, and nothing else."""
    rows = {row.name: row for row in fedfr_uda_real.study(quick=True, faces=None).rows}
    tuned, rounds, whole = (
        measure(Job(name, 0, {**rows[f"dark_{name}"].settings, "distance": 0.0}))
        for name in ("fine_tune", "fl", "fine_tune_whole")
    )
    same = ("f_score", "bcubed", "nmi", "clusters", "parameter")
    assert {name: tuned[name] for name in same} == {name: rounds[name] for name in same}
    assert tuned["nmi"] != whole["nmi"]


def test_claims_are_asked_once_more_with_pure_clusters() -> None:
    """Of one target, what a deployment can choose goes before what labels of a target chose."""
    found = fedfr_uda_real.study(quick=False, faces=None)
    asked = {
        claim.of: found.setting_of(claim)
        for claim in found.claims
        if claim.text.startswith("CelebA to LFW in the dark, d by")
    }
    assert {"UDA.clusters", "UDA.no_source", "UDA.rounds_s", "UDA.clients_s", "UDA.merge"} <= asked.keys()
    assert not {"UDA.dbscan", "UDA.kmeans", "UDA.finch", "UDA.merge_l"} & asked.keys()
    others = {
        claim.of: found.setting_of(claim)
        for claim in found.claims
        if claim.text.startswith("CelebA to LFW in the dark: ")
    }
    assert {setting.place for setting in asked.values()} == {2}
    assert {setting.place for setting in others.values()} == {3}


@pytest.mark.parametrize("name", ["kmeans_found", "exhausted", "true_labels", "dcl_strong", "no_source_true"])
def test_a_row_of_real_faces_of_each_kind_gives_its_figures(name: str) -> None:
    rows = {row.name: row for row in fedfr_uda_real.study(quick=True, faces=None).rows}
    figures = measure(Job(name, 0, rows[f"dark_{name}" if name == "no_source_true" else f"bollywood_{name}"].settings))
    assert 0 <= figures["target_accuracy"] <= 1
    assert 0 < figures["clusters"] <= 24
    assert (figures["f_score"] == 1) == (name in ("true_labels", "no_source_true"))


def test_noise_is_a_person_of_its_own() -> None:
    points = np.array([[1.0, 0], [1, 0.01], [1, 0.02], [0, 1], [-1, 0]])
    assert MIN_SAMPLES == 3
    assert _dbscan(points, 0.1).tolist() == [0, 0, 0, 1, 2]
    assert sorted(np.bincount(_kmeans(points, 3, seed=0)).tolist()) == [1, 1, 3]


def test_rank_1_and_accuracy_by_hand() -> None:
    """Two people of four images: the first two are enrolled; one query of the second person looks like the first."""
    angles = np.radians([0, 5, 2, 8, 90, 95, 92, 3])
    embeddings = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    labels = np.repeat(np.arange(2), 4)
    assert _rank_1(embeddings, labels) == 3 / 4
    apart = np.radians([0, 5, 2, 8, 90, 95, 92, 93])
    far = np.stack([np.cos(apart), np.sin(apart)], axis=1).astype(np.float32)
    assert _fold_accuracy(far, labels, 10) == 1.0


@pytest.mark.parametrize("studied", [study, fedfr_uda_real.study])
def test_every_row_of_the_toy_scale_has_a_round(studied: Callable[..., Experiment]) -> None:
    assert all(row.settings["steps"] >= row.settings["local_steps"] for row in studied(quick=True, faces=None).rows)


@pytest.mark.parametrize("name", ["e400_pure", "k1_pure", "no_source_pure", "fine_tune_pure"])
def test_pure_clusters_are_found_at_the_toy_scale(name: str) -> None:
    """Seed 2 draws people of whom none but a few pairs are told apart: at 0.95 no distance was pure."""
    rows = {row.name: row for row in fedfr_uda_real.study(quick=True, faces=None).rows}
    assert 0 <= measure(Job(name, 2, rows[f"dark_{name}"].settings))["target_accuracy"] <= 1
