"""FedProx: FedAvg whose devices are held near the round's model.

Source: Li et al., "Federated Optimization in Heterogeneous Networks" (2020), eq 2: a device minimises
F_i(theta) + mu/2 ||theta - theta_r||^2. All devices take the task's number of steps (gamma-inexactness is not used).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mien.contribution import Arrays, ContributionLayout, Total
from mien.errors import ConfigError
from mien.layout import ParameterPart
from mien.methods.averaging import apply_mean_update, no_reply, server_start, update_addends, update_lanes
from mien.methods.base import (
    DeviceInput,
    DeviceOutput,
    Method,
    Runtime,
    ServerState,
    StepRule,
    asynchronous,
    counted_together,
)
from mien.methods.local_loss import CLASSES, LocalLoss, own_classes
from mien.specs import TaskSpec, from_mapping


@dataclass(frozen=True)
class FedProxOptions(LocalLoss):
    """`mu` is the strength of the proximal term; 0 is FedAvg. The others choose the loss."""

    mu: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.mu <= 1e3:
            raise ConfigError(f"options.mu is {self.mu}; it must lie between 0 and 1000")


def options_of(task: TaskSpec) -> FedProxOptions:
    """Return the task's options; raises ConfigError naming the wrong field."""
    return from_mapping(FedProxOptions, task.options, where="options.")


def contribution_layout(task: TaskSpec, part: ParameterPart, dim: int) -> ContributionLayout:
    """Return the lanes of a contribution: sums only."""
    return ContributionLayout(update_lanes(part))


def device_round(inp: DeviceInput, runtime: Runtime) -> DeviceOutput:
    """Return the update of a device whose steps are g + mu (theta - theta_r)."""
    options = options_of(inp.task)
    problem = own_classes(inp, runtime, options, StepRule(proximal=options.mu))
    trained = runtime.train(inp.theta, inp.part, inp.crops, problem.objective, inp.task.local, inp.seed)
    return DeviceOutput(
        contribution=contribution_layout(inp.task, inp.part, inp.dim).pack(update_addends(inp, trained)),
        private=problem.kept(trained),
        metrics={"loss_before": trained.loss_before, "loss_after": trained.loss_after},
    )


def server_step(
    task: TaskSpec, part: ParameterPart, state: ServerState, total: Total, revealed: Mapping[str, Arrays]
) -> ServerState:
    """Return the state after one step on the mean update."""
    return apply_mean_update(task, part, state, total)


FEDPROX = Method(
    name="fedprox",
    source="Li et al. 2020, eq 2",
    options=FedProxOptions,
    contribution_layout=contribution_layout,
    device_round=device_round,
    server_start=server_start,
    server_step=server_step,
    reply=no_reply,
    objective=lambda task: options_of(task).objective,
    identities="several",
    per_identity=(CLASSES,),
    why_synchronous=asynchronous,
    why_apart=counted_together,
)
