"""MimeLite: the server's momentum, held still during a round, is applied in every device's steps.

Source: Karimireddy et al., "Mime: Mimicking Centralized Stochastic Algorithms in Federated Learning" (2020),
Algorithm 1, form MimeLite, with SGD with momentum as the base algorithm: a step is
y <- y - eta ((1 - beta) g + beta m), and m <- (1 - beta) mean(grad f_i(x)) + beta m after the round. The form "Mime"
corrects every step by a second gradient and a mean that is known before the round, for which a round has no stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Final

import numpy as np

from mien.contribution import Arrays, ContributionLayout, Lane, Total
from mien.errors import ConfigError
from mien.layout import ParameterPart, Vector
from mien.methods.averaging import moved, output, server_start, update_addends, update_lanes
from mien.methods.base import (
    DeviceInput,
    DeviceOutput,
    Method,
    Objective,
    Property,
    Requirements,
    Runtime,
    ServerState,
    StepRule,
)
from mien.methods.check_reply import told_or_zeros
from mien.methods.local_loss import LocalLoss, own_classes
from mien.methods.proxies import CLASSES
from mien.records import BELOW_1
from mien.specs import LocalSpec, TaskSpec, from_mapping

MOMENTUM: Final = "momentum"


@dataclass(frozen=True)
class MimeOptions(LocalLoss):
    """`beta` of the momentum; 0 is FedAvg. The others choose the loss."""

    beta: Annotated[float, BELOW_1] = 0.9


def options_of(task: TaskSpec) -> MimeOptions:
    """Return the task's options; raises ConfigError naming the wrong field, here or in how a device trains."""
    if task.local.momentum or task.server.momentum:
        raise ConfigError("mime's momentum is options.beta; set local.momentum and server.momentum to 0")
    return from_mapping(MimeOptions, task.options, where="options.")


def contribution_layout(task: TaskSpec, part: ParameterPart, dim: int) -> ContributionLayout:
    """Return the lanes of a contribution: sums only, of updates and of whole-batch gradients."""
    options_of(task)
    return ContributionLayout((*update_lanes(part), Lane("gradient", part.size)))


def device_round(inp: DeviceInput, runtime: Runtime) -> DeviceOutput:
    """Return one device's round: steps under the server's momentum, and the gradient of all images where it began."""
    options = options_of(inp.task)
    momentum = told_or_zeros(inp.reply, MOMENTUM, inp.part.size)
    rule = StepRule(gradient_scale=1 - options.beta, offset=np.float32(options.beta) * momentum)
    problem = own_classes(inp, runtime, options, rule)
    trained = runtime.train(inp.job(problem.objective))
    gradient = whole_gradient(inp, runtime, problem.objective)
    addends = update_addends(inp, trained)
    addends = {**addends, "gradient": addends["weight"] * gradient}
    return output(contribution_layout(inp.task, inp.part, inp.dim), addends, problem.kept(trained), trained)


def whole_gradient(inp: DeviceInput, runtime: Runtime, objective: Objective) -> Vector:
    """Return the loss's gradient over all crops at theta, (part.size,): minus one plain step at rate 1.

    Weight decay is part of the loss. Its error is that of theta's last float32 digit, about 1e-8.
    """
    one_step = LocalSpec(lr=1.0, steps=1, flip=False, private_lr=0.0, weight_decay=inp.task.local.weight_decay)
    plain = replace(objective, step_rule=StepRule(), velocity={})
    after = runtime.train(inp.job(plain, local=one_step))
    return inp.part.gather(inp.theta) - inp.part.gather(after.theta)


def server_step(
    task: TaskSpec, part: ParameterPart, state: ServerState, total: Total, revealed: Mapping[str, Arrays]
) -> ServerState:
    """Return the state after x <- x + lr mean(delta), m <- (1 - beta) mean(gradient) + beta m."""
    beta = options_of(task).beta
    momentum = (1 - beta) * total.mean("gradient") + beta * state.arrays[MOMENTUM].astype(np.float64)
    return moved(part, state, task.server.lr * total.mean("delta"), {MOMENTUM: momentum})


def reply(state: ServerState, device: str) -> Arrays:
    """Return m, which is the same for all devices."""
    return {MOMENTUM: state.arrays[MOMENTUM]}


def requirements(task: TaskSpec) -> Requirements:
    """Return the rounds' requirements: the same m for all, and one round after the other."""
    return Requirements(
        objective=from_mapping(MimeOptions, task.options, where="options.").objective,
        shared_reply=(MOMENTUM,),
        why_synchronous="devices step with the server's momentum, which belongs to the newest model",
    )


MIME = Method(
    name="mime",
    source="Karimireddy et al. 2020, Mime, Algorithm 1 (MimeLite)",
    options=MimeOptions,
    contribution_layout=contribution_layout,
    device_round=device_round,
    server_start=server_start,
    server_step=server_step,
    reply=reply,
    requirements=requirements,
    properties=frozenset({Property.SEVERAL_PEOPLE}),
    per_identity=(CLASSES,),
)
