"""From five landmarks to the aligned crop that a recogniser expects.

The map is the least-squares similarity of Umeyama, "Least-Squares Estimation of Transformation Parameters Between Two
Point Patterns", PAMI 1991; the crop is read with bilinear interpolation, black outside the image.
"""

from __future__ import annotations

from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from device_sdk.faces.images import Pixels
from device_sdk.faces.reasons import Reason
from mien.errors import LowQualityError
from mien.specs import FaceInputSpec

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


def _degenerate() -> LowQualityError:
    reason = Reason.LANDMARKS
    return LowQualityError(f"the landmarks of the face give no direction. {reason.hint}", reasons=(reason,))


def align_face(image: Pixels, landmarks: Points, spec: FaceInputSpec) -> Pixels:
    """Return the aligned crop (spec.height, spec.width, 3), uint8 RGB, of the face with these landmarks.

    `image` is (H, W, 3) uint8 RGB, `landmarks` (5, 2) as in `Face`. A face more than twice as large as the crop is
    first shrunk by averaging whole pixels, as bilinear reading alone would skip most of its pixels and keep their
    noise. Raises LowQualityError for landmarks that give no direction.
    """
    matrix = similarity(landmarks, spec.template)
    shrink = min(int(1.0 / np.hypot(*matrix[:, 0])), *image.shape[:2])
    if shrink >= 2:
        image, landmarks = _shrink(image, landmarks, shrink)
        matrix = similarity(landmarks, spec.template)
    crop = cv2.warpAffine(
        image, matrix, (spec.width, spec.height), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT, borderValue=0
    )
    return np.asarray(crop, dtype=np.uint8)


def _shrink(image: Pixels, landmarks: Points, factor: int) -> tuple[Pixels, Points]:
    """Return image and landmarks shrunk by a whole factor, each new pixel the mean of factor x factor old ones."""
    height, width = (side // factor * factor for side in image.shape[:2])
    small = cv2.resize(image[:height, :width], (width // factor, height // factor), interpolation=cv2.INTER_AREA)
    return np.asarray(small, dtype=np.uint8), (landmarks + 0.5) / factor - 0.5
