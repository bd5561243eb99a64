"""Sharper statistics: phones sum what `statistics` sums, the server raises its map to a power.

`statistics` with form wccn maps by W^(-1/2), W being how one person's features scatter; with `power` p this is
W^(-p/2), which shortens the directions in which one person's pictures differ by more. examples/my_map.toml runs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np

from mien.contribution import Arrays, ContributionLayout, Total
from mien.errors import ConfigError
from mien.layout import ParameterPart
from mien.methods.base import DeviceInput, DeviceOutput, Requirements, Runtime, ServerState
from mien.methods.statistics import ADAPTER, STATISTICS, StatisticsOptions
from mien.specs import TaskSpec, from_mapping


@dataclass(frozen=True)
class MapOptions(StatisticsOptions):
    """Those of `statistics`, and the `power` p to which the map is raised; 1 is `statistics` itself."""

    power: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.power <= 4:
            raise ConfigError(f"options.power is {self.power}; it must be positive, and 4 at most")
        if self.form != "wccn":
            raise ConfigError(f'options.form is "{self.form}"; only the map of "wccn" can be raised to a power')


def options_of(task: TaskSpec) -> MapOptions:
    """Return the task's options; raises ConfigError naming the wrong field."""
    return from_mapping(MapOptions, task.options, where="options.")


def summed(task: TaskSpec) -> TaskSpec:
    """Return the task as `statistics` knows it."""
    options = asdict(options_of(task))
    del options["power"]
    return replace(task, method=STATISTICS.name, options=options)


def contribution_layout(task: TaskSpec, part: ParameterPart, dim: int) -> ContributionLayout:
    """Return the lanes of `statistics`."""
    return STATISTICS.contribution_layout(summed(task), part, dim)


def device_round(inp: DeviceInput, runtime: Runtime) -> DeviceOutput:
    """Return what `statistics` adds: nothing more leaves a phone."""
    return STATISTICS.device_round(replace(inp, task=summed(inp.task)), runtime)


def server_step(
    task: TaskSpec, part: ParameterPart, state: ServerState, total: Total, revealed: Mapping[str, Arrays]
) -> ServerState:
    """Return the state with A^p for the map A, as long as A; raises what `statistics` raises."""
    after = STATISTICS.server_step(summed(task), part, state, total, revealed)
    if after.lacks:
        return after
    weight, bias = (part.layout.unflatten(after.theta)[name].astype(np.float64) for name in ADAPTER)
    gains, axes = np.linalg.eigh(weight)  # A is symmetric, and A (x - mu) = A x + bias
    power = options_of(task).power
    scale = np.linalg.norm(gains) / np.linalg.norm(gains**power)
    sharper = (axes * gains**power * scale) @ axes.T
    moved = (axes * gains ** (power - 1) * scale) @ axes.T @ bias
    values = np.concatenate([sharper.ravel(), moved]).astype(np.float32)
    return replace(after, theta=part.scatter(after.theta, values))


def requirements(task: TaskSpec) -> Requirements:
    """Return those of `statistics`."""
    return STATISTICS.requirements(summed(task))


MAP = replace(
    STATISTICS,
    name="my_map",
    source="statistics, with another power of its map",
    options=MapOptions,
    contribution_layout=contribution_layout,
    device_round=device_round,
    server_step=server_step,
    requirements=requirements,
)

if __name__ == "__main__":
    print(
        "This file is a method, for an experiment to run. Its TOML file, in the same folder, says under [task]:\n"
        '  method = "my_map.py:MAP"\n'
        "One that is measured beside the method that it begins from:\n"
        "  mien-sim sweep examples/my_map.toml --out out/my_map\n"
        "How a method is written: docs/adding-a-method.md"
    )
