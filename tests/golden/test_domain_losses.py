"""MMD and the domain adversary by loops over float64, their gradients by finite differences.

Long et al. 2015, eq 2: the squared distance of two means in the kernel's space. Ganin et al. 2016, section 4.2: the
identity forwards, minus the strength backwards. Written from the papers, sharing no arithmetic with `mien`.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mien.objectives.domain_losses import domain_loss, multi_kernel_mmd, reverse_gradient

pytestmark = pytest.mark.numerics

Matrix = NDArray[np.float64]

RNG = np.random.default_rng(3)
SOURCE, TARGET = RNG.normal(size=(4, 3)), RNG.normal(0.5, 1.0, (3, 3))
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)


def squared(x: Matrix, y: Matrix) -> float:
    return math.fsum((a - b) ** 2 for a, b in zip(x, y, strict=True))


def mean_distance(rows: list[Matrix]) -> float:
    pairs = [squared(x, y) for i, x in enumerate(rows) for j, y in enumerate(rows) if i != j]
    return math.fsum(pairs) / len(pairs)


def mmd(source: Matrix, target: Matrix, v: float) -> float:
    def k(x: Matrix, y: Matrix) -> float:
        return sum(math.exp(-squared(x, y) / (factor * v)) for factor in FACTORS) / len(FACTORS)

    def mean(xs: Matrix, ys: Matrix) -> float:
        return sum(k(x, y) for x in xs for y in ys) / (len(xs) * len(ys))

    return mean(source, source) + mean(target, target) - 2 * mean(source, target)


def as_tensor(x: Matrix, *, grad: bool = False) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64, requires_grad=grad)


def test_value_of_mmd() -> None:
    expected = mmd(SOURCE, TARGET, mean_distance([*SOURCE, *TARGET]))
    assert float(multi_kernel_mmd(as_tensor(SOURCE), as_tensor(TARGET))) == pytest.approx(expected, rel=1e-12)
    assert expected > 0.05


def test_mmd_of_two_points_by_hand() -> None:
    # One row each, at distance sqrt(2): v = 2, k = mean exp(-1 / factor), MMD^2 = 2 - 2 k.
    k = sum(math.exp(-1 / factor) for factor in FACTORS) / 5
    value = multi_kernel_mmd(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]))
    assert float(value) == pytest.approx(2 - 2 * k, rel=1e-6)


def test_mmd_of_a_sample_with_itself_or_with_nothing_is_zero() -> None:
    x = as_tensor(SOURCE, grad=True)
    assert float(multi_kernel_mmd(x, x).detach()) == pytest.approx(0.0, abs=1e-15)
    nothing = multi_kernel_mmd(x, x[:0])
    nothing.backward()
    assert float(nothing.detach()) == 0.0
    assert x.grad is not None
    assert float(x.grad.abs().max()) == 0.0


def test_gradient_of_mmd_holds_the_bandwidth_still() -> None:
    v = mean_distance([*SOURCE, *TARGET])
    x = as_tensor(SOURCE, grad=True)
    multi_kernel_mmd(x, as_tensor(TARGET)).backward()
    assert x.grad is not None
    for i, j in [(0, 0), (1, 2), (3, 1)]:
        step = np.zeros_like(SOURCE)
        step[i, j] = 1e-6
        slope = (mmd(SOURCE + step, TARGET, v) - mmd(SOURCE - step, TARGET, v)) / 2e-6
        assert float(x.grad[i, j]) == pytest.approx(slope, rel=1e-6, abs=1e-9)


def test_a_reversed_gradient() -> None:
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    y = reverse_gradient(x, 0.25)
    assert y.tolist() == [1.0, -2.0]
    (y * torch.tensor([4.0, 8.0])).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [-1.0, -2.0]


HIDDEN, BIAS, OUTPUT = RNG.normal(size=(5, 3)), RNG.normal(size=5), RNG.normal(size=5)
IS_SOURCE = np.array([1.0, 0.0, 1.0, 0.0])


def discriminator(emb: Matrix, hidden: Matrix) -> float:
    total = 0.0
    for x, y in zip(emb, IS_SOURCE, strict=True):
        logit = sum(o * max(0.0, float(w @ x) + b) for o, w, b in zip(OUTPUT, hidden, BIAS, strict=True))
        p = 1 / (1 + math.exp(-logit))
        total -= y * math.log(p) + (1 - y) * math.log(1 - p)
    return total / len(emb)


def test_the_discriminator_learns_and_the_embeddings_learn_the_reverse() -> None:
    emb, hidden = as_tensor(SOURCE, grad=True), as_tensor(HIDDEN, grad=True)
    loss = domain_loss(emb, as_tensor(IS_SOURCE), hidden, as_tensor(BIAS), as_tensor(OUTPUT), 0.3)
    assert float(loss.detach()) == pytest.approx(discriminator(SOURCE, HIDDEN), rel=1e-12)
    loss.backward()
    assert emb.grad is not None
    assert hidden.grad is not None
    step = 1e-6 * np.eye(5, 3, dtype=np.float64)[:4]
    slope = (discriminator(SOURCE + step, HIDDEN) - discriminator(SOURCE - step, HIDDEN)) / 2e-6
    assert float((emb.grad * torch.tensor(step)).sum() / 1e-6) == pytest.approx(-0.3 * slope, rel=1e-5)
    step = 1e-6 * np.ones_like(HIDDEN)
    slope = (discriminator(SOURCE, HIDDEN + step) - discriminator(SOURCE, HIDDEN - step)) / 2e-6
    assert float(hidden.grad.sum()) == pytest.approx(slope, rel=1e-5)
