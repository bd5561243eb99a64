"""Made-up people for gallery tests: crops of noise, and an embedding that is a fixed projection of the pixels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from device_sdk.people.enrolled import Template
from mien.specs import FaceInputSpec

SPEC = FaceInputSpec(dim=16)
MODEL_A = "a" * 64
MODEL_B = "b" * 64


def noise_crops(seed: int, count: int = 3) -> NDArray[np.uint8]:
    """Return crops (count, 112, 112, 3) of one made-up person."""
    return np.random.default_rng(seed).integers(0, 256, (count, 112, 112, 3), dtype=np.uint8)


def project(crops: NDArray[np.uint8], *, seed: int = 0) -> NDArray[np.float32]:
    """Return unit embeddings (N, 16): a random projection of the grey levels, another one for every seed."""
    matrix = np.random.default_rng(seed).normal(size=(112 * 112 * 3, 16))
    features = (crops.reshape(len(crops), -1) / 255.0 - 0.5) @ matrix
    return (features / np.linalg.norm(features, axis=1, keepdims=True)).astype(np.float32)


def template_of(crops: NDArray[np.uint8], model_id: str = MODEL_A) -> Template:
    """Return the template of one made-up person."""
    return Template.of(project(crops), model_id, SPEC)
