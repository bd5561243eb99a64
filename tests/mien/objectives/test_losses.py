"""Losses by hand, at their edges, and the law that padding with weight 0 changes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mien.errors import ConfigError
from mien.objectives.heads import cosface_logits
from mien.objectives.losses import (
    cross_entropy,
    dfc_loss,
    distillation,
    model_contrastive,
    moment_softmax,
    positive_hinge,
    proximal,
    weighted_mean,
)

pytestmark = pytest.mark.numerics


def test_weighted_mean_by_hand() -> None:
    losses = torch.tensor([1.0, 2.0, 6.0])
    assert float(weighted_mean(losses)) == 3.0
    assert float(weighted_mean(losses, torch.tensor([1.0, 0.0, 3.0]))) == (1 + 18) / 4


def test_positive_hinge_by_hand() -> None:
    """cos 1 costs nothing below the margin 0.9, cos 0 costs 0.81, cos -1 costs 3.61."""
    emb = torch.tensor([[2.0, 0.0], [0.0, 5.0], [-1.0, 0.0]])
    w = torch.tensor([3.0, 0.0])
    assert float(positive_hinge(emb, w)) == pytest.approx((0 + 0.81 + 3.61) / 3, rel=1e-6)
    assert float(positive_hinge(emb, w.expand(3, 2))) == pytest.approx((0 + 0.81 + 3.61) / 3, rel=1e-6)
    per_image = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    assert float(positive_hinge(emb, per_image)) == 0.0


def test_a_softmax_against_everybody_by_hand() -> None:
    """Two others at right angles to the image: softplus(log 2 - s (1 - m)); s^2/2 z'Bz joins in."""
    emb, w, target = torch.tensor([[3.0, 0.0]]), torch.tensor([[1.0, 0.0]]), torch.ones(1, 1)
    mean, nothing = torch.tensor([0.0, 1.0]), torch.zeros(2, 2)
    given = {"log_others": math.log(2), "scale": 4.0, "margin": 0.25}
    expected = math.log1p(math.exp(math.log(2) - 4 * 0.75))
    assert float(moment_softmax(emb, w, target, mean, nothing, **given)) == pytest.approx(expected, rel=1e-6)
    spread = torch.diag(torch.tensor([0.1, 7.0]))
    expected = math.log1p(math.exp(math.log(2) + 8 * 0.1 - 4 * 0.75))
    assert float(moment_softmax(emb, w, target, mean, spread, **given)) == pytest.approx(expected, rel=1e-6)


def test_a_softmax_against_others_at_one_place_is_cosface_over_them() -> None:
    """Without a covariance the others are copies of their mean, and so the ordinary loss over as many classes."""
    generator = torch.Generator().manual_seed(2)
    emb, w = torch.randn(5, 3, generator=generator), torch.randn(2, 3, generator=generator)
    mean = torch.nn.functional.normalize(torch.randn(3, generator=generator), dim=0)
    labels = torch.nn.functional.one_hot(torch.tensor([0, 1, 1, 0, 1]), 2).float()
    everyone, target = torch.cat([w, mean.expand(4, 3)]), torch.cat([labels, torch.zeros(5, 4)], 1)
    expected = cross_entropy(cosface_logits(emb, everyone, target, scale=16.0, margin=0.2), target)
    found = moment_softmax(emb, w, labels, mean, torch.zeros(3, 3), log_others=math.log(4))
    torch.testing.assert_close(found, expected)


def test_cross_entropy_by_hand() -> None:
    """Two equal logits cost log 2; a row of zeros costs nothing but counts in the mean."""
    logits = torch.tensor([[5.0, 5.0], [0.0, 9.0]])
    assert float(cross_entropy(logits[:1], torch.tensor([[1.0, 0.0]]))) == pytest.approx(math.log(2))
    target = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    assert float(cross_entropy(logits, target)) == pytest.approx(math.log(2) / 2)


def test_cross_entropy_equals_torchs_own() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(7, 5, generator=generator) * 30, torch.tensor([0, 4, 2, 2, 1, 3, 0])
    torch.testing.assert_close(
        cross_entropy(logits, torch.nn.functional.one_hot(labels, 5).float()),
        torch.nn.functional.cross_entropy(logits, labels),
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_summed_in_float32(dtype: torch.dtype) -> None:
    """e^64 is beyond float16; the loss must neither overflow nor be rounded to half precision."""
    logits = torch.tensor([[64.0, -64.0]], dtype=dtype)
    loss = cross_entropy(logits, torch.tensor([[0.0, 1.0]]))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(128.0)


def test_proximal_by_hand() -> None:
    theta = [torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([[3.0]], requires_grad=True)]
    anchor = [torch.tensor([0.0, 0.0]), torch.tensor([[1.0]])]
    loss = proximal(theta, anchor, 0.5)
    assert loss.item() == 0.25 * (1 + 4 + 4)
    loss.backward()
    assert theta[0].grad is not None
    assert theta[0].grad.tolist() == [0.5, 1.0]
    assert theta[1].grad is not None
    assert theta[1].grad.tolist() == [[1.0]]
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        proximal(theta, anchor[:1], 0.5)


def test_model_contrastive_by_hand() -> None:
    """Same global and previous embeddings: log 2 and no pull; at the global one and opposite to the previous: small."""
    f = torch.tensor([[1.0, 2.0]], requires_grad=True)
    same = torch.tensor([[3.0, -1.0]])
    loss = model_contrastive(f, same, same)
    assert loss.item() == pytest.approx(math.log(2))
    loss.backward()
    assert f.grad is not None
    assert f.grad.abs().max() < 1e-7
    good = model_contrastive(torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 0.0]]), torch.tensor([[-1.0, 0.0]]))
    assert float(good) == pytest.approx(math.log1p(math.exp(-4)), rel=1e-5)


def test_model_contrastive_trains_only_the_local_model() -> None:
    f, g, p = (torch.randn(3, 4, generator=torch.Generator().manual_seed(i), requires_grad=True) for i in range(3))
    model_contrastive(f, g, p).backward()
    assert f.grad is not None
    assert g.grad is None
    assert p.grad is None


def softplus(x: float) -> float:
    return math.log1p(math.exp(-abs(x))) + max(x, 0.0)


def test_dfc_by_hand() -> None:
    """At bias 0: cosine 0 gives z+ -34.5 and z- -10.5, cosine 0.6 gives z+ -11.28 and z- +12.72 (s 30, m 0.4, t 3)."""
    zero = torch.zeros(1)
    positive, negative = torch.ones(1, 1), torch.zeros(1, 1)
    for cos, z_plus, z_minus in ((0.0, -34.5, -10.5), (0.6, -11.28, 12.72)):
        c = torch.tensor([[cos]])
        assert float(dfc_loss(c, positive, zero)) == pytest.approx(0.7 / 30 * softplus(-z_plus), rel=1e-5)
        assert float(dfc_loss(c, negative, zero)) == pytest.approx(0.3 / 30 * softplus(z_minus), rel=1e-5)
    bias = torch.tensor([2.0])
    assert float(dfc_loss(torch.zeros(1, 1), positive, bias)) == pytest.approx(0.7 / 30 * softplus(32.5), rel=1e-5)


def test_dfc_sums_over_classes_and_averages_over_images() -> None:
    cos = torch.tensor([[0.2, -0.3, 0.1], [0.5, 0.4, -0.9]])
    target = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    bias = torch.tensor([0.1, 0.2, 0.3])
    rows = [
        sum(float(dfc_loss(cos[i : i + 1, k : k + 1], target[i : i + 1, k : k + 1], bias[k : k + 1])) for k in range(3))
        for i in range(2)
    ]
    assert float(dfc_loss(cos, target, bias)) == pytest.approx(sum(rows) / 2, rel=1e-6)


def test_dfc_survives_cosines_beyond_one_by_rounding() -> None:
    cos = torch.tensor([[1.0000001, -1.0000001]], requires_grad=True)
    loss = dfc_loss(cos, torch.tensor([[1.0, 0.0]]), torch.zeros(2), exponent=2.5)
    loss.backward()
    assert torch.isfinite(loss)
    assert cos.grad is not None
    assert torch.isfinite(cos.grad).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_dfc_raises_half_precision(dtype: torch.dtype) -> None:
    cos = torch.tensor([[1.0, -1.0, 0.25]], dtype=dtype)
    target = torch.tensor([[1.0, 0.0, 0.0]])
    loss = dfc_loss(cos, target, torch.zeros(3))
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(float(dfc_loss(cos.double(), target.double(), torch.zeros(3).double())))


def test_distillation_by_hand() -> None:
    """Teacher 3:1, student 1:1: 0.75 log 1.5 + 0.25 log 0.5; at T = 2 the teacher is sqrt 3:1 and the loss counts 4."""
    teacher, student = torch.tensor([[math.log(3), 0.0]]), torch.zeros(1, 2, requires_grad=True)
    expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert distillation(student, teacher).item() == pytest.approx(expected, rel=1e-5)
    p = math.sqrt(3) / (1 + math.sqrt(3))
    softer = 4 * (p * math.log(2 * p) + (1 - p) * math.log(2 - 2 * p))
    assert distillation(student, teacher, 2.0).item() == pytest.approx(softer, rel=1e-5)
    teacher.requires_grad_()
    distillation(student, teacher).backward()
    assert teacher.grad is None
    assert student.grad is not None
    torch.testing.assert_close(student.grad, torch.tensor([[0.5 - 0.75, 0.5 - 0.25]]))
    assert distillation(teacher, teacher).item() == pytest.approx(0.0, abs=1e-7)


def test_a_loss_over_no_images_is_refused() -> None:
    with pytest.raises(ConfigError, match="no images"):
        cross_entropy(torch.zeros(0, 3), torch.zeros(0, 3))


def weighted_losses() -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Each loss as a function of embeddings (B, 3) and weights (B,), everything else fixed."""
    w = torch.tensor([[1.0, 0.5, 0.0], [0.0, -1.0, 2.0], [0.3, 0.3, 0.3]])

    def target(emb: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(torch.arange(len(emb)) % 3, 3).float()

    return {
        "positive_hinge": lambda e, s: positive_hinge(e, w[0], sample_weight_B=s),
        "cross_entropy": lambda e, s: cross_entropy(e @ w.T, target(e), s),
        "distillation": lambda e, s: distillation(e @ w.T, (e * 2).detach(), 2.0, s),
        "model_contrastive": lambda e, s: model_contrastive(e, e.roll(1, 1), e.flip(1), sample_weight_B=s),
        "dfc_loss": lambda e, s: dfc_loss(torch.tanh(e @ w.T), target(e), torch.ones(3), sample_weight_B=s),
    }


@pytest.mark.parametrize("name", weighted_losses())
def test_padding_with_weight_zero_changes_nothing(name: str) -> None:
    loss = weighted_losses()[name]
    emb = torch.randn(4, 3, generator=torch.Generator().manual_seed(3))
    padded = torch.cat([emb, torch.full((2, 3), 7.0)]).requires_grad_()
    weight = torch.tensor([1.0, 2.0, 0.5, 1.0])
    short = emb.clone().requires_grad_()
    expected, got = loss(short, weight), loss(padded, torch.cat([weight, torch.zeros(2)]))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-7)
    expected.backward()
    got.backward()
    assert short.grad is not None
    assert padded.grad is not None
    torch.testing.assert_close(padded.grad[:4], short.grad, rtol=1e-4, atol=1e-7)
    assert not padded.grad[4:].any()
    torch.testing.assert_close(loss(emb, torch.full((4,), 3.0)), loss(emb, torch.ones(4)), rtol=1e-5, atol=1e-7)
