"""Crops as they are kept, and as a model wants them."""

from __future__ import annotations

from typing import Final

import numpy as np

from mien.errors import ConfigError
from mien.methods.base import Crops
from mien.specs import FaceInputSpec

MASTER: Final = FaceInputSpec()
"""Format of crops as they are kept, whatever the model: 112x112. A narrower model takes the middle of it."""


def fit_crops(crops: Crops, spec: FaceInputSpec) -> Crops:
    """Return master crops (N, 112, 112, 3) as a model wants them: the 96-wide template is the 112-wide one less 8 each
    side (`FaceInputSpec.template`), so its crop is the middle.
    """
    if crops.shape[1:] != (MASTER.height, MASTER.width, 3):
        raise ConfigError(f"crops have shape {crops.shape}; align them 112x112 first")
    margin = (MASTER.width - spec.width) // 2
    return np.ascontiguousarray(crops[:, :, margin : MASTER.width - margin])
