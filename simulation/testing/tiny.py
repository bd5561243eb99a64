"""A model of 452 numbers, tasks on it, and made-up contributions to them: rounds without faces and without training."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

import numpy as np

from mien.contribution import ContributionLayout
from mien.layout import ParameterEntry, ParameterLayout, Vector
from mien.methods import METHODS
from mien.specs import CohortSpec, DeadlineSpec, FaceInputSpec, ModelSpec, PrivacySpec, TaskSpec

LAYOUT: Final = ParameterLayout(
    (
        ParameterEntry("stem.weight", (10, 20)),
        ParameterEntry("tail.weight", (20, 12)),
        ParameterEntry("tail.bias", (12,)),
    )
)
"""The tiny model's 452 parameters by name."""

SPEC: Final = ModelSpec(
    backbone="tiny",
    layout_sha256=LAYOUT.sha256,
    input=FaceInputSpec(dim=8),
    source="made up for tests",
    terms="public domain",
    trainable=("tail.*",),
)
"""The tiny model as devices are told of it; what is trained, and so contributed to, is its tail."""

THETA: Final[Vector] = np.random.default_rng(1).standard_normal(LAYOUT.size).astype(np.float32)
"""The tiny model's first parameters, (452,) float32."""

STEP_LIMIT_S: Final = 120.0
"""How long a single step may take before a test fails, and a stage for those who are in it."""

SHORT_S: Final = 12.0
"""How long a stage takes that is to run out: the others need a second or so, on a busy machine several."""


def tiny_task(name: str, population: str, **changes: Any) -> TaskSpec:
    """Return a task of plain sums on the tiny model: one round of FedAvg, 4 devices, deadlines that nobody misses.

    `changes` are other fields of `TaskSpec`; raises ConfigError for what does not go together.
    """
    values: dict[str, Any] = {
        "method": "fedavg",
        "rounds": 1,
        "population": population,
        "cohort": CohortSpec(size=4, min_reports=2),
        "deadlines": running_out(),
        "privacy": PrivacySpec(min_cohort=2, secure_aggregation="off"),
    }
    return TaskSpec(name, **{**values, **changes})


def masked_task(name: str, population: str, *, size: int = 5, min_reports: int = 3, **changes: Any) -> TaskSpec:
    """Return a task as `tiny_task` does, under secure aggregation: `size` devices, of which `min_reports` may stay."""
    values: dict[str, Any] = {
        "cohort": CohortSpec(size=size, min_reports=min_reports),
        "privacy": PrivacySpec(min_cohort=3, max_weight=32),
    }
    return tiny_task(name, population, **{**values, **changes})


def running_out(*stages: str) -> DeadlineSpec:
    """Return deadlines of which those of these stages run out after `SHORT_S`, because somebody does not answer.

    `stages` are fields of `DeadlineSpec` without their `_s`; all others last `STEP_LIMIT_S`.
    """
    hard = [each.name for each in fields(DeadlineSpec) if "_soft" not in each.name]
    return DeadlineSpec(**{**dict.fromkeys(hard, STEP_LIMIT_S), **{f"{stage}_s": SHORT_S for stage in stages}})


def layout_of(task: TaskSpec) -> ContributionLayout:
    """Return the form of a contribution to a task on the tiny model; raises KeyError for a method that is not there."""
    part = LAYOUT.part(task.trainable or SPEC.trainable)
    return METHODS[task.method].contribution_layout(task, part, SPEC.input.dim)


def contribution(task: TaskSpec, *seed: int, weight: float = 0.0) -> bytes:
    """Return a small contribution, 4 bytes for each number of its layout, made of nothing but the task and the seed.

    `weight` is the number of images that it stands for; without it the seed says one of 1 to 32.
    """
    layout = layout_of(task)
    rng = np.random.default_rng(seed)
    vector = (0.01 * rng.standard_normal(layout.size)).astype("<f4")
    weight = weight or float(rng.integers(1, 33))
    vector[layout.slices["count"]], vector[layout.slices["weight"]] = 1.0, weight
    vector[2 : layout.summed_size] *= np.float32(weight)
    return vector.tobytes()
