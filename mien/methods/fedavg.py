"""FedAvg with the positive loss only: FedFace's baseline of one identity a phone, and its warning.

Source: McMahan et al. (2017) with the loss of FedFace eq 7 (Aggarwal, Zhou, Jain 2021, Table 1, row "FedAvg"). Nothing
holds identities apart, so features of all phones draw together; `fedface` adds what does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mien.contribution import Arrays, ContributionLayout, Total
from mien.errors import ConfigError
from mien.layout import ParameterPart
from mien.methods.averaging import (
    apply_mean_update,
    mean_feature,
    no_reply,
    server_start,
    update_addends,
    update_lanes,
)
from mien.methods.base import DeviceInput, DeviceOutput, Method, Objective, Runtime, ServerState
from mien.specs import TaskSpec, from_mapping


@dataclass(frozen=True)
class FedAvgOptions:
    """`margin` m of the positive hinge max(0, m - w.f(x))^2."""

    margin: float = 0.9

    def __post_init__(self) -> None:
        if not (math.isfinite(self.margin) and -1.0 < self.margin <= 1.0):
            raise ConfigError(f"options.margin is {self.margin}; it is a cosine and must lie in (-1, 1]")


def contribution_layout(task: TaskSpec, part: ParameterPart, dim: int) -> ContributionLayout:
    """Return the lanes of a contribution: sums only."""
    return ContributionLayout(update_lanes(part))


def device_round(inp: DeviceInput, runtime: Runtime) -> DeviceOutput:
    """Return the update of a device that draws its images and its class embedding together."""
    options = from_mapping(FedAvgOptions, inp.task.options, where="options.")
    w = inp.private.get("class_embedding")
    if w is None:
        w = mean_feature(runtime, inp.theta, inp.crops)
    objective = Objective(
        "positive_hinge",
        private={"class_embedding": w},
        constants={"margin": options.margin},
        unit_norm=("class_embedding",),
    )
    trained = runtime.train(inp.theta, inp.part, inp.crops, objective, inp.task.local, inp.seed)
    layout = contribution_layout(inp.task, inp.part, inp.dim)
    return DeviceOutput(
        contribution=layout.pack(update_addends(inp, trained)),
        private={"class_embedding": trained.private["class_embedding"]},
        metrics={"loss_before": trained.loss_before, "loss_after": trained.loss_after},
    )


def server_step(
    task: TaskSpec, part: ParameterPart, state: ServerState, total: Total, revealed: Mapping[str, Arrays]
) -> ServerState:
    """Return the state after one step on the mean update."""
    return apply_mean_update(task, part, state, total)


FEDAVG = Method(
    name="fedavg",
    source="McMahan et al. 2017; FedFace (2021) Table 1",
    options=FedAvgOptions,
    contribution_layout=contribution_layout,
    device_round=device_round,
    server_start=server_start,
    server_step=server_step,
    reply=no_reply,
)
