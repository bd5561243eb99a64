"""PReLUs of stacked clients, whose backward pass takes many elements at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

LARGEST: Final = 2**22
"""Elements of a map up to which several vectorised passes are faster than torch's one: it is in the cache then."""
_KERNEL: Final = torch.ops.aten._prelu_kernel.default
_KERNEL_BACKWARD: Final = torch.ops.aten._prelu_kernel_backward.default
_WHERE_POSITIVE: Final = torch.ops.aten.threshold_backward.default


class _PRelu(torch.autograd.Function):
    """x where it is positive, and else w x, with w shaped as x broadcasts it; both may be stacked (`torch.vmap`).

    Torch's backward pass takes one element after another, each by a branch: 5 ns, a fifth of a step of the studies'
    small network. Of maps that are small it is several vectorised passes here, with the same numbers.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        """Return the result, of x's shape."""
        result: Tensor = _KERNEL(x, weight)
        return result

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, int | None], x: Tensor, weight: Tensor) -> tuple[Tensor, int]:
        """Return the same of stacked tensors, which broadcast as single ones do."""
        pairs = zip((x, weight), in_dims, strict=True)
        stacked = [each.unsqueeze(0) if dim is None else each.movedim(dim, 0) for each, dim in pairs]
        return _apply(*stacked), 0

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Keep both."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of x and w."""
        x, weight = ctx.saved_tensors
        if x.numel() > LARGEST:
            of_x, of_weight = _KERNEL_BACKWARD(grad, x, weight)
        else:
            kept = _WHERE_POSITIVE(grad, x, 0.0)
            rest = grad - kept
            of_x, of_weight = kept.addcmul_(rest, weight), rest.mul_(x)
        return of_x, of_weight.sum_to_size(weight.shape)


_apply: Callable[[Tensor, Tensor], Tensor] = _PRelu.apply


def prelu(x: Tensor, weight: Tensor) -> Tensor:
    """Return torch's PReLU of x (B, C, ...) with one slope a channel (C,), or one for all (1,)."""
    return _apply(x, weight.reshape(1, -1, *(1,) * (x.dim() - 2)))
