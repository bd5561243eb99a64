"""IResNet (IR-18, 34, 50, 100): ArcFace's ResNet with improved residual units.

Source: Deng et al., "ArcFace" (2019), sections 3.1-3.2: 3x3 stem of stride 1, unit BN-Conv-BN-PReLU-Conv-BN, output
BN-FC-BN ("E"; its dropout of 0 left out). PFM trains IR-18 and IR-34.
"""

from __future__ import annotations

from typing import Final

from torch import Tensor, nn

from mien.backbones._base import Backbone
from mien.backbones._units import ConvUnit, EmbeddingHead, reduced
from mien.specs import FaceInputSpec

CHANNELS: Final = (64, 128, 256, 512)
UNITS: Final = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 14, 3), 100: (3, 13, 30, 3)}


class ImprovedUnit(nn.Module):
    """BN-Conv-BN-PReLU-Conv-BN beside a shortcut: (B, C, H, W) -> (B, C', H/stride, W/stride)."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(in_channels)
        self.first = ConvUnit(in_channels, channels, 3, padding=1)
        self.second = ConvUnit(channels, channels, 3, stride=stride, padding=1, act=None)
        self.shortcut: ConvUnit | None = None
        if stride != 1 or in_channels != channels:
            self.shortcut = ConvUnit(in_channels, channels, stride=stride, act=None)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return the unit's output (B, C', H', W')."""
        residual: Tensor = self.second(self.first(self.norm(x_BCHW)))
        return residual + (x_BCHW if self.shortcut is None else self.shortcut(x_BCHW))


def build_iresnet(spec: FaceInputSpec, *, depth: int) -> Backbone:
    """Return IR-`depth` (18, 34, 50 or 100); the first unit of each of four groups halves the size.

    Stages `stem`, `unit1_1` ... `embedding`. Parameters for 512-d at 112x112: 24,025,600 (18), 34,139,328 (34),
    43,590,848 (50), 65,156,160 (100). BatchNorm stands before padded convolutions, so it cannot be folded away.
    """
    stages: dict[str, nn.Module] = {"stem": ConvUnit(3, CHANNELS[0], 3, padding=1)}
    previous = CHANNELS[0]
    for group, (channels, units) in enumerate(zip(CHANNELS, UNITS[depth], strict=True), start=1):
        for i in range(1, units + 1):
            stages[f"unit{group}_{i}"] = ImprovedUnit(previous, channels, stride=2 if i == 1 else 1)
            previous = channels
    size = (reduced(spec.height, 4), reduced(spec.width, 4))
    embedding = EmbeddingHead(previous, size, spec.dim, map_norm=True, norm=True)
    if embedding.norm is not None:
        embedding.norm.weight.requires_grad_(False)  # as released: the embedding's scale stays 1
    stages["embedding"] = embedding
    backbone = Backbone(f"iresnet{depth}", spec, stages)
    for module in backbone.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=0.1)
    return backbone
