"""Training objectives of the five papers, as functions of tensors that return a scalar.

Suffixes of tensors: B batch, K classes, D embedding. Each loss is a mean over the batch, or with `sample_weight_B`
(B,) the weighted mean sum(s_i l_i) / sum(s_i): a batch padded with weight 0 gives exactly the loss of the shorter one.
The weights must not all be 0. Embeddings come in as the backbone gives them and are normalised here.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from mien.errors import ConfigError
from mien.objectives.heads import cosface_logits, l2_normalise


def weighted_mean(loss_B: Tensor, sample_weight_B: Tensor | None = None) -> Tensor:
    """Return the mean of per-image losses, weighted where weights are given; raises ConfigError for no images."""
    if loss_B.shape[0] == 0:
        raise ConfigError("a loss over no images is undefined; leave empty batches out")
    if sample_weight_B is None:
        return loss_B.mean()
    return (loss_B * sample_weight_B).sum() / sample_weight_B.sum()


def cross_entropy(logits_BK: Tensor, target_BK: Tensor, sample_weight_B: Tensor | None = None) -> Tensor:
    """Return the mean of -log softmax(logits)[target], computed in at least float32.

    Targets are one-hot rows; a row of zeros costs nothing but counts in the mean.
    """
    logits_BK = _at_least_float32(logits_BK)
    return weighted_mean(-(F.log_softmax(logits_BK, 1) * target_BK).sum(1), sample_weight_B)


def positive_hinge(emb_BD: Tensor, w: Tensor, margin: float = 0.9, sample_weight_B: Tensor | None = None) -> Tensor:
    """Return the mean of max(0, m - w.f(x))^2, f and w of length 1.

    `w` is one identity's class vector (D,), or one a image (B, D). Source: FedFace eq 7 (m = 0.9).
    """
    cos_B = (l2_normalise(emb_BD) * l2_normalise(w)).sum(1)
    return weighted_mean((margin - cos_B).relu().square(), sample_weight_B)


def proximal(parameters: Iterable[Tensor], anchors: Iterable[Tensor], strength: float) -> Tensor:
    """Return strength / 2 * ||theta - theta_r||^2 over tensors, `anchors` being the round's global model.

    Source: FedProx eq 2; FedFR-UDA's domain constraint loss.
    """
    terms = [(p - anchor.detach()).square().sum() for p, anchor in zip(parameters, anchors, strict=True)]
    return strength / 2 * torch.stack(terms).sum()


def model_contrastive(
    emb_BD: Tensor,
    global_BD: Tensor,
    previous_BD: Tensor,
    temperature: float = 0.5,
    sample_weight_B: Tensor | None = None,
) -> Tensor:
    """Return the mean of -log(e^(cos(f, f_glob)/tau) / (e^(cos(f, f_glob)/tau) + e^(cos(f, f_prev)/tau))).

    `global_BD` and `previous_BD` embed the same images with the round's global model and with this device's model at
    the end of its last round; neither gets a gradient. Source: FedFR eq 5 (tau = 0.5).
    """
    f_BD = l2_normalise(emb_BD)
    cos_global_B = (f_BD * l2_normalise(global_BD.detach())).sum(1)
    cos_previous_B = (f_BD * l2_normalise(previous_BD.detach())).sum(1)
    # The fraction's logarithm, without a quotient that could overflow.
    return weighted_mean(F.softplus((cos_previous_B - cos_global_B) / temperature), sample_weight_B)


def dfc_loss(
    cos_BK: Tensor,
    target_BK: Tensor,
    bias_K: Tensor,
    *,
    scale: float = 30.0,
    margin: float = 0.4,
    exponent: float = 3.0,
    balance: float = 0.7,
    sample_weight_B: Tensor | None = None,
) -> Tensor:
    """Return FedFR's margin-based binary loss over K one-vs-all classifiers: mean over the batch, sum over classes.

    With g(c) = 2 ((c + 1) / 2)^t - 1, z+ = s (g(c) - m) + b and z- = s (g(c) + m) + b, a class costs
    lambda/s softplus(-z+) where it is the target and (1 - lambda)/s softplus(z-) where not; an image of no class here
    (a public one) is a negative of all. Source: FedFR eq 6 with g as in SphereFace2 and the released code.
    """
    cos_BK = _at_least_float32(cos_BK)
    g_BK = 2 * ((cos_BK + 1) / 2).clamp(min=0).pow(exponent) - 1
    positive_BK = balance / scale * F.softplus(-(scale * (g_BK - margin) + bias_K))
    negative_BK = (1 - balance) / scale * F.softplus(scale * (g_BK + margin) + bias_K)
    return weighted_mean((target_BK * positive_BK + (1 - target_BK) * negative_BK).sum(1), sample_weight_B)


def distillation(
    logits_BK: Tensor, teacher_logits_BK: Tensor, temperature: float = 1.0, sample_weight_B: Tensor | None = None
) -> Tensor:
    """Return the mean of T^2 KL(softmax(teacher / T) || softmax(logits / T)); the teacher gets no gradient.

    Source: Yu, Bagdasaryan, Shmatikov, "Salvaging Federated Learning by Local Adaptation" (2020), section on knowledge
    distillation; FedFR Table 2, row "KD". T^2 keeps the gradient's size the same for every T.
    """
    student_BK = F.log_softmax(_at_least_float32(logits_BK) / temperature, 1)
    teacher_BK = F.log_softmax(_at_least_float32(teacher_logits_BK.detach()) / temperature, 1)
    divergence_B = (teacher_BK.exp() * (teacher_BK - student_BK)).sum(1)
    return temperature**2 * weighted_mean(divergence_B, sample_weight_B)


def moment_softmax(
    emb_BD: Tensor,
    w_KD: Tensor,
    target_BK: Tensor,
    mean_D: Tensor,
    covariance_DD: Tensor,
    *,
    log_others: float,
    scale: float = 16.0,
    margin: float = 0.2,
    sample_weight_B: Tensor | None = None,
) -> Tensor:
    """Return the mean CosFace loss over K known classes and all others, of whom two moments are known.

    If the others' unit class vectors w_j are about Gaussian, the sum of their e^(s z.w_j) is about n E e^(s z.w) =
    e^r with r = log n + s z.mu + s^2/2 z'Bz: the moment generating function of N(mu, B) at s z. So an image costs
    -log(e^(o_y) / (sum_k e^(o_k) + e^r)), o being CosFace's logits; with K = 1 that is softplus(r - o). `log_others`
    is log n. The two moments and w get no gradient from here. Source: the expectation is that of Wang et al.,
    "Implicit Semantic Data Augmentation for Deep Networks" (NeurIPS 2019), eq 7, there over one class's features.
    """
    z_BD = l2_normalise(emb_BD)
    others_B = log_others + scale * (z_BD @ mean_D) + scale * scale / 2 * ((z_BD @ covariance_DD) * z_BD).sum(1)
    logits_BK = cosface_logits(emb_BD, w_KD, target_BK, scale=scale, margin=margin)
    among_known_B = -(F.log_softmax(logits_BK, 1) * target_BK).sum(1)
    # log(sum_k e^(o_k)) is the target's logit and its loss among the known.
    known_B = (logits_BK * target_BK).sum(1) + among_known_B
    return weighted_mean(among_known_B + F.softplus(others_B - known_B), sample_weight_B)


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
