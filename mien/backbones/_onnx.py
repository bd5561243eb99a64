"""An ONNX file as a `Graph`, with the quantisation of its weights undone.

What a hostile file could do is refused: references to other files, sizes that do not fit their data.
"""

from __future__ import annotations

import numpy as np

from mien.backbones._graph import MAX_ELEMENTS, MAX_OPERATORS, Array, Graph, Node
from mien.errors import CorruptDataError, MissingDependencyError


def read_onnx(data: bytes) -> Graph:
    """Return the graph of an ONNX file; block-quantised weights become float32 constants.

    `DequantizeLinear` of a constant and `Reshape` of its result become constants, operators without data inputs
    (`Constant`) vanish. Raises CorruptDataError for bytes that are no well-formed ONNX model, MissingDependencyError
    without the package onnx.
    """
    try:
        import onnx
        from google.protobuf.message import DecodeError
        from onnx import helper, numpy_helper
    except ImportError as error:
        raise MissingDependencyError(
            "reading an ONNX model needs the extra [train]: pip install mien[train]"
        ) from error
    try:
        graph = onnx.load_model_from_string(data).graph
        for tensor in graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
                raise CorruptDataError(
                    "model keeps weights in another file, which is never opened; export it as one file"
                )
        if len(graph.node) > MAX_OPERATORS:
            raise CorruptDataError("model has too many operators to be a face recogniser; use a known model file")
        nodes = [
            Node(
                n.op_type, tuple(n.input), tuple(n.output), {a.name: helper.get_attribute_value(a) for a in n.attribute}
            )
            for n in graph.node
        ]
        nodes, constants = _fold(nodes, {t.name: numpy_helper.to_array(t) for t in graph.initializer})
        return Graph(tuple(nodes), constants, tuple(i.name for i in graph.input), tuple(o.name for o in graph.output))
    except (DecodeError, ValueError, TypeError, KeyError, IndexError, OverflowError, AttributeError) as error:
        raise CorruptDataError("file is not a well-formed ONNX model; fetch it again") from error


def _fold(nodes: list[Node], constants: dict[str, Array]) -> tuple[list[Node], dict[str, Array]]:
    """Return the nodes that compute on data, and the constants with those that the other nodes make of constants."""
    kept: list[Node] = []
    for node in nodes:
        if node.op == "DequantizeLinear" and all(name in constants for name in node.inputs if name):
            constants[node.outputs[0]] = _dequantise(
                *(constants[name] for name in node.inputs if name),
                axis=int(node.attributes.get("axis", 1)),
                block_size=int(node.attributes.get("block_size", 0)),
            )
        elif node.op == "Reshape" and all(name in constants for name in node.inputs):
            constants[node.outputs[0]] = constants[node.inputs[0]].reshape(constants[node.inputs[1]].astype(int))
        elif node.op == "Constant":
            constants[node.outputs[0]] = np.zeros(0, np.float32)  # only ever a dropout rate, which inference ignores
        else:
            kept.append(node)
    return kept, constants


def _dequantise(quantised: Array, scale: Array, zero: Array | None = None, *, axis: int, block_size: int) -> Array:
    """Return (quantised - zero) * scale as float32: one scale a block, channel or tensor (ONNX operator set 21)."""
    zero = np.zeros(scale.shape, np.float32) if zero is None else zero
    if zero.shape != scale.shape or quantised.size > MAX_ELEMENTS or block_size < 0:
        raise ValueError("quantisation parameters do not fit their tensor")
    if block_size:
        blocks = np.arange(quantised.shape[axis]) // block_size
        if scale.shape[axis] != blocks[-1] + 1:
            raise ValueError("quantisation blocks do not fit their tensor")
        scale, zero = scale.take(blocks, axis), zero.take(blocks, axis)
        if scale.shape != quantised.shape:
            raise ValueError("quantisation blocks do not fit their tensor")
    elif scale.size > 1:
        shape = [1] * quantised.ndim
        shape[axis] = scale.size
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    with np.errstate(over="ignore", invalid="ignore"):  # whoever uses the numbers checks that they are finite
        folded: Array = (quantised.astype(np.float32) - zero.astype(np.float32)) * scale.astype(np.float32)
    if folded.shape != quantised.shape:
        raise ValueError("quantisation parameters do not fit their tensor")
    return folded
