"""SphereFace's residual CNN: 20 or 64 convolutions with PReLU, no BatchNorm.

Source: Liu et al., "SphereFace: Deep Hypersphere Embedding for Face Recognition" (2017), Table 2. FedFace trains the
64-layer net on 96x112 crops, FedFR on 112x112. FedFR's released code has 7 residual blocks in the second group, the
paper and ours 8.
"""

from __future__ import annotations

from typing import Final

from torch import Tensor, nn

from mien.backbones._base import Backbone
from mien.backbones._units import ConvUnit, EmbeddingHead, reduced
from mien.specs import FaceInputSpec

CHANNELS: Final = (64, 128, 256, 512)
RESIDUAL_BLOCKS: Final = {20: (1, 2, 4, 1), 64: (3, 8, 16, 3)}


class ResidualBlock(nn.Module):
    """x + two 3x3 convolutions, each with PReLU and without bias: (B, C, H, W) -> (B, C, H, W)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = ConvUnit(channels, channels, 3, padding=1, norm=False, bias=False)
        self.second = ConvUnit(channels, channels, 3, padding=1, norm=False, bias=False)
        for unit in (self.first, self.second):
            nn.init.normal_(unit.conv.weight, std=0.01)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return the block's output (B, C, H, W)."""
        residual: Tensor = self.second(self.first(x_BCHW))
        return x_BCHW + residual


def build_sphereface(spec: FaceInputSpec, *, depth: int) -> Backbone:
    """Return the SphereFace CNN with `depth` 20 or 64 convolutions.

    Stages `down1`, `block1_1` ... `embedding`; each `down` halves the size. Parameters for 512-d at 112x112:
    24,501,952 (20 layers) and 50,021,824 (64); at 96x112: 22,666,944 and 48,186,816.
    """
    stages: dict[str, nn.Module] = {}
    previous = 3
    for group, (channels, blocks) in enumerate(zip(CHANNELS, RESIDUAL_BLOCKS[depth], strict=True), start=1):
        down = ConvUnit(previous, channels, 3, stride=2, padding=1, norm=False)
        _init_xavier(down.conv)
        stages[f"down{group}"] = down
        stages |= {f"block{group}_{i}": ResidualBlock(channels) for i in range(1, blocks + 1)}
        previous = channels
    embedding = EmbeddingHead(previous, (reduced(spec.height, 4), reduced(spec.width, 4)), spec.dim)
    _init_xavier(embedding.fc)
    stages["embedding"] = embedding
    return Backbone(f"sphereface{depth}", spec, stages)


def _init_xavier(layer: nn.Conv2d | nn.Linear) -> None:
    """Initialise a layer with a bias as the released Caffe model does: Xavier weights, bias 0."""
    nn.init.xavier_uniform_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
