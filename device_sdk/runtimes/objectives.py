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

from mien.errors import ConfigError
from mien.heads import cosface_logits
from mien.losses import cross_entropy, positive_hinge

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class LossInput:
    """What a loss sees of one batch: embeddings (B, D) as the backbone gives them, and the objective's tensors.

    `private` ones are trained, `fixed` ones are not; `per_crop` ones come as the rows of this batch.
    """

    embeddings: Tensor = field(repr=False)
    private: Tensors = field(repr=False)
    per_crop: Tensors = field(repr=False)
    constants: Mapping[str, float]
    fixed: Tensors = field(default_factory=dict, repr=False)

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


OBJECTIVES: Final[Mapping[str, Loss]] = MappingProxyType({"positive_hinge": _positive_hinge, "cosface": _cosface})
