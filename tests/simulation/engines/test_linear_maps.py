"""Weights of linear maps as outer products, or stepped in the backward pass: where nothing else looks at them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mien.backbones import Backbone
from mien.layout import ParameterEntry, ParameterLayout
from mien.methods import find_method
from mien.methods.base import StepRule
from mien.specs import CohortSpec, FaceInputSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.engines import linear_maps
from simulation.engines.base import Cohort, RoundWork, SequentialEngine
from simulation.engines.linear_maps import Looks, OuterProducts, Step, linear
from simulation.engines.stacked import StackedEngine
from tests.tiny import made_up_crops, tiny_of

pytestmark = pytest.mark.numerics

TASK = TaskSpec(
    "maps",
    method="fedavg",
    options={"margin": 1.0},  # some loss is always left
    cohort=CohortSpec(size=4, min_reports=2),
    local=LocalSpec(lr=0.2, steps=4, batch_size=2),
    privacy=PrivacySpec(min_cohort=2, secure_aggregation="off"),
)
PHONES = Cohort({f"phone-{i}": made_up_crops(2 + i % 2, seed=i) for i in range(4)})


class Plain(nn.Sequential):
    """Two maps, each looked at once."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(12, 12), nn.PReLU(12), nn.Linear(12, 6))


class Odd(Plain):
    """The first of two maps is looked at again, in a way of its own."""

    again: Callable[[Tensor, nn.Linear], Tensor]

    def forward(self, x: Tensor) -> Tensor:
        first = self[0]
        assert isinstance(first, nn.Linear)
        y: Tensor = self[2](self[1](type(self).again(first(x), first)))
        return y


class Twice(Odd):
    again = staticmethod(lambda y, first: first(y))


class Normed(Odd):
    again = staticmethod(lambda y, first: y / first.weight.norm())


class Joined(Odd):
    again = staticmethod(lambda y, first: y @ torch.cat([first.weight, first.weight])[:12])


class Named(Odd):
    again = staticmethod(lambda y, first: nn.functional.linear(input=y, weight=first.weight))


def rounds_of(top: nn.Module, task: TaskSpec) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], ...]:
    """Return the sums of a stacked and of a sequential round."""
    torch.manual_seed(0)
    stages = {"pool": nn.Sequential(nn.AvgPool2d(56), nn.Flatten()), "top": top}
    tiny = tiny_of(Backbone("maps", FaceInputSpec(dim=6), stages, ("top.*",)))
    part, stacked = tiny.part(), StackedEngine(tiny.runtime())
    state = find_method(task.method).server_start(task, part, tiny.theta)
    work = RoundWork(task, part, 6, state, PHONES, tuple(PHONES.crops), 1)
    found = stacked.train(work).total.vector
    assert stacked.num_stacked == 4
    return found, SequentialEngine(tiny.runtime()).train(work).total.vector


@pytest.mark.parametrize("rows_of_a_weight", [0.0, math.inf], ids=["weights", "rows"])
@pytest.mark.parametrize("top", [Plain, Twice, Normed, Joined, Named])
@pytest.mark.parametrize(
    "task",
    [
        TASK,
        replace(TASK, local=replace(TASK.local, momentum=0.5)),
        replace(TASK, local=replace(TASK.local, weight_decay=0.05)),
        replace(TASK, method="fedprox", options={"mu": 0.5, "margin": 1.0}),
    ],
    ids=["plain", "momentum", "decay", "proximal"],
)
def test_every_tail_and_every_rule_is_trained_as_one_phone_after_another(
    top: type[Plain], task: TaskSpec, rows_of_a_weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_maps, "ROWS_OF_A_WEIGHT", rows_of_a_weight)
    found, expected = rounds_of(top(), task)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert np.abs(expected[4:]).max() > 1e-3


def test_weights_step_in_the_backward_pass_where_nothing_else_looks_at_them(monkeypatch: pytest.MonkeyPatch) -> None:
    stepped, plain = list[Step](), linear

    def noting(x_BI: Tensor, weight_OI: Tensor, step: Step | None = None) -> Tensor:
        stepped.extend([step] if step else [])
        return plain(x_BI, weight_OI, step)

    def num_stepped(top: Plain, steps: int, **changes: float) -> int:
        stepped.clear()
        rounds_of(top, replace(TASK, local=replace(TASK.local, steps=steps, **changes)))  # type: ignore[arg-type]
        return len(stepped)

    monkeypatch.setattr(linear_maps, "linear", noting)
    monkeypatch.setattr(linear_maps, "ROWS_OF_A_WEIGHT", 0.0)
    assert num_stepped(Plain(), 4) == 4 * num_stepped(Plain(), 1) > 0
    assert num_stepped(Plain(), 4, momentum=0.5) == num_stepped(Plain(), 4)
    assert 0 < num_stepped(Twice(), 4) < num_stepped(Plain(), 4), "the second map alone"
    assert num_stepped(Plain(), 4, weight_decay=0.5) == 0
    monkeypatch.setattr(linear_maps, "ROWS_OF_A_WEIGHT", math.inf)
    assert num_stepped(Plain(), 4) == 0


def test_a_step_in_the_backward_pass_is_the_gradients() -> None:
    """Of the mean of y = x W' over two clients, by hand: dL/dW = x / 2."""
    weight = torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]]).requires_grad_()
    x = torch.tensor([[[1.0, 1.0], [0.0, 2.0]], [[5.0, 0.0], [1.0, 1.0]]])
    y = linear(x, weight, Step(0.5))
    assert y[..., 0].tolist() == [[3.0, 4.0], [15.0, 7.0]]
    (y.mean(dim=(1, 2)).sum()).backward()  # type: ignore[no-untyped-call]
    assert weight.grad is None
    assert weight.tolist() == [[[1 - 0.25, 2 - 0.75]], [[3 - 1.5, 4 - 0.25]]]


def test_what_a_pass_looks_at() -> None:
    """A map whose weight is used once, by itself; and whether something trained comes before it."""
    for top, expected in {Plain: {"0.weight": True, "2.weight": False}, Twice: {"2.weight": False}}.items():
        network = top()
        found = Looks.of(lambda network=network: network(torch.zeros(1, 12)), dict(network.named_parameters()))
        assert found.fixed_input == expected
        assert Looks.of(lambda network=network: network(torch.zeros(1, 12)), {}).fixed_input == {}


def test_a_weight_is_kept_as_rows_where_they_are_less_work() -> None:
    part = ParameterLayout((ParameterEntry("a", (10, 40)), ParameterEntry("b", (10, 40)))).part()
    looks = Looks({"a": True, "b": False})
    assert looks.rows(part, 8, 32) == {"a": 8, "b": 32}
    assert looks.rows(part, 8, 33) == {"a": 8}, "4 x 10 x 40 / (10 + 40) = 32"
    assert Looks({}).rows(part, 1, 1) == {}


@pytest.mark.parametrize("fixed", [False, True])
def test_outer_products_are_the_weight_that_sgd_makes(fixed: bool) -> None:
    """Two steps with momentum, decay and a pull to the start, beside the weight itself stepped by the formula."""
    generator = torch.Generator().manual_seed(0)
    received = torch.randn(3, 4, generator=generator)
    local, rule = LocalSpec(lr=0.5, momentum=0.5, weight_decay=0.25), StepRule(gradient_scale=2.0, proximal=0.125)
    products = OuterProducts(received, 2, 2 if fixed else 4, local, rule, fixed_input=fixed)
    weights = received.repeat(2, 1, 1)
    velocity = torch.zeros_like(weights)
    x = torch.randn(2, 2, 4, generator=generator)
    order = torch.tensor([[0, 1], [1, 0]])
    for rate, rows in ((1.0, order), (0.5, order.flip(1))):
        given = x.gather(1, rows[:, :, None].expand(2, 2, 4))
        products.at(rows)
        torch.testing.assert_close(products.product(given), given @ weights.mT)
        g = torch.randn(2, 2, 3, generator=generator)
        torch.testing.assert_close(products.turned(g), g @ weights)
        products.take(given, g)
        products.step(rate)
        velocity = 0.5 * velocity + 2 * (g.mT @ given + 0.25 * weights) + 0.125 * (weights - received)
        weights = weights - 0.5 * rate * velocity
    made = torch.empty_like(weights)
    products.write(made)
    torch.testing.assert_close(made, weights)
    changes = (weights - received) * torch.tensor([3.0, -1.0])[:, None, None]
    torch.testing.assert_close(products.change(torch.tensor([3.0, -1.0])), changes.sum(0))
    assert products.are_finite().tolist() == [True, True]
