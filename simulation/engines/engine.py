"""Rounds of a task without a network: the same method halves as on phones and coordinator, in a loop.

Cohorts of an asynchronous task overlap, by `mien.rounds.buffered` and without a clock. How a cohort's devices are run
is an engine's business (`simulation.engines`); what they make is the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import numpy as np

from mien.contribution import Total
from mien.errors import ConfigError
from mien.layout import ParameterPart, Vector
from mien.methods import find_method
from mien.methods.base import ONE_CLASS, Method, Runtime, ServerState, Validation, ValidationInput
from mien.rounds.buffered import Flight, is_overdue, may_open, staleness, weighed
from mien.rounds.plan import check_must_include
from mien.specs import TaskSpec
from simulation.engines.base import (
    Cohort,
    Engine,
    PublicFaces,
    RoundResult,
    RoundWork,
    SequentialEngine,
    device_seed,
    received,
)
from simulation.engines.frame import to_frame
from simulation.engines.population import without
from simulation.engines.sums import CohortSum, Sums, cohort_sum

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = [
    "Cohort",
    "PublicFaces",
    "RoundRecord",
    "Run",
    "Step",
    "as_engine",
    "device_seed",
    "rounds",
    "run_task",
    "select",
]

PERMUTED_UP_TO: Final = 10_000
"""Phones that are all put into an order to draw a cohort; of more, only the drawn ones are touched."""

T = TypeVar("T")
Choose = Callable[[TaskSpec, Sequence[str], int], tuple[str, ...]]


def oldest(flights: Sequence[Flight]) -> int:
    """Return the number of the cohort that was formed first: each is then `max_concurrency` - 1 models behind."""
    return min(flight.number for flight in flights)


@dataclass(frozen=True)
class Overlap:
    """The order of sums: `lands` gives the next one's number. `choose` draws cohorts, unless as in other rounds."""

    lands: Callable[[Sequence[Flight]], int] = oldest
    choose: Choose | None = None


OLDEST_FIRST: Final = Overlap()


@dataclass(frozen=True)
class RoundRecord:
    """Record of a round: its devices, and weighted means of their losses.

    `staleness` is how many models were made, in asynchronous mode, since the one that they trained on. `workers` names
    the engines of a cluster's workers. `warning` says what trained nothing, and why.
    """

    round: int
    devices: tuple[str, ...]
    weight: float
    loss_before: float
    loss_after: float
    staleness: int = 0
    workers: tuple[str, ...] = ()
    warning: str = ""


@dataclass(frozen=True)
class Run:
    """A finished run: the server's last state, the phones as they are now, and one record a round."""

    state: ServerState = field(repr=False)
    cohort: Cohort = field(repr=False)
    records: tuple[RoundRecord, ...]

    def to_frame(self) -> DataFrame:
        """Return the records as a pandas DataFrame of columns round, metric and value: one line a figure.

        A loss that no engine told is left out, and so is the staleness of whoever is not stale. Raises
        MissingDependencyError without the package `pandas`.
        """
        lines = (
            (record.round, metric, value)
            for record in self.records
            for metric, value in (
                ("clients", float(len(record.devices))),
                ("weight", record.weight),
                ("loss_before", record.loss_before),
                ("loss_after", record.loss_after),
                ("staleness", float(record.staleness or math.nan)),
            )
            if not math.isnan(value)
        )
        return to_frame(("round", "metric", "value"), lines)


@dataclass(frozen=True)
class Step:
    """Result of one round: the server's state, the phones with what they keep, and the round's record."""

    state: ServerState = field(repr=False)
    cohort: Cohort = field(repr=False)
    record: RoundRecord


def run_task(
    task: TaskSpec,
    part: ParameterPart,
    dim: int,
    theta: Vector,
    cohort: Cohort,
    engine: Engine | Runtime,
    *,
    sums: Sums = "exact",
    overlap: Overlap = OLDEST_FIRST,
    after_round: Callable[[ServerState, RoundRecord], None] = lambda _state, _record: None,
) -> Run:
    """Return `task.rounds` rounds of the task's method from `theta`; clients and their draws follow `task.seed`.

    A runtime in the place of an engine runs one device after another, as the sequential engine does.
    `sums` "ring" adds up as secure aggregation does, with the clips, rounding and noise of the task. Cohorts of an
    asynchronous task `overlap`, by default always as many as it allows; a round is then the making of one model.
    Raises ConfigError for an unknown method or option, or for fewer clients than the task's smallest cohort.
    """
    state = find_method(task.method).server_start(task, part, theta)
    records = []
    for step in rounds(task, part, dim, state, cohort, engine, sums=sums, overlap=overlap):
        state, cohort = step.state, step.cohort
        records.append(step.record)
        after_round(state, step.record)
    return Run(state, cohort, tuple(records))


def rounds(
    task: TaskSpec,
    part: ParameterPart,
    dim: int,
    state: ServerState,
    cohort: Cohort,
    engine: Engine | Runtime,
    *,
    first: int = 1,
    sums: Sums = "exact",
    overlap: Overlap = OLDEST_FIRST,
) -> Iterator[Step]:
    """Yield rounds `first` to `task.rounds` from a state and a cohort, such as an earlier step left them.

    A run that goes on from a step equals one that never stopped. An asynchronous one cannot: it begins at 1. Raises as
    `run_task`.
    """
    method, engine = find_method(task.method), as_engine(engine)
    check_runnable(task, len(cohort.crops), has_validators=bool(cohort.validators), num_labelled=len(cohort.labels))
    if task.asynchronous is not None:
        if first > 1:
            raise ConfigError("an asynchronous run cannot go on: cohorts in flight are not kept; begin it again")
        yield from _asynchronous_rounds(task, part, dim, state, cohort, engine, sums, overlap)
        return
    everybody = cohort.names
    for number in range(first, task.rounds + 1):
        devices = select(task, everybody, number, cohort.labels)
        trained = engine.train(RoundWork(task, part, dim, state, cohort, devices, number, sums))
        total, revealed, before = trained.total, trained.revealed, state.theta
        cohort = replace(cohort, private={**cohort.private, **trained.private})
        if method.validation is not None and method.requirements(task).validators:
            scores = _scores(method.validation, task, sums, number)
            state, cohort = _validated_step(method.validation, task, part, state, total, cohort, engine.runtime, scores)
        else:
            state = method.server_step(task, part, state, total, revealed)
        if state.lacks and number == task.rounds:
            raise ConfigError(state.lacks)
        warning = "" if state.lacks else _warning(trained, len(devices), moved=not _is_still(method, before, state))
        yield Step(state, cohort, _record(number, devices, trained, warning))


def check_runnable(task: TaskSpec, num_clients: int, *, has_validators: bool, num_labelled: int) -> None:
    """Raise ConfigError for a task whose rounds this many clients cannot run, or not without validators.

    `num_labelled` of the clients know whose faces they hold.
    """
    method = find_method(task.method)
    check_must_include(task, method)
    if num_labelled < task.cohort.min_labelled:
        raise ConfigError(
            f"there are {num_labelled} labelled clients and cohort.must_include.labelled is "
            f"{task.cohort.min_labelled}; add such clients or lower it"
        )
    least = task.cohort.min_reports + ((task.rounds - 1) * task.cohort.size if method.adds_up else 0)
    if num_clients < least:
        why = f"cohort.min_reports is {task.cohort.min_reports}"
        if method.adds_up and task.rounds > 1:
            why = f"{task.rounds} cohorts of {task.cohort.size} that do not overlap take {least}"
        raise ConfigError(f"there are {num_clients} clients and {why}; add clients or lower it")
    if method.requirements(task).validators and not has_validators:
        raise ConfigError(f"method {task.method} needs validators for this task's options, and the cohort has none")
    if task.asynchronous is not None and (why := method.requirements(task).why_synchronous):
        raise ConfigError(f"method {task.method} has no asynchronous mode: {why}. Leave asynchronous out")


def _asynchronous_rounds(
    task: TaskSpec,
    part: ParameterPart,
    dim: int,
    state: ServerState,
    cohort: Cohort,
    engine: Engine,
    sums: Sums,
    overlap: Overlap,
) -> Iterator[Step]:
    """Yield a step for each model: of a cohort that may have trained on an older one, weighed by its staleness."""
    method, spec = find_method(task.method), task.asynchronous
    assert spec is not None

    def train(number: int, devices: tuple[str, ...]) -> RoundResult:
        return engine.train(RoundWork(task, part, dim, state, cohort, devices, number, sums))

    landings = overlapping(task, cohort.names, overlap, train)
    for version, landing in enumerate(landings):
        trained = landing.trained
        cohort = replace(cohort, private={**cohort.private, **trained.private})
        total, before = weighed(spec, trained.total, version, landing.base), state.theta
        state = method.server_step(task, part, state, total, trained.revealed)
        warning = _warning(trained, len(landing.devices), moved=not _is_still(method, before, state))
        record = _record(version + 1, landing.devices, trained, warning)
        yield Step(state, cohort, replace(record, staleness=staleness(version, landing.base)))


def select(
    task: TaskSpec, devices: Sequence[str], number: int, labelled: Collection[str] = frozenset()
) -> tuple[str, ...]:
    """Return the cohort of a round: up to `task.cohort.size` devices drawn without replacement, in order of name.

    Those that it must include are drawn first, of the `labelled` ones; all others then have the same chance.
    """
    if find_method(task.method).adds_up:  # whoever was drawn once is counted
        first = (number - 1) * task.cohort.size
        drawn = np.random.default_rng([task.seed, 1]).permutation(len(devices))[first : first + task.cohort.size]
        return tuple(devices[int(i)] for i in np.sort(drawn))
    rng, included = np.random.default_rng([task.seed, number]), list[str]()
    if fewest := task.cohort.min_labelled:
        names = sorted(labelled)
        included = [names[int(i)] for i in rng.choice(len(names), fewest, replace=False)]
        devices = without(devices, set(included))
    size = min(task.cohort.size - len(included), len(devices))
    if len(devices) <= PERMUTED_UP_TO:
        chosen = rng.permutation(len(devices))[:size]
    else:
        chosen = rng.choice(len(devices), size, replace=False, shuffle=False)
    picked = tuple(devices[int(i)] for i in np.sort(chosen))
    return tuple(sorted((*included, *picked))) if included else picked


@dataclass(frozen=True)
class InFlight(Generic[T]):
    """A cohort under way: its devices, and what they made of its base."""

    flight: Flight
    devices: tuple[str, ...]
    trained: T = field(repr=False)

    @property
    def base(self) -> int:
        """Number of models that the task had made when this cohort was formed."""
        assert self.flight.base is not None
        return self.flight.base


def overlapping(
    task: TaskSpec,
    everybody: Sequence[str],
    overlap: Overlap,
    train: Callable[[int, tuple[str, ...]], T],
) -> Iterator[InFlight[T]]:
    """Yield cohorts in the order in which their sums are applied, one for each model.

    Whoever iterates makes the model before it goes on: `train` is called with a cohort's number and devices when it is
    formed, and works on the model that is newest then. A device is in one cohort at a time. `everybody` is in order of
    name. What is too stale is discarded. Raises ConfigError for fewer devices than one cohort needs.
    """
    spec = task.asynchronous
    assert spec is not None
    under_way: list[InFlight[T]] = []
    number = 0
    for version in range(task.rounds):
        under_way = [each for each in under_way if not is_overdue(spec, version, each.base)]
        while may_open(task, version, [each.flight for each in under_way]):
            busy = {device for each in under_way for device in each.devices}
            idle = without(everybody, busy)
            if len(idle) < task.cohort.min_reports:
                break
            number += 1
            devices = (overlap.choose or select)(task, idle, number)
            under_way.append(InFlight(Flight(number, version), devices, train(number, devices)))
        if not under_way:
            raise ConfigError(f"a cohort needs cohort.min_reports ({task.cohort.min_reports}) clients; add clients")
        wanted = overlap.lands([each.flight for each in under_way])
        landing = next(each for each in under_way if each.flight.number == wanted)
        under_way.remove(landing)
        yield landing


def as_engine(engine: Engine | Runtime) -> Engine:
    """Return an engine as it is, and for a runtime the one that runs one device after another on it."""
    return engine if isinstance(engine, Engine) else SequentialEngine(engine)


def _scores(stage: Validation, task: TaskSpec, sums: Sums, number: int) -> CohortSum:
    """Return the empty sum of validators' scores; in the ring it is that of the task's own validators."""
    theirs = stage.validators_task(task) if sums == "ring" else task
    return cohort_sum(theirs, stage.contribution_layout(task), sums, number)


def _validated_step(
    stage: Validation,
    task: TaskSpec,
    part: ParameterPart,
    state: ServerState,
    total: Total,
    cohort: Cohort,
    runtime: Runtime,
    scores: CohortSum,
) -> tuple[ServerState, Cohort]:
    """Return the server's state after every validator has judged the candidates, and what validators keep now."""
    candidates, layout = stage.candidates(task, part, state, total), stage.contribution_layout(task)
    private = dict(cohort.validator_private)
    for name in sorted(cohort.validators):
        inp = ValidationInput(task, candidates, cohort.validators[name], private.get(name, {}))
        output = stage.validate(inp, runtime)
        scores.add(name, received(layout, {}, name, output))
        private[name] = output.private
    return stage.server_step(task, part, state, total, scores.total()), replace(cohort, validator_private=private)


def _is_still(method: Method, before: Vector, state: ServerState) -> bool:
    """Return whether a round that makes a model left it exactly as it was."""
    return method.trains and not state.lacks and np.array_equal(before, state.theta)


def _warning(trained: RoundResult, num_devices: int, *, moved: bool) -> str:
    """Return what a round's record warns of: a model that did not move, or clients that can never move it.

    That some clients' losses are at their least for once is no fault.
    """
    why = Counter(trained.idle.values())
    if not moved:
        reason = f": of {num_devices} clients none trained anything ({why.most_common(1)[0][0]})" if why else ""
        return f"the model did not move{reason}"
    if one_class := why[ONE_CLASS]:
        return f"{one_class} of {num_devices} clients trained nothing, each because {ONE_CLASS}"
    return ""


def _record(number: int, devices: tuple[str, ...], trained: RoundResult, warning: str) -> RoundRecord:
    total = trained.total
    return RoundRecord(
        round=number,
        devices=devices,
        weight=float(total["weight"][0]),
        loss_before=_mean(total, "loss_before"),
        loss_after=_mean(total, "loss_after"),
        workers=trained.workers,
        warning=warning,
    )


def _mean(total: Total, lane: str) -> float:
    """Return a lane's mean; not a number for a method that trains nothing and so has no loss."""
    return float(total.mean(lane)[0]) if lane in total.layout.slices else math.nan
