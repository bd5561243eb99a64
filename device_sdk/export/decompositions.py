"""Decompositions of a training step's operators into ones that every inference runtime has.

`table()` is for `make_fx`. Formulas of convolution's backward pass are Conv, MatMul and sums, no attribute of them
holds the batch size, and none needs a gradient operator. Each is checked against autograd in float64 by the tests.

Suffixes of tensors: B batch, C input channels, O output channels, H and W a map's sides, P its pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, get_decompositions

from mien.errors import ConfigError

aten: Final = torch.ops.aten
Table = dict[Any, Callable[..., Any]]


def table() -> Table:
    """Return the rules by operator: PyTorch's for core operators, and ours where those would not do."""
    rules: Table = dict(core_aten_decompositions())
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
    return rules | {
        aten.convolution_backward.default: convolution_backward,
        aten._prelu_kernel.default: prelu,
        aten._prelu_kernel_backward.default: prelu_backward,
        aten.softplus_backward.default: softplus_backward,
        aten.slice_backward.default: slice_backward,
        aten.select_backward.default: select_backward,
        aten.avg_pool2d_backward.default: avg_pool2d_backward,
    }


def convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of input, weight and bias, where `output_mask` asks for them."""
    channels = x.shape[1]
    if transposed or tuple(dilation) != (1, 1) or groups not in (1, channels) or (groups > 1 and len(weight) != groups):
        raise ConfigError("a step can hold dense and depthwise convolutions without dilation; change the backbone")
    shape = _Convolution(weight.shape[2:], tuple(stride), tuple(padding), groups)
    return (
        shape.input_gradient(grad, x, weight) if output_mask[0] else None,
        shape.weight_gradient(grad, x, weight) if output_mask[1] else None,
        grad.sum((0, 2, 3)) if output_mask[2] else None,
    )


class _Convolution:
    """One convolution's backward pass; `groups` above 1 means depthwise."""

    def __init__(self, kernel: Sequence[int], stride: tuple[int, ...], padding: tuple[int, ...], groups: int) -> None:
        self.kernel = tuple(kernel)
        self.stride = stride
        self.padding = padding
        self.groups = groups
        self.is_plain = stride == (1, 1) and padding == (0, 0)

    def input_gradient(self, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient (B, C, H, W) of the input."""
        if self._is_pointwise:
            return torch.convolution(grad, weight.permute(1, 0, 2, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        if self._is_global(x):
            return grad * weight.permute(1, 0, 2, 3)
        if self.stride == (1, 1) and self.groups > 1:
            # Correlation with the turned kernel: runtimes have fast depthwise convolutions, slow transposed ones.
            padding = [k - 1 - p for k, p in zip(self.kernel, self.padding, strict=True)]
            return torch.convolution(
                grad, weight.flip([2, 3]), None, [1, 1], padding, [1, 1], False, [0, 0], self.groups
            )
        missing = [
            side - ((out - 1) * s - 2 * p + k)
            for side, out, s, p, k in zip(
                x.shape[2:], grad.shape[2:], self.stride, self.padding, self.kernel, strict=True
            )
        ]
        return torch.convolution(
            grad, weight, None, list(self.stride), list(self.padding), [1, 1], True, missing, self.groups
        )

    def weight_gradient(self, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient (O, C / groups, kh, kw) of the weight."""
        if self._is_pointwise:
            return _outer(grad, x).reshape(weight.shape)
        if self._is_global(x):
            return (grad * x).sum(0).reshape(weight.shape)
        ph, pw = self.padding
        padded = aten.constant_pad_nd(x, [pw, pw, ph, ph], 0.0) if ph or pw else x
        # One window after the other: all at once would be nine maps.
        windows = (self._window(padded, grad, i, j) for i in range(self.kernel[0]) for j in range(self.kernel[1]))
        if self.groups > 1:
            columns = [(grad * window).sum((0, 2, 3)) for window in windows]
            return torch.stack(columns, -1).reshape(weight.shape)
        return torch.stack([_outer(grad, window) for window in windows], -1).reshape(weight.shape)

    @property
    def _is_pointwise(self) -> bool:
        return self.kernel == (1, 1) and self.is_plain and self.groups == 1

    def _is_global(self, x: Tensor) -> bool:
        """Return whether this is a depthwise kernel of the whole map's size: a sum of products, no convolution."""
        return self.groups > 1 and self.is_plain and self.kernel == tuple(x.shape[2:])

    def _window(self, padded: Tensor, grad: Tensor, row: int, column: int) -> Tensor:
        """Return the pixels that the kernel's element (row, column) meets: (B, C, H', W') as the output."""
        (height, width), (sh, sw) = grad.shape[2:], self.stride
        return padded[:, :, row : row + (height - 1) * sh + 1 : sh, column : column + (width - 1) * sw + 1 : sw]


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
