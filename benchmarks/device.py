"""Engines of a device beside each other: are the updates torch's, and what do a step and an embedding cost?

For ONNX Runtime and ExecuTorch, and each part that phones train: the update's relative L2 distance to torch's after
steps on batches of 4 and one of 2, CPU time of a step at 4 images over eager torch's in the same run (one thread, other
crops' features known), memory of a round above what the process holds with the model loaded, CPU time of one embedding,
size of the graphs.

Full: SFace, SFace with an adapter, and MobileFaceNet-192 (where MIEN_MOBILEFACENET names it), their default parts and
all of them, on real crops (MIEN_DATA), with torch in float64 beside; programs of whole networks take minutes to make,
so ExecuTorch trains MobileFaceNet's alone. Quick: the tests' tiny network on made-up crops with committed graphs; a
step of it is mostly overhead, which its ratio shows and phones do not feel. `--parity` prints the updates' distances
alone, for every objective and for several numbers of steps; `--int8` what inference in int8 costs.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks import _common
from benchmarks._device import Engine, Job, Turn, measure
from device_sdk.export.build import export_graphs
from device_sdk.export.forms import ObjectiveForm, exportable, standard_forms
from device_sdk.export.manifest import SUFFIXES, GraphEngine, GraphFolder, folder_for
from device_sdk.runtimes.torch_runtime import TorchRuntime
from mien.backbones.importers import ImportedModel, import_model, with_adapter
from mien.layout import ParameterLayout, ParameterPart, Vector
from mien.methods.base import Objective
from mien.specs import LocalSpec, ModelSpec
from simulation.pretrained import sface_path

NUM_CROPS: Final = 6
NUM_CLASSES: Final = 5
LOCAL: Final = LocalSpec(lr=0.01, steps=5, batch_size=4, momentum=0.9, weight_decay=5e-4)
MIN_TIMED_MS: Final = 1.0
PARITY_STEPS: Final = (1, 5, 20)
MOST_FOR_EXECUTORCH: Final = 2_000_000
"""Parameters of a part: what is larger takes minutes and gigabytes to export."""
QUICK_FORMS: Final = ("positive_hinge", "cosface", "fedfr_contrastive_branch_joint")


def main() -> None:
    """Run the benchmark from the command line."""
    parser = _common.options("device", (__doc__ or "").split("\n\n")[0])
    parser.add_argument("--parity", action="store_true", help="the updates' distances to torch's alone, of everything")
    parser.add_argument("--model", action="append", help="one of the networks (may be repeated)")
    parser.add_argument("--part", choices=("tail", "full", "both"), default="both", help="the default part, or all")
    parser.add_argument("--engine", choices=tuple(SUFFIXES), help="one of the engines beside torch, instead of both")
    parser.add_argument("--int8", action="store_true", help="what inference in int8 costs and gains, alone")
    args = parser.parse_args()
    chosen = parity if args.parity else int8 if args.int8 else benchmark
    _common.run(lambda: chosen(args), only_json=args.json)


def benchmark(args: argparse.Namespace) -> Mapping[str, Any]:
    """Return the figures that the benchmark prints."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        cases = _tiny_cases() if args.quick else _real_cases(Path(folder), args)
        rows = [row for case in cases for row in _rows(case, in_float64=not args.quick)]
    return {
        "benchmark": "device",
        "quick": args.quick,
        "network": "tiny (tests)" if args.quick else "SFace, SFace with adapter, MobileFaceNet-192 where it is there",
        "max_difference": _most(rows, "difference"),
        "step_over_torch": _most(_timed(rows), "step_over_torch"),
        "tail_over_torch": _most(_timed([row for row in rows if row["part"] == "tail"]), "step_over_torch"),
        "peak_mb": _most(rows, "peak_mb"),
        "rows": rows,
        **_provenance(started),
    }


def _provenance(started: float) -> dict[str, Any]:
    return {
        "duration_s": round(time.monotonic() - started, 1),
        "machine": _common.machine(),
        "commit": _common.commit(),
        "command": _common.command(),
    }


def _most(rows: list[dict[str, Any]], what: str) -> dict[str, float]:
    """Return the largest of a figure by engine."""
    engines = dict.fromkeys(engine for row in rows for engine in row[what])
    return {engine: max(row[what][engine] for row in rows if engine in row[what]) for engine in engines}


def _timed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows whose steps are long enough to be timed: those of an adapter drown in what surrounds them."""
    return [row for row in rows if row["step_cpu_ms"]["torch"] >= MIN_TIMED_MS] or rows


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
            str(self.graphs),
            self.is_tiny,
            True,
        )


def _rows(case: Case, *, in_float64: bool) -> Iterator[dict[str, Any]]:
    """Yield one row an objective; time and memory are those of the first one."""
    turns = {engine: _turn(case, engine) for engine in _engines(case)}
    exact = _turn(case, "float64") if in_float64 else None
    for i, name in enumerate(case.objectives):
        row = {"model": case.model, "part": case.word, "size": case.part.size, "objective": name, "steps": LOCAL.steps}
        start, torch = case.part.gather(case.theta), turns["torch"].values[i]
        row["difference"] = {engine: _relative(turns[engine].values[i], torch, start) for engine in case.engines}
        if exact is not None:
            row["to_float64"] = {
                engine: _relative(turn.values[i], exact.values[i], start) for engine, turn in turns.items()
            }
        yield row | _costs(turns) | {"graph_kb": _graph_kb(case, name), "graphs_mb": _graphs_mb(case)}


def _engines(case: Case) -> tuple[Engine, ...]:
    return ("torch", *case.engines)


def _turn(case: Case, engine: Engine, **changes: Any) -> Turn:
    _common.progress(f"{case.model}, {case.word}: {engine}")
    return measure(replace(case.job(), engine=engine, **changes))


def _costs(turns: Mapping[Engine, Turn]) -> dict[str, Any]:
    torch_s = turns["torch"].step_s
    others = {engine: turn for engine, turn in turns.items() if engine != "torch"}
    return {
        "step_over_torch": {engine: round(turn.step_s / torch_s, 3) for engine, turn in others.items()},
        "step_cpu_ms": {engine: round(turn.step_s * 1e3, 2) for engine, turn in turns.items()},
        "embed_cpu_ms": {engine: round(turn.embed_s * 1e3, 2) for engine, turn in turns.items()},
        "peak_mb": {engine: round(turn.step_peak_mb, 1) for engine, turn in turns.items()},
        "process_peak_mb": {engine: round(turn.process_peak_mb, 1) for engine, turn in turns.items()},
    }


def int8(args: argparse.Namespace) -> Mapping[str, Any]:
    """Return what inference in int8 costs in accuracy and gains in time and size, on real faces."""
    from benchmarks._int8 import measure_int8

    started = time.monotonic()
    models = [(name, model) for name, model in _models() if not args.model or name in args.model]
    rows = [measure_int8(name, model) for name, model in models if not name.endswith("_adapter")]
    return {"benchmark": "device int8", "rows": rows, **_provenance(started)}


def parity(args: argparse.Namespace) -> Mapping[str, Any]:
    """Return how far each engine's update is from torch's: by network, objective and number of steps."""
    started = time.monotonic()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        tiny = _tiny_cases(everything=True) if args.quick else None
        for case in tiny or _real_cases(Path(folder), args, everything=True):
            for steps in PARITY_STEPS:
                rows += _parity_rows(case, steps)
    return {
        "benchmark": "device parity",
        "quick": args.quick,
        "max_difference": _most(rows, "difference"),
        "rows": rows,
        **_provenance(started),
    }


def _parity_rows(case: Case, steps: int) -> Iterator[dict[str, Any]]:
    local = replace(LOCAL, steps=steps)
    turns = {engine: _turn(case, engine, local=local, is_timed=False) for engine in _engines(case)}
    start = case.part.gather(case.theta)
    for i, name in enumerate(case.objectives):
        yield {
            "model": case.model,
            "part": case.word,
            "objective": name,
            "steps": steps,
            "difference": {
                engine: float(f"{_relative(turns[engine].values[i], turns['torch'].values[i], start):.2g}")
                for engine in case.engines
            },
        }


def _relative(found: NDArray[Any], expected: NDArray[Any], start: Vector) -> float:
    """Return the L2 distance of two updates over the length of the expected one."""
    update = expected.astype(np.float64) - start
    return float(np.linalg.norm(found - expected) / np.linalg.norm(update))


def _graph_kb(case: Case, objective: str) -> dict[str, float]:
    folder = GraphFolder.open(case.graphs, case.spec, case.layout)
    return {
        engine: round(graph.size_bytes / 1e3, 1)
        for graph in folder.manifest.graphs
        for engine in case.engines
        if (graph.kind, graph.part, graph.form) == ("train", case.part.names, objective)
        and graph.file.endswith(SUFFIXES[engine])
    }


def _graphs_mb(case: Case) -> dict[str, float]:
    """Return what an engine's graphs take in a bundle, beside the parameters."""
    graphs = GraphFolder.open(case.graphs, case.spec, case.layout).manifest.graphs
    return {
        engine: round(sum(graph.size_bytes for graph in graphs if graph.file.endswith(SUFFIXES[engine])) / 1e6, 3)
        for engine in case.engines
    }


# --- what is trained ---


def _tiny_cases(*, everything: bool = False) -> Iterator[Case]:
    """Yield the tests' network with its committed graphs."""
    from tests.graphs import FOLDER, FULL_FORMS, ON_EXECUTORCH, objective_of
    from tests.tiny import made_up_crops, tiny_cnn

    tiny, crops = tiny_cnn(), made_up_crops(NUM_CROPS, seed=1)
    wanted = [form for form in ON_EXECUTORCH if everything or form.name in QUICK_FORMS]
    for part, forms in ((tiny.part(), wanted), (tiny.part("*"), list(FULL_FORMS))):
        objectives = {form.name: objective_of(form, NUM_CROPS, tiny.spec.input.dim) for form in forms}
        yield Case("tiny", tiny.spec, tiny.layout, tiny.theta, part, crops, objectives, FOLDER, is_tiny=True)


def _real_cases(folder: Path, args: argparse.Namespace, *, everything: bool = False) -> Iterator[Case]:
    """Yield the public recognisers with graphs made now."""
    crops = _crops()
    few = (standard_forms("positive_hinge")[0], *standard_forms("cosface"))
    every = tuple(form for name in exportable() for form in standard_forms(name))
    for name, model in _models():
        if args.model and name not in args.model:
            continue
        default, whole = model.layout.part(model.spec.trainable), model.layout.part()
        parts = [default] if name.endswith("_adapter") else [default, whole]
        for part in [each for each in parts if args.part == "both" or (each is whole) == (args.part == "full")]:
            forms = every if everything and part is default else few
            engines: tuple[GraphEngine, ...] = (args.engine,) if args.engine else ("onnxruntime", "executorch")
            if part.size > MOST_FOR_EXECUTORCH:
                engines = ("onnxruntime",)
            elif part is whole and "executorch" in engines:
                forms = few[:1]
            _common.progress(f"{name}: making the graphs of {part.size} parameters")
            graphs = folder_for(folder, model.layout)
            export_graphs(model.spec, model.layout, graphs, forms=forms, parts=[part], engines=engines)
            objectives = {form.name: _objective(form, model, crops) for form in forms}
            yield Case(name, model.spec, model.layout, model.theta, part, crops, objectives, folder, engines)


def _models() -> Iterator[tuple[str, ImportedModel]]:
    sface = import_model(sface_path().read_bytes(), sface_path().name)
    yield "sface", sface
    yield "sface_adapter", with_adapter(sface)
    path = os.environ.get("MIEN_MOBILEFACENET")
    if path:
        mobilefacenet = import_model(Path(path).read_bytes(), Path(path).name)
        yield "mobilefacenet192", mobilefacenet
        yield "mobilefacenet192_adapter", with_adapter(mobilefacenet)


def _crops() -> NDArray[np.uint8]:
    """Return crops of one person of CelebA, aligned."""
    people = sorted((_common.data_root() / "celeba112").iterdir())
    files = sorted(people[3].iterdir())[:NUM_CROPS]
    return np.stack([np.asarray(Image.open(file).convert("RGB")) for file in files])


def _objective(form: ObjectiveForm, model: ImportedModel, crops: NDArray[np.uint8]) -> Objective:
    """Return an objective around the person's mean embedding; its other vectors and features are made up."""
    from tests.graphs import objective_of

    embeddings = TorchRuntime(model.spec, model.layout).embed(model.theta, crops)
    own = (embeddings.mean(0) / np.linalg.norm(embeddings.mean(0))).astype(np.float32)
    drawn = objective_of(form, len(crops), len(own))
    private = {name: _unit(values) for name, values in drawn.private.items()}
    for name in ("class_embedding", "class_embeddings", "local_proxies", "omega"):
        if name in private:
            private[name] = own if private[name].ndim == 1 else np.vstack([own, private[name][1:]])
    per_crop = dict(drawn.per_crop)
    if "target" in per_crop:
        per_crop["target"] = np.eye(NUM_CLASSES, dtype=np.float32)[np.zeros(len(crops), np.int64)]
    for name in ("global_features", "previous_features"):
        if name in per_crop:
            per_crop[name] = np.stack([embeddings, embeddings], 1)
    constants = {**drawn.constants, "scale": 16.0, "margin": 0.9 if form.objective == "positive_hinge" else 0.3}
    constants.update(form.built_in)
    return replace(drawn, private=private, per_crop=per_crop, constants=constants)


def _unit(values: NDArray[np.float32]) -> NDArray[np.float32]:
    scaled: NDArray[np.float32] = values / np.linalg.norm(values, axis=-1, keepdims=True)
    return scaled if values.ndim > 1 else values


if __name__ == "__main__":
    main()
