"""ExecuTorch: runs exported programs on PyTorch's engine for phones. Its Python package needs torch, apps do not."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import torch
from executorch.extension.pybindings import _C  # the public door loads the exporters too: 5 s and 300 MB
from numpy.typing import NDArray
from torch import Tensor

from device_sdk.runtimes.graph_runtime import Feed, GraphRuntime
from device_sdk.runtimes.manifest import Graph, GraphFolder
from mien.errors import ConfigError, CorruptDataError

_METHOD: Final = "forward"
_WHOLE: Final = "correction"
"""The input that a graph takes whole, and that may be given as one number."""


class _ExecutorchEngine:
    """ExecuTorch's modules of one architecture's programs, each loaded when it is first used."""

    def __init__(self, graphs: GraphFolder, threads: int) -> None:
        self._graphs = graphs
        self._modules: dict[str, Any] = {}
        self._bounds: dict[str, dict[str, tuple[int, ...]]] = {}
        self._parameters: dict[str, tuple[NDArray[np.float32], Tensor]] = {}
        self._data: dict[str, bytes] = {}  # modules read from it for as long as they live
        with _stderr_closed():
            _C._unsafe_reset_threadpool(threads)

    def most_images(self, graph: Graph) -> int:
        """Return the number of images that one run of a program can take: it has planned its memory for them."""
        bounds = self._bounds_of(graph)
        return bounds["embeddings" if graph.kind == "loss" else "x"][0]

    def release(self, graph: Graph) -> None:
        """Give back the memory that was planned for a program."""
        self._bounds.pop(graph.file, None)
        self._modules.pop(graph.file, None)
        self._data.pop(graph.file, None)

    def run(self, graph: Graph, feed: Feed, into: Feed | None = None) -> dict[str, Any]:
        """Return the outputs of a program by name, each in memory of its own."""
        bounds = self._bounds_of(graph)
        inputs = [self._tensor(name, feed[name], bounds[name]) for name in graph.inputs]
        try:
            results = self._modules[graph.file].forward(inputs)
        except RuntimeError as error:
            raise ConfigError(_too_large(graph, feed, bounds)) from error
        return {name: result.numpy() for name, result in zip(graph.outputs, results, strict=True)}

    def _tensor(self, name: str, values: NDArray[np.float32], bounds: tuple[int, ...]) -> Tensor:
        if name == _WHOLE and values.shape != bounds:
            values = np.full(bounds, values[0], np.float32)
        if not name.startswith("parameter."):
            return _as_tensor(values)
        known = self._parameters.get(name)
        if known is None or known[0] is not values:
            known = self._parameters[name] = (values, _as_tensor(values))
        return known[1]

    def _bounds_of(self, graph: Graph) -> dict[str, tuple[int, ...]]:
        """Return the largest shape of each of a program's inputs."""
        if graph.file not in self._bounds:
            try:
                data = self._data[graph.file] = self._graphs.read(graph)
                module = _C._load_for_executorch_from_buffer(data)
                meta = module.method_meta(_METHOD)
            except RuntimeError as error:
                raise CorruptDataError(f"ExecuTorch cannot load {graph.file}; export the graphs again") from error
            if (meta.num_inputs(), meta.num_outputs()) != (len(graph.inputs), len(graph.outputs)):
                raise CorruptDataError(f"{graph.file} is not what its list says; export the graphs again")
            self._modules[graph.file] = module
            self._bounds[graph.file] = {
                name: tuple(meta.input_tensor_meta(i).sizes()) for i, name in enumerate(graph.inputs)
            }
        return self._bounds[graph.file]


class ExecutorchRuntime(GraphRuntime):
    """A `GraphRuntime` on ExecuTorch."""

    image_factor: Final = 2.0
    """Memory of a step for an image, in torch's: convolutions lay out their windows before they multiply."""

    engine = _ExecutorchEngine


@contextlib.contextmanager
def _stderr_closed() -> Iterator[None]:
    """Keep what ExecuTorch says of the processor, past Python and at every start, out of a program's messages."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _as_tensor(values: NDArray[np.float32]) -> Tensor:
    """Return an array as a tensor on its memory, also one that must not be written: ExecuTorch only reads inputs."""
    array = np.ascontiguousarray(values, np.float32).reshape(values.shape)
    if array.flags.writeable:  # setting a filter aside costs more than all else here
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def _too_large(graph: Graph, feed: Feed, bounds: dict[str, tuple[int, ...]]) -> str:
    """Return why a program refused its inputs, as far as that can be told."""
    for name in graph.inputs:
        given, most = feed[name].shape, bounds[name]
        if len(given) == len(most) and any(g > m for g, m in zip(given, most, strict=True)):
            return (
                f"{graph.file} takes {name} of up to {most}, the task gives {given}: export it with a larger "
                "`max_batch` or `max_classes`, or use another runtime"
            )
    return f"ExecuTorch refused {graph.file}: the tensors that the task gives do not fit it; export the graphs again"
