"""The simulated phones of a run: what they hold, and what each keeps to itself between rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mien.contribution import Arrays
from mien.layout import Vector
from mien.methods.base import Crops, ValidationFaces


@dataclass(frozen=True)
class PublicFaces:
    """Public crops (K, H, W, 3) uint8 RGB with identity labels (K,), as a bundle's shard holds them."""

    crops: Crops = field(repr=False)
    labels: NDArray[np.int64] = field(repr=False)


@dataclass(frozen=True)
class Cohort:
    """The simulated phones: crops by name, what each keeps to itself between rounds, and the public faces of all.

    `labels` number the identities of a phone's crops from 0; a phone that is not in it holds one identity.
    `validators` are the faces by which a method with a validation stage is judged, by the validators' own names.
    `models` are the parameters of models that a task names beside its own (`Requirements.other_models`), by id.
    """

    crops: Mapping[str, Crops] = field(repr=False)
    private: Mapping[str, Arrays] = field(default_factory=dict, repr=False)
    public: PublicFaces | None = None
    labels: Mapping[str, NDArray[np.int64]] = field(default_factory=dict, repr=False)
    validators: Mapping[str, ValidationFaces] = field(default_factory=dict, repr=False)
    validator_private: Mapping[str, Arrays] = field(default_factory=dict, repr=False)
    models: Mapping[str, Vector] = field(default_factory=dict, repr=False)
