"""Local losses of federated optimisers: one of the usual losses over the device's own identities.

FedProx, SCAFFOLD, Mime and PFM say how steps are taken, not on what; these are the losses that a task can give them.
Legend: K own identities, D embedding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Final, Literal

import numpy as np

from mien.contribution import Arrays
from mien.errors import ConfigError
from mien.layout import Vector
from mien.methods.base import DeviceInput, Objective, Runtime, StepRule, Trained, objective_name
from mien.methods.proxies import CLASSES, carry_over, class_means, one_hot_rows, own_labels
from mien.records import check_limits, positive

Loss = Literal["positive", "softmax", "cosface", "arcface"]
VELOCITY: Final = "class_velocity"

MARGINS: Final[Mapping[Loss, float]] = MappingProxyType(
    {"positive": 0.9, "softmax": 0.0, "cosface": 0.35, "arcface": 0.5}
)
"""Margins where a task names none: FedFace eq 7; PFM + FV, section 4.2."""


@dataclass(frozen=True)
class LocalLoss:
    """Options that every method with a free choice of loss has.

    `loss` over the device's own identities, with `margin` (None: the usual one of that loss) and, but for "positive"
    and "softmax", `scale`. Class embeddings are kept on the device; a new identity's starts at its mean feature or at
    N(0, 0.01).
    """

    loss: Loss = "positive"
    margin: float | None = None
    scale: Annotated[float, positive(1e4)] = 30.0
    class_start: Literal["mean_feature", "random"] = "mean_feature"

    def __post_init__(self) -> None:
        if self.margin is not None and not (math.isfinite(self.margin) and -1.0 < self.margin <= 1.0):
            raise ConfigError(f"options.margin is {self.margin}; it must lie in (-1, 1]")
        check_limits(self, "options.")

    @property
    def constants(self) -> Mapping[str, float]:
        """Margin and scale as the objective takes them."""
        return {"margin": MARGINS[self.loss] if self.margin is None else self.margin, "scale": self.scale}

    @property
    def objective(self) -> str:
        """Name of the objective in graphs."""
        return objective_name("positive_hinge" if self.loss == "positive" else self.loss, self.constants["margin"])


@dataclass(frozen=True)
class OwnClasses:
    """A device's local problem: the objective, and how what training made of it is kept for next time."""

    objective: Objective
    keeps_velocity: bool = field(default=False)

    def kept(self, trained: Trained) -> Arrays:
        """Return class embeddings (K, D), and their momentum where it is maintained across rounds."""
        (name,) = self.objective.private
        kept = {CLASSES: np.atleast_2d(trained.private[name])}
        if self.keeps_velocity:
            kept[VELOCITY] = np.atleast_2d(trained.velocity[name])
        return kept


def own_classes(
    inp: DeviceInput, runtime: Runtime, loss: LocalLoss, step_rule: StepRule, *, keeps_velocity: bool = False
) -> OwnClasses:
    """Return a device's problem over its own identities, with class embeddings as it kept them or as they start.

    Raises ConfigError for a softmax over a single identity, which teaches nothing.
    """
    labels = own_labels(inp)
    num_classes = int(labels.max()) + 1
    w_KD = _class_embeddings(inp, runtime, loss, num_classes)
    zeros_KD = np.zeros_like(w_KD)
    v_KD = carry_over(inp.private.get(VELOCITY), zeros_KD) if keeps_velocity else zeros_KD
    if loss.loss != "positive" and num_classes < 2:
        raise ConfigError(
            "this device holds one identity, and a softmax over one class teaches nothing; use options.loss = "
            '"positive", or a method that draws on public faces'
        )
    name = "class_embedding" if loss.loss == "positive" else CLASSES
    one = loss.loss == "positive" and len(w_KD) == 1
    objective = Objective(
        "positive_hinge" if loss.loss == "positive" else loss.loss,
        private={name: w_KD[0] if one else w_KD},
        per_crop={} if one else {"target": one_hot_rows(labels, len(w_KD))},
        constants=loss.constants,
        unit_norm=(name,) if loss.loss == "positive" else (),
        velocity={name: v_KD[0] if one else v_KD} if keeps_velocity else {},
        step_rule=step_rule,
    )
    return OwnClasses(objective, keeps_velocity)


def _class_embeddings(inp: DeviceInput, runtime: Runtime, loss: LocalLoss, num_classes: int) -> Vector:
    """Return class embeddings (K, D): what the device kept, new identities as they start."""
    kept = inp.private.get(CLASSES)
    if kept is not None and kept.shape[1] == inp.dim and len(kept) >= num_classes:
        return kept
    if loss.class_start == "random":
        rng = np.random.default_rng(inp.seed)
        return carry_over(kept, rng.normal(0, 0.01, (num_classes, inp.dim)).astype(np.float32))
    start = class_means(runtime.embed(inp.theta, inp.crops), own_labels(inp), num_classes)
    return carry_over(kept, start)
