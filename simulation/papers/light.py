"""A workbench for long studies: the adapter alone, on features that are ready, in place of the network before it.

The whole model has 9.6 million parameters, which every embedding loads and hashes; a round of forty clients would do
nothing else. Here the model is what is trained: 16,512 parameters. A crop is the number of a row of features, three
bytes, so nothing may look at pixels: studies that mirror images need the whole workbench. Embeddings and training are
those of the whole workbench, bit for bit (`tests/simulation/papers/test_light.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from device_sdk.runtimes.feature_cache import FeatureCache, Features
from device_sdk.runtimes.torch_runtime import TorchRuntime
from mien.backbones import Backbone, layout_of
from mien.errors import ConfigError
from mien.layout import Vector
from mien.methods.base import Crops
from simulation.engines.choice import device
from simulation.faces.models import Model
from simulation.faces.workbench import TRAINABLE, MaxImages, Workbench, open_workbench

STAGE: Final = "adapter"
_PLACES: Final = np.array([1 << 16, 1 << 8, 1], np.int64)


@functools.lru_cache(maxsize=2)
def open_light_workbench(faces: Path | None, max_people: int | None = None, max_images: MaxImages = None) -> Workbench:
    """Return the workbench of `open_workbench` with the adapter as its whole model and numbers for crops."""
    whole = open_workbench(faces, max_people, max_images)
    # The adapter is the identity before training: what the model gives is what enters the adapter.
    return behind_features(whole, whole.runtime.features(whole.theta, whole.crops))


def behind_features(whole: Workbench, features_ND: Vector) -> Workbench:
    """Return the workbench of the same people with these features (N, D) of their crops, whatever became of those."""
    backbone = _adapter_alone(whole)
    layout = layout_of(backbone)
    spec = replace(whole.model.spec, layout_sha256=layout.sha256)
    theta = whole.part.gather(whole.theta)
    theta.flags.writeable = False
    runtime = TorchRuntime(spec, layout, backbone=backbone, cache=NumberedFeatures(features_ND), device=device())
    return Workbench(
        Model(spec, layout, theta),
        layout.part(TRAINABLE),
        runtime,
        numbers_as_crops(len(features_ND)),
        whole.labels,
        whole.people,
        whole.dataset_sha256,
    )


def numbers_as_crops(count: int) -> Crops:
    """Return `count` crops (N, 1, 1, 3) that say their own number, the most significant byte first."""
    numbers = np.arange(count, dtype=">u4").view(np.uint8).reshape(count, 1, 1, 4)
    return np.ascontiguousarray(numbers[..., 1:])


class ReadyFeatures(nn.Module):
    """The network before the adapter, whose features (N, D) are ready: they pass.

    Of a picture it only says how long they would be, which is what engines ask that train many clients at once.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self._dim = dim

    def forward(self, x: Tensor) -> Tensor:
        """Return features as they are, and zeros (N, D) for pictures."""
        return x if x.dim() == 2 else x.new_zeros(len(x), self._dim)


class NumberedFeatures(FeatureCache):
    """Features by the number that a crop says; there is nothing to compute."""

    def __init__(self, features_ND: Vector) -> None:
        super().__init__(0)
        self._features_ND = torch.from_numpy(features_ND)

    def features(
        self, trunk_id: bytes, crops: Crops, flipped: NDArray[np.bool_], compute: Callable[[Crops], Iterable[Features]]
    ) -> list[Features]:
        """Return the features of each crop; raises ConfigError for mirrored ones, whose features are not here."""
        if flipped.any():
            raise ConfigError("a light workbench has no mirrored images; set local.flip to false")
        rows = crops.reshape(-1, 3) @ _PLACES
        return list(self._features_ND[torch.from_numpy(rows)])


def _adapter_alone(whole: Workbench) -> Backbone:
    spec = whole.model.spec
    linear = nn.Linear(spec.input.dim, spec.input.dim)
    backbone = Backbone(
        spec.backbone, spec.input, {"features": ReadyFeatures(spec.input.dim), STAGE: linear}, TRAINABLE
    )
    tensors = whole.part.gather(whole.theta)
    with torch.no_grad():
        weight = linear.weight.numel()
        linear.weight.copy_(torch.from_numpy(tensors[:weight]).reshape(linear.weight.shape))
        linear.bias.copy_(torch.from_numpy(tensors[weight:]))
    return backbone
