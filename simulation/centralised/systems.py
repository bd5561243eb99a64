"""Training in one place, without privacy: pooled training, and the pooled systems of FedFR-UDA's Tables 2 and 3.

All train the same part with the same head for the same number of steps under one runtime, so that what differs is the
data and the extra loss. Class vectors start at their identities' mean features, as in the federated methods, or at
random. Studies and runs (`system = "pooled"`, and what else an experiment's file names so) train by this code.
Legend: N crops, K identities, D embedding, H hidden units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Final, Literal

import numpy as np
from numpy.typing import NDArray

from mien.contribution import Arrays
from mien.errors import ConfigError
from mien.layout import ParameterPart, Vector
from mien.methods.base import Crops, Objective, Runtime, Trained, TrainingJob
from mien.methods.proxies import class_means, head_objective, random_classes
from mien.records import check_limits, positive
from mien.specs import LocalSpec

HIDDEN: Final = 64
"""Units of DANN's discriminator."""
_NOTHING: Final[Arrays] = MappingProxyType({})


@dataclass(frozen=True)
class Head:
    """A classifier over all identities: `loss` with `scale` s and `margin` m, which softmax leaves out.

    Class vectors start at their identities' mean features, or at random (`class_start`).
    """

    loss: Literal["softmax", "cosface", "arcface"] = "cosface"
    scale: Annotated[float, positive(1e4)] = 30.0
    margin: float = 0.4
    class_start: Literal["mean_feature", "random"] = "mean_feature"

    def __post_init__(self) -> None:
        check_limits(self, "central.")
        if not 0 <= self.margin < math.pi / 2:
            raise ConfigError(f"central.margin is {self.margin}; it must lie in [0, pi/2)")


@dataclass(frozen=True)
class Faces:
    """Crops (N, H, W, 3) with identity numbers (N,) from 0."""

    crops: Crops = field(repr=False)
    labels: NDArray[np.int64] = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.crops) == 0 or self.labels.shape != (len(self.crops),) or self.labels.min() < 0:
            raise ConfigError(
                f"{len(self.crops)} crops and labels of shape {self.labels.shape}: give each crop one, from 0"
            )

    @property
    def num_identities(self) -> int:
        """Identities, those without a crop counted too."""
        return int(self.labels.max()) + 1


@dataclass(frozen=True)
class Trainer:
    """The training that all systems share: runtime, trained part, head, steps and rates, seed."""

    runtime: Runtime = field(repr=False)
    part: ParameterPart = field(repr=False)
    head: Head
    local: LocalSpec
    seed: int = 0

    def supervised(self, theta: Vector, faces: Faces) -> Vector:
        """Return the model after training on labelled faces: of the source (stage 1), of the target, or of both."""
        return self.trained(theta, faces).theta

    def trained(self, theta: Vector, faces: Faces, kept: Arrays = _NOTHING) -> Trained:
        """Return what training on labelled faces makes of a model.

        Private tensors, class vectors among them, are those of `kept`, as an earlier training left them; by default
        they start anew.
        """
        head = self._head(theta, faces)
        objective = replace(head, private={**head.private, **kept})
        return self.runtime.train(TrainingJob(theta, self.part, faces.crops, objective, self.local, self.seed))

    def adapted(
        self, theta: Vector, source: Faces, target: Crops, extra: Objective, kept: Arrays = _NOTHING
    ) -> Trained:
        """Return what training on labelled source and unlabelled target faces in mixed batches makes of a model.

        `extra` names the loss, which adds to the head's own, with its constants and private tensors; `kept` as in
        `trained`.
        """
        head = self._head(theta, source)
        num_target = len(target)
        rows = np.concatenate([head.per_crop["target"], np.zeros((num_target, source.num_identities), np.float32)])
        is_source = np.repeat(np.array([1, 0], np.float32), [len(source.crops), num_target])
        objective = replace(
            extra,
            private={**head.private, **extra.private, **kept},
            per_crop={"target": rows, "is_source": is_source},
            constants={**head.constants, **extra.constants},
            unit_norm=head.unit_norm,
        )
        crops = np.concatenate([source.crops, target])
        return self.runtime.train(TrainingJob(theta, self.part, crops, objective, self.local, self.seed))

    def _head(self, theta: Vector, faces: Faces) -> Objective:
        head, num = self.head, faces.num_identities
        if head.class_start == "random":
            dim = self.runtime.embed(theta, faces.crops[:1]).shape[1]
            w_KD = random_classes(num, dim, self.seed, at_length_1=head.loss != "softmax")
        else:
            w_KD = class_means(self.runtime.embed(theta, faces.crops), faces.labels, num)
        return head_objective(head.loss, w_KD, faces.labels, scale=head.scale, margin=head.margin)


def merge(trainer: Trainer, theta: Vector, source: Faces, target: Faces) -> Vector:
    """Return the model trained on both with true labels, no identity being in both."""
    labels = np.concatenate([source.labels, target.labels + source.num_identities])
    return trainer.supervised(theta, Faces(np.concatenate([source.crops, target.crops]), labels))


def dan_loss(trade_off: float) -> Objective:
    """Return the loss `trade_off` x MMD^2, which draws both domains' embeddings together.

    Source: Long et al. 2015 (DAN); embeddings are compared at length 1, in one layer.
    """
    return Objective("dan", constants={"trade_off": trade_off})


def dann_loss(dim: int, reversal: float, seed: int) -> Objective:
    """Return the loss of a discriminator from which embeddings hide their domain.

    `reversal` is the constant that the discriminator's gradient is turned round with (the paper raises it over time).
    Source: Ganin et al. 2016 (DANN).
    """
    rng = np.random.default_rng([seed, 2])
    discriminator = {
        "hidden": rng.normal(0, dim**-0.5, (HIDDEN, dim)).astype(np.float32),
        "hidden_bias": np.zeros(HIDDEN, np.float32),
        "output": rng.normal(0, HIDDEN**-0.5, HIDDEN).astype(np.float32),
    }
    return Objective("dann", discriminator, constants={"reversal": reversal})


def dan(trainer: Trainer, theta: Vector, source: Faces, target: Crops, *, trade_off: float = 1.0) -> Vector:
    """Return the model trained on the source with `dan_loss`."""
    return trainer.adapted(theta, source, target, dan_loss(trade_off)).theta


def dann(trainer: Trainer, theta: Vector, source: Faces, target: Crops, *, reversal: float = 0.1) -> Vector:
    """Return the model trained on the source with `dann_loss`."""
    dim = trainer.runtime.embed(theta, source.crops[:1]).shape[1]
    return trainer.adapted(theta, source, target, dann_loss(dim, reversal, trainer.seed)).theta
