"""A gate between two populations: the recogniser as it was released for its own, and an adapter for another.

Two experts look at the features x of the frozen network: x itself, and the adapter's A x + b. A picture's share of
them is g, the probability that it is of the adapter's population, by a linear discriminant of two normal distributions
(Fisher 1936) whose moments are sums. Cosines of embeddings then compare like with like, and while the gate is closed
(g = 0) the model decides as the one that it extends.

    u = P x + p                       the model's own population has mean 0 and covariance I here
    g = 1 / (1 + exp(-(w'u + c)))
    e = |x| [sqrt(g (1 - s1)) (A x + b) / |A x + b|,  sqrt((1 - g) (1 - s0)) x / |x|,  sqrt(g s1) + sqrt((1 - g) s0)]

Each expert has its level t: the cosine that one pair of strangers in so many reaches. The last coordinate lifts the
cosines of the one whose level is lower, c -> (1 - s) c + s, until both have the higher level: one threshold then means
about the same false match rate for both (in single draws they were up to four times apart: decision record 0061), and
the order of scores within a population stays as it is.

Suffixes of tensors: B batch, D features of the recogniser.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor, nn

from mien.backbones._base import Backbone
from mien.backbones.adapter import STAGE
from mien.errors import ConfigError
from mien.specs import FaceInputSpec

SUFFIX: Final = "_gate"
POPULATION: Final = "population"
CLOSED: Final = -30.0
"""Bias of a closed gate: its share of the adapter, 1e-13, is below what float32 keeps of a unit vector's square."""
NO_LEVEL: Final = -1.0
"""Level of an adapter that has none yet: it lifts nothing of the model's own population."""
_LEAST: Final = 1e-12


class Population(nn.Linear):
    """The recogniser's own population: x (B, D) -> x, u = P x + p, and the population's level (B, 2 D + 1)."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, dim)
        self.level = nn.Parameter(torch.zeros(1))

    def forward(self, x_BD: Tensor) -> Tensor:
        """Return the features beside what the gate and the levels need of them."""
        return torch.cat([x_BD, super().forward(x_BD), self.level.expand(x_BD.shape[0], 1)], 1)


class GatedAdapter(nn.Linear):
    """The adapter, its gate and its level: what `Population` gives -> the embedding (B, 2 D + 1) of the length of x."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, dim)
        self.gate_weight = nn.Parameter(torch.zeros(1, dim))
        self.gate_bias = nn.Parameter(torch.full((1,), CLOSED))
        self.level = nn.Parameter(torch.full((1,), NO_LEVEL))

    def forward(self, both_BE: Tensor) -> Tensor:
        """Return both experts' shares of the embedding and the coordinate that lifts one of them."""
        dim = self.in_features
        x_BD, u_BD, own_level_B1 = both_BE[:, :dim], both_BE[:, dim : 2 * dim], both_BE[:, 2 * dim :]
        log_odds_B1 = nn.functional.linear(u_BD, self.gate_weight, self.gate_bias)
        # Square roots of g and 1 - g, with a gradient where these are 0.
        new_B1 = torch.exp(-nn.functional.softplus(-log_odds_B1) / 2)
        own_B1 = torch.exp(-nn.functional.softplus(log_odds_B1) / 2)
        own_lift_B1 = torch.relu(self.level - own_level_B1) / (1 - own_level_B1)
        new_lift_B1 = torch.relu(own_level_B1 - self.level) / (1 - self.level)
        length_B1 = _length(x_BD)
        y_BD = super().forward(x_BD)
        lifted_B1 = new_B1 * _root(new_lift_B1) + own_B1 * _root(own_lift_B1)
        return torch.cat(
            [
                y_BD * (length_B1 / _length(y_BD) * new_B1 * _root(1 - new_lift_B1)),
                x_BD * (own_B1 * _root(1 - own_lift_B1)),
                length_B1 * lifted_B1,
            ],
            1,
        )


def _length(x_BD: Tensor) -> Tensor:
    return _root((x_BD * x_BD).sum(1, keepdim=True))


def _root(x: Tensor) -> Tensor:
    """Return the square root, with a gradient at 0, where it is 1e-6."""
    return torch.sqrt(torch.relu(x) + _LEAST)


def build_gated(spec: FaceInputSpec, *, base: Callable[[FaceInputSpec], Backbone]) -> Backbone:
    """Return the backbone that `base` builds with stages `population` and `adapter` behind it, the gate closed.

    Of the (2 D + 1) numbers of an embedding, those from D to 2 D are the recogniser's own. Phones' statistics make
    `adapter.*`; `population.*` says of whom the recogniser was made and stays. Raises ConfigError for an even `dim`.
    """
    dim, left = divmod(spec.dim - 1, 2)
    if left or dim < 1:
        raise ConfigError(f"dim is {spec.dim}; with a gate it is twice the recogniser's and one more")
    inner = base(replace(spec, dim=dim))
    population, adapter = Population(dim), GatedAdapter(dim)
    for linear in (population, adapter):
        nn.init.eye_(linear.weight)
        nn.init.zeros_(linear.bias)
    stages = dict(inner.named_children()) | {POPULATION: population, STAGE: adapter}
    return Backbone(inner.name + SUFFIX, spec, stages, (f"{STAGE}.*",))
