"""The LFW benchmark: what it prints, what it counts, what it says without data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.__main__ import names
from benchmarks._faces import embed_flip_sum, embed_images
from benchmarks.lfw import QUICK_TEST, QUICK_THRESHOLD
from mien.backbones import build_backbone
from mien.backbones.importers import import_sface
from mien.evaluation.protocols import lfw
from simulation.pretrained import sface_path

ROOT = Path(__file__).resolve().parents[2]
DATA = os.environ.get("MIEN_DATA")
needs_lfw = pytest.mark.skipif(not DATA, reason="MIEN_DATA is unset: LFW's images are not read")


def lfw_folder() -> Path:
    assert DATA
    return Path(DATA) / "lfw"


def run(*arguments: str, data: str | None) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "MIEN_DATA"} | ({"MIEN_DATA": data} if data else {})
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.lfw", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_without_data_it_says_so() -> None:
    done = run("--quick", data=None)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "MIEN_DATA is unset" in done.stderr
    assert "Traceback" not in done.stderr


def test_with_incomplete_data_it_names_what_is_missing(tmp_path: Path) -> None:
    done = run("--quick", data=str(tmp_path / "nowhere"))
    assert done.returncode == 17
    assert "is not a folder" in done.stderr
    done = run("--quick", data=str(tmp_path))
    assert done.returncode == 17
    assert "pairs.txt cannot be read" in done.stderr


def test_it_is_listed() -> None:
    assert "lfw" in names()
    assert not [name for name in names() if name.startswith("_")]


def test_mirrored_images_are_added_in_every_batch() -> None:
    backbone = build_backbone("mobilefacenet_folded", dim=16, seed=3)
    crops = np.random.default_rng(0).integers(0, 256, (5, 112, 112, 3), dtype=np.uint8)
    summed = embed_flip_sum(backbone, crops)
    tolerance = 1e-5 * np.abs(summed).max()
    assert summed.shape == (5, 16)
    assert embed_flip_sum(backbone, crops[:, :, ::-1]) == pytest.approx(summed, abs=tolerance)
    for i in range(5):
        assert embed_flip_sum(backbone, crops[i : i + 1])[0] == pytest.approx(summed[i], abs=tolerance)
    assert np.abs(summed[0] - summed[1]).max() > 100 * tolerance
    assert embed_flip_sum(backbone, crops[:0]).shape == (0, 16)


@needs_lfw
def test_quick_pairs_are_fold_one_and_a_hundred_of_fold_two() -> None:
    pairs = lfw.parse_pairs((lfw_folder() / "protocol" / "pairs.txt").read_text())
    assert (pairs.folds[list(QUICK_TEST)] == 0).all()
    assert (pairs.folds[list(QUICK_THRESHOLD)] == 1).all()
    assert pairs.mated[list(QUICK_TEST)].sum() == 300
    assert pairs.mated[list(QUICK_THRESHOLD)].tolist() == [True] * 50 + [False] * 50


@needs_lfw
def test_failures_are_listed_and_faces_embedded(tmp_path: Path) -> None:
    backbone, _ = import_sface(sface_path().read_bytes())
    pairs = lfw.parse_pairs((lfw_folder() / "protocol" / "pairs.txt").read_text())
    mated, other = pairs.pairs[0], pairs.pairs[1]
    images = [lfw_folder() / "images" / sample.path for sample in (*mated, other.first)]
    (tmp_path / "broken.jpg").write_bytes(b"not an image")
    (tmp_path / "blank.pgm").write_bytes(b"P5 64 64 255\n" + bytes(64 * 64))
    told: list[str] = []
    paths = [tmp_path / "broken.jpg", *images, tmp_path / "blank.pgm"]
    acquired = embed_images(backbone, paths, told.append)
    assert acquired.rows == (1, 2, 3)
    assert set(acquired.failed) == {0, 4}
    assert acquired.failed[0] == "image"
    assert len(set(acquired.digests)) == 5
    assert told == ["5 of 5 images"]
    unit = acquired.embeddings / np.linalg.norm(acquired.embeddings, axis=1, keepdims=True)
    cosines = unit @ unit.T
    assert cosines[0, 1] > 0.5 > 0.25 > cosines[0, 2]
    assert "embeddings" not in repr(acquired)


@needs_lfw
@pytest.mark.slow
def test_quick_run() -> None:
    done = run("--quick", "--json", data=DATA)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    assert result["pairs"] == 600
    assert result["fte"] == 0
    assert result["accuracy"] > 0.98
    assert 0 < result["std"] < 0.01
    assert result["protocol"].startswith("quick")
