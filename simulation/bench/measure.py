"""Engines beside plain loops of torch, in turns, so that a busy machine is as busy for one as for the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import torch

from device_sdk.runtimes.torch_runtime import DeviceName
from mien.contribution import Arrays
from mien.specs import CohortSpec
from simulation.bench import loops
from simulation.bench.cases import Case, small
from simulation.bench.gpu import Gpu, watched_gpu
from simulation.bench.turns import Cost, Way, in_turns, mean_of, over, timed
from simulation.engines.base import Engine, SequentialEngine
from simulation.engines.engine import select
from simulation.engines.fused import FusedEngine, why_not_fused
from simulation.engines.population import PhoneNames
from simulation.engines.stacked import StackedEngine

REGISTERED: Final = 1_000_000
DRAWN: Final = 100
TURN_S: Final = 0.05
LARGE: Final = "torch, large batch"
ENGINES: Final = tuple(engine.name for engine in (SequentialEngine, StackedEngine, FusedEngine))


@dataclass(frozen=True)
class Row:
    """One way of running a round: milliseconds a phone by the wall clock and of CPU, images a second; the best turn.

    `turns` has the seconds of each turn, which ratios are of (`over_row`). `gpu` says how busy the GPU was and its peak
    memory, where that is where it ran.
    """

    case: str
    parameters: int
    clients: int
    images: int
    steps: int
    engine: str
    wall_ms: float
    cpu_ms: float
    images_per_s: float
    turns: tuple[Cost, ...] = field(default=(), repr=False)
    gpu: Gpu | None = None

    def as_record(self) -> dict[str, Any]:
        """Return the row for JSON."""
        left_out = {"turns"} if self.gpu else {"turns", "gpu"}
        return {name: value for name, value in asdict(self).items() if name not in left_out}

    def over_row(self, other: Row) -> Cost:
        """Return this row's time over another's of the same comparison, by wall time and by CPU (`turns.over`)."""
        return over(self.turns, other.turns)


def compare(
    case: Case,
    *,
    threads: int,
    turns: int,
    device: DeviceName = "cpu",
    only: tuple[str, ...] = (),
    beside: Mapping[str, Way] | None = None,
    tell: Callable[[str], None] = lambda _text: None,
) -> list[Row]:
    """Return a row for each engine that can run the case, and for each loop of torch, which take turns.

    A turn is one round, or as many as take `TURN_S`: a few short ones are other ones at every run.

    Phones keep what they keep from round to round, as in a run. `only` names the engines and loops to be compared.
    `beside` has others that take rounds of the same case; one that takes no turn has no row.
    `tell` gets a line for each as it has run for the first time, and one on how long the rest will take.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    gpus: dict[str, Gpu | None] = {}

    def turn_of(name: str, way: Way) -> Way:
        def turn() -> Cost | None:
            with watched_gpu(device) as seen:
                cost = mean_of(way, TURN_S)
            gpus[name] = seen()
            return cost

        return turn

    try:
        everything = {**_loops(case, device), **_engines(case, threads, device)}
        ours = {name: _way(run, device) for name, run in everything.items() if not only or name in only}
        ways, started = {**ours, **(beside or {})}, time.monotonic()
        for name, way in ways.items():
            first = time.monotonic()
            way()  # warm
            tell(f"  {name}: {(time.monotonic() - first) * 1e3 / case.clients:.2f} ms a phone at first")
        tell(f"  {turns} more turns of each: about {turns * (time.monotonic() - started):.0f} s")
        costs = in_turns({name: turn_of(name, way) for name, way in ways.items()}, turns)
    finally:
        torch.set_num_threads(before)
    return [_row(case, name, costs[name], gpus[name]) for name in ways if costs[name]]


def _way(run: Callable[[], None], device: DeviceName) -> Way:
    def once() -> None:
        run()
        if device == "cuda":
            torch.cuda.synchronize()

    return lambda: timed(once)


def best_engine(rows: Sequence[Row]) -> Row:
    """Return the row of the fastest engine; loops of torch are none, nor are other simulators."""
    return min((row for row in rows if row.engine in ENGINES), key=lambda row: row.wall_ms)


def row_of(rows: Sequence[Row], engine: str) -> Row | None:
    """Return the row of one engine or loop, if it ran."""
    return next((row for row in rows if row.engine == engine), None)


def select_s(registered: int = REGISTERED, drawn: int = DRAWN, *, times: int = 20) -> float:
    """Return seconds to name all phones and draw one cohort, the best of several rounds."""
    task = replace(small("1e4", clients=2).task, cohort=CohortSpec(size=drawn, min_reports=2))
    found = []
    for number in range(1, times + 1):
        started = time.perf_counter()
        chosen = select(task, PhoneNames(registered), number)
        found.append(time.perf_counter() - started)
        assert len(chosen) == drawn
    return min(found)


def _loops(case: Case, device: DeviceName) -> dict[str, Callable[[], None]]:
    return {
        "torch, bare loop": loops.plain(case, device),
        "torch, resident model": loops.resident(case, device),
        LARGE: loops.large_batch(case, device),
    }


def _engines(case: Case, threads: int, device: DeviceName) -> Mapping[str, Callable[[], None]]:
    runtime, cohort = case.runtime(threads, device), case.cohort
    engines: list[Engine] = [SequentialEngine(runtime), StackedEngine(runtime)]
    if not why_not_fused(case.task, "exact"):
        engines.append(FusedEngine(runtime))

    def rounds_of(engine: Engine) -> Callable[[], None]:
        number, private = iter(range(1, 100_000)), dict[str, Arrays]()

        def run() -> None:
            result = engine.train(case.work(replace(cohort, private=private), next(number)))
            assert result.total["count"][0] == case.clients
            private.update(result.private)

        return run

    return {engine.name: rounds_of(engine) for engine in engines}


def _row(case: Case, name: str, turns: list[Cost], gpu: Gpu | None) -> Row:
    wall, cpu = (min(each) for each in zip(*turns, strict=True))
    steps = 1 if name == LARGE else case.steps
    return Row(
        case.name,
        case.part.size,
        case.clients,
        case.images,
        steps,
        name,
        round(wall * 1e3 / case.clients, 4),
        round(cpu * 1e3 / case.clients, 4),
        round(case.clients * case.images * steps / wall, 1),
        tuple(turns),
        gpu,
    )
