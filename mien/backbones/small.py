"""A small network for studies that train from the first layer on: what thousands of emulated phones can do on a laptop.

It sees 28 x 28 pixels, and no phone is offered it. Pooling comes first and has no parameters, so that what enters the
first convolution is computed once.
"""

from __future__ import annotations

from typing import Final

from torch import nn

from mien.backbones._base import Backbone
from mien.backbones._units import ConvUnit, EmbeddingHead, init_he, reduced
from mien.specs import FaceInputSpec

POOLED: Final = 4
"""Pixels of a crop that become one, along each side: 28 x 28 of 112 x 112."""
CHANNELS: Final = (32, 64, 128, 128)
TRAINED: Final = ("conv*", "embedding.*")


def build_small_network(spec: FaceInputSpec) -> Backbone:
    """Return a network of 0.3 million parameters: pooling, four convolutions of stride 2 with PReLU, a linear map."""
    stages: dict[str, nn.Module] = {"pool": nn.AvgPool2d(POOLED)}
    for number, (before, channels) in enumerate(zip((3, *CHANNELS), CHANNELS, strict=False), start=1):
        stages[f"conv{number}"] = ConvUnit(before, channels, 3, stride=2, padding=1, norm=False)
    size = (reduced(spec.height // POOLED, len(CHANNELS)), reduced(spec.width // POOLED, len(CHANNELS)))
    stages["embedding"] = EmbeddingHead(CHANNELS[-1], size, spec.dim)
    for stage in stages.values():
        init_he(stage)
    return Backbone("small", spec, stages, TRAINED)
