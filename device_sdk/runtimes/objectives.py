"""Objectives of local training: `OBJECTIVES`, each a function of one batch that returns a scalar.

A method's device half names its objective (`mien.methods.base.Objective`); a new one is one function and one entry
here, its formula in `mien.objectives.losses` or `mien.objectives.heads`. Suffixes of tensors: B batch, K classes, D
embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from mien.errors import ConfigError
from mien.objectives.domain_losses import domain_loss, multi_kernel_mmd
from mien.objectives.heads import arcface_logits, cosface_logits, cosines, l2_normalise, personalise, softmax_logits
from mien.objectives.losses import (
    cross_entropy,
    dfc_loss,
    distillation,
    model_contrastive,
    moment_softmax,
    positive_hinge,
)

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class LossInput:
    """Inputs of a loss for one batch: embeddings (B, D) as the backbone gives them, and the objective's tensors.

    `private` ones are trained, `fixed` ones are not; `per_crop` ones come as the rows of this batch. `mirrored` (B,)
    is 1 where the image was mirrored and 0 where not.
    """

    embeddings: Tensor = field(repr=False)
    private: Tensors = field(repr=False)
    per_crop: Tensors = field(repr=False)
    constants: Mapping[str, float]
    fixed: Tensors = field(default_factory=dict, repr=False)
    mirrored: Tensor | None = None

    def as_seen(self, name: str) -> Tensor:
        """Return the rows (B, ...) of a per-crop tensor (B, 2, ...) that holds each crop's and its mirror image's."""
        both = self.per_crop[name]
        if self.mirrored is None:
            return both[:, 0]
        second = self.mirrored.reshape(-1, *[1] * (both.dim() - 2))
        return both[:, 0] * (1 - second) + both[:, 1] * second

    @property
    def sample_weight(self) -> Tensor | None:
        """Weights (B,) of the batch's images; None where all count 1."""
        return self.per_crop.get("sample_weight")


Loss = Callable[[LossInput], Tensor]


def find_loss(name: str) -> Loss:
    """Return the loss of an objective of that name; raises ConfigError for one that this runtime lacks."""
    loss = OBJECTIVES.get(name)
    if loss is None:
        raise ConfigError(
            f"objective {name!r} is unknown to this runtime; known: {', '.join(OBJECTIVES)}; upgrade mien"
        )
    return loss


def is_mean_over_images(name: str) -> bool:
    """Return whether a loss is the (weighted) mean of its images' own losses, so that a batch can be cut in pieces."""
    return name not in _COMPARE_IMAGES


def takes_sample_weight(name: str) -> bool:
    """Return whether a loss weighs its images by `sample_weight`, so that images of weight 0 are as good as absent."""
    return name in _WEIGHTED


def _positive_hinge(at: LossInput) -> Tensor:
    """One identity's class embedding (D,), or several (K, D) of which `target` picks each image's own."""
    w = at.private["class_embedding"]
    own = at.per_crop["target"] @ w if w.dim() == 2 else w
    return positive_hinge(at.embeddings, own, at.constants["margin"], at.sample_weight)


def _cosface(at: LossInput) -> Tensor:
    target_BK = at.per_crop["target"]
    logits_BK = cosface_logits(
        at.embeddings,
        at.private["class_embeddings"],
        target_BK,
        scale=at.constants["scale"],
        margin=at.constants["margin"],
    )
    return cross_entropy(logits_BK, target_BK, at.sample_weight)


def _arcface(at: LossInput) -> Tensor:
    return cross_entropy(_arcface_logits(at), at.per_crop["target"], at.sample_weight)


def _softmax(at: LossInput) -> Tensor:
    logits_BK = softmax_logits(at.embeddings, at.private["class_embeddings"])
    return cross_entropy(logits_BK, at.per_crop["target"], at.sample_weight)


def _moment_softmax(at: LossInput) -> Tensor:
    """CosFace over the device's own identities and everybody else, whose two moments it was told."""
    return moment_softmax(
        at.embeddings,
        at.fixed["class_embeddings"],
        at.per_crop["target"],
        at.fixed["mean"],
        at.fixed["covariance"],
        log_others=at.constants["log_others"],
        scale=at.constants["scale"],
        margin=at.constants["margin"],
        sample_weight_B=at.sample_weight,
    )


def _dan(at: LossInput) -> Tensor:
    """ArcFace over the source's images plus the MMD between both domains' embeddings."""
    emb_BD, from_source = l2_normalise(at.embeddings), at.per_crop["is_source"] > 0
    return _source_arcface(at) + at.constants["trade_off"] * multi_kernel_mmd(emb_BD[from_source], emb_BD[~from_source])


def _dann(at: LossInput) -> Tensor:
    """ArcFace over the source's images plus the loss of a discriminator behind a reversed gradient."""
    adversary = domain_loss(
        l2_normalise(at.embeddings),
        at.per_crop["is_source"],
        at.private["hidden"],
        at.private["hidden_bias"],
        at.private["output"],
        at.constants["reversal"],
    )
    return _source_arcface(at) + adversary


def _arcface_logits(at: LossInput) -> Tensor:
    return arcface_logits(
        at.embeddings,
        at.private["class_embeddings"],
        at.per_crop["target"],
        scale=at.constants["scale"],
        margin=at.constants["margin"],
    )


def _source_arcface(at: LossInput) -> Tensor:
    """Return the mean loss of the batch's source images, 0 where it has none; target images have a row of zeros."""
    target_BK = at.per_crop["target"]
    mean_over_batch = cross_entropy(_arcface_logits(at), target_BK)
    return mean_over_batch * len(target_BK) / target_BK.sum().clamp(min=1)


def _cosface_distilled(at: LossInput) -> Tensor:
    """CosFace plus the divergence from a teacher's logits (B, 2, K), which are s cos(theta) without a margin."""
    scale, w_KD = at.constants["scale"], at.private["class_embeddings"]
    divergence = distillation(
        scale * cosines(at.embeddings, w_KD), at.as_seen("teacher_logits"), at.constants["temperature"]
    )
    return _cosface(at) + at.constants["distillation"] * divergence


def _fedfr(at: LossInput) -> Tensor:
    """FedFR's total loss, alpha_1 L_cos + alpha_2 L_con + alpha_3 L_BCE; terms without tensors are left out."""
    constants, target_BK = at.constants, at.per_crop["target"]
    w_KD = torch.cat([at.private["local_proxies"], at.private["public_proxies"]])
    logits_BK = cosface_logits(at.embeddings, w_KD, target_BK, scale=constants["scale"], margin=constants["margin"])
    loss = constants["alpha_cosface"] * cross_entropy(logits_BK, target_BK)
    if "global_features" in at.per_crop:
        features = at.as_seen("global_features"), at.as_seen("previous_features")
        contrast = model_contrastive(at.embeddings, *features, constants["temperature"])
        loss = loss + constants["alpha_contrastive"] * contrast
    if "pi_weight" in at.private:
        loss = loss + constants["alpha_branch"] * _fedfr_branch(at)
    return loss


def _fedfr_branch(at: LossInput) -> Tensor:
    """Binary losses of the device's own classes; where `omega_public` is, CosFace over those and the public ones."""
    constants, omega_LD, target_BK = at.constants, at.private["omega"], at.per_crop["target"]
    emb_BD = at.embeddings.detach() if constants["detach_branch"] else at.embeddings
    personal_BD = personalise(emb_BD, at.private["pi_weight"], at.private["pi_bias"])
    if "omega_public" in at.private:
        omega_KD = torch.cat([omega_LD, at.private["omega_public"]])
        logits_BK = cosface_logits(
            personal_BD, omega_KD, target_BK, scale=constants["branch_scale"], margin=constants["branch_margin"]
        )
        return cross_entropy(logits_BK, target_BK)
    return dfc_loss(
        cosines(personal_BD, omega_LD),
        target_BK[:, : omega_LD.shape[0]],  # `len` would make it one number in an exported graph
        at.private["bias"],
        scale=constants["branch_scale"],
        margin=constants["branch_margin"],
        exponent=constants["exponent"],
        balance=constants["balance"],
    )


OBJECTIVES: Final[Mapping[str, Loss]] = MappingProxyType(
    {
        "positive_hinge": _positive_hinge,
        "cosface": _cosface,
        "cosface_distilled": _cosface_distilled,
        "fedfr": _fedfr,
        "arcface": _arcface,
        "softmax": _softmax,
        "moment_softmax": _moment_softmax,
        "dan": _dan,
        "dann": _dann,
    }
)

_WEIGHTED: Final = frozenset({"positive_hinge", "cosface", "arcface", "softmax", "moment_softmax"})

# Losses of a batch as a whole: the gradients of its pieces do not add up to its own.
_COMPARE_IMAGES: Final = frozenset({"dan", "dann"})
