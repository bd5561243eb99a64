"""From five landmarks to the aligned crop that a recogniser expects.

The map is the least-squares similarity of Umeyama, "Least-Squares Estimation of Transformation Parameters Between Two
Point Patterns", PAMI 1991; the crop is read with bilinear interpolation, black outside the image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from device_sdk.faces.reasons import Reason
from mien.errors import LowQualityError
from mien.specs import FaceInputSpec

if TYPE_CHECKING:
    from device_sdk.faces.images import Pixels

Points = NDArray[np.float64]

# Landmarks nearer together than this (root mean square distance from their mean, pixels) say nothing of a direction.
_MIN_SPREAD_PX: Final = 0.5
_MIN_SCALE: Final = 1e-4


def similarity(source: Points, target: Points) -> NDArray[np.float64]:
    """Return the similarity (2, 3) that maps `source` (N, 2) nearest to `target` (N, 2): scale, rotation, shift.

    Minimises the summed squared distance (Umeyama 1991, eq. 40-42). Never a reflection: mirrored points get the best
    rotation instead. Raises LowQualityError where the source points coincide or are not finite.
    """
    mean_source, mean_target = source.mean(axis=0), target.mean(axis=0)
    centred_source, centred_target = source - mean_source, target - mean_target
    variance = (centred_source**2).sum(axis=1).mean()
    if not variance > _MIN_SPREAD_PX**2:  # also true for NaN
        raise _degenerate()
    U, singular, Vt = np.linalg.svd(centred_target.T @ centred_source / len(source))
    signs = np.array((1.0, np.sign(np.linalg.det(U @ Vt))))
    rotation = (U * signs) @ Vt
    scale = (singular * signs).sum() / variance
    if not scale > _MIN_SCALE:
        raise _degenerate()
    return np.column_stack((scale * rotation, mean_target - scale * rotation @ mean_source))


def roll_deg(landmarks: Points) -> float:
    """Return by how many degrees a face with these landmarks (5, 2) leans clockwise; errors as `similarity`."""
    return lean_deg(similarity(landmarks, FaceInputSpec().template))


def lean_deg(matrix: NDArray[np.float64]) -> float:
    """Return by how many degrees what a similarity (2, 3) sets upright leans clockwise."""
    return -math.degrees(math.atan2(matrix[1, 0], matrix[0, 0]))


def _degenerate() -> LowQualityError:
    reason = Reason.LANDMARKS
    return LowQualityError(f"the landmarks of the face give no direction. {reason.hint}", reasons=(reason,))


def align_face(image: Pixels, landmarks: Points, spec: FaceInputSpec) -> Pixels:
    """Return the aligned crop (spec.height, spec.width, 3), uint8 RGB, of the face with these landmarks.

    `image` is (H, W, 3) uint8 RGB, `landmarks` (5, 2) as in `Face`. A face more than twice as large as the crop is
    first shrunk by averaging whole pixels, as bilinear reading alone would skip most of its pixels and keep their
    noise. Raises LowQualityError for landmarks that give no direction.
    """
    return _read(image, landmarks, spec.template, (spec.width, spec.height))


@dataclass(frozen=True)
class Square:
    """A square of an image, `width` pixels wide there, read as `side` pixels.

    `centre` (x, y) lies in the image; what leans clockwise by `turn_deg` there stands upright in the square.
    """

    centre: tuple[float, float]
    width: float
    side: int
    turn_deg: float = 0.0

    def read(self, image: Pixels) -> Pixels:
        """Return its pixels (side, side, 3), read as `align_face` reads; LowQualityError where it has no size."""
        low, high = -0.5, self.side - 0.5
        corners = np.array(((low, low), (high, low), (high, high), (low, high)))
        return _read(image, self.to_image(corners), corners, (self.side, self.side))

    def to_image(self, points: Points) -> Points:
        """Return where points (N, 2) of the square lie in the image."""
        turn = math.radians(self.turn_deg)
        axes = np.array(((math.cos(turn), math.sin(turn)), (-math.sin(turn), math.cos(turn))))
        placed: Points = (points - (self.side - 1) / 2) * (self.width / self.side) @ axes + self.centre
        return placed


def _read(image: Pixels, source: Points, target: Points, size: tuple[int, int]) -> Pixels:
    """Return pixels of `size` (width, height) in which the points `source` of an image lie nearest to `target`."""
    import cv2  # only where a picture is looked at: commands that see none start sooner

    matrix = similarity(source, target)
    shrink = min(int(1.0 / np.hypot(*matrix[:, 0])), *image.shape[:2])
    if shrink >= 2:
        image, source = _shrink(image, source, shrink)
        matrix = similarity(source, target)
    pixels = cv2.warpAffine(image, matrix, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT, borderValue=0)
    return np.asarray(pixels, dtype=np.uint8)


def _shrink(image: Pixels, landmarks: Points, factor: int) -> tuple[Pixels, Points]:
    """Return image and landmarks shrunk by a whole factor, each new pixel the mean of factor x factor old ones."""
    import cv2

    height, width = (side // factor * factor for side in image.shape[:2])
    small = cv2.resize(image[:height, :width], (width // factor, height // factor), interpolation=cv2.INTER_AREA)
    return np.asarray(small, dtype=np.uint8), (landmarks + 0.5) / factor - 0.5
