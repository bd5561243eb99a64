"""Linear maps with weights of their own for each client, in batched programs: steps that are taken where they arise.

After a few steps of SGD a client's weight of a linear map is what everybody received, and a few outer products: a
step's gradient of y = x W' is g' x, with a row of x and g for each image. `OuterProducts` keeps those rows in the
weight's place: what all clients received is multiplied with all their images at once, and no client's weight is made.
Where the rows are more work than the weight, it is made, and takes its step within its backward pass (`Step`).

Suffixes of tensors: C clients, B batch, R rows of outer products, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from device_sdk.runtimes.objectives import Tensors
from mien.layout import ParameterPart
from mien.methods.base import StepRule
from mien.specs import LocalSpec
from simulation.engines.prelus import prelu

ROWS_OF_A_WEIGHT: Final = 4.0
"""Rows of outer products that are as much work as their weight, in units of I O / (I + O) (decision record 0104)."""


@dataclass(frozen=True)
class Looks:
    """The trained tensors that are nothing but a linear map's weight, used once: by name, whether its input is fixed.

    An input is fixed where nothing trained comes before the map, so that an image gives the same in every step.
    """

    fixed_input: Mapping[str, bool]

    @classmethod
    def of(cls, run: Callable[[], object], tensors: Tensors) -> Looks:
        """Return what a pass looks at, of these trained tensors; raises as `run` does."""
        with _Watching(tensors) as seen:
            run()
        return cls({name: fixed for name, fixed in seen.maps.items() if seen.uses[name] == 1})

    def rows(self, part: ParameterPart, num_images: int, num_trained: int) -> dict[str, int]:
        """Return the weights of a part that are less work as outer products, by name, and as how many.

        `num_images` is how many a client has, with those that are mirrored, `num_trained` how many its steps take in
        all.
        """
        found = {}
        for entry in part.layout.entries:
            if entry.name in self.fixed_input and entry.name in part.names:
                num_rows = num_images if self.fixed_input[entry.name] else num_trained
                if num_rows * sum(entry.shape) <= ROWS_OF_A_WEIGHT * entry.size:
                    found[entry.name] = num_rows
        return found


class _Watching(TorchFunctionMode):
    """Notes every look at one of some tensors, and which are looked at by linear maps of one batch."""

    def __init__(self, tensors: Tensors) -> None:
        super().__init__()
        self._names = {id(tensor): name for name, tensor in tensors.items()}
        self.uses = dict.fromkeys(tensors, 0)
        self.maps = dict[str, bool]()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Return the function's result."""
        if func is nn.functional.linear and not kwargs and args[0].dim() == 2 and id(args[1]) in self._names:
            self.maps.setdefault(self._names[id(args[1])], not any(self.uses.values()))
        for given in (*args, *(kwargs or {}).values()):
            for each in given if isinstance(given, list | tuple) else (given,):
                if id(each) in self._names:
                    self.uses[self._names[id(each)]] += 1
        return func(*args, **(kwargs or {}))


class OuterProducts:
    """Clients' weights of one linear map, a W + sum_r p_r' x_r, with W (O, I) what all of them received.

    A step adds a row to p and x for each image, or, of a `fixed_input`, adds to the row of the same image. Weight
    decay, momentum and a proximal term act on a and p as they would on the weight, since it is linear in both.
    """

    def __init__(
        self,
        weight_OI: Tensor,
        num_clients: int,
        num_rows: int,
        local: LocalSpec,
        rule: StepRule,
        *,
        fixed_input: bool,
    ) -> None:
        """Take rows for `num_rows` images a client in all; the rule may have no offset."""
        assert rule.offset is None
        self._weight_OI, self._local, self._rule, self._is_fixed = weight_OI, local, rule, fixed_input
        num_outputs, num_inputs = weight_OI.shape
        like = weight_OI.new_zeros
        self._x_CRI = like(num_clients, num_rows, num_inputs)
        self._p_CRO = like(num_clients, num_rows, num_outputs)
        self._velocity_CRO = like(num_clients, num_rows, num_outputs) if local.momentum else None
        self._a, self._velocity_a = 1.0, 0.0
        self._num_rows = num_rows if fixed_input else 0
        # Of a fixed input: which rows, of all clients' end to end, the images of a pass have, and their x W.
        self._at_R = torch.empty(0, dtype=torch.int64)
        self._received_CRO = like(num_clients, num_rows, num_outputs) if fixed_input else None
        self._is_known_R = torch.zeros(num_clients * num_rows, dtype=torch.bool, device=weight_OI.device)
        self._has_moved = False
        self._taken: tuple[Tensor, Tensor] | None = None
        # What makes torch ask for this map's gradient, also where neither its input nor a tensor of it has one.
        self._anchor = like(()).requires_grad_()

    def __call__(self, x_BI: Tensor) -> Tensor:
        """Return x W' (B, O) of one client, in a batched program."""
        apply: Callable[[Tensor, Tensor, OuterProducts], Tensor] = _OuterMap.apply
        return apply(x_BI, self._anchor, self)

    def at(self, rows_CB: Tensor) -> None:
        """Say which rows the images of the next pass have, as a fixed input wants to know."""
        if self._is_fixed:
            num_clients, num_rows, _ = self._x_CRI.shape
            starts_C1 = num_rows * torch.arange(num_clients, device=rows_CB.device)[:, None]
            self._at_R = (starts_C1 + rows_CB).flatten()

    def product(self, x_CBI: Tensor) -> Tensor:
        """Return x W' (C, B, O)."""
        y_CBO = self._of_received(x_CBI.flatten(0, 1)).view(*x_CBI.shape[:2], -1)
        return self._corrected(y_CBO, x_CBI, self._x_CRI, self._p_CRO)

    def turned(self, g_CBO: Tensor) -> Tensor:
        """Return g W (C, B, I): the gradient of x."""
        x_CBI = (g_CBO.flatten(0, 1) @ self._weight_OI).view(*g_CBO.shape[:2], -1)
        return self._corrected(x_CBI, g_CBO, self._p_CRO, self._x_CRI)

    def take(self, x_CBI: Tensor, g_CBO: Tensor) -> None:
        """Note the factors of a step's gradient, which `step` takes."""
        assert self._taken is None, "a map was used twice in one pass"
        self._taken = x_CBI, g_CBO

    def step(self, rate: float) -> None:
        """Take the step of what `take` noted.

        v <- mu v + s (g + wd w) + rho (w - W); w <- w - lr rate v.
        """
        assert self._taken is not None, "a map was not used in a pass"
        (x_CBI, g_CBO), self._taken = self._taken, None
        local, rule, lr = self._local, self._rule, rate * self._local.lr
        scale, decay = rule.gradient_scale, rule.gradient_scale * local.weight_decay
        live = slice(0, self._num_rows)
        p_CRO, pull = self._p_CRO[:, live], decay + rule.proximal
        if self._velocity_CRO is None:
            if pull and self._has_moved:
                p_CRO.mul_(1 - lr * pull)
            self._put(self._p_CRO, g_CBO, -lr * scale, x_CBI)
        else:
            velocity_CRO = self._velocity_CRO[:, live].mul_(local.momentum)
            if pull and self._has_moved:
                velocity_CRO.add_(p_CRO, alpha=pull)
            self._put(self._velocity_CRO, g_CBO, scale, x_CBI)
            live = slice(0, self._num_rows)
            self._p_CRO[:, live].sub_(self._velocity_CRO[:, live], alpha=lr)
        self._velocity_a = local.momentum * self._velocity_a + decay * self._a + rule.proximal * (self._a - 1)
        self._a -= lr * self._velocity_a
        self._has_moved = True

    def are_finite(self) -> Tensor:
        """Return for each client (C,) whether all its factors are finite."""
        return torch.isfinite(self._x_CRI.sum((1, 2)) + self._p_CRO.sum((1, 2)))

    def write(self, values_COI: Tensor) -> None:
        """Write each client's weight."""
        torch.baddbmm(self._weight_OI.expand_as(values_COI), self._p_CRO.mT, self._x_CRI, beta=self._a, out=values_COI)

    def change(self, factors_C: Tensor) -> Tensor:
        """Return the sum of clients' changes of the weight, each times its factor, (O, I)."""
        weighted_CRO = self._p_CRO * factors_C[:, None, None]
        change_OI = weighted_CRO.flatten(0, 1).mT @ self._x_CRI.flatten(0, 1)
        if self._a != 1:
            change_OI.add_(self._weight_OI, alpha=(self._a - 1) * float(factors_C.sum()))
        return change_OI

    def _corrected(self, y: Tensor, x: Tensor, by: Tensor, to: Tensor) -> Tensor:
        if self._a != 1:
            y.mul_(self._a)
        if self._has_moved:
            live = slice(0, self._num_rows)
            y.baddbmm_(x @ by[:, live].mT, to[:, live])
        return y

    def _of_received(self, x_RI: Tensor) -> Tensor:
        """Return x W' of the received weight for images end to end; of a fixed input it is worked out once."""
        if self._received_CRO is None:
            return x_RI @ self._weight_OI.mT
        known_RO = self._received_CRO.flatten(0, 1)
        if bool(self._is_known_R[self._at_R].all()):
            return known_RO[self._at_R]
        y_RO = x_RI @ self._weight_OI.mT
        known_RO[self._at_R] = y_RO
        self._is_known_R[self._at_R] = True
        return y_RO

    def _put(self, into_CRO: Tensor, g_CBO: Tensor, scale: float, x_CBI: Tensor) -> None:
        """Add a step's factors times `scale`: to their images' rows, or as new rows."""
        if self._is_fixed:
            self._x_CRI.flatten(0, 1)[self._at_R] = x_CBI.flatten(0, 1)
            into_CRO.flatten(0, 1).index_add_(0, self._at_R, g_CBO.flatten(0, 1), alpha=scale)
            return
        new = slice(self._num_rows, self._num_rows + g_CBO.shape[1])
        self._x_CRI[:, new] = x_CBI
        torch.mul(g_CBO, scale, out=into_CRO[:, new])
        self._num_rows = new.stop


class _OuterMap(torch.autograd.Function):
    """y = x W' of `OuterProducts`, whose backward pass gives them the factors of W's gradient."""

    @staticmethod
    def forward(x_CBI: Tensor, anchor: Tensor, weights: OuterProducts) -> Tensor:
        """Return x W' (C, B, O)."""
        return weights.product(x_CBI)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int, None, None], x_BI: Tensor, anchor: Tensor, weights: OuterProducts
    ) -> tuple[Tensor, int]:
        """Return the same of all clients at once."""
        apply: Callable[[Tensor, Tensor, OuterProducts], Tensor] = _OuterMap.apply
        return apply(x_BI.movedim(in_dims[0], 0), anchor, weights), 0

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, OuterProducts], output: Tensor) -> None:
        """Keep x."""
        x_CBI, _, ctx.weights = inputs
        ctx.save_for_backward(x_CBI)

    @staticmethod
    def backward(ctx: Any, g_CBO: Tensor) -> tuple[Tensor | None, None, None]:
        """Return the gradient of x, where it has one."""
        (x_CBI,) = ctx.saved_tensors
        ctx.weights.take(x_CBI, g_CBO)
        return ctx.weights.turned(g_CBO) if ctx.needs_input_grad[0] else None, None, None


# Weights that are made: their gradients are made as they lie in memory, and taken where they are made.


@dataclass(frozen=True)
class Step:
    """A step that a stacked weight (C, O, I) takes in its backward pass: v <- mu v + g, w <- w - rate v."""

    rate: float
    momentum: float = 0.0
    velocity: Tensor | None = field(default=None, repr=False)


class _Linear(torch.autograd.Function):
    """y = x W', whose gradient of W is made as it lies in memory.

    Torch's batched program makes the gradient of W' and turns it round: of a million parameters and 10 images that
    takes 1.9 ms a client in place of 0.8, and the optimiser then reads it across. With a `step` the gradient of W is
    never there: W itself, or its velocity, takes the step in its backward pass, in one product that adds to it.
    """

    @staticmethod
    def forward(x_BI: Tensor, weight_OI: Tensor, step: Step | None) -> Tensor:
        """Return x W' (B, O)."""
        return x_BI @ weight_OI.mT

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, int | None, None], x_BI: Tensor, weight_OI: Tensor, step: Step | None
    ) -> tuple[Tensor, int]:
        """Return the same of stacked factors: the products are written for any axes before the last two."""
        x_CBI = x_BI.unsqueeze(0) if in_dims[0] is None else x_BI.movedim(in_dims[0], 0)
        weight_COI = weight_OI.unsqueeze(0) if in_dims[1] is None else weight_OI.movedim(in_dims[1], 0)
        return linear(x_CBI, weight_COI, step), 0

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Step | None], output: Tensor) -> None:
        """Keep both factors."""
        x_BI, weight_OI, ctx.step = inputs
        ctx.save_for_backward(x_BI, weight_OI)

    @staticmethod
    def backward(ctx: Any, grad_BO: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """Return the gradients of x, where it has one, and of W, where it has not taken the step."""
        x_BI, weight_OI = ctx.saved_tensors
        step: Step | None = ctx.step
        grad_x_BI = grad_BO.to(weight_OI.dtype) @ weight_OI if ctx.needs_input_grad[0] else None
        grad_OB = grad_BO.to(x_BI.dtype).mT
        if step is None:
            return grad_x_BI, grad_OB @ x_BI, None
        if step.velocity is None:
            weight_OI.baddbmm_(grad_OB, x_BI, alpha=-step.rate)
        else:
            step.velocity.baddbmm_(grad_OB, x_BI, beta=step.momentum)
            weight_OI.sub_(step.velocity, alpha=step.rate)
        return grad_x_BI, None, None


def linear(x_BI: Tensor, weight_OI: Tensor, step: Step | None = None) -> Tensor:
    """Return x W' (B, O) by `_Linear`; with a step the backward pass takes it on stacked W."""
    apply: Callable[[Tensor, Tensor, Step | None], Tensor] = _Linear.apply
    return apply(x_BI, weight_OI, step)


class LinearMaps(TorchFunctionMode):
    """Works out linear maps in ways of their own: of weights that step, of outer products, and by `_Linear`.

    So are PReLUs, for time alone (`prelu`).

    `steps` and `outer` are given with the tensor that the network knows as the map's weight. Both are right only for a
    weight that nothing else looks at (`Looks`), which would see it changed, or as it was received.
    """

    def __init__(self, steps: list[tuple[Tensor, Step]], outer: list[tuple[Tensor, OuterProducts]]) -> None:
        super().__init__()
        self._steps = {id(weight): step for weight, step in steps}
        self._outer = {id(weight): products for weight, products in outer}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Return the function's result."""
        if func is nn.functional.prelu and not kwargs and args[0].dim() > 1:
            return prelu(*args)
        if func is not nn.functional.linear or kwargs or args[0].dim() != 2:
            return func(*args, **(kwargs or {}))
        x_BI, weight_OI, bias_O = (*args, None)[:3]
        products = self._outer.get(id(weight_OI))
        y_BO = linear(x_BI, weight_OI, self._steps.get(id(weight_OI))) if products is None else products(x_BI)
        return y_BO if bias_O is None else y_BO + bias_O
