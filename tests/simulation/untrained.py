"""A phone's backbone that was never trained: quick to make and to run, and of the real architecture."""

from __future__ import annotations

from mien.backbones import build_backbone, layout_of, theta_of
from mien.specs import ModelSpec
from simulation.faces.models import Model


def untrained_model(seed: int = 0) -> Model:
    """Return a folded MobileFaceNet with 16 outputs and weights drawn from `seed`."""
    backbone = build_backbone("mobilefacenet_folded", dim=16, seed=seed)
    layout = layout_of(backbone)
    spec = ModelSpec(backbone.name, layout.sha256, backbone.input_spec, "untrained", "none", backbone.default_trainable)
    return Model(spec, layout, theta_of(backbone))
