"""FedAdam: phones train as in FedAvg, the server takes Adam's step on their mean update.

Source: Reddi et al., "Adaptive Federated Optimization" (2021), Algorithm 2. `server.lr` is its eta. This is the example
that docs/adding-a-method.md walks through: a whole method, which an experiment names as "my_method.py:FEDADAM".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from mien.contribution import Arrays, Total
from mien.errors import ConfigError
from mien.layout import ParameterPart, Vector
from mien.methods import fedavg
from mien.methods.averaging import contribution_layout, moved
from mien.methods.base import DeviceInput, DeviceOutput, Method, Property, Requirements, Runtime, ServerState
from mien.specs import TaskSpec, from_mapping


@dataclass(frozen=True)
class FedAdamOptions:
    """`margin` as in FedAvg; `beta1`, `beta2` of the moments; `tau` keeps the denominator away from 0."""

    margin: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and self.tau > 0):
            raise ConfigError("options needs beta1 and beta2 in [0, 1) and a positive tau")


def options_of(task: TaskSpec) -> FedAdamOptions:
    """Return the task's options; raises ConfigError naming the wrong field."""
    return from_mapping(FedAdamOptions, task.options, where="options.")


def device_round(inp: DeviceInput, runtime: Runtime) -> DeviceOutput:
    """Return FedAvg's update, which reads its own option only."""
    task = replace(inp.task, options={"margin": options_of(inp.task).margin})
    return fedavg.device_round(replace(inp, task=task), runtime)


def server_start(task: TaskSpec, part: ParameterPart, theta: Vector) -> ServerState:
    """Return the state before the first round: m = 0 and v = tau^2."""
    second = np.full(part.size, options_of(task).tau ** 2, np.float32)
    return ServerState(theta=theta, arrays={"first": np.zeros(part.size, np.float32), "second": second})


def server_step(
    task: TaskSpec, part: ParameterPart, state: ServerState, total: Total, revealed: Mapping[str, Arrays]
) -> ServerState:
    """Return the state after m <- b1 m + (1 - b1) d, v <- b2 v + (1 - b2) d^2, theta += eta m / (sqrt(v) + tau)."""
    options, mean = options_of(task), total.mean("delta")
    first = options.beta1 * state.arrays["first"] + (1 - options.beta1) * mean
    second = options.beta2 * state.arrays["second"] + (1 - options.beta2) * mean**2
    step = task.server.lr * first / (np.sqrt(second) + options.tau)
    return moved(part, state, step, {"first": first, "second": second})


FEDADAM = Method(
    name="fedadam",
    source="Reddi et al. 2021, Algorithm 2",
    options=FedAdamOptions,
    contribution_layout=contribution_layout,
    device_round=device_round,
    server_start=server_start,
    server_step=server_step,
    requirements=lambda _task: Requirements(objective="positive_hinge"),
    properties=frozenset({Property.SUM_ONLY, Property.SEVERAL_PEOPLE}),
    per_identity=(fedavg.OWN,),
)

if __name__ == "__main__":
    print(
        "This file is a method, for an experiment to run. Its TOML file, in the same folder, says under [task]:\n"
        '  method = "my_method.py:FEDADAM"\n'
        "One that is measured beside the method that it begins from:\n"
        "  mien-sim sweep examples/my_map.toml --out out/my_map\n"
        "How a method is written: docs/adding-a-method.md"
    )
