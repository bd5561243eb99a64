"""What runs a model on this device: one small interface (`mien.methods.base.Runtime`), several engines behind it.

Imports nothing heavy: an engine is loaded when it is first asked for.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Literal

from mien.errors import MissingDependencyError, NotFoundError
from mien.layout import ParameterLayout
from mien.methods.base import Runtime
from mien.specs import ModelSpec

RuntimeName = Literal["auto", "torch", "onnxruntime"]


def load_runtime(
    spec: ModelSpec,
    layout: ParameterLayout,
    *,
    threads: int = 1,
    choice: RuntimeName = "auto",
    graphs: Path | None = None,
) -> Runtime:
    """Return a runtime for a model of that backbone and layout.

    `choice` "auto" is torch where it is installed, else ONNX Runtime with the graphs in the folder `graphs`. Raises
    MissingDependencyError when the engine is not installed, NotFoundError when ONNX Runtime has no graphs of this
    model, LayoutMismatchError when this program's backbone of that name has another layout than the model.
    """
    name = resolve(choice)
    if name == "torch":
        from device_sdk.runtimes.torch_runtime import TorchRuntime

        return TorchRuntime(spec, layout, threads=threads)
    from device_sdk.export.manifest import GraphFolder
    from device_sdk.runtimes.onnx_runtime import OnnxRuntime

    if graphs is None:
        raise NotFoundError("ONNX Runtime needs the graphs of the model; name their folder, or use torch")
    return OnnxRuntime(spec, layout, GraphFolder.open(graphs, spec, layout), threads=threads)


def resolve(choice: RuntimeName) -> Literal["torch", "onnxruntime"]:
    """Return the engine that `choice` means on this machine; raises MissingDependencyError where it is missing."""
    installed = {name: importlib.util.find_spec(name) is not None for name in ("torch", "onnxruntime")}
    if choice == "auto" and not any(installed.values()):
        raise MissingDependencyError(
            "no engine to run the recogniser: install ONNX Runtime (pip install onnxruntime), or torch with the train "
            "extra (pip install mien[train])"
        )
    chosen = ("torch" if installed["torch"] else "onnxruntime") if choice == "auto" else choice
    if not installed[chosen]:
        package = "mien[train]" if chosen == "torch" else "onnxruntime"
        raise MissingDependencyError(f"runtime {chosen} is not installed: pip install {package}, or choose auto")
    return chosen
