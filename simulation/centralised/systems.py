"""The pooled systems of FedFR-UDA's Tables 2 and 3, each a function from a released model to a trained one.

All train the same part with the same head for the same number of steps under one runtime, so that what differs is the
data and the extra loss. Class vectors start at their identities' mean features, as in the federated method.
Legend: N crops, K identities, D embedding, H hidden units.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mien.errors import ConfigError
from mien.layout import ParameterPart, Vector
from mien.methods.base import Crops, Objective, Runtime, TrainingJob
from mien.methods.fedfr_uda import FedFrUdaOptions
from mien.methods.proxies import class_means, head_objective
from mien.specs import LocalSpec

HIDDEN: Final = 64
"""Units of DANN's discriminator."""


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
    options: FedFrUdaOptions
    local: LocalSpec
    seed: int = 0

    def supervised(self, theta: Vector, faces: Faces) -> Vector:
        """Return the model after training on labelled faces: of the source (stage 1), of the target, or of both."""
        job = TrainingJob(theta, self.part, faces.crops, self._head(theta, faces), self.local, self.seed)
        return self.runtime.train(job).theta

    def adapted(self, theta: Vector, source: Faces, target: Crops, extra: Objective) -> Vector:
        """Return the model after training on labelled source and unlabelled target faces in mixed batches.

        `extra` names the loss, which adds to the head's own, with its constants and private tensors.
        """
        head = self._head(theta, source)
        num_target = len(target)
        rows = np.concatenate([head.per_crop["target"], np.zeros((num_target, source.num_identities), np.float32)])
        is_source = np.repeat(np.array([1, 0], np.float32), [len(source.crops), num_target])
        objective = replace(
            extra,
            private={**head.private, **extra.private},
            per_crop={"target": rows, "is_source": is_source},
            constants={**head.constants, **extra.constants},
            unit_norm=head.unit_norm,
        )
        crops = np.concatenate([source.crops, target])
        return self.runtime.train(TrainingJob(theta, self.part, crops, objective, self.local, self.seed)).theta

    def _head(self, theta: Vector, faces: Faces) -> Objective:
        w_KD = class_means(self.runtime.embed(theta, faces.crops), faces.labels, faces.num_identities)
        options = self.options
        return head_objective(options.head, w_KD, faces.labels, scale=options.scale, margin=options.margin)


def merge(trainer: Trainer, theta: Vector, source: Faces, target: Faces) -> Vector:
    """Return the model trained on both with true labels, no identity being in both."""
    labels = np.concatenate([source.labels, target.labels + source.num_identities])
    return trainer.supervised(theta, Faces(np.concatenate([source.crops, target.crops]), labels))


def dan(trainer: Trainer, theta: Vector, source: Faces, target: Crops, *, trade_off: float = 1.0) -> Vector:
    """Return the model trained on the source while `trade_off` x MMD^2 draws both domains' embeddings together.

    Source: Long et al. 2015 (DAN); embeddings are compared at length 1, in one layer.
    """
    return trainer.adapted(theta, source, target, Objective("dan", constants={"trade_off": trade_off}))


def dann(trainer: Trainer, theta: Vector, source: Faces, target: Crops, *, reversal: float = 0.1) -> Vector:
    """Return the model trained on the source while its embeddings hide their domain from a discriminator.

    `reversal` is the constant that the discriminator's gradient is turned round with (the paper raises it over time).
    Source: Ganin et al. 2016 (DANN).
    """
    rng = np.random.default_rng([trainer.seed, 2])
    dim = trainer.runtime.embed(theta, source.crops[:1]).shape[1]
    discriminator = {
        "hidden": rng.normal(0, dim**-0.5, (HIDDEN, dim)).astype(np.float32),
        "hidden_bias": np.zeros(HIDDEN, np.float32),
        "output": rng.normal(0, HIDDEN**-0.5, HIDDEN).astype(np.float32),
    }
    return trainer.adapted(theta, source, target, Objective("dann", discriminator, constants={"reversal": reversal}))
