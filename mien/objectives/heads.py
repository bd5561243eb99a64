"""Classification heads: from embeddings and class vectors to logits, and FedFR's personal branch (DFC).

Suffixes of tensors: B batch, K classes, D embedding. Targets are one-hot rows of floats (B, K), not indices: phones
run these functions as exported graphs of float arithmetic, and a row of zeros says "none of these classes".
Embeddings come in as the backbone gives them; cosines normalise both sides here. Half precision is raised to float32
before the first product, because a softmax over scaled cosines overflows in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mien.errors import ConfigError

Gradient = Literal["true", "straight_through"]

# Added under the root: keeps a zero vector finite and is far below the square of any embedding's length.
NORM_EPSILON = 1e-12
# cos(theta + m) has an infinite slope where |cos(theta)| = 1; float32 has its next number 6e-8 below 1.
MAX_COSINE = 1 - 1e-7
# Published scales lie between 8 and 64; logits of this one still fit float32 with room for their differences.
MAX_SCALE = 1e4


def l2_normalise(x: Tensor) -> Tensor:
    """Return `x` with its last axis at length 1, in at least float32; a zero vector stays zero."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + NORM_EPSILON)


def one_hot(labels_B: Tensor, num_classes: int) -> Tensor:
    """Return float targets (B, K) of class indices (B,); the index -1 gives a row of zeros."""
    return (labels_B[:, None] == torch.arange(num_classes, device=labels_B.device)).float()


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


@dataclass(frozen=True)
class HeadSpec:
    """Which head turns cosines into logits, with its scale s and margin m; `softmax` uses neither."""

    kind: Literal["softmax", "cosface", "arcface"]
    scale: float = 64.0
    margin: float = 0.0
    gradient: Gradient = "true"

    def __post_init__(self) -> None:
        if self.kind not in ("softmax", "cosface", "arcface"):
            raise ConfigError(f"head kind {self.kind!r} is unknown; use softmax, cosface or arcface")
        if self.gradient not in ("true", "straight_through"):
            raise ConfigError(f"head gradient {self.gradient!r} is unknown; use true or straight_through")
        if not 0 < self.scale <= MAX_SCALE:
            raise ConfigError(f"head scale is {self.scale}; it must be positive and at most {MAX_SCALE:g}")
        if not 0 <= self.margin < math.pi / 2:
            raise ConfigError(f"head margin is {self.margin}; it must lie between 0 and pi/2")

    def logits(self, emb_BD: Tensor, w_KD: Tensor, target_BK: Tensor) -> Tensor:
        """Return the logits (B, K) in at least float32."""
        if self.kind == "softmax":
            return softmax_logits(emb_BD, w_KD)
        if self.kind == "cosface":
            return cosface_logits(emb_BD, w_KD, target_BK, scale=self.scale, margin=self.margin)
        return arcface_logits(emb_BD, w_KD, target_BK, scale=self.scale, margin=self.margin, gradient=self.gradient)


class ClassifierHead(nn.Module):
    """Trainable class vectors (K, D) under a `HeadSpec`: embeddings (B, D), targets (B, K) -> logits (B, K).

    The vectors start at N(0, 0.01) drawn from `generator`, or as given in `weight`.
    """

    def __init__(
        self,
        spec: HeadSpec,
        num_classes: int,
        dim: int,
        *,
        generator: torch.Generator | None = None,
        weight: Tensor | None = None,
    ) -> None:
        super().__init__()
        if (generator is None) == (weight is None):
            raise ConfigError("a classifier head needs either a generator or its class vectors")
        if weight is None:
            weight = torch.normal(0.0, 0.01, (num_classes, dim), generator=generator)
        if tuple(weight.shape) != (num_classes, dim):
            raise ConfigError(f"class vectors have shape {tuple(weight.shape)}, the head needs ({num_classes}, {dim})")
        self.spec = spec
        self.weight = nn.Parameter(weight.detach().clone())

    def forward(self, emb_BD: Tensor, target_BK: Tensor) -> Tensor:
        """Return the logits (B, K)."""
        return self.spec.logits(emb_BD, self.weight, target_BK)


class DfcBranch(nn.Module):
    """FedFR's decoupled feature customisation: embeddings (B, D) -> cosines (B, K) of the device's own classes.

    `pi_weight` (D, D) and `pi_bias` (D,) are Pi, one linear layer that starts as the identity; `omega` (K, D) starts as
    a copy of the generic class vectors; `bias` (K,) starts at 0. All are personal and never leave the device.
    Source: Liu et al., "FedFR" (2022), section "Decoupled Feature Customization".
    """

    def __init__(self, class_vectors_KD: Tensor) -> None:
        super().__init__()
        num_classes, dim = class_vectors_KD.shape
        self.pi_weight = nn.Parameter(torch.eye(dim))
        self.pi_bias = nn.Parameter(torch.zeros(dim))
        self.omega = nn.Parameter(class_vectors_KD.detach().clone())
        self.bias = nn.Parameter(torch.zeros(num_classes))

    def personalise(self, emb_BD: Tensor) -> Tensor:
        """Return the personal embeddings (B, D), of length 1."""
        return personalise(emb_BD, self.pi_weight, self.pi_bias)

    def forward(self, emb_BD: Tensor) -> Tensor:
        """Return the cosines (B, K) between personal embeddings and the one-vs-all classifiers."""
        return cosines(self.personalise(emb_BD), self.omega)
