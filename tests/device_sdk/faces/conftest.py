"""What the face tests share: one detector, and files with faces: synthetic ones, and LFW where MIEN_DATA has it."""

from __future__ import annotations

import os
from pathlib import Path

import cv2
import pytest

from device_sdk.faces import FaceDetector, FacePipeline, load_detector
from mien.errors import MienError
from mien.specs import FaceInputSpec
from simulation.synthetic import committed_faces

cv2.setNumThreads(1)


def spread(paths: list[Path], count: int) -> list[Path]:
    """Return `count` of the paths, evenly spread over them."""
    return paths[:: max(1, len(paths) // count)][:count]


@pytest.fixture(scope="session")
def detector() -> FaceDetector:
    return load_detector()


@pytest.fixture(scope="session")
def pipeline(detector: FaceDetector) -> FacePipeline:
    return FacePipeline(FaceInputSpec(), detector=detector)


@pytest.fixture(scope="session")
def synthetic_files() -> list[Path]:
    """Pictures of nobody's face: those of the repository, else those of MIEN_DATA."""
    try:
        people = {**committed_faces("phones"), **committed_faces("public"), **committed_faces("test")}
        return [path for paths in people.values() for path in paths]
    except (MienError, FileNotFoundError):
        pass
    files = sorted(Path(os.environ.get("MIEN_DATA", "/nonexistent")).glob("synthetic_raw/*/*.jpg"))
    if not files:
        pytest.skip("the synthetic faces are not there: neither in simulation/synthetic nor in MIEN_DATA/synthetic_raw")
    return files


@pytest.fixture(scope="session")
def lfw_files() -> list[Path]:
    """Photographs of LFW, 250x250; never copied, never logged."""
    data = os.environ.get("MIEN_DATA")
    if data is None:
        pytest.skip("MIEN_DATA is unset: LFW (lfw/images) is missing")
    files = sorted(Path(data).glob("lfw/images/*/*.jpg"))
    if not files:
        pytest.skip("MIEN_DATA has no lfw/images: LFW is missing")
    return files
