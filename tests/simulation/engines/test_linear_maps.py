"""Weights of linear maps that step in the backward pass: where nothing else looks at them, and only there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mien.backbones import Backbone
from mien.methods import find_method
from mien.specs import CohortSpec, FaceInputSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.engines import stacked
from simulation.engines.base import Cohort, RoundWork, SequentialEngine
from simulation.engines.stacked import LinearMaps, StackedEngine, linear
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
def test_every_tail_and_every_rule_is_trained_as_one_phone_after_another(top: type[Plain], task: TaskSpec) -> None:
    found, expected = rounds_of(top(), task)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert np.abs(expected[4:]).max() > 1e-3


def test_weights_step_in_the_backward_pass_where_nothing_else_looks_at_them(monkeypatch: pytest.MonkeyPatch) -> None:
    stepped, plain = list[float](), linear

    def noting(x_BI: Tensor, weight_OI: Tensor, rate: float = 0.0) -> Tensor:
        if rate:
            stepped.append(rate)
        return plain(x_BI, weight_OI, rate)

    def num_stepped(top: Plain, steps: int, momentum: float = 0.0) -> int:
        stepped.clear()
        rounds_of(top, replace(TASK, local=replace(TASK.local, steps=steps, momentum=momentum)))
        return len(stepped)

    monkeypatch.setattr(stacked, "linear", noting)
    assert num_stepped(Plain(), 4) == 4 * num_stepped(Plain(), 1) > 0
    assert num_stepped(Twice(), 4) == num_stepped(Twice(), 1), "it was noticed in the first step, for all that follow"
    assert num_stepped(Plain(), 4, momentum=0.5) == 0


def test_a_step_in_the_backward_pass_is_the_gradients() -> None:
    """Of the mean of y = x W' over two clients, by hand: dL/dW = x / 2."""
    weight = torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]]).requires_grad_()
    x = torch.tensor([[[1.0, 1.0], [0.0, 2.0]], [[5.0, 0.0], [1.0, 1.0]]])
    with LinearMaps({"w": weight}, 0.5) as maps:
        assert maps.uses == {"w": 0}
        y = linear(x, weight, 0.5)
    assert y[..., 0].tolist() == [[3.0, 4.0], [15.0, 7.0]]
    (y.mean(dim=(1, 2)).sum()).backward()  # type: ignore[no-untyped-call]
    assert weight.grad is None
    assert weight.tolist() == [[[1 - 0.25, 2 - 0.75]], [[3 - 1.5, 4 - 0.25]]]
