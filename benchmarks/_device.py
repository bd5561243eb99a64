"""One engine's turn in the device benchmark, in a process of its own: `python -m benchmarks._device` reads a job.

A process for each engine, so that its memory is its own and ONNX Runtime's has no torch in it. Jobs and results go
through pipes: what faces become is never written to disk.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from device_sdk.runtimes.manifest import GraphEngine
from mien.layout import ParameterLayout, ParameterPart, Vector
from mien.methods.base import Objective, Runtime, Trained, TrainingJob
from mien.protocol.canonical import model_from_json, model_to_json
from mien.records import from_mapping
from mien.specs import LocalSpec, ModelSpec

Engine = Literal["torch", "onnxruntime", "executorch", "float64"]
REPEATS: Final = 3
TIMED_STEPS: Final = 4
BATCH: Final = 4
LOCAL: Final = LocalSpec(lr=0.01, steps=5, batch_size=BATCH, momentum=0.9, weight_decay=5e-4)


@dataclass(frozen=True)
class Job:
    """What an engine trains: a model's part, on crops, with each of some objectives, for each of some numbers of steps.

    Without `steps` those of `local` are taken.
    """

    engine: Engine
    spec: ModelSpec
    layout: ParameterLayout
    theta: Vector = field(repr=False)
    part: tuple[str, ...] = ("*",)
    crops: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((0, 112, 112, 3), np.uint8), repr=False)
    objectives: tuple[Objective, ...] = ()
    local: LocalSpec = field(default_factory=LocalSpec)
    steps: tuple[int, ...] = ()
    graphs: str = ""
    is_tiny: bool = False
    is_timed: bool = True


@dataclass(frozen=True)
class Case:
    """One part of one model with its graphs, crops and objectives."""

    model: str
    spec: ModelSpec
    layout: ParameterLayout
    theta: Vector = field(repr=False)
    part: ParameterPart
    crops: NDArray[np.uint8] = field(repr=False)
    objectives: Mapping[str, Objective] = field(repr=False)
    graphs: Path
    engines: tuple[GraphEngine, ...] = ("onnxruntime", "executorch")
    is_tiny: bool = False

    @property
    def word(self) -> str:
        """Whether this is the whole network or a tail of it."""
        return "full" if len(self.part.names) == len(self.layout.entries) else "tail"

    def job(self) -> Job:
        """Return the case as torch's job."""
        return Job(
            "torch",
            self.spec,
            self.layout,
            self.theta,
            self.part.names,
            self.crops,
            tuple(self.objectives.values()),
            LOCAL,
            graphs=str(self.graphs),
            is_tiny=self.is_tiny,
        )


@dataclass(frozen=True)
class Turn:
    """What an engine gave: an update for each objective, CPU seconds of a step, of an embedding, and memory."""

    values: tuple[NDArray[Any], ...] = field(repr=False)
    step_s: float
    embed_s: float
    step_peak_mb: float
    process_peak_mb: float


def measure(job: Job) -> Turn:
    """Return what the job's engine makes of it, in a new process with one thread."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks._device"],
        input=_packed(job),
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        cwd=Path(__file__).resolve().parents[1],
    )
    arrays = dict(np.load(io.BytesIO(done.stdout)))
    numbers = json.loads(arrays.pop("json").tobytes())
    return Turn(tuple(arrays[f"values.{i}"] for i in range(len(arrays))), **numbers)


def take_turn(job: Job) -> Turn:
    """Return what this process makes of a job."""
    part = ParameterPart(job.layout, job.part)
    if job.engine == "float64":
        exact = tuple(_in_float64(job, part, objective) for objective in job.objectives)
        return Turn(exact, 0.0, 0.0, 0.0, 0.0)
    peak_mb = _memory_of_training(job, part) if job.is_timed else 0.0  # first: later work would leave its own behind
    runtime = _runtime(job)
    embed_s = least(lambda: runtime.embed(job.theta, job.crops[:1]), REPEATS) if job.is_timed else 0.0
    trained: list[Trained] = [
        runtime.train(TrainingJob(job.theta, part, job.crops, objective, replace(job.local, steps=steps), 0))
        for objective in job.objectives
        for steps in job.steps or (job.local.steps,)
    ]
    step_s = _step_time(job, part, runtime) if job.is_timed else 0.0
    return Turn(tuple(t.values for t in trained), step_s, embed_s, peak_mb, _status_mb("VmHWM"))


def _step_time(job: Job, part: ParameterPart, runtime: Runtime) -> float:
    """Return CPU seconds of a step.

    Images are not mirrored, so that a tail's features are all known after the first round: a step is then that of the
    tail. What surrounds the steps of a round is taken off, as the time of a round of one step.
    """
    batch = job.crops[:BATCH]
    objective = _first_images(job.objectives[0], len(batch))

    def rounds_of(steps: int) -> Callable[[], object]:
        local = LocalSpec(lr=job.local.lr, momentum=job.local.momentum, flip=False, steps=steps, batch_size=BATCH)
        return lambda: runtime.train(TrainingJob(job.theta, part, batch, objective, local, 0))

    rounds_of(1)()
    several, one = least(rounds_of(1 + TIMED_STEPS), REPEATS), least(rounds_of(1), REPEATS)
    return max(several - one, 0.0) / TIMED_STEPS


def _memory_of_training(job: Job, part: ParameterPart) -> float:
    """Return by how many MB a round of two steps lifts the process above what it holds with the model in memory."""
    runtime = _runtime(job)
    runtime.embed(job.theta, job.crops[:1])
    before = _status_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # from here on VmHWM is the peak of what follows (proc(5))
    local = LocalSpec(lr=job.local.lr, momentum=0.9, flip=False, steps=2, batch_size=BATCH)
    batch = job.crops[:BATCH]
    runtime.train(TrainingJob(job.theta, part, batch, _first_images(job.objectives[0], len(batch)), local, 0))
    return _status_mb("VmHWM") - before


def _first_images(objective: Objective, num_images: int) -> Objective:
    per_crop = {name: rows[:num_images] for name, rows in objective.per_crop.items()}
    return Objective(
        objective.name, objective.private, objective.fixed, per_crop, objective.constants, objective.unit_norm
    )


def _runtime(job: Job) -> Runtime:
    if job.is_tiny and job.engine == "torch":
        from tests.tiny import tiny_cnn

        return tiny_cnn().runtime()
    from device_sdk.runtimes import load_runtime

    assert job.engine != "float64"
    return load_runtime(job.spec, job.layout, choice=job.engine, graphs=Path(job.graphs))


def _in_float64(job: Job, part: ParameterPart, objective: Objective) -> NDArray[np.float64]:
    """Return the part after the same steps by torch in float64: what rounding costs any engine."""
    import torch

    from device_sdk.runtimes.objectives import LossInput, find_loss
    from device_sdk.runtimes.schedule import batches
    from mien.backbones import build_backbone, load_theta
    from tests.tiny import tiny_cnn

    torch.set_num_threads(1)
    backbone = (tiny_cnn().backbone if job.is_tiny else build_backbone(job.spec.backbone, job.spec.input)).double()
    load_theta(backbone, job.layout, job.theta)
    backbone.requires_grad_(False)
    tensors = [dict(backbone.named_parameters())[name].requires_grad_() for name in part.names]
    private = {name: torch.tensor(v, dtype=torch.float64, requires_grad=True) for name, v in objective.private.items()}
    fixed = {name: torch.tensor(v, dtype=torch.float64) for name, v in objective.fixed.items()}
    leaves = [*tensors, *private.values()]
    velocities = [torch.zeros_like(leaf) for leaf in leaves]
    for batch in batches(job.local, len(job.crops), np.random.default_rng(0)):
        crops = job.crops[batch.indices]
        mirrored = np.where(batch.flipped[:, None, None, None], crops[:, :, ::-1], crops)
        x = torch.from_numpy(job.spec.input.network_input(mirrored)).double()
        rows = {name: torch.tensor(v[batch.indices]).double() for name, v in objective.per_crop.items()}
        flags = torch.from_numpy(batch.flipped).double()
        seen = LossInput(backbone(x), private, rows, objective.constants, fixed, flags)
        loss = find_loss(objective.name)(seen)
        gradients = torch.autograd.grad(loss, leaves, materialize_grads=True)
        with torch.no_grad():
            for i, (leaf, velocity, g) in enumerate(zip(leaves, velocities, gradients, strict=True)):
                decay = job.local.weight_decay if i < len(tensors) else 0.0
                velocity.mul_(job.local.momentum).add_(g + decay * leaf)
                leaf.sub_(velocity, alpha=batch.rate * job.local.lr)
            for name in objective.unit_norm:
                private[name].div_(private[name].norm(dim=-1, keepdim=True))
    return np.concatenate([tensor.detach().numpy().reshape(-1) for tensor in tensors])


def least(work: Callable[[], object], repeats: int) -> float:
    """Return the least CPU time of some runs, which a busy machine disturbs less than the clock."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


def _status_mb(name: str) -> float:
    """Return a memory figure of this process in MB, as Linux states it."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(float(line.split()[1]) / 1e3 for line in lines if line.startswith(f"{name}:"))


# --- through pipes ---


def _packed(job: Job) -> bytes:
    arrays: dict[str, Any] = {"theta": job.theta, "crops": job.crops}
    described = []
    for i, objective in enumerate(job.objectives):
        described.append([objective.name, dict(objective.constants), list(objective.unit_norm)])
        arrays |= {f"private.{i}.{name}": values for name, values in objective.private.items()}
        arrays |= {f"per_crop.{i}.{name}": values for name, values in objective.per_crop.items()}
    meta = {
        "engine": job.engine,
        "model": model_to_json(job.spec, job.layout).decode(),
        "part": job.part,
        "objectives": described,
        "local": asdict(job.local),
        "steps": job.steps,
        "graphs": job.graphs,
        "is_tiny": job.is_tiny,
        "is_timed": job.is_timed,
    }
    return _archive(arrays, meta)


def _unpacked(data: bytes) -> Job:
    arrays = dict(np.load(io.BytesIO(data)))
    meta: Mapping[str, Any] = json.loads(arrays["json"].tobytes())
    spec, layout = model_from_json(meta["model"].encode())

    def tensors(kind: str, i: int) -> dict[str, NDArray[np.float32]]:
        start = f"{kind}.{i}."
        return {name.removeprefix(start): values for name, values in arrays.items() if name.startswith(start)}

    objectives = tuple(
        Objective(name, tensors("private", i), {}, tensors("per_crop", i), constants, tuple(unit_norm))
        for i, (name, constants, unit_norm) in enumerate(meta["objectives"])
    )
    local = from_mapping(LocalSpec, {name: value for name, value in meta["local"].items() if value is not None})
    return Job(
        meta["engine"],
        spec,
        layout,
        arrays["theta"],
        tuple(meta["part"]),
        arrays["crops"],
        objectives,
        local,
        tuple(meta["steps"]),
        meta["graphs"],
        meta["is_tiny"],
        meta["is_timed"],
    )


def _archive(arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> bytes:
    file = io.BytesIO()
    np.savez(file, json=np.frombuffer(json.dumps(meta).encode(), np.uint8), **arrays)
    return file.getvalue()


def main() -> None:
    """Take one turn: a job on standard input, its result on standard output."""
    job = _unpacked(sys.stdin.buffer.read())
    turn = take_turn(job)
    meta = {name: value for name, value in vars(turn).items() if name != "values"}
    arrays = {f"values.{i}": values for i, values in enumerate(turn.values)}
    sys.stdout.buffer.write(_archive(arrays, meta))


if __name__ == "__main__":
    main()
