"""Choice of a task's engine, and why: as it was asked for, or the one that does the least work for the same result."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

import numpy as np

from device_sdk.runtimes.torch_runtime import DeviceName, Precision, TorchRuntime
from mien.errors import ConfigError
from mien.layout import ParameterLayout, ParameterPart
from mien.methods import find_method
from mien.methods.base import Property, Runtime
from mien.specs import ModelSpec, TaskSpec
from simulation.engines.base import Cohort, Engine, SequentialEngine
from simulation.engines.batched import TailCost, tail_cost
from simulation.engines.fused import FusedEngine, takes_one_step, why_not_fused
from simulation.engines.runtimes import OncePerRound
from simulation.engines.stacked import StackedEngine, why_not_in_stacks
from simulation.engines.sums import Sums

EngineName = Literal["auto", "sequential", "stacked", "fused", "cluster"]

HEAVY_MACS: Final = 50_000_000
"""Multiplications of an image's convolutions above which stacking gains nothing on a CPU (decision record 0033)."""


@dataclass(frozen=True)
class Choice:
    """An engine, and why it was chosen, in words."""

    engine: Engine
    reason: str

    def __str__(self) -> str:
        return f"engine {self.engine.name}: {self.reason}"


@dataclass(frozen=True)
class InWorker:
    """Makes the engine of a cluster's worker, in the worker's own process and on its own device."""

    model: ModelSpec
    layout: ParameterLayout
    task: TaskSpec
    part: ParameterPart
    sums: Sums = "exact"
    precision: Precision = "float32"

    def __call__(self, device: str) -> Choice:
        """Return the engine that is best for the task on device "cpu" or "cuda", with the reason."""
        runtime = (
            TorchRuntime(self.model, self.layout, device="cuda", precision=self.precision)
            if device == "cuda"
            else TorchRuntime(self.model, self.layout)
        )
        return choose("auto", runtime, self.task, self.part, self.sums)


@dataclass(frozen=True)
class Place:
    """The way a cluster's workers open the phones' faces, and the address of a cluster that runs; by default neither.

    Without the first a phone's faces are sent along, sealed; without the second this machine's cores or GPUs work.
    """

    open_cohort: Callable[[], Cohort] | None = None
    address: str | None = None


@contextlib.contextmanager
def opened(
    name: EngineName,
    runtime: Runtime,
    task: TaskSpec,
    part: ParameterPart,
    in_worker: InWorker,
    place: Place = Place(),
    sums: Sums = "exact",
) -> Iterator[Choice]:
    """Give the chosen engine while the block runs; "cluster" is Ray's workers at `place`.

    Raises as `choose`, ConfigError for an address without the cluster engine, MissingDependencyError for a cluster
    without Ray, and UnavailableError where no cluster answers.
    """
    if place.address is not None and name != "cluster":
        raise ConfigError(f"an address is that of a cluster, and the engine is {name}: use engine cluster")
    if name != "cluster":
        yield choose(name, runtime, task, part, sums)
        return
    if not isinstance(_bare(runtime), TorchRuntime):
        raise ConfigError(f"engine cluster cannot run this: {_OWN_WAY}. Use engine sequential, or auto")
    from simulation.engines.cluster import ClusterEngine, joined_ray, own_ray

    where = f"at {place.address}" if place.address else "on this machine"
    with (
        joined_ray(place.address) if place.address else own_ray(),
        ClusterEngine(runtime, in_worker, open_cohort=place.open_cohort) as engine,
    ):
        yield Choice(engine, f"as asked for; {engine.num_slots} workers {where}, each with {engine.inner()}")


def device() -> DeviceName:
    """Return the device of studies: the CPU, or a GPU where the environment says MIEN_SIM_DEVICE=cuda."""
    name = os.environ.get("MIEN_SIM_DEVICE", "cpu")
    if name not in get_args(DeviceName):
        raise ConfigError(f"MIEN_SIM_DEVICE is {name!r}; it must be one of {', '.join(get_args(DeviceName))}")
    return cast("DeviceName", name)


def choose(name: EngineName, runtime: Runtime, task: TaskSpec, part: ParameterPart, sums: Sums = "exact") -> Choice:
    """Return an engine of this process for a task that trains `part`, with the reason.

    Raises ConfigError, which says why, for an engine that cannot run the task.
    """
    if name == "cluster":
        raise ConfigError("engine cluster needs workers, which an experiment starts: mien-sim run --engine cluster")
    if name == "sequential":
        return Choice(SequentialEngine(runtime), "as asked for")
    bare = _bare(runtime)
    why = _why_one_by_one(bare, task) or (why_not_fused(task, sums) if name == "fused" else "")
    if name == "stacked" and isinstance(bare, TorchRuntime):
        why = why or why_not_in_stacks(bare)
    if name != "auto":
        if why or not isinstance(bare, TorchRuntime):
            raise ConfigError(f"engine {name} cannot run task {task.name}: {why}. Use engine auto")
        made: Callable[[TorchRuntime], Engine] = FusedEngine if name == "fused" else StackedEngine
        return Choice(made(bare), "as asked for")
    if why or not isinstance(bare, TorchRuntime):
        return Choice(SequentialEngine(runtime), why)
    return _best(runtime, bare, task, part, sums)


def _best(runtime: Runtime, bare: TorchRuntime, task: TaskSpec, part: ParameterPart, sums: Sums) -> Choice:
    """Return what does the least work: many clients at once, unless one client's convolutions fill the machine."""
    if Property.FORWARD_ONLY in find_method(task.method).properties:
        return Choice(
            SequentialEngine(runtime), f"method {task.method} embeds and trains nothing that could be stacked"
        )
    cost = _cost(bare, part)
    macs = f"{cost.convolution_macs / 1e6:.0f} million multiplications an image"
    if cost.convolution_macs <= HEAVY_MACS and bare.device == "cpu":
        return Choice(StackedEngine(bare), f"clients' weights as one batched program ({part.size} parameters)")
    if takes_one_step(task.local) and not why_not_fused(task, sums):
        reason = f"one step a client and only sums count: one pass for all ({macs}); losses after the step are left out"
        return Choice(FusedEngine(bare), reason)
    if bare.device == "cuda":
        if why := why_not_in_stacks(bare):
            return Choice(SequentialEngine(runtime), why)
        return Choice(StackedEngine(bare), "a GPU is filled by many clients at once")
    return Choice(SequentialEngine(runtime), f"one client fills a CPU: {macs}, and stacking gains nothing")


def _cost(runtime: TorchRuntime, part: ParameterPart) -> TailCost:
    with runtime.loaded(np.zeros(part.layout.size, np.float32), part) as trunk:
        return tail_cost(trunk, part)


_OWN_WAY: Final = "the experiment's control trains phones in a way of its own"


def _why_one_by_one(runtime: Runtime, task: TaskSpec) -> str:
    """Return why clients must be run one after another, if they must."""
    if not isinstance(runtime, TorchRuntime):
        return _OWN_WAY
    if not find_method(task.method).trains:
        return f"method {task.method} measures and trains nothing"
    if task.local.batch_norm == "train":
        return "local.batch_norm is 'train': each client's BatchNorm learns from its own images alone"
    return ""


def _bare(runtime: Runtime) -> Runtime:
    """Return the runtime in one that remembers a round's public embeddings, as these engines do by themselves."""
    return runtime.runtime if isinstance(runtime, OncePerRound) else runtime
