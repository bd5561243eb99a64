"""Face quality in measured components, each rejection with its reason.

Nothing here compares brightness of skin: darkness is judged by the brightest parts of the face, so that well-lit dark
skin passes and an unlit light face does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from device_sdk.faces.align import lean_deg, similarity
from device_sdk.faces.reasons import Reason
from mien.errors import ConfigError

if TYPE_CHECKING:
    from device_sdk.faces.detector import Face
    from device_sdk.faces.images import Pixels

# A frontal face as YuNet marks it, in pixels of a 112x112 crop: median over 1000 images of LFW and their mirror images.
# Third coordinate: depth towards the camera. The nose's was fitted on 600 renders of known pose: with 24 the estimated
# yaw is 0.99 times the true one, 3.3 degrees off in the mean, under 9 for 95 %. Of pitch the detector shows a fifth.
_FRONTAL_FACE: Final = np.array(
    ((37.15, 52.54, 0.0), (74.89, 52.54, 0.0), (56.02, 73.77, 24.0), (39.92, 90.30, 3.0), (72.12, 90.30, 3.0))
)
_FRONTAL_EYE_DISTANCE: Final = 74.89 - 37.15
# The part of a crop that is face in every pose: from the brows to the chin, from cheek to cheek.
_FACE_ROWS: Final = slice(28, 108)
_FACE_WIDTH: Final = 72
_INNER_FACE: Final = np.array([(x, y) for y in range(28, 108, 4) for x in range(20, 92, 4)], dtype=np.float64)
_SATURATED: Final = 250
_BLUR_WINDOW: Final = 7


@dataclass(frozen=True)
class QualityPolicy:
    """Limits of the quality gate; the defaults were measured on photographs and on renders (see the tests).

    `min_score`: detector's score, 0..1. `min_eye_distance_px`: of a frontal face of this size, in the image.
    `min_sharpness`: 1 - perceptual blur, 0..1. `min_highlight`: 95th percentile of the face's grey levels, 0..255.
    `max_saturated`: share of the face's pixels that are white. `min_contrast`: standard deviation of the face's grey
    levels. `max_yaw_deg`: good to about ten degrees. `max_pitch_deg`: the estimate shows only extremes.
    `max_roll_deg`: 180 takes faces whichever way up, which alignment sets upright. `min_visible`: share of the face
    inside the image. `max_landmark_error_px`: distance of the landmarks from those of any turned face, in pixels of the
    crop.
    """

    min_score: float = 0.75
    min_eye_distance_px: float = 20.0
    min_sharpness: float = 0.32
    min_highlight: float = 40.0
    max_saturated: float = 0.2
    min_contrast: float = 7.0
    max_yaw_deg: float = 50.0
    max_pitch_deg: float = 20.0
    max_roll_deg: float = 180.0
    min_visible: float = 0.9
    max_landmark_error_px: float = 2.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not math.isfinite(value) or value < 0:
                raise ConfigError(f"quality.{item.name} is {value}; it must be a finite number, 0 or more")


DEFAULT_POLICY: Final = QualityPolicy()


@dataclass(frozen=True)
class Geometry:
    """Pose and position of a face in its image, from the detector and the five landmarks.

    Angles in degrees: yaw is positive towards the right of the image, pitch upwards, roll clockwise.
    """

    score: float
    eye_distance_px: float
    yaw_deg: float
    pitch_deg: float
    roll_deg: float
    visible: float
    landmark_error_px: float

    def reasons(self, policy: QualityPolicy) -> tuple[Reason, ...]:
        """Return the reasons for which `policy` rejects it."""
        return _failed(
            (self.eye_distance_px >= policy.min_eye_distance_px, Reason.TOO_SMALL),
            (abs(self.yaw_deg) <= policy.max_yaw_deg, Reason.TURNED),
            (abs(self.pitch_deg) <= policy.max_pitch_deg, Reason.PITCHED),
            (abs(self.roll_deg) <= policy.max_roll_deg, Reason.ROLLED),
            (self.score >= policy.min_score, Reason.UNCLEAR),
            (self.landmark_error_px <= policy.max_landmark_error_px, Reason.LANDMARKS),
            (self.visible >= policy.min_visible, Reason.CUT_OFF),
        )


@dataclass(frozen=True)
class Appearance:
    """Appearance of an aligned crop: sharpness in [0, 1], the rest in grey levels 0..255 or a share of the pixels."""

    sharpness: float
    highlight: float
    saturated: float
    contrast: float

    def reasons(self, policy: QualityPolicy) -> tuple[Reason, ...]:
        """Return the reasons for which `policy` rejects it."""
        return _failed(
            (self.sharpness >= policy.min_sharpness, Reason.BLURRED),
            (self.highlight >= policy.min_highlight, Reason.TOO_DARK),
            (self.saturated <= policy.max_saturated, Reason.TOO_BRIGHT),
            (self.contrast >= policy.min_contrast, Reason.LOW_CONTRAST),
        )


@dataclass(frozen=True)
class Quality:
    """The measured components of a face's quality and the reasons to reject it, none for an accepted face.

    `geometry` is None for a crop that came aligned: its image is not there to be measured.
    """

    appearance: Appearance
    geometry: Geometry | None
    reasons: tuple[Reason, ...]

    @property
    def accepted(self) -> bool:
        """True if the face passes."""
        return not self.reasons

    @property
    def hints(self) -> str:
        """The reasons' hints, one sentence after the other."""
        return " ".join(reason.hint for reason in self.reasons)


def assess(
    image_shape: tuple[int, ...], face: Face | None, crop: Pixels, policy: QualityPolicy | None = DEFAULT_POLICY
) -> Quality:
    """Return the quality of a face and the reasons for which `policy` rejects it; a policy of None rejects nothing.

    `image_shape` is the (height, width, ...) of the image in which `face` was found, `crop` the aligned crop (H, W, 3)
    uint8 RGB. A `face` of None stands for a crop that came aligned.
    """
    appearance = _appearance(crop)
    geometry = None if face is None else _geometry(image_shape, face)
    if policy is None:
        return Quality(appearance, geometry, ())
    found = geometry.reasons(policy) if geometry is not None else ()
    return Quality(appearance, geometry, found + appearance.reasons(policy))


def _failed(*checks: tuple[bool, Reason]) -> tuple[Reason, ...]:
    return tuple(reason for passed, reason in checks if not passed)


def _appearance(crop: Pixels) -> Appearance:
    import cv2  # only where a picture is looked at: commands that see none start sooner

    left = (crop.shape[1] - _FACE_WIDTH) // 2
    grey = cv2.cvtColor(crop, cv2.COLOR_RGB2GRAY)[_FACE_ROWS, left : left + _FACE_WIDTH].astype(np.float32)
    return Appearance(
        sharpness=1.0 - _perceptual_blur(grey),
        highlight=percentile(grey, 95),
        saturated=float((grey >= _SATURATED).mean()),
        contrast=float(grey.std()),
    )


def percentile(values: NDArray[np.float32], percent: float) -> float:
    """Return numpy's percentile, interpolated linearly, to the last bit; numpy's own loads a megabyte of modules."""
    at = percent / 100 * (values.size - 1)
    below, above = math.floor(at), math.ceil(at)
    ordered = np.partition(values.ravel(), (below, above))
    low, high, share = ordered[below], ordered[above], at - below
    if share < 0.5:
        return float(low + (high - low) * np.float32(share))
    return float(high - (high - low) * np.float32(1 - share))


def _perceptual_blur(grey: NDArray[np.float32]) -> float:
    """Return the blur of an image, 0 (sharp) .. 1: the share of its gradients that one more blur leaves alone.

    Crete et al., "The Blur Effect: Perception and Estimation with a New No-Reference Perceptual Blur Metric", HVEI
    2007, with a window of 7 for their 9, as crops are small. A ratio of gradients, so light and contrast cancel.
    Steps of one grey level are left out: rounding makes them, and they look sharp. Measured on the aligned crop, so
    that a small face, enlarged, counts as blurred.
    """
    import cv2

    worst = 0.0
    for axis, window in ((0, (1, _BLUR_WINDOW)), (1, (_BLUR_WINDOW, 1))):
        before = np.abs(np.diff(grey, axis=axis))
        after = np.abs(np.diff(cv2.blur(grey, window), axis=axis))
        steps = before > 1
        total = float(before[steps].sum())
        # A flat image has nothing sharp in it.
        left_alone = 1.0 if total == 0 else 1.0 - float(np.maximum(0, before - after)[steps].sum()) / total
        worst = max(worst, left_alone)
    return worst


def _geometry(image_shape: tuple[int, ...], face: Face) -> Geometry:
    to_frontal = similarity(face.landmarks, _FRONTAL_FACE[:, :2])
    upright = face.landmarks @ to_frontal[:, :2].T + to_frontal[:, 2]
    yaw_deg, pitch_deg, error_px = _pose(upright)
    return Geometry(
        score=face.score,
        eye_distance_px=_FRONTAL_EYE_DISTANCE / float(np.hypot(*to_frontal[:, 0])),
        yaw_deg=yaw_deg,
        pitch_deg=pitch_deg,
        roll_deg=lean_deg(to_frontal),
        visible=_visible(image_shape, face, to_frontal),
        landmark_error_px=error_px,
    )


def _pose(upright: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return yaw and pitch in degrees, and the root mean square error in pixels, of upright landmarks (5, 2).

    Pose from orthography and scaling (DeMenthon & Davis, IJCV 1995, first iteration): the affine map from a frontal
    face in 3-D to the landmarks is a scaled, projected rotation. A face that looks away from the camera is no face.
    """
    model = _FRONTAL_FACE - _FRONTAL_FACE.mean(axis=0)
    seen = upright - upright.mean(axis=0)
    affine, *_ = np.linalg.lstsq(model, seen, rcond=None)
    error_px = float(np.sqrt(((model @ affine - seen) ** 2).sum(axis=1).mean()))
    right, down = affine[:, 0], affine[:, 1]
    norms = np.linalg.norm(right), np.linalg.norm(down)
    if min(norms) < 1e-6:
        return 90.0, 90.0, math.inf
    right, down = right / norms[0], down / norms[1]
    towards = np.cross(right, down)
    if towards[2] <= 0:
        return 90.0, 90.0, math.inf
    yaw_deg = math.degrees(math.atan2(right[2], towards[2]))
    pitch_deg = math.degrees(math.atan2(-down[2], towards[2]))
    return yaw_deg, pitch_deg, error_px


def _visible(image_shape: tuple[int, ...], face: Face, to_frontal: NDArray[np.float64]) -> float:
    """Return the share of a face that lies inside the image: of its box or of the crop's inner part, the smaller.

    The detector draws its box, and guesses landmarks, towards the inside at an edge; each alone would miss that.
    """
    height, width = image_shape[:2]
    x, y, box_width, box_height = face.box
    inside_x = min(x + box_width, width) - max(x, 0.0)
    inside_y = min(y + box_height, height) - max(y, 0.0)
    if face.area <= 0 or inside_x <= 0 or inside_y <= 0:
        return 0.0
    points = (_INNER_FACE - to_frontal[:, 2]) @ np.linalg.inv(to_frontal[:, :2]).T
    inside = (points >= -0.5).all(axis=1) & (points <= (width - 0.5, height - 0.5)).all(axis=1)
    return float(min(inside_x * inside_y / face.area, inside.mean()))
