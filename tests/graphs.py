"""The exported graphs of the tiny recogniser, kept in `tests/data/graphs` because tracing them all takes minutes.

`python -m tests.graphs` makes them anew after a change of the exporter; a test says when that is due.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.export.build import export_graphs
from device_sdk.runtimes.forms import ObjectiveForm, exportable, standard_forms
from device_sdk.runtimes.manifest import GraphFolder, folder_for
from device_sdk.runtimes.onnx_runtime import OnnxRuntime
from mien.layout import ParameterPart
from mien.methods.base import Objective, Runtime
from tests.tiny import Tiny, tiny_cnn

FOLDER = Path(__file__).parent / "data" / "graphs"
ALL_FORMS = tuple(form for name in exportable() for form in standard_forms(name))
# The whole network is trained with these only: what differs between objectives lies behind the embedding.
FULL_FORMS = tuple(form for form in ALL_FORMS if form.name in ("positive_hinge", "cosface"))
LIMITS: Mapping[str, int] = {"B": 6, "K": 8, "L": 3, "G": 5}
CONSTANTS: Mapping[str, float] = {
    "scale": 8.0,
    "margin": 0.2,
    "log_others": 4.0,
    "distillation": 0.5,
    "temperature": 0.5,
    "alpha_cosface": 1.0,
    "alpha_contrastive": 0.7,
    "alpha_branch": 1.3,
    "branch_scale": 5.0,
    "branch_margin": 0.3,
    "exponent": 3.0,
    "balance": 0.7,
}


def tiny_onnx_runtime(tiny: Tiny | None = None, **options: Any) -> OnnxRuntime:
    """Return the tiny recogniser on ONNX Runtime, with the committed graphs."""
    tiny = tiny_cnn() if tiny is None else tiny
    return OnnxRuntime(tiny.spec, tiny.layout, GraphFolder.open(FOLDER, tiny.spec, tiny.layout), **options)


def tiny_executorch_runtime(tiny: Tiny | None = None, **options: Any) -> Runtime:
    """Return the tiny recogniser on ExecuTorch, with the committed programs."""
    from device_sdk.runtimes.executorch_runtime import ExecutorchRuntime

    tiny = tiny_cnn() if tiny is None else tiny
    graphs = GraphFolder.open(FOLDER, tiny.spec, tiny.layout, "executorch")
    return ExecutorchRuntime(tiny.spec, tiny.layout, graphs, **options)


def objective_of(form: ObjectiveForm, num_crops: int, dim: int, *, seed: int = 3) -> Objective:
    """Return an objective of a form with made-up tensors: 2 own and 3 public classes, weights that differ."""
    rng = np.random.default_rng(seed)
    sizes = {"B": num_crops, "K": 5, "L": 2, "G": 3, "D": dim}

    def drawn(shape: tuple[str | int, ...]) -> NDArray[np.float32]:
        return rng.standard_normal([sizes[s] if isinstance(s, str) else s for s in shape]).astype(np.float32)

    per_crop = {name: drawn(shape) for name, shape in form.per_crop}
    if "target" in per_crop:
        per_crop["target"] = np.eye(5, dtype=np.float32)[np.arange(num_crops) % 5]
    if "sample_weight" in per_crop:
        per_crop["sample_weight"] = np.linspace(0.5, 2.0, num_crops).astype(np.float32)
    vectors = ("class_embedding", "class_embeddings", "local_proxies", "omega")
    return Objective(
        form.objective,
        private={name: drawn(shape) for name, shape in form.private},
        fixed={name: drawn(shape) / np.float32(8) for name, shape in form.fixed},
        per_crop=per_crop,
        constants={**CONSTANTS, **dict(form.built_in)},
        unit_norm=tuple(name for name, _ in form.private if name in vectors),
    )


def rebuild() -> None:
    """Write all committed graphs anew."""
    tiny = tiny_cnn()
    for old in FOLDER.rglob("*.*"):
        old.unlink()
    plans: tuple[tuple[tuple[ObjectiveForm, ...], list[ParameterPart]], ...] = (
        (ALL_FORMS, [tiny.part()]),
        (FULL_FORMS, [tiny.part("*")]),
    )
    for forms, parts in plans:
        export_graphs(
            tiny.spec,
            tiny.layout,
            folder_for(FOLDER, tiny.layout),
            forms=forms,
            parts=parts,
            backbone=tiny.backbone,
            engines=("onnxruntime", "executorch"),
            limits=LIMITS,
            tell=print,
        )


if __name__ == "__main__":
    rebuild()
