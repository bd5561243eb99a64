"""Engines of a device beside each other: is ONNX Runtime's update torch's, and what do a step and an embedding cost?

For each part that phones train: the update's relative L2 distance to torch's after steps on batches of 4 and one of 2,
CPU time of a step at 4 images over eager torch's in the same run (one thread, other crops' features known), memory of a
round above what the process holds with the model loaded, CPU time of one embedding, size of the graphs.

Full: SFace, SFace with an adapter, and MobileFaceNet-192 (where MIEN_MOBILEFACENET names it), their default parts and
all of them, on real crops (MIEN_DATA), with torch in float64 beside. Quick: the tests' tiny network on made-up crops
with committed graphs; a step of it is mostly overhead, which its ratio shows and phones do not feel.
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
from benchmarks._device import Job, Turn, measure
from device_sdk.export.build import export_graphs
from device_sdk.export.forms import ObjectiveForm, standard_forms
from device_sdk.export.manifest import GraphFolder, folder_for
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
QUICK_FORMS: Final = ("positive_hinge", "cosface", "fedfr_contrastive_branch_joint")


def main() -> None:
    """Run the benchmark from the command line."""
    args = _common.options("device", (__doc__ or "").split("\n\n")[0]).parse_args()
    _common.run(lambda: benchmark(args), only_json=args.json)


def benchmark(args: argparse.Namespace) -> Mapping[str, Any]:
    """Return the figures that the benchmark prints."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        cases = _tiny_cases() if args.quick else _real_cases(Path(folder))
        rows = [row for case in cases for row in _rows(case, in_float64=not args.quick)]
    return {
        "benchmark": "device",
        "quick": args.quick,
        "network": "tiny (tests)" if args.quick else "SFace, SFace with adapter, MobileFaceNet-192 where it is there",
        "max_difference": {"onnxruntime": max(row["difference"] for row in rows)},
        "step_over_torch": {"onnxruntime": max(row["step_over_torch"] for row in _timed(rows))},
        "peak_mb": {engine: max(row["peak_mb"][engine] for row in rows) for engine in ("torch", "onnxruntime")},
        "rows": rows,
        "executorch": "not measured: Mien has no runtime on it yet",
        "duration_s": round(time.monotonic() - started, 1),
        "machine": _common.machine(),
        "commit": _common.commit(),
        "command": _common.command(),
    }


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
    is_tiny: bool = False

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
        )


def _rows(case: Case, *, in_float64: bool) -> Iterator[dict[str, Any]]:
    """Yield one row an objective; time and memory are those of the first one."""
    word = "full" if len(case.part.names) == len(case.layout.entries) else "tail"
    _common.progress(f"{case.model}, {word}: torch")
    torch = measure(case.job())
    _common.progress(f"{case.model}, {word}: ONNX Runtime")
    onnx = measure(replace(case.job(), engine="onnxruntime"))
    exact = measure(replace(case.job(), engine="float64")) if in_float64 else None
    sizes = _graph_kb(case)
    for i, name in enumerate(case.objectives):
        row = {"model": case.model, "part": word, "size": case.part.size, "objective": name, "steps": LOCAL.steps}
        start = case.part.gather(case.theta)
        row["difference"] = _relative(onnx.values[i], torch.values[i], start)
        if exact is not None:
            row["torch_to_float64"] = _relative(torch.values[i], exact.values[i], start)
            row["onnxruntime_to_float64"] = _relative(onnx.values[i], exact.values[i], start)
        yield row | _costs(torch, onnx) | {"graph_kb": sizes[name]}


def _costs(torch: Turn, onnx: Turn) -> dict[str, Any]:
    turns = {"torch": torch, "onnxruntime": onnx}
    return {
        "step_over_torch": round(onnx.step_s / torch.step_s, 3),
        "step_cpu_ms": {name: round(turn.step_s * 1e3, 2) for name, turn in turns.items()},
        "embed_cpu_ms": {name: round(turn.embed_s * 1e3, 2) for name, turn in turns.items()},
        "peak_mb": {name: round(turn.step_peak_mb, 1) for name, turn in turns.items()},
        "process_peak_mb": {name: round(turn.process_peak_mb, 1) for name, turn in turns.items()},
    }


def _relative(found: NDArray[Any], expected: NDArray[Any], start: Vector) -> float:
    """Return the L2 distance of two updates over the length of the expected one."""
    update = expected.astype(np.float64) - start
    return float(np.linalg.norm(found - expected) / np.linalg.norm(update))


def _graph_kb(case: Case) -> dict[str, float]:
    folder = GraphFolder.open(case.graphs, case.spec, case.layout)
    return {
        graph.form: round(graph.size_bytes / 1e3, 1)
        for graph in folder.manifest.graphs
        if graph.kind == "train" and graph.part == case.part.names
    }


# --- what is trained ---


def _tiny_cases() -> Iterator[Case]:
    """Yield the tests' network with its committed graphs."""
    from tests.graphs import ALL_FORMS, FOLDER, FULL_FORMS, objective_of
    from tests.tiny import made_up_crops, tiny_cnn

    tiny, crops = tiny_cnn(), made_up_crops(NUM_CROPS, seed=1)
    wanted = [form for form in ALL_FORMS if form.name in QUICK_FORMS]
    for part, forms in ((tiny.part(), wanted), (tiny.part("*"), list(FULL_FORMS))):
        objectives = {form.name: objective_of(form, NUM_CROPS, tiny.spec.input.dim) for form in forms}
        yield Case("tiny", tiny.spec, tiny.layout, tiny.theta, part, crops, objectives, FOLDER, is_tiny=True)


def _real_cases(folder: Path) -> Iterator[Case]:
    """Yield the public recognisers with graphs made now."""
    crops = _crops()
    forms = (standard_forms("positive_hinge")[0], *standard_forms("cosface"))
    for name, model in _models():
        default, whole = model.layout.part(model.spec.trainable), model.layout.part()
        parts = [default] if name.endswith("_adapter") else [default, whole]
        for part in parts:
            _common.progress(f"{name}: making the graphs of {part.size} parameters")
            graphs = folder_for(folder, model.layout)
            export_graphs(model.spec, model.layout, graphs, forms=forms, parts=[part])
            objectives = {form.name: _objective(form, model, crops) for form in forms}
            yield Case(name, model.spec, model.layout, model.theta, part, crops, objectives, folder)


def _models() -> Iterator[tuple[str, ImportedModel]]:
    sface = import_model(sface_path().read_bytes(), sface_path().name)
    yield "sface", sface
    yield "sface_adapter", with_adapter(sface)
    path = os.environ.get("MIEN_MOBILEFACENET")
    if path:
        yield "mobilefacenet192", import_model(Path(path).read_bytes(), Path(path).name)


def _crops() -> NDArray[np.uint8]:
    """Return crops of one person of CelebA, aligned."""
    people = sorted((_common.data_root() / "celeba112").iterdir())
    files = sorted(people[3].iterdir())[:NUM_CROPS]
    return np.stack([np.asarray(Image.open(file).convert("RGB")) for file in files])


def _objective(form: ObjectiveForm, model: ImportedModel, crops: NDArray[np.uint8]) -> Objective:
    """Return FedFace's hinge around the person's mean embedding, or CosFace over it and vectors of nobody."""
    mean = TorchRuntime(model.spec, model.layout).embed(model.theta, crops).mean(0)
    own = (mean / np.linalg.norm(mean)).astype(np.float32)
    if form.objective == "positive_hinge":
        return Objective("positive_hinge", {"class_embedding": own}, {}, {}, {"margin": 0.9}, ("class_embedding",))
    others = np.random.default_rng(0).standard_normal((NUM_CLASSES - 1, len(own)))
    vectors = np.vstack([own, others / np.linalg.norm(others, axis=1, keepdims=True)]).astype(np.float32)
    target = _first_class(len(crops))
    constants = {"scale": 16.0, "margin": 0.3}
    return Objective("cosface", {"class_embeddings": vectors}, {}, {"target": target}, constants, ("class_embeddings",))


def _first_class(num_images: int) -> NDArray[np.float32]:
    return np.eye(NUM_CLASSES, dtype=np.float32)[np.zeros(num_images, np.int64)]


if __name__ == "__main__":
    main()
