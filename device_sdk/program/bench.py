"""Cost of each engine on this very device: time of a verification, an embedding and a training step, and memory.

Measured on noise, which takes as long as a face. Which engine is best differs from phone to phone; the owner may keep
the choice in `device.toml`.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from device_sdk.models.models import Model
from device_sdk.program.words import typed
from device_sdk.runtimes import EngineName, load_runtime
from mien.errors import ConfigError, MissingDependencyError, NotFoundError
from mien.methods.base import Crops, Objective, Runtime, TrainingJob
from mien.shell.memory import own_proc_files
from mien.specs import LocalSpec

ENGINES: Final[tuple[EngineName, ...]] = ("torch", "onnxruntime", "executorch")
BATCH: Final = 4
_REPEATS: Final = 3
_STEPS: Final = 3
_STARTS: Final = 2


@dataclass(frozen=True)
class EngineFigures:
    """An engine's figures; None for what it cannot do here, with the reason in `lacks`.

    `verify_ms` is the processor's time that a verification takes of an engine in a new process: to load it with the
    model, and to see the first face. `embed_ms` is that for one face more, `embed_mb` what the engine adds to this
    process until it has seen one; `step_ms` is that for a step on 4 images of the part that phones train, `step_mb`
    what training adds to the process (Linux alone tells of memory).
    """

    engine: EngineName
    embed_ms: float | None = None
    step_ms: float | None = None
    step_mb: float | None = None
    lacks: str = ""
    embed_mb: float | None = None
    verify_ms: float | None = None


def measure_engines(model: Model, graphs: Path, *, threads: int = 1, trains: bool = True) -> tuple[EngineFigures, ...]:
    """Return each engine's cost with a model, in the order of `ENGINES`; of a step only where the device `trains`."""
    return tuple(_measure(engine, model, graphs, threads, trains=trains) for engine in ENGINES)


def fastest(figures: Sequence[EngineFigures]) -> EngineFigures:
    """Return the engine with the shortest step; where no step was measured, that with the shortest verification.

    Raises MissingDependencyError where none can embed.
    """
    usable = [each for each in figures if each.embed_ms is not None]
    if not usable:
        raise MissingDependencyError(f"no engine can run this model here: {'; '.join(each.lacks for each in figures)}")
    able = [each for each in usable if each.step_ms is not None]
    return min(able or usable, key=lambda each: (each.step_ms or 0.0, each.verify_ms or 0.0))


def _measure(engine: EngineName, model: Model, graphs: Path, threads: int, *, trains: bool) -> EngineFigures:
    spec = model.spec.input
    crops: Crops = np.random.default_rng(0).integers(0, 256, (BATCH, spec.height, spec.width, 3), np.uint8)
    # A face is seen once: engines remember features of those that they have seen.
    unseen = iter(np.random.default_rng(1).integers(0, 256, (_REPEATS, 1, spec.height, spec.width, 3), np.uint8))
    loaded: list[Runtime] = []

    def begin() -> None:
        loaded.append(_with_a_face_seen(engine, model, graphs, threads))

    try:
        embed_mb = added_mb(begin)
    except (MissingDependencyError, NotFoundError, ConfigError) as error:
        return EngineFigures(engine, lacks=typed(error.message))
    runtime = loaded[0]
    embed_ms = least_ms(lambda: runtime.embed(model.theta, next(unseen)))
    found = EngineFigures(engine, embed_ms, embed_mb=embed_mb, verify_ms=_verify_ms(engine, model, graphs, threads))
    if not trains:
        return found
    try:
        step_ms, step_mb = _step(runtime, model, crops)
    except (NotFoundError, ConfigError) as error:
        return replace(found, lacks=typed(error.message))
    return replace(found, step_ms=step_ms, step_mb=step_mb)


def _with_a_face_seen(engine: EngineName, model: Model, graphs: Path, threads: int) -> Runtime:
    """Return the engine, loaded with a model and having embedded a face."""
    runtime = load_runtime(model.spec, model.layout, threads=threads, choice=engine, graphs=graphs)
    spec = model.spec.input
    face: Crops = np.random.default_rng(2).integers(0, 256, (1, spec.height, spec.width, 3), np.uint8)
    runtime.embed(model.theta, face)
    return runtime


def _verify_ms(engine: EngineName, model: Model, graphs: Path, threads: int) -> float:
    """Return the least processor time of loading the engine and seeing a face, each in a new process.

    In this one an engine is loaded already, or what another one has loaded is found.
    """
    new = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=new, max_tasks_per_child=1) as pool:
        starts = [pool.submit(_first_face_ms, engine, model, graphs, threads) for _ in range(_STARTS)]
        return min(each.result() for each in starts)


def _first_face_ms(engine: EngineName, model: Model, graphs: Path, threads: int) -> float:
    return least_ms(lambda: _with_a_face_seen(engine, model, graphs, threads), repeats=1)


def _step(runtime: Runtime, model: Model, crops: Crops) -> tuple[float, float | None]:
    """Return milliseconds of a step and MB of a round; what surrounds the steps is taken off the time."""
    part = model.layout.part(model.spec.trainable or ("*",))
    vector = np.zeros(model.spec.input.dim, np.float32)
    vector[0] = 1.0
    objective = Objective("positive_hinge", {"class_embedding": vector}, constants={"margin": 1.0})

    def steps(number: int) -> Callable[[], object]:
        local = LocalSpec(lr=1e-6, flip=False, steps=number, batch_size=BATCH)
        return lambda: runtime.train(TrainingJob(model.theta, part, crops, objective, local, 0))

    step_mb = added_mb(steps(2))
    several, one = least_ms(steps(1 + _STEPS)), least_ms(steps(1))
    return max(round((several - one) / _STEPS, 3), 0.001), step_mb


def least_ms(work: Callable[[], object], repeats: int = _REPEATS) -> float:
    """Return the least processor time of some runs, which other programs disturb less than the clock."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return round(1e3 * min(times), 3)


def added_mb(work: Callable[[], object]) -> float | None:
    """Return by how many MB a piece of work lifted the process at its peak; None where the system does not tell."""
    try:
        before = _status_mb("VmRSS")
        with own_proc_files():
            Path("/proc/self/clear_refs").write_text("5")  # VmHWM counts from here (proc(5))
    except OSError:
        work()
        return None
    work()
    return round(max(_status_mb("VmHWM") - before, 0.0), 1)


def _status_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(float(line.split()[1]) / 1e3 for line in lines if line.startswith(f"{name}:"))
