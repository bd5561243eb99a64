"""Class vectors on a device: whose crops are whose, means of features, and what carries over from round to round.

Legend: N own images, M public images, K identities, D embedding.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mien.errors import ConfigError
from mien.layout import Vector
from mien.methods.base import Crops, DeviceInput, Objective, StepRule
from mien.specs import TaskSpec

Indices = NDArray[np.int64]
CLASSES: Final = "class_embeddings"


def own_labels(inp: DeviceInput) -> Indices:
    """Return the identity number of each of the device's crops, (N,): 0 for all where it holds one person.

    Raises ConfigError for labels of another length than the crops, or below 0.
    """
    if inp.labels is None:
        return np.zeros(len(inp.crops), np.int64)
    labels = np.asarray(inp.labels, np.int64)
    if labels.shape != (len(inp.crops),) or (labels < 0).any():
        raise ConfigError(f"{len(inp.crops)} crops have labels of shape {labels.shape}; number each crop's identity")
    return labels


def reveals_class_embeddings(task: TaskSpec) -> bool:
    """Return whether the task is in a published form in which devices show their class embeddings."""
    return "class_embeddings" in task.privacy.reveals


def check_published(task: TaskSpec) -> None:
    """Raise ConfigError for a task in a published form that names a private one, which it would not be."""
    if task.options.get("private_form") is not None:
        raise ConfigError(
            f'options.private_form is "{task.options["private_form"]}", and privacy.reveals has class_embeddings, '
            "which the published form shows: remove one of the two"
        )


def public_faces(inp: DeviceInput, *, method: str, otherwise: str = "") -> tuple[Crops, Indices]:
    """Return public crops (M, H, W, 3) with labels 0 ... K - 1.

    Raises ConfigError where the bundle has none; `otherwise` says what else a task can do.
    """
    if inp.public_crops is None or inp.public_labels is None or len(inp.public_crops) == 0:
        raise ConfigError(
            f"{method} needs public faces, and this model's bundle has none: add some with "
            f"`model import --public SHARD`{otherwise}"
        )
    _, labels = np.unique(inp.public_labels, return_inverse=True)
    return inp.public_crops, labels.astype(np.int64)


def class_means(emb_ND: Vector, label_N: Indices, num_classes: int) -> Vector:
    """Return each identity's mean feature at length 1, (K, D); zeros for an identity without images.

    Source: FedFace eq 6, which FedFR's `--init_fc` follows.
    """
    sums_KD = np.zeros((num_classes, emb_ND.shape[1]))
    np.add.at(sums_KD, label_N, emb_ND.astype(np.float64))
    return normalised(sums_KD)


START_DEVIATION: Final = 0.01
"""Class vectors that start at random are N(0, 0.01), as linear layers of this field do."""


def random_classes(num_classes: int, dim: int, seed: int, *, at_length_1: bool) -> Vector:
    """Return class vectors (K, D) that start at random, each at length 1 where a head has only such."""
    drawn = np.random.default_rng(seed).normal(0.0, START_DEVIATION, (num_classes, dim))
    return normalised(drawn) if at_length_1 else drawn.astype(np.float32)


def normalised(rows_KD: NDArray[np.floating[Any]]) -> Vector:
    """Return each row at length 1 in float32; a row of zeros stays zero."""
    length_K1 = np.linalg.norm(rows_KD, axis=1, keepdims=True)
    unit_KD: Vector = (rows_KD / np.where(length_K1 == 0, 1, length_K1)).astype(np.float32)
    return unit_KD


def carry_over(kept: Vector | None, start: Vector) -> Vector:
    """Return the rows of `start`, those of identities that were here before replaced by what was kept of them.

    Identities keep their numbers and new ones come after them, so rows are matched by number. What was kept of a model
    of another width is dropped.
    """
    if kept is None or kept.ndim != start.ndim or kept.shape[1:] != start.shape[1:]:
        return start
    num_kept = min(len(kept), len(start))
    return np.concatenate([kept[:num_kept], start[num_kept:]]).astype(np.float32)


def head_objective(
    kind: str, w_KD: Vector, class_N: Indices, *, scale: float, margin: float, step_rule: StepRule | None = None
) -> Objective:
    """Return a head's loss over K identities: softmax over inner products, or over cosines with scale and margin."""
    is_normalised = kind != "softmax"
    return Objective(
        kind,
        private={CLASSES: w_KD},
        per_crop={"target": one_hot_rows(class_N, len(w_KD))},
        constants={"scale": scale, "margin": margin} if is_normalised else {},
        unit_norm=(CLASSES,) if is_normalised else (),
        step_rule=step_rule or StepRule(),
    )


def one_hot_rows(class_N: Indices, num_classes: int) -> Vector:
    """Return the targets (N, K) of class numbers (N,) as rows of float32."""
    rows_NK = np.zeros((len(class_N), num_classes), np.float32)
    rows_NK[np.arange(len(class_N)), class_N] = 1.0
    return rows_NK
