"""Stacked PReLUs: torch's own numbers, whichever way the backward pass takes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from simulation.engines import prelus
from simulation.engines.prelus import prelu

pytestmark = pytest.mark.numerics

CLIENTS, IMAGES, CHANNELS = 3, 4, 5


def gradients(x: Tensor, weight: Tensor, *, own: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return the result, and the gradients of x and of the slopes, of clients stacked along the first axis."""
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    y = torch.vmap(prelu if own else torch.nn.functional.prelu)(x, weight)
    factors = torch.linspace(-2, 3, y.numel()).reshape(y.shape)
    return y, *torch.autograd.grad((y * factors).sum(), [x, weight])


@pytest.mark.parametrize("shape", [(), (7,), (3, 2)], ids=["vectors", "rows", "maps"])
@pytest.mark.parametrize("slopes", [1, CHANNELS])
@pytest.mark.parametrize("largest", [0, prelus.LARGEST])
def test_result_and_gradients_are_torchs_own(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], slopes: int, largest: int
) -> None:
    monkeypatch.setattr(prelus, "LARGEST", largest)
    drawn = torch.Generator().manual_seed(0)
    x = torch.randn((CLIENTS, IMAGES, CHANNELS, *shape), generator=drawn)
    x.view(-1)[:4] = torch.tensor([0.0, -0.0, 1e-42, -1e-42])  # no slope at 0, and the smallest that there are
    weight = torch.randn((CLIENTS, slopes), generator=drawn)
    for found, wanted in zip(gradients(x, weight, own=True), gradients(x, weight, own=False), strict=True):
        assert torch.equal(found, wanted)


def test_network_of_a_stack_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from simulation.engines import linear_maps
    from simulation.engines.linear_maps import LinearMaps

    seen = list[tuple[int, ...]]()
    monkeypatch.setattr(linear_maps, "prelu", lambda x, weight: seen.append(tuple(x.shape)) or prelu(x, weight))
    with LinearMaps([], []):
        torch.nn.PReLU(CHANNELS)(torch.zeros(IMAGES, CHANNELS, 2, 2))
    assert seen == [(IMAGES, CHANNELS, 2, 2)]
