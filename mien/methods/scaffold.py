"""SCAFFOLD: every step is corrected by how this device's gradient differs from the cohort's.

Source: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning" (2020), Algorithm 1, with
option II for the control variate. Devices count alike: a contribution weighs 1, whatever its number of images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from mien.contribution import Arrays, ContributionLayout, Lane, Total
from mien.errors import ConfigError
from mien.layout import ParameterPart, Vector
from mien.methods.averaging import moved, output, update_addends, update_lanes
from mien.methods.base import DeviceInput, DeviceOutput, Method, Property, Requirements, Runtime, ServerState, StepRule
from mien.methods.check_reply import told_or_zeros
from mien.methods.local_loss import LocalLoss, own_classes
from mien.methods.proxies import CLASSES
from mien.specs import TaskSpec, from_mapping

CONTROL: Final = "control"


@dataclass(frozen=True)
class ScaffoldOptions(LocalLoss):
    """`num_devices` is N, the devices of the population; 0 says that all of them are in every round.

    The others choose the loss.
    """

    num_devices: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.num_devices <= 10**9:
            raise ConfigError(f"options.num_devices is {self.num_devices}; give the population's size, or 0")


def options_of(task: TaskSpec) -> ScaffoldOptions:
    """Return the task's options; raises ConfigError naming the wrong field, here or in how a device trains."""
    if task.local.momentum or task.local.weight_decay or task.local.lr_drop_epoch:
        raise ConfigError(
            "scaffold reads its control variate off plain SGD steps at one rate: set local.momentum, "
            "local.weight_decay and local.lr_drop_epoch to 0"
        )
    return from_mapping(ScaffoldOptions, task.options, where="options.")


def contribution_layout(task: TaskSpec, part: ParameterPart, dim: int) -> ContributionLayout:
    """Return the lanes of a contribution: sums only, of updates and of changes of the control variates."""
    options_of(task)
    return ContributionLayout((*update_lanes(part), Lane("delta_control", part.size)))


def device_round(inp: DeviceInput, runtime: Runtime) -> DeviceOutput:
    """Return one device's round: lines 7-14. Steps are g - c_i + c, and c_i <- c_i - c + (x - y_i) / (K eta)."""
    options = options_of(inp.task)
    control = told_or_zeros(inp.reply, CONTROL, inp.part.size)
    own = inp.private.get(CONTROL, np.zeros(inp.part.size, np.float32))
    problem = own_classes(inp, runtime, options, StepRule(offset=control - own))
    trained = runtime.train(inp.job(problem.objective))
    addends = update_addends(inp, trained, num_images=1)
    next_own = own - control - addends["delta"] / (trained.num_steps * inp.task.local.lr)
    change = next_own - own
    if inp.task.privacy.is_masked:
        # What is kept is what the sum holds of it: a gradient that the clip cuts would later outweigh all honest ones,
        # and leave of this phone's updates nothing but what an earlier sum has told.
        length = math.hypot(float(np.linalg.norm(addends["delta"])), float(np.linalg.norm(change)))
        next_own = own + change * min(1.0, inp.task.privacy.l2_clip / max(length, 1e-30))
    addends = {**addends, "delta_control": change}
    private = {**problem.kept(trained), CONTROL: next_own.astype(np.float32)}
    return output(contribution_layout(inp.task, inp.part, inp.dim), addends, private, trained)


def server_start(task: TaskSpec, part: ParameterPart, theta: Vector) -> ServerState:
    """Return the state before the first round: c = 0."""
    return ServerState(theta=theta, arrays={CONTROL: np.zeros(part.size, np.float32)})


def server_step(
    task: TaskSpec, part: ParameterPart, state: ServerState, total: Total, revealed: Mapping[str, Arrays]
) -> ServerState:
    """Return the state after x <- x + eta_g mean(delta), c <- c + |S|/N mean(delta c): lines 16 and 17."""
    if task.server.momentum:
        raise ConfigError("scaffold's server keeps no momentum; set server.momentum to 0")
    share = total.num_reports / (options_of(task).num_devices or total.num_reports or 1)
    control = state.arrays[CONTROL].astype(np.float64) + min(share, 1.0) * total.mean("delta_control")
    return moved(part, state, task.server.lr * total.mean("delta"), {CONTROL: control})


def reply(state: ServerState, device: str) -> Arrays:
    """Return c, which is the same for all devices (line 4)."""
    return {CONTROL: state.arrays[CONTROL]}


def requirements(task: TaskSpec) -> Requirements:
    """Return the rounds' requirements: the same c for all, and one round after the other."""
    return Requirements(
        objective=from_mapping(ScaffoldOptions, task.options, where="options.").objective,
        shared_reply=(CONTROL,),
        why_synchronous="devices correct their steps by control variates c - c_i, which belong to the newest model",
    )


SCAFFOLD = Method(
    name="scaffold",
    source="Karimireddy et al. 2020, SCAFFOLD, Algorithm 1",
    options=ScaffoldOptions,
    contribution_layout=contribution_layout,
    device_round=device_round,
    server_start=server_start,
    server_step=server_step,
    reply=reply,
    requirements=requirements,
    properties=frozenset({Property.SEVERAL_PEOPLE}),
    per_identity=(CLASSES,),
)
