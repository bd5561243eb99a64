"""Rewriting of a training step into operators that ExecuTorch runs fast: its convolutions are plain loops.

`table()` is for `make_fx`, `rewrites.keep_turned` and `products_of_rows` for what comes of it. Convolutions, forwards
and backwards, become matrix products and shifted sums. They work on maps whose channels come first, then the batch:
each channel is then one row, a product needs no copy of a map, and what works on channels is the one kind of broadcast
that ExecuTorch's kernels are fast at. Each rule turns what it takes and what it gives; between rules both cancel.

Suffixes of tensors: B batch, C input channels, O output channels, H and W a map's sides, P its pixels over the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.fx import GraphModule

from device_sdk.export import decompositions
from device_sdk.export.decompositions import Convolution, Pair, Table, aten, is_pointwise, windows
from device_sdk.export.rewrites import TURN, untransposed
from mien.errors import ConfigError

_STEEP: Final = -1e30
"""Times any number above 0, this is below -1: so that `_is_negative` gives 0 there."""


def table() -> Table:
    """Return the rules by operator: those of `decompositions`, and ours for what ExecuTorch has slow kernels for."""
    return dict(decompositions.table()) | {
        aten.convolution.default: convolution,
        aten.convolution_backward.default: convolution_backward,
        aten._prelu_kernel.default: prelu,
        aten._prelu_kernel_backward.default: prelu_backward,
        aten.threshold_backward.default: threshold_backward,
    }


def products_of_rows(module: GraphModule) -> None:
    """Write each a bᵀ as the linear layer that it is: its kernel takes b as it lies, where a product would copy it."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in (aten.mm.default, aten.addmm.default):
            continue
        *bias, a, b = node.args
        b, turned = untransposed(b)
        if not turned:
            node.args = (*bias, a, b)
            continue
        with graph.inserting_before(node):
            product = graph.call_function(aten.linear.default, (a, b, *bias))
        node.replace_all_uses_with(product)
    graph.eliminate_dead_code()
    module.recompile()


# --- convolutions ---


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> Tensor:
    """Return a dense or depthwise convolution's result (B, O, H', W'); `how` is as `Convolution` takes it."""
    at = Convolution(x, weight, *how)
    x_CBHW = _turned(x)
    if at.is_global:
        pixels = weight[0].numel()
        y = torch.bmm(x_CBHW.reshape(len(weight), -1, pixels), weight.reshape(-1, pixels, 1)).unsqueeze(-1)
    else:
        y = (_depthwise if at.groups > 1 else _dense)(x_CBHW, weight, at.stride, at.padding)
    return _turned(y if bias is None else _shifted(y, bias))


def convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, _bias_sizes: Sequence[int] | None, *how: Any
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of input, weight and bias, where the last of `how` asks for them; see `Convolution`."""
    *rest, output_mask = how
    at = Convolution(x, weight, *rest)
    grad_OBHW, x_CBHW = _turned(grad), _turned(x)
    if at.is_global:
        of_input, of_weight = _global_gradients(grad_OBHW, x_CBHW, weight, output_mask)
    else:
        of_input = _input_gradient(grad_OBHW, x_CBHW, weight, at) if output_mask[0] else None
        of_weight = _weight_gradient(grad_OBHW, x_CBHW, weight, at) if output_mask[1] else None
    of_bias = _channel_sums(grad_OBHW) if output_mask[2] else None
    return None if of_input is None else _turned(of_input), of_weight, of_bias


def _output(x: Tensor, kernel: Pair, stride: Pair, padding: Pair) -> list[int]:
    return [(size + 2 * p - k) // s + 1 for size, k, s, p in zip(x.shape[2:], kernel, stride, padding, strict=True)]


def _depthwise(x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    kernel = weight.shape[2], weight.shape[3]
    total: Tensor | None = None
    for i, window in enumerate(windows(x, kernel, stride, padding, _output(x, kernel, stride, padding))):
        term = _scaled(window, weight[:, 0, i // kernel[1], i % kernel[1]])
        total = term if total is None else total + term
    assert total is not None
    return total


def _dense(x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    if is_pointwise(weight, stride, padding):
        return _product(weight.reshape(weight.shape[:2]), x)
    kernel = weight.shape[2], weight.shape[3]
    columns = torch.cat(list(windows(x, kernel, stride, padding, _output(x, kernel, stride, padding))), 0)
    return _product(weight.permute(0, 2, 3, 1).reshape(weight.shape[0], -1), columns)


def _product(weight_OC: Tensor, x: Tensor) -> Tensor:
    """Return the weight times each pixel's channels: (O, B, H, W)."""
    return torch.mm(weight_OC, _rows_of(x)).reshape(len(weight_OC), *x.shape[1:])


def _outer(grad: Tensor, x: Tensor) -> Tensor:
    """Return the sum over images and pixels of gradient times channel: (O, C)."""
    return torch.mm(_rows_of(grad), _rows_of(x).permute(1, 0))


def _input_gradient(grad: Tensor, x: Tensor, weight: Tensor, at: Convolution) -> Tensor:
    """Return the correlation of the spread gradient with the turned kernel: (C, B, H, W)."""
    if at.is_pointwise:
        return _product(weight.reshape(weight.shape[:2]).permute(1, 0), grad)
    pads = at.kernel[0] - 1 - at.padding[0], at.kernel[1] - 1 - at.padding[1]
    spread = _spread(grad, at.stride)
    # What the forward pass left over at the end of a row or column got no gradient.
    wanted = [size + k - 1 - 2 * p for size, k, p in zip(x.shape[2:], at.kernel, pads, strict=True)]
    spread = spread[:, :, : min(wanted[0], spread.shape[2]), : min(wanted[1], spread.shape[3])]
    missing = [w - s for w, s in zip(wanted, spread.shape[2:], strict=True)]
    if any(missing):
        spread = aten.constant_pad_nd(spread, [0, missing[1], 0, missing[0]], 0.0)
    turned = weight.flip([2, 3])
    if at.groups > 1:
        return _depthwise(spread, turned, (1, 1), pads)
    return _dense(spread, turned.permute(1, 0, 2, 3), (1, 1), pads)


def _spread(grad: Tensor, stride: Pair) -> Tensor:
    """Return the gradient with stride - 1 zeros after each row and column."""
    channels, batch, height, width = grad.shape
    if stride[1] > 1:
        zeros = torch.zeros_like(grad)
        grad = torch.stack([grad, *[zeros] * (stride[1] - 1)], -1).reshape(channels, batch, height, width * stride[1])
    if stride[0] > 1:
        zeros = torch.zeros_like(grad)
        grad = torch.stack([grad, *[zeros] * (stride[0] - 1)], 3).reshape(channels, batch, height * stride[0], -1)
    return grad


def _weight_gradient(grad: Tensor, x: Tensor, weight: Tensor, at: Convolution) -> Tensor:
    """Return the gradient (O, C / groups, kh, kw) of the weight."""
    if at.is_pointwise:
        return _outer(grad, x).reshape(weight.shape)
    met = windows(x, at.kernel, at.stride, at.padding, grad.shape[2:])
    if at.groups > 1:
        return torch.stack([_channel_sums(grad * window) for window in met], -1).reshape(weight.shape)
    outer = _outer(grad, torch.cat(list(met), 0))
    return outer.reshape(weight.shape[0], *at.kernel, x.shape[0]).permute(0, 3, 1, 2)


def _global_gradients(
    grad: Tensor, x: Tensor, weight: Tensor, mask: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    channels, pixels = len(weight), weight[0].numel()
    of_input = torch.bmm(grad.reshape(channels, -1, 1), weight.reshape(channels, 1, pixels)).reshape(x.shape)
    of_weight = torch.bmm(grad.reshape(channels, 1, -1), x.reshape(channels, -1, pixels)).reshape(weight.shape)
    return of_input if mask[0] else None, of_weight if mask[1] else None


# --- channels ---


def prelu(x: Tensor, weight: Tensor) -> Tensor:
    """Return relu(x) - weight relu(-x); `weight` comes shaped for broadcasting."""
    x_CBHW = _turned(x)
    return _turned(torch.relu(x_CBHW) - _weighted(torch.relu(-x_CBHW), weight))


def prelu_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of input and weight, the latter before its sum over images and pixels."""
    grad_CBHW, x_CBHW = _turned(grad), _turned(x)
    where_negative = grad_CBHW * _is_negative(x_CBHW)
    of_input = (grad_CBHW - where_negative) + _weighted(where_negative, weight)
    return _turned(of_input), _turned(-(grad_CBHW * torch.relu(-x_CBHW)))


def threshold_backward(grad: Tensor, x: Tensor, threshold: float) -> Tensor:
    """Return a ReLU's gradient: `grad` where x is above 0."""
    if threshold:
        raise ConfigError("a step can hold thresholds at 0 only; change the backbone")
    return grad - grad * _is_negative(x)


def _is_negative(x: Tensor) -> Tensor:
    """Return 1 where x <= 0 and else 0, as numbers: ExecuTorch compares and selects one by one, ten times as slowly."""
    return torch.relu(torch.relu(x) * _STEEP + 1.0)


def _turned(x: Tensor) -> Tensor:
    """Return (B, C, H, W) as (C, B, H, W), and the other way round."""
    return x.permute(TURN).contiguous()


def _weighted(x: Tensor, weight: Tensor) -> Tensor:
    return _scaled(x, weight) if weight.numel() > 1 else x * weight.reshape(1, 1, 1, 1)


def _scaled(x: Tensor, by_C: Tensor) -> Tensor:
    return (_rows_of(x) * by_C.reshape(-1, 1)).reshape(x.shape)


def _shifted(x: Tensor, by_C: Tensor) -> Tensor:
    return (_rows_of(x) + by_C.reshape(-1, 1)).reshape(x.shape)


def _rows_of(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], -1)


def _channel_sums(x: Tensor) -> Tensor:
    """Return the sum over images and pixels: (C,)."""
    return _rows_of(x).sum(1)
