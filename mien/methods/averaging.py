"""Shared parts of methods that average updates: the addends of an update, and the server's step on their mean."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mien.contribution import Arrays, ContributionLayout, Lane, Total
from mien.errors import ConfigError
from mien.layout import ParameterPart, Vector
from mien.methods.base import Crops, DeviceInput, DeviceOutput, Runtime, ServerState, Trained
from mien.methods.spreadout import normalise
from mien.specs import TaskSpec


@dataclass(frozen=True)
class HingeOptions:
    """`margin` m of the positive hinge max(0, m - w.f(x))^2."""

    margin: float = 0.9

    def __post_init__(self) -> None:
        if not (math.isfinite(self.margin) and -1.0 < self.margin <= 1.0):
            raise ConfigError(f"options.margin is {self.margin}; it is a cosine and must lie in (-1, 1]")


def update_lanes(part: ParameterPart) -> tuple[Lane, ...]:
    """Return the lanes 1, w, w loss before, w loss after, w (theta_i - theta); w is the capped number of images."""
    return (
        Lane("count", 1),
        Lane("weight", 1),
        Lane("loss_before", 1),
        Lane("loss_after", 1),
        Lane("delta", part.size),
    )


def update_addends(inp: DeviceInput, trained: Trained, *, num_images: int | None = None) -> Arrays:
    """Return the arrays of `update_lanes` for what local training made of the device's images.

    `num_images` is what they weigh before the cap, where that is not their number.
    """
    delta = inp.part.change(inp.theta, trained.values)
    weight = np.float32(min(num_images or len(inp.crops), inp.task.privacy.max_weight))
    return {
        "count": np.ones(1, np.float32),
        "weight": np.array([weight]),
        "loss_before": np.array([weight * trained.loss_before], np.float32),
        "loss_after": np.array([weight * trained.loss_after], np.float32),
        "delta": np.multiply(delta, weight, out=delta),
    }


def contribution_layout(task: TaskSpec, part: ParameterPart, dim: int) -> ContributionLayout:
    """Return the lanes of a contribution that is an update and nothing else."""
    return ContributionLayout(update_lanes(part))


def output(layout: ContributionLayout, addends: Arrays, private: Arrays, trained: Trained) -> DeviceOutput:
    """Return a device's output after local training, with the losses before and after."""
    losses = {"loss_before": trained.loss_before, "loss_after": trained.loss_after}
    return DeviceOutput(layout.pack(addends), private, losses)


def update_output(
    inp: DeviceInput, trained: Trained, private: Arrays, *, num_images: int | None = None
) -> DeviceOutput:
    """Return the output of a device that sends its update and nothing else (see `update_addends`)."""
    layout = contribution_layout(inp.task, inp.part, inp.dim)
    return output(layout, update_addends(inp, trained, num_images=num_images), private, trained)


def mean_feature(runtime: Runtime, theta: Vector, crops: Crops) -> Vector:
    """Return the mean of the crops' embeddings at length 1: a class embedding's first value (FedFace eq 6)."""
    return normalise(runtime.embed(theta, crops).mean(axis=0)).astype(np.float32)


def server_start(task: TaskSpec, part: ParameterPart, theta: Vector) -> ServerState:
    """Return the state before the first round: the released model, no momentum, nothing revealed."""
    return ServerState(theta=theta, arrays={"momentum": np.zeros(part.size, np.float32)})


def apply_mean_update(task: TaskSpec, part: ParameterPart, state: ServerState, total: Total) -> ServerState:
    """Return the state after m <- mu m + sum(w delta) / sum(w), theta <- theta + lr m; `revealed` stays as it was.

    With mu = 0 and lr = 1 that is FedAvg's weighted mean of the local models. Raises NonFiniteError for an empty sum.
    """
    momentum = task.server.momentum * state.arrays["momentum"].astype(np.float64) + total.mean("delta")
    return moved(part, state, task.server.lr * momentum, {"momentum": momentum})


def moved(part: ParameterPart, state: ServerState, step: NDArray[np.float64], arrays: Mapping[str, Any]) -> ServerState:
    """Return the state after theta <- theta + step, which has `arrays` next; `revealed` stays as it was."""
    values = part.gather(state.theta).astype(np.float64) + step
    return ServerState(
        theta=part.scatter(state.theta, values.astype(np.float32)),
        arrays={name: np.asarray(each, np.float32) for name, each in arrays.items()},
        revealed=state.revealed,
        rounds=state.rounds + 1,
    )


def server_step(
    task: TaskSpec, part: ParameterPart, state: ServerState, total: Total, revealed: Mapping[str, Arrays]
) -> ServerState:
    """Return the state after one step on the mean update."""
    return apply_mean_update(task, part, state, total)
