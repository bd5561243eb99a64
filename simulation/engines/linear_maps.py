"""Linear maps of stacked weights, whose gradients are made as they lie in memory, and taken where they are made.

Suffixes of tensors: C clients, B batch, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class _Linear(torch.autograd.Function):
    """y = x W', whose gradient of W is made as it lies in memory.

    Torch's batched program makes the gradient of W' and turns it round: of a million parameters and 10 images that
    takes 1.9 ms a client in place of 0.8, and the optimiser then reads it across. With a `rate` above 0 the gradient of
    W is never there: W itself takes the step in its backward pass, in one product that adds to it.
    """

    @staticmethod
    def forward(x_BI: Tensor, weight_OI: Tensor, rate: float) -> Tensor:
        """Return x W' (B, O)."""
        return x_BI @ weight_OI.mT

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, int | None, None], x_BI: Tensor, weight_OI: Tensor, rate: float
    ) -> tuple[Tensor, int]:
        """Return the same of stacked factors: the products are written for any axes before the last two."""
        x_CBI = x_BI.unsqueeze(0) if in_dims[0] is None else x_BI.movedim(in_dims[0], 0)
        weight_COI = weight_OI.unsqueeze(0) if in_dims[1] is None else weight_OI.movedim(in_dims[1], 0)
        return linear(x_CBI, weight_COI, rate), 0

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
        """Keep both factors."""
        x_BI, weight_OI, ctx.rate = inputs
        ctx.save_for_backward(x_BI, weight_OI)

    @staticmethod
    def backward(ctx: Any, grad_BO: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """Return the gradients of x, where it has one, and of W, where it has not taken the step."""
        x_BI, weight_OI = ctx.saved_tensors
        grad_x_BI = grad_BO.to(weight_OI.dtype) @ weight_OI if ctx.needs_input_grad[0] else None
        grad_OB = grad_BO.to(x_BI.dtype).mT
        if not ctx.rate:
            return grad_x_BI, grad_OB @ x_BI, None
        weight_OI.baddbmm_(grad_OB, x_BI, alpha=-ctx.rate)
        return grad_x_BI, None, None


def linear(x_BI: Tensor, weight_OI: Tensor, rate: float = 0.0) -> Tensor:
    """Return x W' (B, O) by `_Linear`; with a rate the backward pass steps along the gradient of stacked W."""
    apply: Callable[[Tensor, Tensor, float], Tensor] = _Linear.apply
    return apply(x_BI, weight_OI, rate)


class LinearMaps(TorchFunctionMode):
    """Works out linear maps by `_Linear`; weights among `stepping` take a step of `rate` in their backward pass.

    That is right only for a weight that nothing else looks at, which would see it changed: `uses` counts who did.
    """

    def __init__(self, stepping: Mapping[str, Tensor], rate: float) -> None:
        super().__init__()
        self._names, self._rate = {id(weight): name for name, weight in stepping.items()}, rate
        self.uses = dict.fromkeys(stepping, 0)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Return the function's result."""
        for given in (*args, *(kwargs or {}).values()):
            for each in given if isinstance(given, list | tuple) else (given,):
                if id(each) in self._names:
                    self.uses[self._names[id(each)]] += 1
        if func is not nn.functional.linear or kwargs or args[0].dim() != 2:
            return func(*args, **(kwargs or {}))
        x_BI, weight_OI, bias_O = (*args, None)[:3]
        y_BO = linear(x_BI, weight_OI, self._rate if id(weight_OI) in self._names else 0.0)
        return y_BO if bias_O is None else y_BO + bias_O
