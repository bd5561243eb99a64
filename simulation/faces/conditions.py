"""Hard conditions for aligned crops: a mask, 14 pixels across, very little light, near infrared, a close-up.

They are made, not photographed: each stands for what a camera does to a face, by the same generator of draws for
everybody. Crops are (112, 112, 3) uint8 RGB; a function takes one and a generator, and returns another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

Crop = NDArray[np.uint8]
Condition = Callable[[Crop, np.random.Generator], Crop]

SIDE: Final = 112
LOW_SIDE: Final = 14
_MASK: Final = ((14, 62), (56, 56), (98, 62), (94, 92), (76, 108), (36, 108), (18, 92))
"""Corners (x, y) of a mask on an aligned crop: both cheeks and the nose's bridge, down to the chin."""
_EYES: Final = 24.0
"""Distance of the eyes from the crop's centre, in pixels; alignment keeps them where they are."""


def masked(crop: Crop, rng: np.random.Generator) -> Crop:
    """Return a face whose nose, mouth and chin a mask of one colour covers."""
    colour = rng.integers(0, 256, 3)
    corners = np.array(_MASK, np.int32) + rng.integers(-3, 4, (len(_MASK), 2))
    where = np.zeros(crop.shape[:2], np.uint8)
    cv2.fillPoly(where, [corners], 1)
    cloth = colour + rng.normal(0, 6, crop.shape)
    return _pixels(np.where(where[..., None] == 1, cloth, crop))


def small(crop: Crop, rng: np.random.Generator) -> Crop:
    """Return a face that a camera saw 14 pixels across."""
    seen = cv2.resize(crop, (LOW_SIDE, LOW_SIDE), interpolation=cv2.INTER_AREA)
    return _pixels(cv2.resize(seen, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC))


def dark(crop: Crop, rng: np.random.Generator) -> Crop:
    """Return a face in a twentieth to an eighth of the light: shot noise, gain, read noise, little colour."""
    light = crop / 255 * rng.uniform(0.05, 0.12)
    seen = rng.poisson(light * 255 * 0.8) / 0.8 / 255 * 6 + rng.normal(0, 0.08, crop.shape)
    return _pixels((0.7 * seen.mean(-1, keepdims=True) + 0.3 * seen) * 255)


def infrared(crop: Crop, rng: np.random.Generator) -> Crop:
    """Return a face as a camera for near infrared shows it: grey by its red, flat skin, a lamp in the middle, noise."""
    grey = crop @ np.array([0.75, 0.2, 0.05]) / 255
    flat = cv2.GaussianBlur(grey, (0, 0), 1.0) ** 0.6
    y, x = np.mgrid[:SIDE, :SIDE]
    off = np.hypot(x - rng.uniform(40, 72), y - rng.uniform(40, 72)) / SIDE
    seen = flat * (1.15 - 0.9 * off**2) + rng.normal(0, 0.03, flat.shape)
    return _pixels(np.repeat(seen[..., None] * 255, 3, axis=2))


def close_up(crop: Crop, rng: np.random.Generator) -> Crop:
    """Return a face before a wide lens at arm's length: the nose large, cheeks and ears drawn in, the eyes in place."""
    bend = rng.uniform(0.6, 1.2)
    y, x = (np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2).astype(np.float32)
    squared = (x**2 + y**2) / _EYES**2
    reach = ((1 + bend * squared / 4) / (1 + bend / 4)).astype(np.float32)
    half = np.float32((SIDE - 1) / 2)
    drawn = cv2.remap(crop, x * reach + half, y * reach + half, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return _pixels(drawn)


def _pixels(values: NDArray[np.generic]) -> Crop:
    crop: Crop = np.clip(values, 0, 255).astype(np.uint8)
    return crop


CONDITIONS: Final[Mapping[str, Condition]] = MappingProxyType(
    {"masked": masked, "small": small, "dark": dark, "infrared": infrared, "close_up": close_up}
)


def every_second(labels_N: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places of every second picture of each person; `labels_N` number people in ascending order."""
    first_N = np.searchsorted(labels_N, labels_N)
    return np.flatnonzero((np.arange(len(labels_N)) - first_N) % 2 == 1)


def in_condition(name: str, crops: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return crops (N, 112, 112, 3) in a condition; each one's draws follow from its place and the condition alone."""
    number = list(CONDITIONS).index(name)
    each = [CONDITIONS[name](crop, np.random.default_rng([number, i])) for i, crop in enumerate(crops)]
    return np.stack(each)
