"""A model file read for its weights only: operators in order, and constants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mien.errors import LayoutMismatchError, NonFiniteError

Array = NDArray[Any]
Array64 = NDArray[np.float64]
Tensors = dict[str, Array64]

# The largest tensor of a model here has 6.4 million elements; one beyond this is an attack or another kind of model.
MAX_ELEMENTS: Final = 1 << 26
MAX_OPERATORS: Final = 10_000
NO_ATTRIBUTES: Final[Mapping[str, object]] = MappingProxyType({})


@dataclass(frozen=True)
class Node:
    """One operator: its type, the values that it reads and writes, and its attributes."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Graph:
    """Operators in the order of the file, and the constants that they read, by name."""

    nodes: tuple[Node, ...]
    constants: Mapping[str, Array]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Walk:
    """Follows the one path of data through a graph and refuses whatever is not the expected architecture.

    `value` is the name of what the last operator wrote. Every mismatch is a LayoutMismatchError.
    """

    def __init__(self, graph: Graph, model: str) -> None:
        self._graph = graph
        self._nodes: Iterator[Node] = iter(graph.nodes)
        self._model = model
        # Some writers list constants as graph inputs too, even those that nothing reads any more.
        used = {name for node in graph.nodes for name in node.inputs} - set(graph.constants)
        data_inputs = [name for name in graph.inputs if name in used]
        self.require(len(data_inputs) == 1, "one data input")
        self.value = data_inputs[0]

    def require(self, holds: bool, expected: str) -> None:
        """Raise LayoutMismatchError unless the graph has what the architecture needs at this place."""
        if not holds:
            raise LayoutMismatchError(
                f"file holds another network than {self._model} (missing: {expected}); use one of the files in "
                "`known_models`"
            )

    def take(
        self, op: str, *, data: tuple[str, ...] | None = None, attributes: Mapping[str, object] = NO_ATTRIBUTES
    ) -> Node:
        """Return the next operator, which must be `op` on the value so far (or on `data`) with these attributes."""
        node = next(self._nodes, Node("", (), ()))
        self.require(node.op == op and len(node.outputs) >= 1, op)
        expected = data or (self.value,)
        reads = tuple(name for name in node.inputs if name and name not in self._graph.constants)
        same = sorted(reads) == sorted(expected) if op == "ADD" else reads == expected
        self.require(same, f"{op} on the value before it")
        for name, value in attributes.items():
            self.require(node.attributes.get(name) == value, f"{op} with {name} {value}")
        self.value = node.outputs[0]
        return node

    def constant(self, node: Node, index: int, shape: tuple[int, ...]) -> Array64:
        """Return the index-th constant among a node's inputs in float64; it must have this shape and be finite."""
        names = [name for name in node.inputs if name in self._graph.constants]
        self.require(index < len(names), f"{index + 1} constants of {node.op}")
        array = self._graph.constants[names[index]]
        self.require(array.shape == shape and array.dtype.kind in "fiu", f"{node.op} constant of shape {shape}")
        if not np.isfinite(array).all():
            raise NonFiniteError(f"{self._model} file holds NaN or infinity in {node.op}; fetch it again")
        return array.astype(np.float64)

    def finish(self) -> None:
        """Check that nothing is left and that the value so far is what the file calls its output."""
        self.require(next(self._nodes, None) is None, "the end of the graph")
        self.require(self._graph.outputs == (self.value,), "one output")
