"""Heads and losses in torch against the papers' formulas in numpy: values, and gradients by finite differences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from mien.objectives.heads import arcface_logits, cosface_logits, cosines, personalise, softmax_logits
from mien.objectives.losses import (
    cross_entropy,
    dfc_loss,
    distillation,
    model_contrastive,
    moment_softmax,
    positive_hinge,
    proximal,
)
from tests.golden import _reference_losses as paper

pytestmark = pytest.mark.numerics

Array = NDArray[np.float64]
LABELS = [2, 0, 3, 3, 1]
RNG = np.random.default_rng(11)
FEATURES: Array = RNG.normal(size=(5, 6)) * np.array([[0.1], [1.0], [5.0], [40.0], [2.0]])
CLASSES: Array = RNG.normal(size=(4, 6)) * np.array([[0.01], [1.0], [3.0], [0.5]])
OTHER: Array = RNG.normal(size=(5, 6))
THIRD: Array = RNG.normal(size=(5, 6))
TARGET = torch.eye(4, dtype=torch.float64)[LABELS]


def tensor(array: Array) -> Tensor:
    return torch.tensor(array, dtype=torch.float64, requires_grad=True)


def check(ours: Callable[..., Tensor], papers: Callable[..., float], *inputs: Array) -> None:
    """Compare value, and the gradient by every input, relative to the largest element of the gradient."""
    tensors = [tensor(i) for i in inputs]
    value = ours(*tensors)
    assert float(value.detach()) == pytest.approx(papers(*inputs), rel=1e-9, abs=1e-12)
    value.backward()
    for i, t in enumerate(tensors):

        def along(x: Array, i: int = i) -> float:
            return papers(*inputs[:i], x, *inputs[i + 1 :])

        step = 1e-6 * float(np.abs(inputs[i]).min() + 1e-3)
        expected = paper.numeric_gradient(along, inputs[i], step)
        assert t.grad is not None
        np.testing.assert_allclose(t.grad.numpy(), expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max() + 1e-9)


def test_softmax() -> None:
    small = FEATURES / 10

    def papers(f: Array, w: Array) -> float:
        return float(np.mean([paper.softmax_loss(w @ x, y) for x, y in zip(f, LABELS, strict=True)]))

    check(lambda f, w: cross_entropy(softmax_logits(f, w), TARGET), papers, small, CLASSES)


@pytest.mark.parametrize(("s", "m"), [(30.0, 0.4), (64.0, 0.35), (8.0, 0.0)])
def test_cosface(s: float, m: float) -> None:
    check(
        lambda f, w: cross_entropy(cosface_logits(f, w, TARGET, scale=s, margin=m), TARGET),
        lambda f, w: paper.cosface_loss(f, w, LABELS, s, m),
        FEATURES,
        CLASSES,
    )


SPREAD: Array = RNG.normal(size=(6, 6)) / 8
COVARIANCE: Array = SPREAD @ SPREAD.T
MEAN: Array = RNG.normal(size=6) / 5


@pytest.mark.parametrize(("s", "m"), [(16.0, 0.2), (4.0, 0.0)])
@pytest.mark.parametrize("classes", [1, 4])
def test_a_softmax_against_everybody_is_that_over_classes_of_a_normal_distribution(
    s: float, m: float, classes: int
) -> None:
    labels = [label % classes for label in LABELS]
    target = torch.eye(classes, dtype=torch.float64)[labels]
    mean, covariance = torch.tensor(MEAN), torch.tensor(COVARIANCE)

    def ours(f: Tensor, w: Tensor) -> Tensor:
        return moment_softmax(f, w, target, mean, covariance, log_others=np.log(300.0), scale=s, margin=m)

    def papers(f: Array, w: Array) -> float:
        return paper.everybody_loss(f, w, labels, MEAN, COVARIANCE, 300.0, s, m)

    check(ours, papers, FEATURES, CLASSES[:classes])


@pytest.mark.parametrize(("s", "m"), [(64.0, 0.5), (16.0, 0.2), (8.0, 0.0)])
def test_arcface_with_its_true_gradient(s: float, m: float) -> None:
    check(
        lambda f, w: cross_entropy(arcface_logits(f, w, TARGET, scale=s, margin=m, gradient="true"), TARGET),
        lambda f, w: paper.arcface_loss(f, w, LABELS, s, m),
        FEATURES,
        CLASSES,
    )


def test_arcface_straight_through_has_the_same_values() -> None:
    loss = cross_entropy(
        arcface_logits(tensor(FEATURES), tensor(CLASSES), TARGET, scale=64, margin=0.5, gradient="straight_through"),
        TARGET,
    )
    assert loss.item() == pytest.approx(paper.arcface_loss(FEATURES, CLASSES, LABELS, 64, 0.5), rel=1e-9)


@pytest.mark.parametrize(
    ("cos", "gradient", "expected"),
    [
        (0.3, "straight_through", 64.0),
        (0.3, "true", 65.813),  # 64 sin(arccos .3 + .5) / sin(arccos .3)
        (0.9, "straight_through", 64.0),
        (0.9, "true", 119.515),
    ],
)
def test_the_two_slopes_of_arcface(cos: float, gradient: str, expected: float) -> None:
    """d logit / d cos at the target: s, or s sin(theta + m) / sin(theta)."""
    emb = torch.tensor([[cos, np.sqrt(1 - cos * cos)]], dtype=torch.float64, requires_grad=True)
    w = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    target = torch.ones(1, 1, dtype=torch.float64)
    logits = arcface_logits(emb, w, target, scale=64.0, margin=0.5, gradient=gradient)  # type: ignore[arg-type]
    logits.sum().backward()
    # Moving the embedding along the unit circle by d theta changes cos by -sin(theta) d theta.
    tangent = torch.tensor([[np.sqrt(1 - cos * cos), -cos]], dtype=torch.float64)
    assert emb.grad is not None
    slope = float((emb.grad * tangent).sum()) / np.sqrt(1 - cos * cos)
    assert slope == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("margin", [0.9, 0.2, -0.5])
def test_positive_hinge(margin: float) -> None:
    check(
        lambda f, w: positive_hinge(f, w, margin),
        lambda f, w: paper.positive_hinge(f, w, margin),
        FEATURES,
        CLASSES[1],
    )


def test_proximal() -> None:
    anchors = [OTHER, CLASSES[0]]
    check(
        lambda a, b: proximal([a, b], [torch.tensor(x) for x in anchors], 0.002),
        lambda a, b: paper.proximal([a, b], anchors, 0.002),
        FEATURES,
        CLASSES[1],
    )


@pytest.mark.parametrize("tau", [0.5, 0.1])
def test_model_contrastive(tau: float) -> None:
    check(
        lambda f: model_contrastive(f, torch.tensor(OTHER), torch.tensor(THIRD), tau),
        lambda f: paper.model_contrastive(f, OTHER, THIRD, tau),
        FEATURES,
    )


@pytest.mark.parametrize(("s", "t", "lam"), [(30.0, 3.0, 0.7), (4.0, 1.0, 0.5)])
def test_dfc(s: float, t: float, lam: float) -> None:
    """With one public image (label -1) among them: a negative of every class."""
    labels = [2, 0, -1, 3, 1]
    target = torch.cat([torch.eye(4, dtype=torch.float64), torch.zeros(1, 4, dtype=torch.float64)])[labels]  # -1: none
    assert target[2].sum() == 0
    pi: Array = np.eye(6) + 0.1 * np.random.default_rng(2).normal(size=(6, 6))
    bias: Array = np.array([0.3, -0.2, 0.0, 1.0])

    def ours(f: Tensor, weight: Tensor, shift: Tensor, omega: Tensor, b: Tensor) -> Tensor:
        cos = cosines(personalise(f, weight, shift), omega)
        return dfc_loss(cos, target, b, scale=s, margin=0.4, exponent=t, balance=lam)

    def papers(f: Array, weight: Array, shift: Array, omega: Array, b: Array) -> float:
        return paper.dfc_loss(f, weight, shift, omega, b, labels, lam=lam, s=s, m=0.4, t=t)

    check(ours, papers, FEATURES, pi, 0.05 * OTHER[0], CLASSES, bias)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_distillation(temperature: float) -> None:
    check(
        lambda z: distillation(z, torch.tensor(THIRD), temperature),
        lambda z: paper.distillation(z, THIRD, temperature),
        OTHER,
    )


def test_balanced_cosface_has_public_classes_in_its_denominator() -> None:
    """FedFR eq 3: K_l own and K_g public proxies in one softmax, gradients on both."""
    own, public = CLASSES[:2], CLASSES[2:]
    check(
        lambda f, w, phi: cross_entropy(cosface_logits(f, torch.cat([w, phi]), TARGET, scale=30.0, margin=0.4), TARGET),
        lambda f, w, phi: paper.cosface_loss(f, np.concatenate([w, phi]), LABELS, 30.0, 0.4),
        FEATURES,
        own,
        public,
    )
