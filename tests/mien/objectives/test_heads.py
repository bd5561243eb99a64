"""Heads by hand and at their edges: zero vectors, cosines of one, half precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from mien.objectives.heads import (
    Gradient,
    arcface_logits,
    cosface_logits,
    cosines,
    l2_normalise,
    personalise,
    softmax_logits,
)
from mien.objectives.losses import cross_entropy

pytestmark = pytest.mark.numerics

GRADIENTS: tuple[Gradient, ...] = ("true", "straight_through")


def test_l2_normalise_by_hand() -> None:
    assert l2_normalise(torch.tensor([3.0, 4.0])).tolist() == pytest.approx([0.6, 0.8])
    x = torch.zeros(1, 4, requires_grad=True)
    y = l2_normalise(x)
    assert not y.any()
    y.sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


def test_cosines_ignore_lengths() -> None:
    emb, w = torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor([[2.0, 0.0], [0.0, -3.0]])
    expected = torch.tensor([[1.0, 0.0], [math.sqrt(0.5), -math.sqrt(0.5)]])
    torch.testing.assert_close(cosines(emb, w), expected)
    torch.testing.assert_close(cosines(emb * 500, w / 100), expected)


def test_logits_by_hand() -> None:
    """An embedding at 60 degrees to class 0 and 30 to class 1."""
    emb = torch.tensor([[1.0, math.sqrt(3)]])
    w = torch.eye(2)
    target = torch.tensor([[1.0, 0.0]])
    torch.testing.assert_close(softmax_logits(emb, w), emb)
    torch.testing.assert_close(
        cosface_logits(emb, w, target, scale=10, margin=0.35), torch.tensor([[1.5, 5 * math.sqrt(3)]])
    )
    shifted = 10 * math.cos(math.pi / 3 + 0.5)
    for gradient in GRADIENTS:
        torch.testing.assert_close(
            arcface_logits(emb, w, target, scale=10, margin=0.5, gradient=gradient),
            torch.tensor([[shifted, 5 * math.sqrt(3)]]),
        )


def test_without_a_target_no_margin_applies() -> None:
    emb, w, none = torch.tensor([[0.3, 0.4]]), torch.eye(2), torch.zeros(1, 2)
    plain = 64 * cosines(emb, w)
    torch.testing.assert_close(cosface_logits(emb, w, none, scale=64, margin=0.4), plain)
    torch.testing.assert_close(arcface_logits(emb, w, none, scale=64, margin=0.5), plain)


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_arcface_is_finite_at_the_poles(gradient: Gradient, sign: float, dtype: torch.dtype) -> None:
    """Rounding puts cosines on and beyond 1, where arccos and its slope are infinite or undefined."""
    emb = (sign * torch.tensor([[3.0, 3.0, 3.0], [1e-2, 0.0, 0.0]])).to(dtype).requires_grad_()
    w = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]).to(dtype).requires_grad_()
    target = torch.eye(2)
    loss = cross_entropy(arcface_logits(emb, w, target, scale=64, margin=0.5, gradient=gradient), target)
    loss.backward()
    assert torch.isfinite(loss)
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    for leaf in (emb, w):
        assert leaf.grad is not None
        assert torch.isfinite(leaf.grad).all()


HEADS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "softmax": lambda emb, w, _target: softmax_logits(emb, w),
    "cosface": partial(cosface_logits, scale=1e4, margin=0.5),
    "arcface": partial(arcface_logits, scale=1e4, margin=0.5),
}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("length", [0.0, 1e-4, 1.0, 1e4])
def test_losses_are_finite_at_the_largest_scale(head: str, dtype: torch.dtype, length: float) -> None:
    """Embeddings of any length, on, against and across their class, with zero class vectors among the classes."""
    emb = (length * torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])).to(dtype).requires_grad_()
    w = torch.tensor([[1.0, 0.0], [0.0, 0.0], [-2.0, 0.0]]).to(dtype).requires_grad_()
    loss = cross_entropy(HEADS[head](emb, w, torch.eye(3)), torch.eye(3))
    loss.backward()
    assert loss.dtype == torch.float32
    assert torch.isfinite(loss)
    for leaf in (emb, w):
        assert leaf.grad is not None
        # A gradient beyond float16's largest number is the optimiser's to clip; it is never undefined.
        assert not torch.isnan(leaf.grad).any()


@pytest.mark.parametrize("head", HEADS)
def test_a_head_of_one_class_or_none_costs_nothing(head: str) -> None:
    emb = torch.tensor([[0.3, 0.4]], requires_grad=True)
    for num_classes in (0, 1):
        target = torch.ones(1, num_classes)
        loss = cross_entropy(HEADS[head](emb, torch.ones(num_classes, 2), target), target)
        assert loss.item() == pytest.approx(0.0, abs=1e-6)


def test_personal_embeddings_by_hand() -> None:
    """Pi swaps and doubles, its bias shifts: (3, 4) -> (8, 6) + (0, 9) = (8, 15), of length 17; half precision too."""
    pi, shift = torch.tensor([[0.0, 2.0], [2.0, 0.0]]), torch.tensor([0.0, 9.0])
    for dtype in (torch.float16, torch.float32):
        personal = personalise(torch.tensor([[3.0, 4.0]], dtype=dtype), pi, shift)
        assert personal.dtype == torch.float32
        torch.testing.assert_close(personal, torch.tensor([[8 / 17, 15 / 17]]))
