"""The two building blocks of all families: a convolution with its norm and activation, and the embedding head."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

Activation = Literal["prelu", "relu"]


class ConvUnit(nn.Module):
    """Convolution, then BatchNorm and activation where asked for: (B, C, H, W) -> (B, C', H', W').

    Without BatchNorm the convolution has a bias unless `bias=False`. `same_padding` gives TensorFlow's "SAME" rule for
    a stride-2 kernel of 3 on an even size: one row of zeros below and right, none above and left.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int | tuple[int, int] = 1,
        *,
        stride: int = 1,
        groups: int = 1,
        padding: int = 0,
        norm: bool = True,
        bias: bool | None = None,
        act: Activation | None = "prelu",
        same_padding: bool = False,
    ) -> None:
        super().__init__()
        # "SAME" starts its windows at pixel 0. Padding by 2 starts them at -2, 0, ...; dropping the first row and
        # column of the result leaves exactly those from 0 on. A pad of its own would have a negative pad as its
        # backward pass, which ExecuTorch refuses.
        self.drop_first = same_padding and stride == 2
        self.conv = nn.Conv2d(
            in_channels,
            out_channels,
            kernel,
            stride=stride,
            padding=2 if self.drop_first else padding,
            groups=groups,
            bias=not norm if bias is None else bias,
        )
        self.norm = nn.BatchNorm2d(out_channels) if norm else None
        self.act: nn.Module | None = None
        if act is not None:
            self.act = nn.PReLU(out_channels) if act == "prelu" else nn.ReLU()

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return the unit's output (B, C', H', W')."""
        y: Tensor = self.conv(x_BCHW)
        if self.drop_first:
            y = y[:, :, 1:, 1:]
        if self.norm is not None:
            y = self.norm(y)
        return y if self.act is None else self.act(y)

    @torch.no_grad()
    def fold(self) -> None:
        """Absorb the BatchNorm's running statistics into the convolution, which then has a bias."""
        if self.norm is None:
            return
        scale, shift = affine_of(self.norm)
        conv = self.conv
        bias = torch.zeros(conv.out_channels, dtype=torch.float64) if conv.bias is None else conv.bias.double()
        weight = conv.weight.double() * scale.reshape(-1, 1, 1, 1)
        conv.weight = nn.Parameter(weight.to(conv.weight.dtype))
        conv.bias = nn.Parameter((bias * scale + shift).to(conv.weight.dtype))
        self.norm = None


class EmbeddingHead(nn.Module):
    """Flatten a feature map and map it linearly to the embedding: (B, C, H, W) -> (B, D).

    `map_norm` is BatchNorm on the map before it, `norm` BatchNorm on the embedding after it (ArcFace's "E" output).
    """

    def __init__(
        self,
        channels: int,
        size: tuple[int, int],
        dim: int,
        *,
        map_norm: bool = False,
        norm: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.map_norm = nn.BatchNorm2d(channels) if map_norm else None
        self.fc = nn.Linear(channels * size[0] * size[1], dim, bias=bias)
        self.norm = nn.BatchNorm1d(dim) if norm else None

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return the embedding (B, D)."""
        if self.map_norm is not None:
            x_BCHW = self.map_norm(x_BCHW)
        emb_BD: Tensor = self.fc(x_BCHW.flatten(1))
        return emb_BD if self.norm is None else self.norm(emb_BD)

    @torch.no_grad()
    def fold(self) -> None:
        """Absorb both BatchNorms' running statistics into the linear map, which then has a bias."""
        weight = self.fc.weight.double()
        bias = torch.zeros(self.fc.out_features, dtype=torch.float64)
        if self.fc.bias is not None:
            bias = self.fc.bias.double()
        if self.map_norm is not None:
            scale, shift = affine_of(self.map_norm)
            pixels = self.fc.in_features // scale.numel()
            bias = bias + weight @ shift.repeat_interleave(pixels)
            weight = weight * scale.repeat_interleave(pixels)
        if self.norm is not None:
            scale, shift = affine_of(self.norm)
            weight, bias = weight * scale[:, None], bias * scale + shift
        if self.map_norm is not None or self.norm is not None:
            self.fc.weight = nn.Parameter(weight.to(self.fc.weight.dtype))
            self.fc.bias = nn.Parameter(bias.to(self.fc.weight.dtype))
            self.map_norm = self.norm = None


def affine_of(norm: nn.BatchNorm1d | nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Return (scale, shift) in float64 such that a BatchNorm in eval mode is `scale * x + shift` per channel."""
    mean, var = norm.running_mean, norm.running_var
    if mean is None or var is None:
        raise TypeError("a BatchNorm without running statistics is no affine map")
    scale = norm.weight.double() / torch.sqrt(var.double() + norm.eps)
    return scale, norm.bias.double() - mean.double() * scale


def reduced(size: int, times: int) -> int:
    """Return an image side after `times` stride-2 convolutions of odd kernel and half padding."""
    for _ in range(times):
        size = -(-size // 2)
    return size


def init_he(module: nn.Module) -> None:
    """Draw convolution and linear weights from He's normal distribution over the inputs of one output, biases 0.

    Fan-in, because it knows of groups and keeps the forward signal alive through nets without BatchNorm.
    """
    for part in module.modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(part.weight, mode="fan_in", nonlinearity="relu")
            if part.bias is not None:
                nn.init.zeros_(part.bias)
