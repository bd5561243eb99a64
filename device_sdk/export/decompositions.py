"""Decompositions of a training step's operators into ones that every inference runtime has.

`table()` is for `make_fx`. Formulas of convolution's backward pass are Conv, MatMul and sums, no attribute of them
holds the batch size, and none needs a gradient operator. Each is checked against autograd in float64 by the tests.

Suffixes of tensors: B batch, C input channels, O output channels, H and W a map's sides, P its pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, get_decompositions

from mien.errors import ConfigError

aten: Final = torch.ops.aten
Table = Mapping[Any, Callable[..., Any]]
Pair = tuple[int, int]


@cache
def table() -> Table:
    """Return the rules by operator: PyTorch's for core operators, and ours where those would not do.

    Made once: PyTorch looks through all its operators for its own.
    """
    rules: dict[Any, Callable[..., Any]] = dict(core_aten_decompositions())
    rules.update(
        get_decompositions(
            [
                aten.t,
                aten.threshold_backward,
                aten._log_softmax,
                aten._log_softmax_backward_data,
                aten.linalg_vector_norm,
            ]
        )
    )
    # These stay whole: runtimes have them, and what they would become loses digits or time.
    for kept in (aten.softplus.default, aten.sigmoid.default, aten.clamp_min.default):
        rules.pop(kept, None)
    rules |= {
        aten.convolution_backward.default: convolution_backward,
        aten._prelu_kernel.default: prelu,
        aten._prelu_kernel_backward.default: prelu_backward,
        aten.softplus_backward.default: softplus_backward,
        aten.slice_backward.default: slice_backward,
        aten.select_backward.default: select_backward,
        aten.avg_pool2d_backward.default: avg_pool2d_backward,
    }
    return MappingProxyType(rules)


def convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, _bias_sizes: Sequence[int] | None, *how: Any
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of input, weight and bias, where the last of `how` asks for them; see `Convolution`."""
    *rest, output_mask = how
    at = Convolution(x, weight, *rest)
    return (
        _input_gradient(grad, x, weight, at) if output_mask[0] else None,
        _weight_gradient(grad, x, weight, at) if output_mask[1] else None,
        grad.sum((0, 2, 3)) if output_mask[2] else None,
    )


class Convolution:
    """A convolution that a step can hold: dense, or depthwise where `groups` is above 1.

    `is_global` tells of a depthwise kernel of the whole map's size: a sum of products, no convolution.
    """

    def __init__(
        self,
        x: Tensor,
        weight: Tensor,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        _output_padding: Sequence[int],
        groups: int,
    ) -> None:
        """Take what `aten.convolution` takes; raises ConfigError for what a step cannot hold."""
        depthwise = groups == x.shape[1] == len(weight)
        if transposed or tuple(dilation) != (1, 1) or (groups != 1 and not depthwise):
            raise ConfigError("a step can hold dense and depthwise convolutions without dilation; change the backbone")
        self.kernel: Pair = weight.shape[2], weight.shape[3]
        self.stride: Pair = stride[0], stride[-1]
        self.padding: Pair = padding[0], padding[-1]
        self.groups = groups
        self.is_pointwise = groups == 1 and is_pointwise(weight, self.stride, self.padding)
        self.is_global = groups > 1 and self.kernel == tuple(x.shape[2:]) and not any(self.padding)


def is_pointwise(weight: Tensor, stride: Pair, padding: Pair) -> bool:
    """Return whether a dense convolution is a matrix product with each pixel's channels."""
    return (*weight.shape[2:], *stride, *padding) == (1, 1, 1, 1, 0, 0)


def windows(x: Tensor, kernel: Pair, stride: Pair, padding: Pair, out: Sequence[int]) -> Iterator[Tensor]:
    """Yield, for each element of the kernel, the pixels that it meets, as many as the output (height, width) has."""
    (ph, pw), (sh, sw) = padding, stride
    padded = aten.constant_pad_nd(x, [pw, pw, ph, ph], 0.0) if ph or pw else x
    for row in range(kernel[0]):
        for column in range(kernel[1]):
            yield padded[:, :, row : row + (out[0] - 1) * sh + 1 : sh, column : column + (out[1] - 1) * sw + 1 : sw]


def _input_gradient(grad: Tensor, x: Tensor, weight: Tensor, at: Convolution) -> Tensor:
    """Return the gradient (B, C, H, W) of the input."""
    if at.is_pointwise:
        return torch.convolution(grad, weight.permute(1, 0, 2, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    if at.is_global:
        return grad * weight.permute(1, 0, 2, 3)
    if at.stride == (1, 1) and at.groups > 1:
        # Correlation with the turned kernel: runtimes have fast depthwise convolutions, slow transposed ones.
        padding = [k - 1 - p for k, p in zip(at.kernel, at.padding, strict=True)]
        return torch.convolution(grad, weight.flip([2, 3]), None, [1, 1], padding, [1, 1], False, [0, 0], at.groups)
    missing = [
        side - ((out - 1) * s - 2 * p + k)
        for side, out, s, p, k in zip(x.shape[2:], grad.shape[2:], at.stride, at.padding, at.kernel, strict=True)
    ]
    return torch.convolution(grad, weight, None, list(at.stride), list(at.padding), [1, 1], True, missing, at.groups)


def _weight_gradient(grad: Tensor, x: Tensor, weight: Tensor, at: Convolution) -> Tensor:
    """Return the gradient (O, C / groups, kh, kw) of the weight."""
    if at.is_pointwise:
        return _outer(grad, x).reshape(weight.shape)
    if at.is_global:
        return (grad * x).sum(0).reshape(weight.shape)
    # One window after the other: all at once would be nine maps.
    met = windows(x, at.kernel, at.stride, at.padding, grad.shape[2:])
    if at.groups > 1:
        return torch.stack([(grad * window).sum((0, 2, 3)) for window in met], -1).reshape(weight.shape)
    return torch.stack([_outer(grad, window) for window in met], -1).reshape(weight.shape)


def _outer(grad: Tensor, x: Tensor) -> Tensor:
    """Return the sum over images of grad (O, P) times x (C, P) transposed: (O, C)."""
    grad_BOP, x_BCP = grad.flatten(2), x.flatten(2)
    return torch.matmul(grad_BOP, x_BCP.transpose(1, 2)).sum(0)


def prelu(x: Tensor, weight: Tensor) -> Tensor:
    """Return relu(x) - weight relu(-x); `weight` comes shaped for broadcasting."""
    return torch.relu(x) - weight * torch.relu(-x)


def prelu_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of input and weight, the latter before its sum over images and pixels."""
    return grad * torch.where(x > 0, torch.scalar_tensor(1.0), weight), grad * -torch.relu(-x)


def softplus_backward(grad: Tensor, x: Tensor, beta: float, threshold: float) -> Tensor:
    """Return grad sigmoid(beta x), which is `grad` in float32 beyond the threshold of 20 that torch takes."""
    return grad * torch.sigmoid(x * beta)


def slice_backward(grad: Tensor, input_sizes: Sequence[int], dim: int, start: int, end: int, step: int) -> Tensor:
    """Return the gradient with zeros where nothing was taken."""
    if step != 1:
        raise ConfigError("a step can hold slices of stride 1 only; change the backbone or objective")
    size, ndim = input_sizes[dim], len(input_sizes)
    first = start if start >= 0 else start + size
    padding = [0] * (2 * ndim)
    padding[2 * (ndim - 1 - dim % ndim)] = first
    padding[2 * (ndim - 1 - dim % ndim) + 1] = size - first - grad.shape[dim]
    padded: Tensor = aten.constant_pad_nd(grad, padding, 0.0)
    return padded


def select_backward(grad: Tensor, input_sizes: Sequence[int], dim: int, index: int) -> Tensor:
    """Return the gradient with zeros where nothing was selected."""
    return slice_backward(grad.unsqueeze(dim), input_sizes, dim, index, index + 1, 1)


def avg_pool2d_backward(
    grad: Tensor,
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    """Return the gradient of a pool whose windows tile the map."""
    kh, kw = kernel_size[0], kernel_size[-1]
    batch, channels, height, width = grad.shape
    if (
        tuple(stride or kernel_size) != tuple(kernel_size)
        or any(padding)
        or (height * kh, width * kw) != tuple(x.shape[2:])
        or divisor_override is not None
    ):
        raise ConfigError("a step can hold pools whose windows tile the map; change the backbone")
    spread = grad.reshape(batch, channels, height, 1, width, 1).expand(batch, channels, height, kh, width, kw)
    return spread.reshape(x.shape) / (kh * kw)
