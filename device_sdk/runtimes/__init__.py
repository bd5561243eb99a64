"""Runtimes of a model on this device: one interface (`mien.methods.base.Runtime`), several engines behind it.

Imports nothing heavy: an engine is loaded when it is first asked for.
"""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from mien.errors import MissingDependencyError, NotFoundError
from mien.layout import ParameterLayout
from mien.methods.base import Runtime
from mien.shell.doing import doing
from mien.specs import ModelSpec

RuntimeName = Literal["auto", "torch", "onnxruntime", "executorch"]
EngineName = Literal["torch", "onnxruntime", "executorch"]
_INSTALL: Final = {
    "torch": "'.[train]' in Mien's folder",
    "onnxruntime": "onnxruntime",
    "executorch": "'.[executorch]' in Mien's folder",
}


def load_runtime(
    spec: ModelSpec,
    layout: ParameterLayout,
    *,
    threads: int = 1,
    choice: RuntimeName = "auto",
    graphs: Path | None = None,
) -> Runtime:
    """Return a runtime for a model of that backbone and layout.

    `choice` "auto" is torch where it is installed, else ONNX Runtime with the graphs in the folder `graphs`, or those
    that come with this program, which embed and do not train. Raises
    MissingDependencyError when the engine is not installed, NotFoundError when there are no graphs of this model for
    it, LayoutMismatchError when this program's backbone of that name has another layout than the model.
    """
    name = resolve(choice)
    if name == "torch":
        with doing("Loading torch"):
            from device_sdk.runtimes.torch_runtime import TorchRuntime

        return TorchRuntime(spec, layout, threads=threads)
    from device_sdk.runtimes.manifest import PACKAGED, GraphFolder

    graphs = graphs or PACKAGED
    if name == "executorch":
        from device_sdk.runtimes.executorch_runtime import ExecutorchRuntime

        return ExecutorchRuntime(spec, layout, GraphFolder.open(graphs, spec, layout, name), threads=threads)
    from device_sdk.runtimes.onnx_runtime import OnnxRuntime

    return OnnxRuntime(spec, layout, GraphFolder.open(graphs, spec, layout, name), threads=threads)


def load_embedder(
    spec: ModelSpec, layout: ParameterLayout, *, threads: int = 1, choice: RuntimeName = "auto", graphs: Path
) -> Runtime:
    """Return a runtime that need not train: for "auto" ONNX Runtime where there are graphs that embed, without torch.

    Else, and where there are none, it is the one of `load_runtime`, whose errors it raises.
    """
    engine = embedding_engine(spec, layout, choice, graphs)
    return load_runtime(spec, layout, threads=threads, choice=engine, graphs=graphs)


def embedding_engine(spec: ModelSpec, layout: ParameterLayout, choice: RuntimeName, graphs: Path) -> EngineName:
    """Return the engine that embeds with a model: for "auto" ONNX Runtime where there are graphs, else `resolve`'s."""
    if choice == "auto" and importlib.util.find_spec("onnxruntime") is not None:
        from device_sdk.runtimes.manifest import GraphFolder

        with suppress(NotFoundError):
            GraphFolder.open(graphs, spec, layout, "onnxruntime")
            return "onnxruntime"
    return resolve(choice)


def resolve(choice: RuntimeName) -> EngineName:
    """Return the engine that `choice` means on this machine; raises MissingDependencyError where it is missing."""
    installed = {name: importlib.util.find_spec(name) is not None for name in _INSTALL}
    if choice == "auto" and not (installed["torch"] or installed["onnxruntime"]):
        raise MissingDependencyError(
            "no engine to run the recogniser: install ONNX Runtime (pip install onnxruntime), or torch with the train "
            "extra (pip install '.[train]' in Mien's folder)"
        )
    chosen: EngineName = ("torch" if installed["torch"] else "onnxruntime") if choice == "auto" else choice
    if not installed[chosen]:
        raise MissingDependencyError(
            f"runtime {chosen} is not installed: pip install {_INSTALL[chosen]}, or choose auto"
        )
    return chosen
