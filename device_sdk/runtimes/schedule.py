"""Forms that every runtime can train, and the crops of each step: their order and mirroring, alike for one seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mien.errors import ConfigError, LateError, LayoutMismatchError
from mien.layout import ParameterLayout, ParameterPart
from mien.methods.base import Objective, StepRule
from mien.specs import LocalSpec


@dataclass(frozen=True)
class Batch:
    """Indices of a batch's crops, which of them are mirrored, and the factor on both learning rates."""

    indices: NDArray[np.int64]
    flipped: NDArray[np.bool_]
    rate: float

    def __len__(self) -> int:
        return len(self.indices)


def adds_up_over_pieces(objective: Objective) -> bool:
    """Return whether a mean over images can be taken over pieces of a batch, each with its share of the weights.

    CosFace with distillation weighs one of its terms by the image and the other not: only where all weigh the same.
    """
    weights = objective.per_crop.get("sample_weight")
    if objective.name != "cosface_distilled" or weights is None or not len(weights):
        return True
    return bool(weights[0] > 0 and (weights == weights[0]).all())


def cannot_add_up(objective: Objective) -> ConfigError:
    """Return the error for a batch that is to be cut although the steps of its pieces would be another step."""
    return ConfigError(
        f"objective {objective.name!r} weighs one term by the image and another not, so that images of different "
        "weights must be in memory together; take smaller batches (local.batch_size)"
    )


def check_trainable(layout: ParameterLayout, part: ParameterPart, num_crops: int) -> None:
    """Raise what no runtime can train: LayoutMismatchError for a part of another model, ConfigError without images."""
    if part.layout.sha256 != layout.sha256:
        raise LayoutMismatchError("the trained part belongs to another model; use the model that was assigned")
    if num_crops == 0:
        raise ConfigError("there are no images to train on; enrol first")


def check_offset(rule: StepRule, part: ParameterPart) -> None:
    """Raise LayoutMismatchError for a rule whose offset is not as long as the trained part."""
    if rule.offset is not None and rule.offset.shape != (part.size,):
        raise LayoutMismatchError(
            f"the step's offset has shape {rule.offset.shape}, the trained part ({part.size},); use the model that was "
            "assigned"
        )


def take_steps(
    local: LocalSpec, num_crops: int, seed: int, step: Callable[[Batch], None], should_stop: Callable[[], bool]
) -> int:
    """Take a step on each batch of a round, and return their number; raises LateError once `should_stop` says so."""
    num_taken = 0
    for batch in batches(local, num_crops, np.random.default_rng(seed)):
        if should_stop():
            raise LateError("training was stopped before its end; nothing was changed or sent: check in again")
        step(batch)
        num_taken += 1
    return num_taken


def batches(local: LocalSpec, num_crops: int, rng: np.random.Generator) -> Iterator[Batch]:
    """Yield the batches of a round, drawn from `rng`: every crop once an epoch, the last batch with what is left.

    With `local.steps` there are that many, in as many epochs as it takes; raises ConfigError where no epoch gives one.
    """
    if local.steps and local.batch_norm == "train" and (num_crops == 1 or local.batch_size == 1):
        raise ConfigError("local.batch_norm is 'train' and a batch is one image, which has no statistics; use eval")
    size = local.batch_size or num_crops
    epoch = num_batches = 0
    while local.steps or epoch < local.epochs:
        order = rng.permutation(num_crops)
        flipped = rng.random(num_crops) < 0.5 if local.flip else np.zeros(num_crops, np.bool_)
        rate = 0.1 if 0 < local.lr_drop_epoch <= epoch else 1.0
        for start in range(0, num_crops, size):
            indices = order[start : start + size]
            if len(indices) == 1 and local.batch_norm == "train":  # one image has no statistics
                continue
            yield Batch(indices, flipped[indices], rate)
            num_batches += 1
            if num_batches == local.steps:
                return
        epoch += 1
