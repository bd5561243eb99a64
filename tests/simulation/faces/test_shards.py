"""Public faces as a shard: what is in it, and what it never overwrites or leaves out."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from device_sdk.faces import ChoiceRule, FacePipeline
from mien.errors import AlreadyExistsError, ConfigError, EmptyFolderError, NotFoundError
from mien.protocol.tensors import PublicShard
from mien.specs import FaceInputSpec
from simulation.faces.datasets import digest, find_people
from simulation.faces.shards import pack_shard
from simulation.synthetic import committed_faces

ODD = Path(__file__).resolve().parents[2] / "data" / "faces"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three people: two images, one image, none with a face."""
    root = tmp_path / "people"
    first, second = list(committed_faces("public").values())[:2]
    for name, files in (("adelheid", first[:2]), ("bea", [ODD / "no_face.jpg"]), ("cas", second[:1])):
        (root / name).mkdir(parents=True)
        for path in files:
            shutil.copy(path, root / name)
    return root


def test_shard_holds_what_was_packed(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "shard.safetensors"
    counts = pack_shard(folder, out, licence="CC0", source="Müller's renders")
    assert counts == {
        "file": str(out),
        "identities": 2,
        "images": 3,
        "fte": 1,
        "size_bytes": out.stat().st_size,
        "dataset_sha256": digest(find_people(folder)),
    }
    shard = PublicShard.from_bytes(out.read_bytes(), FaceInputSpec())
    assert (shard.licence, shard.source) == ("CC0", "Müller's renders")
    pipeline = FacePipeline(FaceInputSpec(), policy=None, choice=ChoiceRule.CENTRE)
    assert np.array_equal(shard.crops[2], pipeline.acquire_file(folder / "cas" / "00.jpg").crop)
    assert shard.labels[0] == shard.labels[1] != shard.labels[2]
    assert b"adelheid" not in out.read_bytes()


def test_nothing_is_overwritten(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "shard.safetensors"
    out.write_bytes(b"precious")
    with pytest.raises(AlreadyExistsError, match="name a new file"):
        pack_shard(folder, out, licence="CC0", source="ours")
    assert out.read_bytes() == b"precious"


def test_folder_of_the_shard_must_exist(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no folder"):
        pack_shard(folder, tmp_path / "none" / "shard", licence="CC0", source="ours")


@pytest.mark.parametrize(("licence", "source", "named"), [("", "ours", "--licence"), ("CC0", " ", "--source")])
def test_faces_without_terms_are_refused(folder: Path, tmp_path: Path, licence: str, source: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        pack_shard(folder, tmp_path / "shard", licence=licence, source=source)
    assert not (tmp_path / "shard").exists()


def test_no_usable_face_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "people" / "bea").mkdir(parents=True)
    shutil.copy(ODD / "no_face.jpg", tmp_path / "people" / "bea")
    with pytest.raises(EmptyFolderError, match="no_face"):
        pack_shard(tmp_path / "people", tmp_path / "shard", licence="CC0", source="ours")
    assert [path.name for path in tmp_path.iterdir()] == ["people"]
