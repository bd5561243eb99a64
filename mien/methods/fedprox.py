"""FedProx: FedAvg whose devices are held near the round's model.

Source: Li et al., "Federated Optimization in Heterogeneous Networks" (2020), eq 2: a device minimises
F_i(theta) + mu/2 ||theta - theta_r||^2. All devices take the task's number of steps (gamma-inexactness is not used).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mien.methods.averaging import contribution_layout, server_start, server_step, update_output
from mien.methods.base import (
    DeviceInput,
    DeviceOutput,
    Method,
    Property,
    Requirements,
    Runtime,
    StepRule,
)
from mien.methods.local_loss import LocalLoss, own_classes
from mien.methods.proxies import CLASSES
from mien.records import within
from mien.specs import TaskSpec, from_mapping


@dataclass(frozen=True)
class FedProxOptions(LocalLoss):
    """`mu` is the strength of the proximal term; 0 is FedAvg. The others choose the loss."""

    mu: Annotated[float, within(0, 1e3)] = 0.01


def options_of(task: TaskSpec) -> FedProxOptions:
    """Return the task's options; raises ConfigError naming the wrong field."""
    return from_mapping(FedProxOptions, task.options, where="options.")


def device_round(inp: DeviceInput, runtime: Runtime) -> DeviceOutput:
    """Return the update of a device whose steps are g + mu (theta - theta_r)."""
    options = options_of(inp.task)
    problem = own_classes(inp, runtime, options, StepRule(proximal=options.mu))
    trained = runtime.train(inp.job(problem.objective))
    return update_output(inp, trained, problem.kept(trained))


FEDPROX = Method(
    name="fedprox",
    source="Li et al. 2020, eq 2",
    options=FedProxOptions,
    contribution_layout=contribution_layout,
    device_round=device_round,
    server_start=server_start,
    server_step=server_step,
    requirements=lambda task: Requirements(objective=options_of(task).objective, why_synchronous=""),
    properties=frozenset({Property.SUM_ONLY, Property.SEVERAL_PEOPLE}),
    per_identity=(CLASSES,),
)
