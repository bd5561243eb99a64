"""Images to embeddings: mirrored sum, failures listed, order kept."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from device_sdk.models.packaged import sface_path
from mien.backbones import build_backbone
from mien.backbones.importers import import_sface
from mien.evaluation.protocols import lfw
from simulation.faces.embedding import embed_flip_sum, embed_images

pytestmark = pytest.mark.numerics

DATA = os.environ.get("MIEN_DATA")


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


@pytest.mark.skipif(not DATA, reason="MIEN_DATA is unset: LFW's images are not read")
def test_failures_are_listed_and_faces_embedded(tmp_path: Path) -> None:
    assert DATA
    folder = Path(DATA) / "lfw"
    backbone, _ = import_sface(sface_path().read_bytes())
    pairs = lfw.parse_pairs((folder / "protocol" / "pairs.txt").read_text())
    mated, other = pairs.pairs[0], pairs.pairs[1]
    images = [folder / "images" / sample.path for sample in (*mated, other.first)]
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
