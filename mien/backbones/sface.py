"""SFace: a MobileNet with PReLU, 128-d, in the form that phones hold: every BatchNorm folded, no dropout.

Source: Zhong et al., "SFace: Sigmoid-Constrained Hypersphere Loss for Robust Face Recognition" (2021); the network is
the one of OpenCV Zoo's face_recognition_sface_2021dec. Its scaling (x - 127.5) / 128 is part of `FaceInputSpec` here,
its dropout of 0.4 before the FC belongs to its pre-training and is absent on devices.
"""

from __future__ import annotations

from torch import Tensor, nn

from mien.backbones._base import Backbone
from mien.backbones._units import ConvUnit, EmbeddingHead, init_he, reduced
from mien.models.sface_file import BLOCKS, DEFAULT_TRAINABLE, STEM_CHANNELS
from mien.specs import FaceInputSpec


class SeparableBlock(nn.Module):
    """3x3 depthwise, then 1x1 pointwise convolution, each with PReLU: (B, C, H, W) -> (B, C', H/stride, W/stride)."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.depthwise = ConvUnit(in_channels, in_channels, 3, stride=stride, groups=in_channels, padding=1, norm=False)
        self.pointwise = ConvUnit(in_channels, channels, norm=False)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return the block's output (B, C', H', W')."""
        y: Tensor = self.pointwise(self.depthwise(x_BCHW))
        return y


def build_sface(spec: FaceInputSpec) -> Backbone:
    """Return SFace with folded BatchNorm.

    Stages `stem`, `block1` ... `block13`, `embedding`. Parameters for 128-d at 112x112: 9,629,632, of which the FC has
    6,422,656. Phones train 545,280 by default, on 512x14x14 features.
    """
    stages: dict[str, nn.Module] = {"stem": ConvUnit(3, STEM_CHANNELS, 3, padding=1, norm=False)}
    previous = STEM_CHANNELS
    for i, (channels, stride) in enumerate(BLOCKS, start=1):
        stages[f"block{i}"] = SeparableBlock(previous, channels, stride)
        previous = channels
    stages["embedding"] = EmbeddingHead(previous, (reduced(spec.height, 4), reduced(spec.width, 4)), spec.dim)
    backbone = Backbone("sface", spec, stages, DEFAULT_TRAINABLE)
    init_he(backbone)
    return backbone
