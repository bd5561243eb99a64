"""Engines of a device beside each other: are the updates torch's, and what do a step and an embedding cost?

For ONNX Runtime and ExecuTorch, and each part that phones train: the update's relative L2 distance to torch's after
steps on batches of 4 and one of 2, CPU time of a step at 4 images over eager torch's in the same run (one thread, other
crops' features known), memory of a round above what the process holds with the model loaded, CPU time of one embedding,
size of the graphs.

Always: the tests' tiny network on made-up crops with committed graphs, which quick runs have alone; a step of it is
mostly overhead, which its ratio shows and phones do not feel. Full, as `recognisers`: SFace and MobileFaceNet-192
(where MIEN_MOBILEFACENET names it) with and without adapters, and the drawn network `mobilefacenet_folded`: their
default parts and all of them, on real crops (MIEN_DATA), with torch in float64 beside. Programs of whole networks take
minutes to make; `--graphs` keeps them. `--parity` prints the updates' distances alone, for every objective and several
numbers of steps; `--int8` what inference in int8 costs.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks import _common, _parity
from benchmarks._device import LOCAL, Case, Engine, Turn, measure
from benchmarks._parity import relative
from device_sdk.export.build import export_graphs
from device_sdk.models.packaged import sface_path
from device_sdk.runtimes.forms import ObjectiveForm, exportable, standard_forms
from device_sdk.runtimes.manifest import SUFFIXES, GraphEngine, GraphFolder, folder_for
from device_sdk.runtimes.torch_runtime import TorchRuntime
from mien.backbones import build_backbone, layout_of, theta_of
from mien.backbones.importers import ImportedModel, import_model, with_adapter
from mien.methods.base import Objective
from mien.specs import ModelSpec

NUM_CROPS: Final = 6
NUM_CLASSES: Final = 5
MIN_TIMED_MS: Final = 1.0
_NO_EXPORTER: Final = ("__main__", "build", "manifest", "variants")
SHOWN_OF_FEDFR: Final = (
    "fedfr",
    "fedfr_contrastive_branch_joint",
    "fedfr_contrastive_cosface_branch_detached",
)
QUICK_FORMS: Final = ("positive_hinge", "cosface", "fedfr_contrastive_branch_joint")


def main() -> None:
    """Run the benchmark from the command line."""
    parser = _common.options("device", (__doc__ or "").split("\n\n")[0])
    _parity.add_options(parser)
    parser.add_argument("--graphs", metavar="DIR", help="keep graphs there: making them takes most of the time")
    parser.add_argument("--model", action="append", help="one of the networks (may be repeated)")
    parser.add_argument("--part", choices=("tail", "full", "both"), default="both", help="the default part, or all")
    parser.add_argument("--engine", choices=tuple(SUFFIXES), help="one of the engines beside torch, instead of both")
    parser.add_argument("--form", action="append", help="one of the objectives' forms (may be repeated)")
    parser.add_argument("--int8", action="store_true", help="what inference in int8 costs and gains, alone")
    args = parser.parse_args()
    chosen = parity if args.parity else int8 if args.int8 else benchmark
    _common.run(lambda: chosen(args), only_json=args.json)


def benchmark(args: argparse.Namespace) -> Mapping[str, Any]:
    """Return the figures that the benchmark prints."""
    started = time.monotonic()
    with _graphs(args) as folder:
        tiny = [] if _chooses(args) else [row for case in _tiny_cases() for row in _rows(case, in_float64=False)]
        real = () if args.quick else _real_cases(folder, args)
        rows = [row for case in real for row in _rows(case, in_float64=True)]
    return {
        "benchmark": "device",
        "quick": args.quick,
        "networks": list(dict.fromkeys(row["model"] for row in (*tiny, *rows))),
        **_figures(tiny),
        **({"recognisers": _figures(rows)} if rows else {}),
        "rows": [*tiny, *rows],
        **_provenance(started),
    }


def _chooses(args: argparse.Namespace) -> bool:
    """Return whether a whole run is asked for some recognisers, parts, engines or forms alone."""
    return not args.quick and bool(args.model or args.form or args.engine or args.part != "both")


def _figures(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the worst figures of some networks by engine; of the tests' network they are a quick run's, too."""
    return {
        "max_difference": _most(rows, "difference"),
        "step_over_torch": _most(_timed(rows), "step_over_torch"),
        "tail_over_torch": _most(_timed([row for row in rows if row["part"] == "tail"]), "step_over_torch"),
        "peak_mb": _most(rows, "peak_mb"),
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


def _rows(case: Case, *, in_float64: bool) -> Iterator[dict[str, Any]]:
    """Yield one row an objective; time and memory are those of the first one."""
    turns = {engine: _turn(case, engine) for engine in _engines(case)}
    exact = _turn(case, "float64") if in_float64 else None
    for i, name in enumerate(case.objectives):
        row = {"model": case.model, "part": case.word, "size": case.part.size, "objective": name, "steps": LOCAL.steps}
        start, torch = case.part.gather(case.theta), turns["torch"].values[i]
        row["difference"] = {engine: relative(turns[engine].values[i], torch, start) for engine in case.engines}
        if exact is not None:
            row["to_float64"] = {
                engine: relative(turn.values[i], exact.values[i], start) for engine, turn in turns.items()
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
    with _graphs(args) as folder:
        cases = _tiny_cases(everything=True) if args.quick else _real_cases(folder, args, everything=True)
        rows = _parity.parity(cases)
    result = {
        "benchmark": "device parity",
        "quick": args.quick,
        "num_crops": NUM_CROPS,
        "max_difference": _most(rows, "difference"),
        "rows": rows,
        **_provenance(started),
    }
    if args.markdown:
        Path(args.markdown).write_text(_parity.markdown(result), encoding="utf-8")
    return result


@contextlib.contextmanager
def _graphs(args: argparse.Namespace) -> Iterator[Path]:
    """Give the folder where graphs are made: that of `--graphs`, within it one for each state of the exporter."""
    if not args.graphs:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
        return
    sources = [*(_common.ROOT / "device_sdk" / "export").glob("*.py"), *(_common.ROOT / "mien").glob("backbones/*.py")]
    sources += (_common.ROOT / "mien" / "objectives").glob("*.py")
    made_by = [path for path in sorted(sources) if path.stem not in _NO_EXPORTER]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in made_by)).hexdigest()[:12]
    yield Path(args.graphs) / digest


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
    folder = GraphFolder.open(case.graphs, case.spec, case.layout)
    graphs = [graph for graph in folder.manifest.graphs if graph.form in ("", *case.objectives)]
    return {
        engine: round(sum(graph.size_bytes for graph in graphs if graph.file.endswith(SUFFIXES[engine])) / 1e6, 3)
        for engine in case.engines
    }


# --- what is trained ---


def _tiny_cases(*, everything: bool = False) -> Iterator[Case]:
    """Yield the tests' network with its committed graphs."""
    from tests.graphs import ALL_FORMS, FOLDER, FULL_FORMS, objective_of
    from tests.tiny import made_up_crops, tiny_cnn

    tiny, crops = tiny_cnn(), made_up_crops(NUM_CROPS, seed=1)
    wanted = [form for form in ALL_FORMS if everything or form.name in QUICK_FORMS]
    for part, forms in ((tiny.part(), wanted), (tiny.part("*"), list(FULL_FORMS))):
        objectives = {form.name: objective_of(form, NUM_CROPS, tiny.spec.input.dim) for form in forms}
        yield Case("tiny", tiny.spec, tiny.layout, tiny.theta, part, crops, objectives, FOLDER, is_tiny=True)


def _real_cases(folder: Path, args: argparse.Namespace, *, everything: bool = False) -> Iterator[Case]:
    """Yield the public recognisers with graphs made now."""
    crops = _crops()
    few = (standard_forms("positive_hinge")[0], *standard_forms("cosface"))
    every = tuple(form for name in exportable() for form in standard_forms(name) if _is_shown(form))
    for name, model in _models():
        if args.model and name not in args.model:
            continue
        default, whole = model.layout.part(model.spec.trainable), model.layout.part()
        parts = [default] if name.endswith("_adapter") else [default, whole]
        for part in [each for each in parts if args.part == "both" or (each is whole) == (args.part == "full")]:
            engines: tuple[GraphEngine, ...] = (args.engine,) if args.engine else ("onnxruntime", "executorch")
            # ExecuTorch's program of a whole network takes minutes to make: there the table has a form of each kind.
            kinds = tuple(form for form in every if form.name in QUICK_FORMS)
            if everything:
                forms = kinds if part is whole else every
            else:
                forms = few[:1] if part is whole and "executorch" in engines else few
            forms = tuple(form for form in forms if not args.form or form.name in args.form)
            _common.progress(f"{name}: making the graphs of {part.size} parameters")
            graphs = folder_for(folder, model.layout)
            export_graphs(model.spec, model.layout, graphs, forms=forms, parts=[part], engines=engines, keep=True)
            objectives = {form.name: _objective(form, model, crops) for form in forms}
            yield Case(name, model.spec, model.layout, model.theta, part, crops, objectives, folder, engines)


def _is_shown(form: ObjectiveForm) -> bool:
    """Return whether a form is among those of the table: of the one objective that has many, three."""
    return form.objective != "fedfr" or form.name in SHOWN_OF_FEDFR


def _models() -> Iterator[tuple[str, ImportedModel]]:
    """Yield what phones run: public recognisers, with adapters, and a network that has only been drawn."""
    sface = import_model(sface_path().read_bytes(), sface_path().name)
    yield "sface", sface
    yield "sface_adapter", with_adapter(sface)
    path = os.environ.get("MIEN_MOBILEFACENET")
    if path:
        mobilefacenet = import_model(Path(path).read_bytes(), Path(path).name)
        yield "mobilefacenet192", mobilefacenet
        yield "mobilefacenet192_adapter", with_adapter(mobilefacenet)
    drawn = build_backbone("mobilefacenet_folded")
    layout = layout_of(drawn)
    spec = ModelSpec(drawn.name, layout.sha256, drawn.input_spec, "drawn", "none", drawn.default_trainable)
    yield drawn.name, ImportedModel(spec, layout, theta_of(drawn))


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
