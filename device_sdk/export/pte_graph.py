"""From a function of named tensors to an ExecuTorch program: one plain method, no training extension, no delegate.

Sizes of a batch and of class sets stay variable up to a bound, for which the program plans its memory. It holds no
parameters: those are inputs, like everything else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import warnings
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from device_sdk.export import executorch_rules, rewrites
from device_sdk.export.steps import Function
from device_sdk.runtimes.forms import EXAMPLE_SIZES
from mien.errors import ConfigError

DEFAULT_LIMITS: Final[Mapping[str, int]] = MappingProxyType({"B": 8, "K": 256, "L": 16, "G": 240})
"""The most images of a batch, classes, own classes and public classes (K = L + G where all three are)."""


def to_pte(
    function: Function, limits: Mapping[str, int] = DEFAULT_LIMITS
) -> tuple[bytes, tuple[str, ...], tuple[str, ...]]:
    """Return the function as an ExecuTorch program of one method, `forward`, with its inputs' and outputs' names.

    Raises ConfigError for limits below the sizes that a function is traced with.
    """
    for letter, size in EXAMPLE_SIZES.items():
        if limits[letter] < size:
            raise ConfigError(f"a program's limit of {letter} is {limits[letter]}; it must be {size} or more")
    function = dataclasses.replace(function, inputs={**function.inputs, **function.broadcast}, broadcast={})
    traced = function.traced(executorch_rules.table(), rewrites.keep_turned)
    executorch_rules.products_of_rows(traced.module)
    sizes = {letter: torch.export.Dim(letter, min=1, max=limit) for letter, limit in limits.items()}
    examples = tuple(
        torch.zeros([EXAMPLE_SIZES[size] if isinstance(size, str) else size for size in shape])
        for shape in function.inputs.values()
    )
    dynamic = tuple(
        {axis: sizes[size] for axis, size in enumerate(shape) if isinstance(size, str)} or None
        for shape in function.inputs.values()
    )
    with _quietly():
        from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge
        from executorch.exir.passes import MemoryPlanningPass

        exported = torch.export.export(_Positional(traced.module), examples, dynamic_shapes=(dynamic,), strict=False)
        linear = torch.ops.aten.linear.default
        # The checker knows core operators only; what is traced here are those, and some of their relatives.
        edge = to_edge(exported, compile_config=EdgeCompileConfig(_check_ir_validity=False, preserve_ops=[linear]))
        # Inputs stay where the caller has them: parameters are most of them.
        planning = MemoryPlanningPass(alloc_graph_input=False)
        program = edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning))
    return bytes(program.buffer), tuple(function.inputs), traced.outputs


class _Positional(nn.Module):
    """A traced function as a module."""

    def __init__(self, graph: GraphModule) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        """Return the function's results in order."""
        return tuple(self.graph(*arguments))


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Hold back what the exporters say below errors."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
