"""FedFR-UDA: one labelled source and several unlabelled targets learn one backbone; heads and labels stay at home.

Source: Zhuang et al., "Towards Unsupervised Domain Adaptation for Deep Face Recognition under Privacy Constraints via
Federated Learning" (2021), Algorithm 1, stages 2 and 3. Stage 1, supervised training on the source, made the model that
the task starts from. The source is a member of the cohort like any other: a device whose crops carry `labels` (several
may). A target has none, and clusters its crops with the model of its first round.

The paper leaves open how a head starts (here: at the mean features of its identities, as in FedFace) and how momentum
carries over (it does not). Legend: N crops, K identities, D embedding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Final, Literal

import numpy as np

from mien.errors import ConfigError
from mien.layout import Vector
from mien.methods.averaging import contribution_layout, server_start, server_step, update_output
from mien.methods.base import (
    IDENTITIES,
    DeviceInput,
    DeviceOutput,
    Method,
    Property,
    Requirements,
    Runtime,
    StepRule,
    objective_name,
)
from mien.methods.clustering import Metric, Partition, c_finch, calibrated_distance, finch, pure_distance
from mien.methods.proxies import CLASSES, Indices, class_means, head_objective, own_labels, public_faces
from mien.records import check_limits, positive, within
from mien.specs import MAX_STEPS, TaskSpec, from_mapping

W: Final = CLASSES
LABELS: Final = "labels"
MAX_SCALE: Final = 1e4


@dataclass(frozen=True)
class ClusteringSpec:
    """Clustering of a target's faces (section 3.3): `distance` d is C-FINCH's, `level` FINCH's (0 the finest).

    With `distance` 0 a target measures d itself on the model's public faces: those of the source, or people like them,
    best in the target's light. Without `purity` it is the d that finds these people again best, by F-score; with it
    the largest at which that share of the pairs that are joined are of one person, in groups of as many images as the
    target has. C-FINCH links `max_levels` times at most (0: until no link is shorter than d).
    `metric` says what d measures between normalised centroids. Clusters of fewer than `min_images` are not trained on.
    """

    algorithm: Literal["c_finch", "finch"] = "c_finch"
    distance: float = 1.2
    max_levels: Annotated[int, within(0, 64)] = 0
    metric: Metric = "euclidean"
    level: int = 0
    min_images: int = 1
    purity: Annotated[float, within(0, 1)] = 0.0

    def __post_init__(self) -> None:
        check_limits(self, "options.clustering.")
        if not 0 <= self.distance <= 2:
            raise ConfigError(
                f"options.clustering.distance is {self.distance}; it must lie in (0, 2], or be 0: measured on the "
                "model's public faces"
            )
        if self.purity and not self.is_calibrated:
            raise ConfigError(
                f"options.clustering.purity is {self.purity}, which chooses the distance of C-FINCH; with it "
                'options.clustering.distance must be 0 and options.clustering.algorithm "c_finch"'
            )
        if self.min_images < 1:
            raise ConfigError(f"options.clustering.min_images is {self.min_images}; a cluster has at least 1")

    @property
    def is_calibrated(self) -> bool:
        """True if the distance is measured on public faces."""
        return self.algorithm == "c_finch" and self.distance == 0


@dataclass(frozen=True)
class FedFrUdaOptions:
    """`head` with `scale` s and `margin` m; `domain_constraint` lambda of DCL (eq 3); `clustering` of the targets.

    With `constraint_steps` lambda is that of so many local steps (the paper's 1,500), and is scaled to a round's own,
    so that fewer steps, which stray less, are held as much (0: as it is named).

    The mean of models is plain with both weights at 1, as published; they are whole numbers, because a private sum
    counts in whole shares.
    """

    head: Literal["arcface", "cosface", "softmax"] = "arcface"
    scale: Annotated[float, positive(MAX_SCALE)] = 64.0
    margin: float = 0.5
    domain_constraint: float = 0.002
    constraint_steps: Annotated[int, within(0, MAX_STEPS)] = 0
    clustering: ClusteringSpec = field(default_factory=ClusteringSpec)
    source_weight: int = 1
    target_weight: int = 1

    def __post_init__(self) -> None:
        check_limits(self, "options.")
        if not 0 <= self.margin < math.pi / 2:
            raise ConfigError(f"options.margin is {self.margin}; it must lie in [0, pi/2)")
        if not 0 <= self.domain_constraint < math.inf:
            raise ConfigError(f"options.domain_constraint is {self.domain_constraint}; it must not be negative")
        if min(self.source_weight, self.target_weight) < 1:
            raise ConfigError("options.source_weight and options.target_weight are whole numbers from 1 on")


def options_of(task: TaskSpec) -> FedFrUdaOptions:
    """Return the task's options; raises ConfigError naming the wrong field."""
    return from_mapping(FedFrUdaOptions, task.options, where="options.")


def device_round(inp: DeviceInput, runtime: Runtime) -> DeviceOutput:
    """Return one client's round: lines 5-8 at first participation, then lines 14-19."""
    options = options_of(inp.task)
    is_source = inp.labels is not None
    label_N = own_labels(inp) if is_source else pseudo_labels(inp, runtime, options.clustering)
    w_KD = class_vectors(inp, runtime, label_N)
    used = _large_enough(label_N, 1 if is_source else options.clustering.min_images)
    rule = StepRule(proximal=constraint_of(inp.task, len(used)) if is_source else 0.0)  # DCL (eq 3)
    objective = head_objective(
        options.head, w_KD, label_N[used], scale=options.scale, margin=options.margin, step_rule=rule
    )
    trained = runtime.train(inp.job(objective, crops=inp.crops[used]))
    weight = options.source_weight if is_source else options.target_weight
    private = {W: trained.private[W], LABELS: label_N.astype(np.float32)}
    output = update_output(inp, trained, private, num_images=weight)
    return replace(output, metrics={**output.metrics, IDENTITIES: float(len(w_KD))})


def constraint_of(task: TaskSpec, num_images: int) -> float:
    """Return lambda of DCL for a source of that many images: after E steps SGD keeps (1 - eta lambda)^E of a drift."""
    options = options_of(task)
    if not options.constraint_steps:
        return options.domain_constraint
    return options.domain_constraint * options.constraint_steps / task.local.num_steps(num_images)


def pseudo_labels(inp: DeviceInput, runtime: Runtime, spec: ClusteringSpec) -> Partition:
    """Return the labels (N,) that this device gave its crops in its first round, new ones where the crops changed."""
    kept = inp.private.get(LABELS)
    if kept is not None and kept.shape == (len(inp.crops),):
        return kept.astype(np.int64)
    return cluster(runtime.embed(inp.theta, inp.crops), _with_distance(inp, runtime, spec))


def _with_distance(inp: DeviceInput, runtime: Runtime, spec: ClusteringSpec) -> ClusteringSpec:
    """Return the clustering with the distance that public people have under this model, where it names none."""
    if not spec.is_calibrated:
        return spec
    crops, label_M = public_faces(inp, method="fedfr_uda", otherwise=", or name options.clustering.distance")
    emb_MD = runtime.embed(inp.theta, crops)
    found = (
        pure_distance(
            emb_MD,
            label_M,
            spec.purity,
            group_images=len(inp.crops),
            metric=spec.metric,
            max_levels=spec.max_levels,
        )
        if spec.purity
        else calibrated_distance(emb_MD, label_M, metric=spec.metric, max_levels=spec.max_levels)
    )
    return replace(spec, distance=found, purity=0.0)


def class_vectors(inp: DeviceInput, runtime: Runtime, label_N: Indices) -> Vector:
    """Return the head (K, D) that this device kept with these labels, or one at its identities' mean features."""
    kept, w_KD = inp.private.get(LABELS), inp.private.get(W)
    if w_KD is not None and w_KD.shape[1:] == (inp.dim,) and kept is not None and np.array_equal(kept, label_N):
        return w_KD
    return class_means(runtime.embed(inp.theta, inp.crops), label_N, int(label_N.max()) + 1)


def cluster(embeddings: Vector, spec: ClusteringSpec) -> Partition:
    """Return pseudo labels (N,) of embeddings (N, D); a level beyond FINCH's last one means the last."""
    if spec.algorithm == "c_finch":
        return c_finch(embeddings, spec.distance, metric=spec.metric, max_levels=spec.max_levels)
    found = finch(embeddings, metric=spec.metric)
    return found.at(min(spec.level, len(found.partitions) - 1))


def _large_enough(label_N: Indices, min_images: int) -> Indices:
    """Return the indices of crops whose cluster has enough images; all crops where no cluster has."""
    used = np.flatnonzero(np.bincount(label_N)[label_N] >= min_images)
    return used if used.size else np.arange(len(label_N))


def requirements(task: TaskSpec) -> Requirements:
    """Return the rounds' requirements: cohorts that do not overlap."""
    options = options_of(task)
    return Requirements(
        public_faces=options.clustering.is_calibrated,
        public_people=2,  # a distance is between those of one person and of another
        objective=objective_name(options.head, options.margin),
        why_synchronous="every sum needs the labelled source, one device that is in one cohort at a time",
    )


FEDFR_UDA = Method(
    name="fedfr_uda",
    source="Zhuang et al. 2021, Algorithm 1",
    options=FedFrUdaOptions,
    contribution_layout=contribution_layout,
    device_round=device_round,
    server_start=server_start,
    server_step=server_step,
    requirements=requirements,
    properties=frozenset({Property.SUM_ONLY, Property.UNLABELLED}),
)
