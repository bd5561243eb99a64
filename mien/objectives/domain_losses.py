"""Losses of classic domain adaptation: DAN's maximum mean discrepancy, DANN's adversary.

Both look at source and target faces in one batch, so only pooled systems can train with them (FedFR-UDA, Table 2).

Suffixes of tensors: B batch, S source rows, T target rows, D embedding, H hidden units.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from mien.objectives.losses import weighted_mean

FACTORS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Bandwidths of the kernels, as multiples of the mean squared distance within the batch."""


def multi_kernel_mmd(source_SD: Tensor, target_TD: Tensor) -> Tensor:
    """Return the squared MMD of two samples under the mean of Gaussian kernels exp(-||x - y||^2 / (factor * v)).

    v is the mean squared distance over all pairs of different rows of both samples, and carries no gradient. The
    estimate is the quadratic one with the diagonal (never negative). 0 where a sample is empty.
    Source: Long et al., "Learning Transferable Features with Deep Adaptation Networks" (2015), eq 2, with equal weights
    of the kernels instead of learned ones and all pairs instead of the linear-time estimate.
    """
    num_source, num_target = len(source_SD), len(target_TD)
    both_BD = torch.cat([source_SD, target_TD])
    if num_source == 0 or num_target == 0:
        return both_BD.sum() * 0.0
    # Not by broadcasting: (B, B, D) of 5,000 faces is 14 GB, and evaluation looks at all faces at once.
    squared_BB = torch.cdist(both_BD, both_BD, compute_mode="donot_use_mm_for_euclid_dist").square()
    num = len(both_BD)
    bandwidth = (squared_BB.detach().sum() / (num * (num - 1))).clamp(min=1e-12)
    kernel_BB = torch.stack([torch.exp(-squared_BB / (factor * bandwidth)) for factor in FACTORS]).mean(0)
    within = kernel_BB[:num_source, :num_source].mean() + kernel_BB[num_source:, num_source:].mean()
    mmd: Tensor = within - 2 * kernel_BB[:num_source, num_source:].mean()
    return mmd


class _Reversal(torch.autograd.Function):
    """The identity, whose gradient is -strength times what comes back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return -ctx.strength * gradients[0], None


def reverse_gradient(x: Tensor, strength: float) -> Tensor:
    """Return `x`, with the gradient through it turned round and multiplied by `strength`.

    Source: Ganin et al., "Domain-Adversarial Training of Neural Networks" (2016), section 4.2.
    """
    reversed_x: Tensor = _Reversal.apply(x, strength)  # type: ignore[no-untyped-call]
    return reversed_x


def domain_loss(
    emb_BD: Tensor, is_source_B: Tensor, hidden_HD: Tensor, hidden_bias_H: Tensor, output_H: Tensor, strength: float
) -> Tensor:
    """Return the mean cross-entropy of a discriminator with one hidden layer between source (1) and target (0).

    The discriminator learns to lower it; through the reversed gradient the embeddings learn to raise it.
    """
    hidden_BH = F.relu(F.linear(reverse_gradient(emb_BD, strength), hidden_HD, hidden_bias_H))
    return weighted_mean(F.binary_cross_entropy_with_logits(hidden_BH @ output_H, is_source_B, reduction="none"))
