"""What a phone makes of pictures: colours of camera frames, sizes, crops, measures; of made-up pictures only."""

from __future__ import annotations

import math
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from device_sdk.faces import Face, Reason, align_face, assess
from device_sdk.faces.images import Pixels
from device_sdk.people.enroll import MULTIPLE_FACES, NO_FACE, _second_group, _strangers
from mien.errors import ConfigError
from mien.protocol.names import clean_name
from mien.specs import FaceInputSpec

Json = dict[str, Any]

SPEC: Final = FaceInputSpec()
# A crop is long: every so many of its pixels are written.
SAMPLE: Final = slice(3, None, 8)


def vision() -> Json:
    return {
        "frames": [
            _frame(6, 4, y=(8, 1), colour=(8, 2)),
            _frame(5, 3, y=(5, 1), colour=(3, 1)),
            _frame(1, 1, y=(1, 1), colour=(1, 1)),
            _frame(2, 5, y=(9, 3), colour=(7, 4)),
        ],
        "resized": [
            _resized(24, 18, 12, 9),
            _resized(30, 18, 10, 6),
            _resized(26, 17, 11, 7),
            _resized(23, 9, 20, 9),
            _resized(11, 7, 22, 14),
            _resized(9, 12, 12, 16),
            _resized(1, 1, 3, 2),
        ],
        "crops": [
            _crop(160, 150, scale=1.0, degrees=0, at=(80, 75)),
            _crop(200, 160, scale=1.7, degrees=25, at=(95, 80)),
            _crop(90, 70, scale=0.4, degrees=-31, at=(40, 30)),
            _crop(150, 140, scale=0.9, degrees=10, at=(140, 20)),
            _crop(420, 400, scale=3.3, degrees=-5, at=(200, 210)),
        ],
        "no_direction": [[0.0] * 10, [10.0, 10.0] * 5],
        "appearances": [
            _appearance(16, 100, 80, 0),
            _appearance(16, 20, 9, 0),
            _appearance(16, 5, 60, 0),
            _appearance(8, 200, 100, 1),
            _appearance(112, 0, 20, 3),
            _appearance(3, 0, 77, 0),
        ],
        "geometries": [
            _geometry(0, 0, 0),
            _geometry(30, 0, 0),
            _geometry(-62, 0, 0),
            _geometry(5, 35, 0),
            _geometry(0, 0, 52, score=0.7),
            _geometry(0, 0, 0, scale=0.4),
            _geometry(0, 0, 0, at=(20, 60)),
            _geometry(0, 0, 0, wrong=13.0),
            _geometry(0, 0, 0, at=(400, 60)),
        ],
        "hints": {str(reason): reason.hint for reason in Reason},
        "no_single_face": [NO_FACE, MULTIPLE_FACES],
        "strangers": [_told_apart(seed, threshold) for seed in (1, 2) for threshold in (-1.0, 0.2, 0.99)],
        "names": _names(),
    }


def pattern(width: int, height: int) -> Pixels:
    """Return a picture (H, W, 3) that other languages can draw: ((7 x + 3 y + 50 c) ^ (x y / 8)) mod 256."""
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
    return (((7 * x + 3 * y + 50 * c) ^ (x * y // 8)) % 256).astype(np.uint8)


def _frame(width: int, height: int, *, y: tuple[int, int], colour: tuple[int, int]) -> Json:
    """A camera's frame; `y` and `colour` are row and pixel strides, what lies between values is noise."""
    rng = np.random.default_rng(width * 100 + height)
    planes = []
    for columns, rows, strides in (
        (width, height, y),
        ((width + 1) // 2, (height + 1) // 2, colour),
        ((width + 1) // 2, (height + 1) // 2, colour),
    ):
        length = (rows - 1) * strides[0] + (columns - 1) * strides[1] + 1
        values = rng.integers(0, 256, length, dtype=np.uint8)
        at = np.arange(rows)[:, None] * strides[0] + np.arange(columns) * strides[1]
        planes.append((values, strides, values[at]))
    light, blue, red = (plane[2].astype(np.float64) for plane in planes)
    blue, red = (each.repeat(2, 0).repeat(2, 1)[:height, :width] - 128 for each in (blue, red))
    # JPEG's conversion (JFIF 1.02).
    rgb = np.stack((light + 1.402 * red, light - 0.344136 * blue - 0.714136 * red, light + 1.772 * blue), axis=2)
    upright = np.rint(rgb).clip(0, 255).astype(np.uint8)
    grey = planes[0][2]
    turned = []
    for rotation in (0, 90, 180, 270):
        for mirrored in (False, True):
            step = -1 if mirrored else 1
            picture = np.rot90(upright, -rotation // 90)[:, ::step]
            turned.append(
                {
                    "rotation": rotation,
                    "mirrored": mirrored,
                    "width": picture.shape[1],
                    "height": picture.shape[0],
                    "rgb": picture.tobytes().hex(),
                    "grey": np.rot90(grey, -rotation // 90)[:, ::step].tobytes().hex(),
                }
            )
    return {
        "width": width,
        "height": height,
        "planes": [{"bytes": values.tobytes().hex(), "strides": list(strides)} for values, strides, _ in planes],
        "turned": turned,
    }


def _resized(width: int, height: int, to_width: int, to_height: int) -> Json:
    method = cv2.INTER_AREA if to_width < width else cv2.INTER_LINEAR
    resized = np.asarray(cv2.resize(pattern(width, height), (to_width, to_height), interpolation=method), np.uint8)
    return {"from": [width, height], "to": [to_width, to_height], "rgb": resized.tobytes().hex()}


def _placed(points: NDArray[np.float64], scale: float, degrees: float, at: tuple[float, float]) -> NDArray[np.float64]:
    """Return points about the middle of a crop, scaled, turned clockwise and put at a place."""
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    rotation = scale * np.array(((cosine, -sine), (sine, cosine)))
    return np.asarray((points - SPEC.width / 2) @ rotation.T + at)


def _crop(width: int, height: int, *, scale: float, degrees: float, at: tuple[float, float]) -> Json:
    off = np.random.default_rng(width).normal(0, 1.5, (5, 2))
    landmarks = _placed(SPEC.template + off, scale, degrees, at).round(3)
    crop = align_face(pattern(width, height), landmarks, SPEC)
    return {
        "from": [width, height],
        "landmarks": landmarks.ravel().tolist(),
        "sample": np.ascontiguousarray(crop[SAMPLE, SAMPLE]).tobytes().hex(),
    }


def drawn(cell: int, gain: int, offset: int, slope: int) -> Pixels:
    """Return squares of `cell` pixels: offset + slope * (x mod 16) + 2 c, + gain on every other; at most 255."""
    y, x, c = np.meshgrid(np.arange(SPEC.height), np.arange(SPEC.width), np.arange(3), indexing="ij")
    light = offset + gain * ((x // cell + y // cell) % 2) + slope * (x % 16) + 2 * c
    return np.minimum(255, light).astype(np.uint8)


def _appearance(*drawing: int) -> Json:
    look = assess((), None, drawn(*drawing))
    seen = look.appearance
    return {
        "drawing": list(drawing),
        "measures": _plain(seen.sharpness, seen.highlight, seen.saturated, seen.contrast),
        "words": list(map(str, look.reasons)),
    }


def turned_head(yaw: float, pitch: float) -> NDArray[np.float64]:
    """Return the landmarks (5, 2) of a head turned to the right and up, in degrees, as an upright crop shows it."""
    depth = np.array((0.0, 0.0, 24.0, 3.0, 3.0))
    frontal = np.array(((37.15, 52.54), (74.89, 52.54), (56.02, 73.77), (39.92, 90.30), (72.12, 90.30)))
    x, y = (frontal - SPEC.width / 2).T
    right, up = math.radians(yaw), math.radians(pitch)
    turned = x * math.cos(right) + depth * math.sin(right)
    nearer = depth * math.cos(right) - x * math.sin(right)
    raised = y * math.cos(up) - nearer * math.sin(up)
    return np.stack((turned, raised), axis=1) + SPEC.width / 2


def _geometry(
    yaw: float,
    pitch: float,
    roll: float,
    *,
    score: float = 0.9,
    scale: float = 1.0,
    at: tuple[float, float] = (170, 130),
    wrong: float = 0.0,
) -> Json:
    width, height = 320, 240
    landmarks = _placed(turned_head(yaw, pitch), scale, roll, at)
    landmarks[2, 0] += wrong * scale
    landmarks[0, 1] += wrong * scale
    landmarks = landmarks.round(3)
    box = (at[0] - 40 * scale, at[1] - 50 * scale, 80 * scale, 100 * scale)
    face = Face(box, landmarks, score)
    quality = assess((height, width), face, drawn(16, 100, 80, 0))
    seen = quality.geometry
    assert seen is not None
    return {
        "frame": [width, height],
        "box": list(box),
        "landmarks": landmarks.ravel().tolist(),
        "score": score,
        "measures": _plain(
            seen.eye_distance_px,
            seen.yaw_deg,
            seen.pitch_deg,
            seen.roll_deg,
            seen.visible,
            min(seen.landmark_error_px, 1e6),
        ),
        "words": list(map(str, quality.reasons)),
    }


def _plain(*values: float) -> list[float]:
    return [round(value, 6) for value in values]


def _told_apart(seed: int, threshold: float) -> Json:
    rng = np.random.default_rng(seed)
    person, stranger = rng.normal(0, 1, (2, 8))
    rows = np.stack([person, person, stranger, person, person, stranger]) + rng.normal(0, 0.3 * seed, (6, 8))
    features = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    out = _strangers(features, threshold)
    return {
        "features": [row.tobytes().hex() for row in features],
        "threshold": threshold,
        "kept": [index for index in range(len(features)) if index not in out],
        "second": _second_group(features, out, threshold),
    }


def _names() -> Json:
    good = (" Ada ", "Zoe\u0308", "Li Wei", "\u674e\u4f1f", "x" * 80, "\U0001f98a")
    written = ("Ana\u00a0 Mar\u00eda", "a\u200eb", "\u2067\u0639\u0644\u06cc\u200c\u0631\u0636\u0627\u2069")
    joined = ("\u0db4\u0dca\u200d\u0dbb\u0dd2", "\u200dA\u200d \u200db\u200c", "\u2800A\u3164")
    good = (*good, *written, *joined)
    refused = ("", "  ", "x" * 81, "a\nb", "a\tb", "\u2028", "\u200d", "\u3164", "\u0301")
    for name in refused:
        try:
            clean_name(name)
        except ConfigError:
            continue
        raise AssertionError(f"{name!r} is a name")
    return {"good": [[name, clean_name(name)] for name in good], "refused": list(refused)}
