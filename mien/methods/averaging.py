"""What methods that average updates share: the addends of an update, and the server's step on their mean."""

from __future__ import annotations

import numpy as np

from mien.contribution import Arrays, Lane, Total
from mien.layout import ParameterPart, Vector
from mien.methods.base import Crops, DeviceInput, Runtime, ServerState, Trained
from mien.methods.spreadout import normalise
from mien.specs import TaskSpec


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
    values = part.gather(state.theta).astype(np.float64) + task.server.lr * momentum
    return ServerState(
        theta=part.scatter(state.theta, values.astype(np.float32)),
        arrays={"momentum": momentum.astype(np.float32)},
        revealed=state.revealed,
        rounds=state.rounds + 1,
    )


def no_reply(state: ServerState, device: str) -> Arrays:
    """Return nothing: the server keeps nothing of a single device."""
    return {}
