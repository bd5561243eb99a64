"""MobileFaceNet, and the 192-d variant that a public TFLite file holds.

Source: Chen et al., "MobileFaceNets: Efficient CNNs for Accurate Real-Time Face Verification on Mobile Devices" (2018),
Table 1: inverted residuals with PReLU and a global depthwise convolution in place of a pool.
"""

from __future__ import annotations

from typing import Final

from torch import Tensor, nn

from mien.backbones._base import Backbone
from mien.backbones._units import ConvUnit, EmbeddingHead, init_he, reduced
from mien.errors import ConfigError
from mien.specs import FaceInputSpec

# (expanded channels, output channels, stride) of each bottleneck, in order.
BOTTLENECKS: Final = (
    (128, 64, 2),
    *[(128, 64, 1)] * 4,
    (256, 128, 2),
    *[(256, 128, 1)] * 6,
    (512, 128, 2),
    *[(256, 128, 1)] * 2,
)
HEAD_CHANNELS: Final = 512
# The last two bottlenecks and the head without its linear maps: what phones train and send unless a task says more.
DEFAULT_TRAINABLE: Final = ("block14.*", "block15.*", "head.*", "gdconv.*")


class Bottleneck(nn.Module):
    """Inverted residual, 1x1 expand - 3x3 depthwise - 1x1 project: (B, C, H, W) -> (B, C', H/stride, W/stride)."""

    def __init__(
        self, in_channels: int, expanded: int, channels: int, stride: int, *, norm: bool, same_padding: bool
    ) -> None:
        super().__init__()
        self.expand = ConvUnit(in_channels, expanded, norm=norm)
        self.depthwise = ConvUnit(
            expanded, expanded, 3, stride=stride, groups=expanded, padding=1, norm=norm, same_padding=same_padding
        )
        self.project = ConvUnit(expanded, channels, act=None, norm=norm)
        self.is_residual = stride == 1 and in_channels == channels

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return the bottleneck's output (B, C', H', W')."""
        y: Tensor = self.project(self.depthwise(self.expand(x_BCHW)))
        return x_BCHW + y if self.is_residual else y


def build_mobilefacenet(spec: FaceInputSpec, *, folded: bool = False) -> Backbone:
    """Return MobileFaceNet; `folded` builds it without BatchNorm, the form that phones train.

    Stages `stem`, `stem_depthwise`, `block1` ... `block15`, `head`, `gdconv`, `embedding`. Parameters for 128-d at
    112x112: 1,003,136 with BatchNorm, 993,344 folded. Phones train 230,144 of the folded ones by default.
    """
    norm = not folded
    stages = _stem(norm=norm, same_padding=False) | _blocks(norm=norm, same_padding=False)
    stages |= _head(spec, norm=norm)
    stages["embedding"] = EmbeddingHead(HEAD_CHANNELS, (1, 1), spec.dim, norm=norm, bias=folded)
    backbone = Backbone("mobilefacenet_folded" if folded else "mobilefacenet", spec, stages, DEFAULT_TRAINABLE)
    init_he(backbone)
    return backbone


def build_mobilefacenet192(spec: FaceInputSpec) -> Backbone:
    """Return the 192-d MobileFaceNet of the public TFLite file, BatchNorm folded (see `known_models`).

    It differs from the paper's: a 1x1 convolution after the depthwise stem and after the global one, and
    TensorFlow's "SAME" padding. 1,292,992 parameters; phones train 230,144 by default, on 128x7x7 features.
    """
    if spec.dim != 192 or spec.width != 112:
        raise ConfigError(
            f"mobilefacenet192 gives 192 numbers from 112x112 crops, not {spec.dim} from {spec.width}x{spec.height}; "
            "use mobilefacenet for other sizes"
        )
    stages = _stem(norm=False, same_padding=True)
    stages["stem_pointwise"] = ConvUnit(64, 64, act=None, norm=False)
    stages |= _blocks(norm=False, same_padding=True) | _head(spec, norm=False)
    stages["gdconv_pointwise"] = ConvUnit(HEAD_CHANNELS, HEAD_CHANNELS, act=None, norm=False)
    stages["embedding"] = EmbeddingHead(HEAD_CHANNELS, (1, 1), spec.dim)
    backbone = Backbone("mobilefacenet192", spec, stages, DEFAULT_TRAINABLE)
    init_he(backbone)
    return backbone


def _stem(*, norm: bool, same_padding: bool) -> dict[str, nn.Module]:
    return {
        "stem": ConvUnit(3, 64, 3, stride=2, padding=1, norm=norm, same_padding=same_padding),
        "stem_depthwise": ConvUnit(64, 64, 3, groups=64, padding=1, norm=norm),
    }


def _blocks(*, norm: bool, same_padding: bool) -> dict[str, nn.Module]:
    blocks: dict[str, nn.Module] = {}
    previous = 64
    for i, (expanded, channels, stride) in enumerate(BOTTLENECKS, start=1):
        blocks[f"block{i}"] = Bottleneck(previous, expanded, channels, stride, norm=norm, same_padding=same_padding)
        previous = channels
    return blocks


def _head(spec: FaceInputSpec, *, norm: bool) -> dict[str, nn.Module]:
    size = (reduced(spec.height, 4), reduced(spec.width, 4))
    return {
        "head": ConvUnit(BOTTLENECKS[-1][1], HEAD_CHANNELS, norm=norm),
        "gdconv": ConvUnit(HEAD_CHANNELS, HEAD_CHANNELS, size, groups=HEAD_CHANNELS, act=None, norm=norm),
    }
