"""Engines beside plain loops of torch, in turns, so that a busy machine is as busy for one as for the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import torch

from device_sdk.runtimes.torch_runtime import DeviceName
from mien.contribution import Arrays
from mien.specs import CohortSpec
from simulation.bench import loops
from simulation.bench.cases import Case, small
from simulation.bench.gpu import Gpu, watched_gpu
from simulation.engines.base import Engine, SequentialEngine
from simulation.engines.engine import select
from simulation.engines.fused import FusedEngine, why_not_fused
from simulation.engines.population import PhoneNames
from simulation.engines.stacked import StackedEngine

REGISTERED: Final = 1_000_000
DRAWN: Final = 100
TURN_S: Final = 0.05
LARGE: Final = "torch, large batch"


@dataclass(frozen=True)
class Row:
    """One way of running a round: milliseconds a phone by the wall clock and of CPU, images a second; the best round.

    `gpu` says how busy the GPU was and its peak memory, where that is where it ran.
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
    gpu: Gpu | None = None

    def as_record(self) -> dict[str, Any]:
        """Return the row for JSON."""
        record = asdict(self)
        return record if self.gpu else {name: value for name, value in record.items() if name != "gpu"}


def compare(
    case: Case,
    *,
    threads: int,
    rounds: int,
    device: DeviceName = "cpu",
    only: tuple[str, ...] = (),
    tell: Callable[[str], None] = lambda _text: None,
) -> list[Row]:
    """Return a row for each engine that can run the case, and for each loop of torch, from the best of `rounds` turns.

    A turn is one round, or as many as take `TURN_S`: the best of a few short ones is another one at every run.

    Phones keep what they keep from round to round, as in a run. `only` names the engines and loops to be compared.
    `tell` gets a line for each as it has run for the first time, and one on how long the rest will take.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        everything = {**_loops(case, device), **_engines(case, threads, device)}
        ways = {name: run for name, run in everything.items() if not only or name in only}
        started = time.monotonic()
        for name, run in ways.items():
            first = time.monotonic()
            run()  # warm
            tell(f"  {name}: {(time.monotonic() - first) * 1e3 / case.clients:.2f} ms a phone at first")
        tell(f"  {rounds} more rounds of each, in turns: about {rounds * (time.monotonic() - started):.0f} s")
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        gpus: dict[str, Gpu | None] = {}
        for _ in range(rounds):
            for name, run in ways.items():
                with watched_gpu(device) as seen:
                    until = time.perf_counter() + TURN_S
                    times[name].append(_timed(run, device))
                    while time.perf_counter() < until:
                        times[name].append(_timed(run, device))
                gpus[name] = seen()
    finally:
        torch.set_num_threads(before)
    return [_row(case, name, times[name], gpus[name]) for name in ways]


def _timed(run: Callable[[], None], device: DeviceName) -> tuple[float, float]:
    """Return what a round takes in seconds, by the wall clock and of CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - wall, time.process_time() - cpu


def best_engine(rows: list[Row]) -> Row:
    """Return the row of the fastest engine; loops of torch are none."""
    return min((row for row in rows if not row.engine.startswith("torch")), key=lambda row: row.wall_ms)


def row_of(rows: list[Row], engine: str) -> Row | None:
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


def _row(case: Case, name: str, times: list[tuple[float, float]], gpu: Gpu | None) -> Row:
    wall, cpu = (min(each) for each in zip(*times, strict=True))
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
        gpu,
    )
