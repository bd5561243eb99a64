"""Classification heads: from embeddings and class vectors to logits, and FedFR's personal embeddings (DFC).

Suffixes of tensors: B batch, K classes, D embedding. Targets are one-hot rows of floats (B, K), not indices: phones
run these functions as exported graphs of float arithmetic, and a row of zeros says "none of these classes".
Embeddings come in as the backbone gives them; cosines normalise both sides here. Half precision is raised to float32
before the first product, because a softmax over scaled cosines overflows in it.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Gradient = Literal["true", "straight_through"]

# Added under the root: keeps a zero vector finite and is far below the square of any embedding's length.
NORM_EPSILON = 1e-12
# cos(theta + m) has an infinite slope where |cos(theta)| = 1; float32 has its next number 6e-8 below 1.
MAX_COSINE = 1 - 1e-7


def l2_normalise(x: Tensor) -> Tensor:
    """Return `x` with its last axis at length 1, in at least float32; a zero vector stays zero."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + NORM_EPSILON)


def cosines(emb_BD: Tensor, w_KD: Tensor) -> Tensor:
    """Return the cosines (B, K) between embeddings and class vectors."""
    return l2_normalise(emb_BD) @ l2_normalise(w_KD).T


def softmax_logits(emb_BD: Tensor, w_KD: Tensor) -> Tensor:
    """Return the plain inner products (B, K), neither normalised nor scaled (FedGC's "Softmax")."""
    dtype = torch.promote_types(emb_BD.dtype, torch.float32)
    return emb_BD.to(dtype) @ w_KD.to(dtype).T


def cosface_logits(emb_BD: Tensor, w_KD: Tensor, target_BK: Tensor, *, scale: float, margin: float) -> Tensor:
    """Return s (cos(theta) - m) for the target class and s cos(theta) for the others, (B, K).

    Source: Wang et al., "CosFace" (2018), eq 4; FedFR eq 3.
    """
    return scale * (cosines(emb_BD, w_KD) - margin * target_BK)


def arcface_logits(
    emb_BD: Tensor, w_KD: Tensor, target_BK: Tensor, *, scale: float, margin: float, gradient: Gradient = "true"
) -> Tensor:
    """Return s cos(theta + m) for the target class and s cos(theta) for the others, (B, K).

    `gradient="true"` differentiates that: d logit / d cos = s sin(theta + m) / sin(theta). `"straight_through"` gives
    the same values with d logit / d cos = s, as insightface's released code does. Beyond theta = pi - m the target
    logit rises again, in both. Source: Deng et al., "ArcFace" (2019), eq 3.
    """
    cos_BK = cosines(emb_BD, w_KD)
    bounded_BK = cos_BK.clamp(-MAX_COSINE, MAX_COSINE)
    # cos(theta + m) by the addition theorem: no arccos, which mobile runtimes lack the derivative of.
    sin_BK = (1 - bounded_BK * bounded_BK).sqrt()
    shifted_BK = bounded_BK * math.cos(margin) - sin_BK * math.sin(margin)
    if gradient == "straight_through":
        shifted_BK = cos_BK + (shifted_BK - cos_BK).detach()
    return scale * (cos_BK + target_BK * (shifted_BK - cos_BK))


def personalise(emb_BD: Tensor, pi_weight_DD: Tensor, pi_bias_D: Tensor) -> Tensor:
    """Return FedFR's personal embeddings f' = Pi f, (B, D), of length 1; f is the backbone's, not normalised."""
    dtype = torch.promote_types(emb_BD.dtype, torch.float32)
    return l2_normalise(F.linear(emb_BD.to(dtype), pi_weight_DD.to(dtype), pi_bias_D.to(dtype)))
