"""FedFR-UDA's experiment: who is in which group, what tables hold, and links instead of copies for real faces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mien.errors import EmptyFolderError
from simulation.papers.fedfr_uda import study
from simulation.papers.fedfr_uda.faces import divide, prepared
from simulation.papers.fedfr_uda.run import MIN_SAMPLES, _dbscan, _fold_accuracy, _kmeans, _rank_1

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
