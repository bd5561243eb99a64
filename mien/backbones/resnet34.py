"""Plain ResNet-34 with an embedding head, the backbone of FedGC (512-d) and FedFR-UDA (256-d).

Source: He et al., "Deep Residual Learning for Image Recognition" (2016), Table 1 and Figure 3. Neither federated paper
states how the embedding is read out; we take BN-FC-BN on the last map (ArcFace's "E" output), which keeps where a
feature lies in an aligned face, in place of the average pool of ImageNet classifiers.
"""

from __future__ import annotations

from typing import Final

from torch import Tensor, nn

from mien.backbones._base import Backbone
from mien.backbones._units import ConvUnit, EmbeddingHead, init_he, reduced
from mien.specs import FaceInputSpec

GROUPS: Final = ((64, 3), (128, 4), (256, 6), (512, 3))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, ReLU after the sum: (B, C, H, W) -> (B, C', H/stride, W/stride)."""

    def __init__(self, in_channels: int, channels: int, stride: int, *, norm: bool) -> None:
        super().__init__()
        self.first = ConvUnit(in_channels, channels, 3, stride=stride, padding=1, act="relu", norm=norm)
        self.second = ConvUnit(channels, channels, 3, padding=1, act=None, norm=norm)
        self.shortcut: ConvUnit | None = None
        if stride != 1 or in_channels != channels:
            self.shortcut = ConvUnit(in_channels, channels, stride=stride, act=None, norm=norm)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return the block's output (B, C', H', W')."""
        residual: Tensor = self.second(self.first(x_BCHW))
        return (residual + (x_BCHW if self.shortcut is None else self.shortcut(x_BCHW))).relu()


class Stem(nn.Module):
    """7x7 convolution of stride 2, then 3x3 max pool of stride 2: (B, 3, H, W) -> (B, 64, H/4, W/4)."""

    def __init__(self, *, norm: bool) -> None:
        super().__init__()
        self.unit = ConvUnit(3, 64, 7, stride=2, padding=3, act="relu", norm=norm)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return the stem's output (B, 64, H/4, W/4)."""
        pooled: Tensor = self.pool(self.unit(x_BCHW))
        return pooled


def build_resnet34(spec: FaceInputSpec, *, folded: bool = False) -> Backbone:
    """Return ResNet-34; `folded` builds it without BatchNorm, as `fold_batch_norm` leaves it.

    Stages `stem`, `block1_1` ... `embedding`. 21,284,672 parameters without the head (torchvision's count without its
    classifier); with it, at 112x112: 25,481,536 for 512-d, 23,383,616 for 256-d.
    """
    norm = not folded
    stages: dict[str, nn.Module] = {"stem": Stem(norm=norm)}
    previous = 64
    for group, (channels, blocks) in enumerate(GROUPS, start=1):
        for i in range(1, blocks + 1):
            stride = 2 if i == 1 and group > 1 else 1
            stages[f"block{group}_{i}"] = BasicBlock(previous, channels, stride, norm=norm)
            previous = channels
    size = (reduced(spec.height, 5), reduced(spec.width, 5))
    stages["embedding"] = EmbeddingHead(previous, size, spec.dim, map_norm=norm, norm=norm)
    backbone = Backbone("resnet34_folded" if folded else "resnet34", spec, stages)
    init_he(backbone)
    return backbone
