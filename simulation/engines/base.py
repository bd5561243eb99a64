"""A cohort of simulated phones, the interface of engines, and the reference engine.

An engine asks a cohort's devices for their round of one model, and adds up what they send. The reference engine asks
one client after another, by the same method halves and the same runtime as on real phones; others must equal it to
float tolerance, and it is short enough to check by eye.

A cohort may be cut into shards, each the work of one engine: their results are put together by `combined`, in the order
of the shards, so that the same cut gives the same sum bit for bit.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mien.contribution import Arrays, Contribution, ContributionLayout, Total
from mien.errors import NonFiniteError
from mien.layout import ParameterPart, Vector
from mien.methods import find_method
from mien.methods.base import (
    Crops,
    DeviceInput,
    DeviceOutput,
    Method,
    Runtime,
    ServerState,
    ValidationFaces,
    why_idle,
)
from mien.specs import TaskSpec
from simulation.engines.population import Population
from simulation.engines.sums import CohortSum, Sums, cohort_sum


@dataclass(frozen=True)
class PublicFaces:
    """Public crops (K, H, W, 3) uint8 RGB with identity labels (K,), as a bundle's shard holds them."""

    crops: Crops = field(repr=False)
    labels: NDArray[np.int64] = field(repr=False)


@dataclass(frozen=True)
class Cohort:
    """The simulated phones: crops by name, what each keeps to itself between rounds, and the public faces of all.

    `labels` number the identities of a phone's crops from 0; a phone that is not in it holds one identity.
    `validators` are the faces by which a method with a validation stage is judged, by the validators' own names.
    `models` are the parameters of models that a task names beside its own (`Requirements.other_models`), by id.
    """

    crops: Mapping[str, Crops] = field(repr=False)
    private: Mapping[str, Arrays] = field(default_factory=dict, repr=False)
    public: PublicFaces | None = None
    labels: Mapping[str, NDArray[np.int64]] = field(default_factory=dict, repr=False)
    validators: Mapping[str, ValidationFaces] = field(default_factory=dict, repr=False)
    validator_private: Mapping[str, Arrays] = field(default_factory=dict, repr=False)
    models: Mapping[str, Vector] = field(default_factory=dict, repr=False)

    @property
    def names(self) -> Sequence[str]:
        """All phones' names in order; those of a population are not made before they are asked for."""
        return self.crops.names if isinstance(self.crops, Population) else tuple(sorted(self.crops))


@dataclass(frozen=True)
class RoundWork:
    """The work of a cohort, or of a shard of one: round `number` of a task, on the model of `state`.

    `sums` says how contributions are added up (see `simulation.engines.sums`).
    """

    task: TaskSpec
    part: ParameterPart
    dim: int
    state: ServerState
    cohort: Cohort
    devices: tuple[str, ...]
    number: int
    sums: Sums = "exact"

    @cached_property
    def method(self) -> Method:
        """The task's method."""
        return find_method(self.task.method)

    @cached_property
    def layout(self) -> ContributionLayout:
        """The lanes of a contribution."""
        return self.method.contribution_layout(self.task, self.part, self.dim)

    def device_input(self, device: str) -> DeviceInput:
        """Return all that a device half may look at."""
        cohort = self.cohort
        return DeviceInput(
            task=self.task,
            part=self.part,
            dim=self.dim,
            theta=self.state.theta,
            crops=cohort.crops[device],
            labels=cohort.labels.get(device),
            private=cohort.private.get(device, {}),
            reply=self.method.reply(self.state, device),
            public_crops=cohort.public.crops if cohort.public else None,
            public_labels=cohort.public.labels if cohort.public else None,
            seed=device_seed(self.task, device, self.number),
            device=device,
            models=cohort.models,
        )


@dataclass(frozen=True)
class RoundResult:
    """The result of devices on one model: their sum, what they showed in clear, and what each keeps.

    `partial` has not been opened, so that it can still be added to another shard's. `workers` names the engines that a
    cluster's workers ran it with, each once and in order; empty where one process ran it. `idle` says of devices whose
    training changed nothing why; an engine that makes no device's own update knows of none.
    """

    partial: CohortSum = field(repr=False)
    revealed: dict[str, Arrays] = field(repr=False)
    private: dict[str, Arrays] = field(repr=False)
    workers: tuple[str, ...] = ()
    idle: Mapping[str, str] = field(default_factory=dict, repr=False)

    @cached_property
    def total(self) -> Total:
        """The opened sum, which a server's half is given: opened once, when the last shard is in it."""
        return self.partial.total()


@runtime_checkable
class Engine(Protocol):
    """Runs the devices of a round; all engines give the sequential one's result to float tolerance."""

    @property
    def name(self) -> str:
        """The engine's name for `--engine`."""
        ...

    @property
    def runtime(self) -> Runtime:
        """The runtime that runs a model once, in this process: for validators, and wherever one device is asked."""
        ...

    def train(self, work: RoundWork) -> RoundResult:
        """Return the result of the work's devices on its model; raises as their halves do."""
        ...


class Intake:
    """Collects the contributions of a round's devices, in whatever way they were run."""

    def __init__(self, work: RoundWork) -> None:
        self._layout = work.layout
        self._sum = cohort_sum(work.task, work.layout, work.sums, work.number)
        self._revealed: dict[str, Arrays] = {}
        self._private: dict[str, Arrays] = {}
        self._idle: dict[str, str] = {}

    def take(self, device: str, output: DeviceOutput) -> None:
        """Add a device's contribution, and keep what it showed and what it keeps; raises as `received` does."""
        self._sum.add(device, received(self._layout, self._revealed, device, output))
        self._private[device] = output.private
        if why := why_idle(output):
            self._idle[device] = why

    def result(self) -> RoundResult:
        """Return the round's result."""
        return RoundResult(self._sum, self._revealed, self._private, idle=self._idle)


def received(
    layout: ContributionLayout, revealed: dict[str, Arrays], device: str, output: DeviceOutput
) -> Contribution:
    """Return a device's contribution as its bytes say it; what it reveals is kept in `revealed`."""
    contribution = layout.parse(np.ascontiguousarray(output.contribution.vector, "<f4").data.cast("B"))
    if layout.revealed:
        revealed[device] = {lane: values.copy() for lane, values in contribution.revealed().items()}
    return contribution


@contextlib.contextmanager
def named_client(device: str) -> Iterator[None]:
    """Name the device whose numbers stop being finite in the block."""
    try:
        yield
    except NonFiniteError as error:
        raise NonFiniteError(f"client {device}: {error}") from error


def combined(shards: Sequence[RoundResult]) -> RoundResult:
    """Return one result for shards of a cohort, added up in their order; the first one's sum is used up."""
    first, *rest = shards
    revealed, private, idle = dict(first.revealed), dict(first.private), dict(first.idle)
    for shard in rest:
        first.partial.merge(shard.partial)
        revealed |= shard.revealed
        private |= shard.private
        idle |= shard.idle
    workers = {name for shard in shards for name in shard.workers}
    return RoundResult(first.partial, revealed, private, tuple(sorted(workers)), idle)


def device_seed(task: TaskSpec, device: str, number: int) -> int:
    """Return the seed of one device's local round: another for every device, round and task seed."""
    digest = hashlib.sha256(f"{device}/{task.name}/{task.seed}/{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


class SequentialEngine:
    """Runs one device after another on `runtime`."""

    name = "sequential"

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def train(self, work: RoundWork) -> RoundResult:
        """Return the result of devices on the server's state, one after another."""
        work = on_read_only_model(work)
        intake = Intake(work)
        for device in work.devices:
            with named_client(device):
                intake.take(device, work.method.device_round(work.device_input(device), self.runtime))
        return intake.result()


def on_read_only_model(work: RoundWork) -> RoundWork:
    """Return the work on the same parameters where nobody can write to them, so that a runtime may keep them loaded."""
    return replace(work, state=replace(work.state, theta=_read_only(work.state.theta)))


def _read_only(theta: Vector) -> Vector:
    view = theta.view()
    view.flags.writeable = False
    return view
