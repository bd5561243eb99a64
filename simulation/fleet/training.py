"""A fleet's history, trained: the cohorts that closed, on the models that each began with, at their virtual times.

Timing comes first and knows nothing of faces. Here the phones that were counted train in the order in which their sums
were applied, by the method's own halves and through an engine, as in `simulation.engines.engine`; a stale cohort trains
on its old base and weighs less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from mien.errors import ConfigError
from mien.layout import ParameterPart
from mien.methods import find_method
from mien.methods.base import ServerState
from mien.rounds.buffered import weighed
from mien.specs import TaskSpec
from simulation.engines.base import Cohort, Engine, RoundWork
from simulation.faces.partitions import Holding
from simulation.fleet.records import Attempt, History
from simulation.runs.spec import RunSpec, load


@dataclass(frozen=True)
class Landed:
    """A cohort whose sum made a model, and the server's state and the phones after that."""

    attempt: Attempt
    state: ServerState = field(repr=False)
    cohort: Cohort = field(repr=False)


@dataclass(frozen=True)
class Point:
    """A model's equal error rate at a time of the virtual clock, after so many rounds."""

    hours: float
    round: int
    eer: float


def landings(
    history: History,
    task: TaskSpec,
    part: ParameterPart,
    dim: int,
    state: ServerState,
    cohort: Cohort,
    engine: Engine,
    names: Mapping[str, str],
) -> Iterator[Landed]:
    """Yield the cohorts that closed, in order, each after it was trained; `names` are clients by device id.

    Raises ConfigError for a method that needs validators.
    """
    method = find_method(task.method)
    if method.requirements(task).validators:
        raise ConfigError("the fleet emulates trainers alone; choose a task without [validators]")
    closed = sorted((each for each in history.attempts if each.version is not None), key=lambda each: each.version or 0)
    wanted = Counter(each.base_version for each in closed)
    bases = {0: state}
    for version, attempt in enumerate(closed, 1):
        devices = tuple(sorted(names[device] for device in attempt.devices))
        base = bases[attempt.base_version]
        result = engine.train(RoundWork(task, part, dim, base, cohort, devices, attempt.round))
        cohort = replace(cohort, private={**cohort.private, **result.private})
        total = result.total
        if task.asynchronous is not None:
            total = weighed(task.asynchronous, total, version - 1, attempt.base_version)
        state = method.server_step(task, part, state, total, result.revealed)
        wanted[attempt.base_version] -= 1
        if not wanted[attempt.base_version]:
            del bases[attempt.base_version]  # memory is that of the models that are still trained on
        if wanted[version]:
            bases[version] = state
        yield Landed(attempt, state, cohort)


class Trainer:
    """An experiment's model, faces and evaluation, for histories of fleets whose phones are its clients."""

    def __init__(self, path: Path, root: Path, faces: Mapping[str, str] = MappingProxyType({})) -> None:
        """Read an experiment and who holds what; `root` is where the paths of its faces start.

        `faces`, unless empty, stands in for all its tables [[faces]].
        """
        from simulation.faces.sources import counts_of
        from simulation.runs.spec import make_plan

        self.spec: RunSpec = load(path, faces)
        if not self.spec.is_federated or self.spec.central is not None:
            raise ConfigError("a fleet's phones train by its tasks; leave system and [central] out of the experiment")
        self._root = root
        self._plan = make_plan(self.spec, lambda source: counts_of(source, root))
        self.clients: tuple[str, ...] = tuple(sorted(self._plan.partition.clients))

    @property
    def images(self) -> tuple[int, ...]:
        """Number of images that each client holds."""
        held: Mapping[str, Sequence[Holding]] = self._plan.partition.clients
        return tuple(sum(len(each.images) for each in held[client]) for client in self.clients)

    def points(self, task: TaskSpec, history: History, devices: Sequence[str]) -> tuple[Point, ...]:
        """Return equal error rates before training, after every so many rounds as the experiment says, and at the end.

        `devices` are the ids of the phones, in the order of the clients.
        """
        from device_sdk.runtimes.torch_runtime import TorchRuntime
        from simulation.engines.base import SequentialEngine
        from simulation.runs.measuring import eer_of
        from simulation.runs.run import comparisons, model_of, read_faces

        model = model_of(self.spec.model, self._root)
        faces = read_faces(self._plan, model.spec, self._root)
        part = model.layout.part(task.trainable or model.spec.trainable or ("*",))
        runtime = TorchRuntime(replace(model.spec, trainable=tuple(part.names)), model.layout)
        state = find_method(task.method).server_start(task, part, model.theta)
        found = [Point(0.0, 0, eer_of(comparisons(runtime, model.theta, faces)))]
        names, every = dict(zip(devices, self.clients, strict=True)), self.spec.evaluation.every
        steps = landings(
            history, task, part, model.spec.input.dim, state, faces.cohort, SequentialEngine(runtime), names
        )
        for number, landed in enumerate(steps, 1):
            is_last = number == history.rounds_closed
            if is_last or (every and number % every == 0):
                eer = eer_of(comparisons(runtime, landed.state.theta, faces))
                found.append(Point((landed.attempt.ended_s or 0.0) / 3600, number, eer))
        return tuple(found)
