"""Recognisers small enough to train in milliseconds, and made-up crops: nobody's faces."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from device_sdk.runtimes.feature_cache import DEFAULT_CAPACITY_BYTES
from device_sdk.runtimes.torch_runtime import TorchRuntime
from mien.backbones import Backbone, layout_of, theta_of
from mien.backbones.adapter import build_adapted
from mien.backbones.gate import build_gated
from mien.layout import ParameterLayout, ParameterPart, Vector
from mien.methods.base import Crops
from mien.methods.gate import population_of
from mien.protocol.rounds import BlobId
from mien.specs import FaceInputSpec, ModelSpec

SHARD = BlobId("5" * 64, 1)
"""Public faces that come with a model, by name alone."""


@dataclass(frozen=True)
class Tiny:
    """A recogniser with its layout, parameters and runtime."""

    backbone: Backbone
    spec: ModelSpec
    layout: ParameterLayout
    theta: Vector

    def runtime(
        self, *, threads: int = 1, cache_bytes: int = DEFAULT_CAPACITY_BYTES, micro_batch: int = 0
    ) -> TorchRuntime:
        """Return a new runtime, which shares the module with other runtimes of this recogniser."""
        return TorchRuntime(
            self.spec,
            self.layout,
            backbone=self.backbone,
            threads=threads,
            cache_bytes=cache_bytes,
            micro_batch=micro_batch,
        )

    def part(self, *patterns: str) -> ParameterPart:
        """Return the part of these patterns, or the default part."""
        return self.layout.part(patterns or self.spec.trainable)


def tiny_cnn(dim: int = 8, *, seed: int = 0, batch_norm: bool = False) -> Tiny:
    """Return three stages with 3 x 4 x 4 features after the first: pooling, convolution with PReLU, linear map."""
    torch.manual_seed(seed)
    mix: list[nn.Module] = [nn.Conv2d(3, 4, 3, padding=1)]
    if batch_norm:
        mix.append(nn.BatchNorm2d(4))
    stages = {
        "stem": nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.PReLU(3), nn.AvgPool2d(28)),
        "mix": nn.Sequential(*mix, nn.PReLU(4)),
        "embedding": nn.Sequential(nn.Flatten(), nn.Linear(64, dim)),
    }
    return tiny_of(Backbone("tiny", FaceInputSpec(dim=dim), stages, ("mix.*", "embedding.*")))


def tiny_adapted(dim: int = 8, *, seed: int = 0) -> Tiny:
    """Return `tiny_cnn` with a linear adapter behind it, which alone is trained and does nothing yet."""
    return tiny_of(build_adapted(FaceInputSpec(dim=dim), base=lambda _spec: tiny_cnn(dim, seed=seed).backbone))


def tiny_gated(dim: int = 8) -> Tiny:
    """Return `tiny_cnn` with a closed gate behind it, whose own population are made-up people."""
    base = tiny_cnn(dim)
    known = np.concatenate([made_up_crops(4, seed=seed) for seed in range(300, 340)])
    features = base.runtime().features(base.theta, known)
    made = tiny_of(build_gated(FaceInputSpec(dim=2 * dim + 1), base=lambda _spec: base.backbone))
    tensors = made.layout.unflatten(made.theta) | population_of(features, np.arange(len(known)) // 4)
    return replace(made, theta=made.layout.flatten(tensors))


def tiny_linear(dim: int = 3, *, seed: int = 0) -> Tiny:
    """Return a linear recogniser of the 12 means over the quarters of a crop: embedding = A pooled, nothing else."""
    torch.manual_seed(seed)
    stages = {
        "pool": nn.AvgPool2d(56),
        "embedding": nn.Sequential(nn.Flatten(), nn.Linear(12, dim, bias=False)),
    }
    return tiny_of(Backbone("linear", FaceInputSpec(dim=dim), stages))


def made_up_crops(num_images: int, *, seed: int, spread: int = 40) -> Crops:
    """Return crops (N, 112, 112, 3) of one made-up identity: coloured quarters that vary by up to `spread`."""
    rng = np.random.default_rng(seed)
    quarters = rng.integers(60, 196, (2, 2, 3))
    varied = np.clip(quarters + rng.integers(-spread, spread + 1, (num_images, 2, 2, 3)), 0, 255)
    crops: Crops = varied.astype(np.uint8).repeat(56, axis=1).repeat(56, axis=2)
    return crops


def tiny_of(backbone: Backbone) -> Tiny:
    """Return a recogniser of a network of one's own."""
    backbone.eval().requires_grad_(False)
    layout = layout_of(backbone)
    spec = ModelSpec(
        backbone.name, layout.sha256, backbone.input_spec, "made up", "none", tuple(backbone.default_trainable)
    )
    return Tiny(backbone, spec, layout, theta_of(backbone))
