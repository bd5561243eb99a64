"""What local training can minimise: `OBJECTIVES`, each a function of one batch that returns a scalar.

A method's device half names its objective (`mien.methods.base.Objective`); a new one is one function and one entry
here, its formula in `mien.losses` or `mien.heads`. Suffixes of tensors: B batch, K classes, D embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from torch import Tensor

from mien.domain_losses import domain_loss, multi_kernel_mmd
from mien.errors import ConfigError
from mien.heads import arcface_logits, cosface_logits, l2_normalise, softmax_logits
from mien.losses import cross_entropy, positive_hinge

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class LossInput:
    """What a loss sees of one batch: embeddings (B, D) as the backbone gives them, and the objective's tensors.

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


def _positive_hinge(at: LossInput) -> Tensor:
    return positive_hinge(at.embeddings, at.private["class_embedding"], at.constants["margin"], at.sample_weight)


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


def _dan(at: LossInput) -> Tensor:
    """ArcFace over the source's images plus the MMD between both domains' embeddings."""
    emb_BD, from_source = l2_normalise(at.embeddings), at.per_crop["is_source"] > 0
    return _source_arcface(at) + at.constants["trade_off"] * multi_kernel_mmd(emb_BD[from_source], emb_BD[~from_source])


def _dann(at: LossInput) -> Tensor:
    """ArcFace over the source's images plus the loss of a discriminator behind a reversed gradient."""
    discriminator = (at.private[name] for name in ("hidden", "hidden_bias", "output"))
    emb_BD = l2_normalise(at.embeddings)
    return _source_arcface(at) + domain_loss(emb_BD, at.per_crop["is_source"], *discriminator, at.constants["reversal"])


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


OBJECTIVES: Final[Mapping[str, Loss]] = MappingProxyType(
    {
        "positive_hinge": _positive_hinge,
        "cosface": _cosface,
        "arcface": _arcface,
        "softmax": _softmax,
        "dan": _dan,
        "dann": _dann,
    }
)
