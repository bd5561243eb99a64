"""Each rule of the exporter against autograd in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from device_sdk.export import executorch_rules
from device_sdk.export.decompositions import (
    avg_pool2d_backward,
    convolution_backward,
    prelu,
    prelu_backward,
    select_backward,
    slice_backward,
    softplus_backward,
)
from mien.errors import ConfigError

pytestmark = pytest.mark.numerics

# channels in, channels out, kernel, stride, padding, groups, side of the map
CONVOLUTIONS = [
    (3, 8, 3, 2, 1, 1, 12),
    (3, 8, 3, 2, 1, 1, 13),
    (3, 8, 3, 2, 2, 1, 12),
    (8, 8, 3, 1, 1, 8, 7),
    (8, 8, 3, 2, 1, 8, 8),
    (8, 8, 3, 2, 2, 8, 8),
    (8, 6, 1, 1, 0, 1, 7),
    (8, 8, 7, 1, 0, 8, 7),
    (8, 6, 3, 1, 1, 1, 7),
    (8, 6, 1, 2, 0, 1, 8),
    (8, 8, 5, 1, 2, 8, 9),
]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()


def close(found: Tensor | None, expected: Tensor) -> None:
    assert found is not None
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("channels", "out", "kernel", "stride", "padding", "groups", "side"), CONVOLUTIONS)
def test_convolution_for_executorch(
    channels: int, out: int, kernel: int, stride: int, padding: int, groups: int, side: int
) -> None:
    x, weight = drawn(2, channels, side, side), drawn(out, channels // groups, kernel, kernel, seed=1)
    bias = drawn(out, seed=2)
    y = F.conv2d(x, weight, bias, stride, padding, 1, groups)
    grad = drawn(*y.shape, seed=3).detach()
    expected = torch.autograd.grad(y, (x, weight, bias), grad)
    how = ([stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups)
    plain = x.detach(), weight.detach(), bias.detach()
    close(executorch_rules.convolution(*plain, *how), y.detach())
    found = executorch_rules.convolution_backward(grad, *plain[:2], [out], *how, [True] * 3)
    for mine, theirs in zip(found, expected, strict=True):
        close(mine, theirs)


@pytest.mark.parametrize("num_weights", [1, 4])
def test_prelu_for_executorch(num_weights: int) -> None:
    x, weight = drawn(2, 4, 3, 3), drawn(num_weights, seed=1)
    y = F.prelu(x, weight)
    grad = drawn(*y.shape, seed=2).detach()
    expected = torch.autograd.grad(y, (x, weight), grad)
    shaped = weight.detach().reshape(1, -1, 1, 1)
    close(executorch_rules.prelu(x.detach(), shaped), y.detach())
    of_input, of_weight = executorch_rules.prelu_backward(grad, x.detach(), shaped)
    close(of_input, expected[0])
    dims = (0, 2, 3) if num_weights > 1 else (0, 1, 2, 3)
    close(of_weight.sum(dims).reshape(-1), expected[1])


@pytest.mark.parametrize(("channels", "out", "kernel", "stride", "padding", "groups", "side"), CONVOLUTIONS)
def test_convolution(channels: int, out: int, kernel: int, stride: int, padding: int, groups: int, side: int) -> None:
    x, weight = drawn(2, channels, side, side), drawn(out, channels // groups, kernel, kernel, seed=1)
    bias = drawn(out, seed=2)
    y = F.conv2d(x, weight, bias, stride, padding, 1, groups)
    grad = drawn(*y.shape, seed=3).detach()
    expected = torch.autograd.grad(y, (x, weight, bias), grad)
    found = convolution_backward(
        grad, x.detach(), weight.detach(), [out], [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups, [True] * 3
    )
    for mine, theirs in zip(found, expected, strict=True):
        close(mine, theirs)


def test_only_the_gradients_asked_for_are_made() -> None:
    x, weight = drawn(2, 4, 5, 5).detach(), drawn(4, 4, 1, 1, seed=1).detach()
    mask = [False, True, False]
    found = convolution_backward(x, x, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, mask)
    assert [gradient is not None for gradient in found] == mask


@pytest.mark.parametrize(("dilation", "groups", "out"), [(2, 1, 4), (1, 2, 4), (1, 4, 8)])
def test_other_convolutions_are_refused(dilation: int, groups: int, out: int) -> None:
    x, weight = drawn(1, 4, 8, 8).detach(), drawn(out, 4 // groups, 3, 3, seed=1).detach()
    with pytest.raises(ConfigError, match="dense and depthwise"):
        convolution_backward(
            x, x, weight, None, [1, 1], [1, 1], [dilation] * 2, False, [0, 0], groups, [True, True, False]
        )


def test_prelu() -> None:
    x, weight = drawn(2, 3, 4, 4), drawn(1, 3, 1, 1, seed=1)
    y = F.prelu(x, weight.reshape(3))
    grad = drawn(*y.shape, seed=2).detach()
    close(prelu(x.detach(), weight.detach()), y.detach())
    gx, gw = prelu_backward(grad, x.detach(), weight.detach())
    expected_x, expected_w = torch.autograd.grad(y, (x, weight), grad)
    close(gx, expected_x)
    close(gw.sum((0, 2, 3), keepdim=True), expected_w)


def test_softplus_also_beyond_its_threshold() -> None:
    x = torch.tensor([-30.0, -1.0, 0.0, 2.0, 19.0, 25.0], dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(F.softplus(x).sum(), x)
    found = softplus_backward(torch.ones_like(x), x.detach(), 1.0, 20.0)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


def test_slices_and_selections() -> None:
    x = drawn(3, 5, 4)
    (expected,) = torch.autograd.grad((x[:, 1:4] * 2).sum(), x)
    close(slice_backward(torch.full((3, 3, 4), 2.0, dtype=torch.float64), [3, 5, 4], 1, 1, 4, 1), expected)
    (expected,) = torch.autograd.grad((x[:, 2] * 3).sum(), x)
    close(select_backward(torch.full((3, 4), 3.0, dtype=torch.float64), [3, 5, 4], 1, 2), expected)
    with pytest.raises(ConfigError, match="stride 1"):
        slice_backward(torch.zeros(3, 2, 4), [3, 5, 4], 1, 0, 4, 2)


def test_pools_that_tile_the_map() -> None:
    x = drawn(2, 3, 6, 4)
    y = F.avg_pool2d(x, (3, 2))
    grad = drawn(*y.shape, seed=1).detach()
    (expected,) = torch.autograd.grad(y, x, grad)
    close(avg_pool2d_backward(grad, x.detach(), [3, 2], [], [0, 0], False, True, None), expected)
    with pytest.raises(ConfigError, match="tile the map"):
        avg_pool2d_backward(grad, x.detach(), [3, 2], [1, 1], [0, 0], False, True, None)
