"""The workbench: mapped features are what the runtime computes itself, people are in one group only."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from device_sdk.runtimes.torch_runtime import TorchRuntime
from mien.errors import EmptyFolderError
from mien.evaluation import all_pairs
from simulation.faces import workbench
from simulation.faces.workbench import Workbench, error_rates, open_workbench


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    """A workbench of four shipped people, its features in a folder of this test's own."""
    folder = tmp_path_factory.mktemp("features")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        open_workbench.cache_clear()
        yield open_workbench(None, 4)
        open_workbench.cache_clear()


def test_mapped_features_give_the_very_same_embeddings(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = TorchRuntime(bench.model.spec, bench.model.layout)
    crops = bench.crops_of(bench.people[0])[:4]
    np.testing.assert_array_equal(bench.runtime.embed(bench.theta, crops), plain.embed(bench.theta, crops))
    # Another trunk has other features: the mapped ones are not used for it.
    other = bench.theta.copy()
    other[:1000] *= 1.5
    np.testing.assert_array_equal(bench.runtime.embed(other, crops), plain.embed(other, crops))


def test_features_are_the_same_however_many_processors_there_are(
    bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embeddings = []
    for num_processors in (1, 3, 64):
        (tmp_path / str(num_processors)).mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / str(num_processors)))
        monkeypatch.setattr("os.sched_getaffinity", lambda _process, n=num_processors: set(range(n)))
        open_workbench.cache_clear()
        again = open_workbench(None, 2)
        embeddings.append(again.runtime.embed(again.theta, again.crops))
    np.testing.assert_array_equal(embeddings[0], embeddings[1])
    np.testing.assert_array_equal(embeddings[0], embeddings[2])


def test_features_are_made_once(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(crops: object, folder: Path) -> None:
        raise AssertionError("features were made again")

    monkeypatch.setattr(workbench, "_compute", refuse)
    open_workbench.cache_clear()
    again = open_workbench(None, 4)
    assert again.people == bench.people
    assert again.dataset_sha256 == bench.dataset_sha256


def kept() -> list[Path]:
    return [path for path in Path(tempfile.gettempdir()).rglob("*") if path.is_file()]


def test_neither_faces_nor_names_are_kept(bench: Workbench) -> None:
    """All that lies in the temporary directory is sealed features; nobody else may open the folder."""
    files = kept()
    assert sum(path.stat().st_size for path in files) > len(bench.crops) * 512
    for path in files:
        data = path.read_bytes()
        assert not any(name.encode() in data or name in str(path) for name in bench.people)
        assert not any(crop[50:52].tobytes() in data for crop in bench.crops)
    (root,) = Path(tempfile.gettempdir()).iterdir()
    assert root.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("whose", ["everybody's", "another user's", "a link"])
def test_a_folder_that_is_not_this_users_alone_is_not_used(
    bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    root = tmp_path / "tmp" / f"mien-workbench-{os.getuid()}"
    if whose == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        root.symlink_to(tmp_path / "elsewhere")
    else:
        root.mkdir(mode=0o700)
        if whose == "everybody's":
            root.chmod(0o777)
        elif os.getuid() == 0:
            os.chown(root, 65534, 65534)
        else:
            pytest.skip("only root can give a folder to another user")
    open_workbench.cache_clear()
    again = open_workbench(None, 1)
    assert not kept()
    crops = again.crops_of(again.people[0])
    expected = bench.runtime.embed(bench.theta, crops)
    np.testing.assert_allclose(again.runtime.embed(again.theta, crops), expected, atol=1e-4)  # other batches


def test_groups_are_disjoint_and_drawn_by_the_seed(bench: Workbench) -> None:
    one, two = bench.split(0, 2, 2)
    assert not set(one) & set(two)
    assert bench.split(0, 2, 2) == [one, two]
    assert any(bench.split(seed, 2, 2) != [one, two] for seed in range(1, 6))
    with pytest.raises(EmptyFolderError, match="holds 4 people and this experiment needs 5"):
        bench.split(0, 3, 2)


def test_verification_counts_its_comparisons(bench: Workbench) -> None:
    found = bench.verification(bench.theta, bench.people[:3])
    assert (found["mated"], found["non_mated"]) == (3 * 45, 3 * 100)
    assert 0 < found["eer"] < 0.5
    assert "tar_1e-3" not in found  # 300 comparisons cannot tell
    cohort = bench.cohort({"a": bench.people[:2], "b": bench.people[2:3]}, bench.people[3:])
    assert {name: len(crops) for name, crops in cohort.crops.items()} == {"a": 20, "b": 10}
    assert cohort.labels["a"].tolist() == [0] * 10 + [1] * 10
    assert cohort.public is not None


def test_a_collapsed_model_counts_in_every_mean() -> None:
    """Left out of TAR's mean over seeds, a seed that collapsed would flatter the others' system."""
    targets = {"tar_1e-1": 0.1, "tar_1e-3": 1e-3}
    labels = np.repeat(np.arange(5), 2)
    wholly = error_rates(all_pairs(np.ones((10, 4)), labels), targets)
    assert wholly == {"mated": 5.0, "non_mated": 40.0, "eer": 0.5, "tar_1e-1": 0.0}  # 40 cannot tell of 1e-3
    nearly = all_pairs(np.concatenate([np.ones((9, 4)), [[1.0, 1.0, 1.0, 0.9]]]), labels)
    assert error_rates(nearly, targets)["tar_1e-1"] == 0.0


def test_where_nobody_has_a_second_picture_there_is_no_error_rate() -> None:
    found = error_rates(all_pairs(np.eye(4), np.arange(4)), {"tar_1e-1": 0.1})
    assert found == {"mated": 0.0, "non_mated": 6.0}
