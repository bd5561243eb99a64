"""How a training step becomes operators that ExecuTorch runs fast, where its convolutions are plain loops.

`table()` is for `make_fx`. Convolutions, forwards and backwards, become matrix products and shifted sums; what works on
channels is written over rows of pixels, the one kind of broadcast that its kernels are fast at. Products take weights
as they lie in memory: copying them, transposed or once an image, costs more than the products themselves.

Suffixes of tensors: B batch, C input channels, O output channels, H and W a map's sides, P its pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from device_sdk.export import decompositions
from device_sdk.export.decompositions import Table, aten
from mien.errors import ConfigError

_PERMUTES: Final = (aten.permute.default, aten.transpose.int, aten.t.default)
Pair = tuple[int, int]


def table() -> Table:
    """Return the rules by operator: those of `decompositions`, and ours for what ExecuTorch has slow kernels for."""
    return decompositions.table() | {
        aten.convolution.default: convolution,
        aten.convolution_backward.default: convolution_backward,
        aten._prelu_kernel.default: prelu,
        aten._prelu_kernel_backward.default: prelu_backward,
    }


def without_transposed_weights(module: GraphModule) -> None:
    """Rewrite a Wᵀ as (W aᵀ)ᵀ where W is the larger matrix: a linear layer's weights are then never copied."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in (aten.mm.default, aten.addmm.default):
            continue
        a, b = node.args[-2:]
        turned = 0
        while _is_transposed(b):
            b, turned = b.args[0], 1 - turned
        if not turned or not isinstance(b.meta["val"].shape[0], int):
            node.args = (*node.args[:-1], node.args[-1] if turned else b)
            continue
        with graph.inserting_before(node):
            product = graph.call_function(aten.mm.default, (b, graph.call_function(aten.permute.default, (a, [1, 0]))))
            back = graph.call_function(aten.permute.default, (product, [1, 0]))
            result = graph.call_function(aten.clone.default, (back,), {"memory_format": torch.contiguous_format})
            if node.target is aten.addmm.default:
                result = graph.call_function(aten.add.Tensor, (result, node.args[0]))
        node.replace_all_uses_with(result)
    graph.eliminate_dead_code()
    module.recompile()


def _is_transposed(node: Any) -> bool:
    return isinstance(node, Node) and node.target in _PERMUTES and node.meta["val"].dim() == 2


# --- convolutions ---


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """Return a dense or depthwise convolution's result (B, O, H', W')."""
    _check(weight, x, dilation, transposed, groups)
    batch, channels = x.shape[:2]
    if groups > 1 and _is_global(x, weight, padding):
        products = x.reshape(batch, -1) * weight.reshape(1, -1)
        y = products.reshape(batch * channels, -1).sum(1).reshape(batch, channels, 1, 1)
    elif groups > 1:
        y = _depthwise(x, weight, _pair(stride), _pair(padding))
    else:
        y = _dense(x, weight, _pair(stride), _pair(padding))
    return y if bias is None else _shifted(y, bias)


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
    _check(weight, x, dilation, transposed, groups)
    steps, pads = _pair(stride), _pair(padding)
    if groups > 1 and _is_global(x, weight, padding):
        of_input, of_weight = _global_gradients(grad, x, weight, output_mask)
    else:
        of_input = _input_gradient(grad, x, weight, steps, pads, groups) if output_mask[0] else None
        of_weight = _weight_gradient(grad, x, weight, steps, pads, groups) if output_mask[1] else None
    return of_input, of_weight, _channel_sums(grad) if output_mask[2] else None


def _check(weight: Tensor, x: Tensor, dilation: Sequence[int], transposed: bool, groups: int) -> None:
    depthwise = groups == x.shape[1] == weight.shape[0]
    if transposed or tuple(dilation) != (1, 1) or (groups != 1 and not depthwise):
        raise ConfigError("a step can hold dense and depthwise convolutions without dilation; change the backbone")


def _pair(values: Sequence[int]) -> Pair:
    return values[0], values[-1]


def _is_pointwise(weight: Tensor, stride: Pair, padding: Pair) -> bool:
    return (*weight.shape[2:], *stride, *padding) == (1, 1, 1, 1, 0, 0)


def _is_global(x: Tensor, weight: Tensor, padding: Sequence[int]) -> bool:
    """Return whether a depthwise kernel covers the whole map: a sum of products, no convolution."""
    return tuple(weight.shape[2:]) == tuple(x.shape[2:]) and not any(padding)


def _windows(x: Tensor, kernel: Pair, stride: Pair, padding: Pair, out: Sequence[int]) -> Iterator[Tensor]:
    """Yield, for each element of the kernel, the pixels that it meets: (B, C, H', W')."""
    (ph, pw), (sh, sw) = padding, stride
    padded = aten.constant_pad_nd(x, [pw, pw, ph, ph], 0.0) if ph or pw else x
    for row in range(kernel[0]):
        for column in range(kernel[1]):
            yield padded[:, :, row : row + (out[0] - 1) * sh + 1 : sh, column : column + (out[1] - 1) * sw + 1 : sw]


def _output(x: Tensor, kernel: Pair, stride: Pair, padding: Pair) -> list[int]:
    return [(size + 2 * p - k) // s + 1 for size, k, s, p in zip(x.shape[2:], kernel, stride, padding, strict=True)]


def _depthwise(x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    kernel = _pair(weight.shape[2:])
    total: Tensor | None = None
    for i, window in enumerate(_windows(x, kernel, stride, padding, _output(x, kernel, stride, padding))):
        term = _scaled(window, weight[:, 0, i // kernel[1], i % kernel[1]])
        total = term if total is None else total + term
    assert total is not None
    return total


def _dense(x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    if _is_pointwise(weight, stride, padding):
        return _product(weight.reshape(weight.shape[:2]), x)
    kernel = _pair(weight.shape[2:])
    columns = torch.cat(list(_windows(x, kernel, stride, padding, _output(x, kernel, stride, padding))), 1)
    return _product(weight.permute(0, 2, 3, 1).reshape(weight.shape[0], -1), columns)


def _product(weight_OC: Tensor, x: Tensor) -> Tensor:
    """Return the weight times each pixel's channels: (B, O, H, W).

    Deep layers have more weights than pixels, early ones more pixels: the smaller of both is brought into form.
    """
    batch, channels, height, width = x.shape
    outputs = len(weight_OC)
    if height * width < outputs:
        x_CP = x.reshape(batch, channels, -1).permute(1, 0, 2).reshape(channels, -1)
        y_OBP = torch.mm(weight_OC, x_CP).reshape(outputs, batch, height * width)
        return y_OBP.permute(1, 0, 2).reshape(batch, outputs, height, width)
    each = weight_OC.unsqueeze(0).expand(batch, outputs, channels)
    return torch.bmm(each, x.reshape(batch, channels, -1)).reshape(batch, outputs, height, width)


def _transposed_product(weight_OC: Tensor, grad: Tensor) -> Tensor:
    """Return the weight transposed times each pixel's gradient: (B, C, H, W)."""
    batch, outputs, height, width = grad.shape
    channels = weight_OC.shape[1]
    grad_PO = grad.reshape(batch, outputs, -1).permute(0, 2, 1).reshape(-1, outputs)
    y_BPC = torch.mm(grad_PO, weight_OC).reshape(batch, height * width, channels)
    return y_BPC.permute(0, 2, 1).reshape(batch, channels, height, width)


def _outer(grad: Tensor, x: Tensor) -> Tensor:
    """Return the sum over images and pixels of gradient times channel: (O, C)."""
    batch, outputs, height, width = grad.shape
    channels = x.shape[1]
    if height * width < outputs:
        grad_OP = grad.reshape(batch, outputs, -1).permute(1, 0, 2).reshape(outputs, -1)
        x_PC = x.reshape(batch, channels, -1).permute(0, 2, 1).reshape(-1, channels)
        return torch.mm(grad_OP, x_PC)
    return torch.bmm(grad.reshape(batch, outputs, -1), x.reshape(batch, channels, -1).transpose(1, 2)).sum(0)


def _input_gradient(grad: Tensor, x: Tensor, weight: Tensor, stride: Pair, padding: Pair, groups: int) -> Tensor:
    """Return the correlation of the spread gradient with the turned kernel: (B, C, H, W)."""
    if groups == 1 and _is_pointwise(weight, stride, padding):
        return _transposed_product(weight.reshape(weight.shape[:2]), grad)
    kernel = _pair(weight.shape[2:])
    pads = kernel[0] - 1 - padding[0], kernel[1] - 1 - padding[1]
    spread = _spread(grad, stride)
    # What the forward pass left over at the end of a row or column got no gradient.
    wanted = [size + k - 1 - 2 * p for size, k, p in zip(x.shape[2:], kernel, pads, strict=True)]
    spread = spread[:, :, : min(wanted[0], spread.shape[2]), : min(wanted[1], spread.shape[3])]
    missing = [w - s for w, s in zip(wanted, spread.shape[2:], strict=True)]
    if any(missing):
        spread = aten.constant_pad_nd(spread, [0, missing[1], 0, missing[0]], 0.0)
    turned = weight.flip([2, 3])
    if groups > 1:
        return _depthwise(spread, turned, (1, 1), pads)
    return _dense(spread, turned.permute(1, 0, 2, 3), (1, 1), pads)


def _spread(grad: Tensor, stride: Pair) -> Tensor:
    """Return the gradient with stride - 1 zeros after each row and column."""
    batch, channels, height, width = grad.shape
    if stride[1] > 1:
        zeros = torch.zeros_like(grad)
        grad = torch.stack([grad, *[zeros] * (stride[1] - 1)], -1).reshape(batch, channels, height, width * stride[1])
    if stride[0] > 1:
        zeros = torch.zeros_like(grad)
        grad = torch.stack([grad, *[zeros] * (stride[0] - 1)], 3).reshape(batch, channels, height * stride[0], -1)
    return grad


def _weight_gradient(grad: Tensor, x: Tensor, weight: Tensor, stride: Pair, padding: Pair, groups: int) -> Tensor:
    """Return the gradient (O, C / groups, kh, kw) of the weight."""
    if groups == 1 and _is_pointwise(weight, stride, padding):
        return _outer(grad, x).reshape(weight.shape)
    kernel = _pair(weight.shape[2:])
    windows = _windows(x, kernel, stride, padding, grad.shape[2:])
    if groups > 1:
        return torch.stack([_channel_sums(grad * window) for window in windows], -1).reshape(weight.shape)
    outer = _outer(grad, torch.cat(list(windows), 1))
    return outer.reshape(weight.shape[0], *kernel, x.shape[1]).permute(0, 3, 1, 2)


def _global_gradients(
    grad: Tensor, x: Tensor, weight: Tensor, mask: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    batch, channels, height, width = x.shape
    pixels = height * width
    grad_rows = grad.reshape(batch * channels, 1)
    each = weight.reshape(1, channels, pixels).expand(batch, channels, pixels).reshape(batch * channels, pixels)
    of_weight = (x.reshape(batch * channels, pixels) * grad_rows).reshape(batch, -1).sum(0).reshape(weight.shape)
    return (grad_rows * each).reshape(x.shape) if mask[0] else None, of_weight if mask[1] else None


# --- channels ---


def prelu(x: Tensor, weight: Tensor) -> Tensor:
    """Return relu(x) - weight relu(-x); `weight` comes shaped for broadcasting."""
    negative = torch.relu(-x)
    return torch.relu(x) - (_scaled(negative, weight) if weight.numel() > 1 else negative * weight)


def prelu_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of input and weight, the latter before its sum over images and pixels."""
    scaled = _scaled(grad, weight) if weight.numel() > 1 else grad * weight
    return torch.where(x > 0, grad, scaled), -(grad * torch.relu(-x))


def _scaled(x: Tensor, by_C: Tensor) -> Tensor:
    return (_rows_of(x) * _column_of(x, by_C)).reshape(x.shape)


def _shifted(x: Tensor, by_C: Tensor) -> Tensor:
    return (_rows_of(x) + _column_of(x, by_C)).reshape(x.shape)


def _rows_of(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0] * x.shape[1], -1)


def _column_of(x: Tensor, by_C: Tensor) -> Tensor:
    batch, channels = x.shape[:2]
    return by_C.reshape(1, channels).expand(batch, channels).reshape(batch * channels, 1)


def _channel_sums(x: Tensor) -> Tensor:
    """Return the sum over images and pixels: (C,)."""
    return _rows_of(x).sum(1).reshape(x.shape[0], x.shape[1]).sum(0)
