"""A TFLite file as a `Graph`: float32 operators with their strides and padding, tensors named by their index."""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np

from mien.errors import CorruptDataError, MissingDependencyError
from mien.models.graph import MAX_ELEMENTS, MAX_OPERATORS, Array, Graph, Node

MAGIC: Final = b"TFL3"  # at byte 4


def read_tflite(data: bytes) -> Graph:
    """Return the graph of a TFLite file with one subgraph.

    Convolutions carry the attributes `stride`, `padding` ("SAME" or "VALID"), `dilation`, `multiplier` (depthwise) and
    `activation`. Raises CorruptDataError for bytes that are no well-formed TFLite model, MissingDependencyError without
    the package tflite.
    """
    try:
        import tflite
    except ImportError as error:
        raise MissingDependencyError(
            "reading a TFLite model needs the extra [train]: pip install '.[train]' in Mien's folder"
        ) from error
    if data[4:8] != MAGIC:
        raise CorruptDataError("file is not a TFLite model; fetch it again")
    try:
        model = tflite.Model.GetRootAsModel(data, 0)
        subgraph = model.Subgraphs(0)
        if model.SubgraphsLength() != 1 or max(subgraph.OperatorsLength(), subgraph.TensorsLength()) > MAX_OPERATORS:
            raise CorruptDataError("TFLite model is too large or has several subgraphs; use a known model file")
        constants = {
            str(i): array
            for i in range(subgraph.TensorsLength())
            if (array := _constant(model, subgraph, i)) is not None
        }
        nodes = [_node(tflite, model, subgraph.Operators(i)) for i in range(subgraph.OperatorsLength())]
        return Graph(tuple(nodes), constants, _names(subgraph.InputsAsNumpy()), _names(subgraph.OutputsAsNumpy()))
    except (struct.error, ValueError, TypeError, KeyError, IndexError, OverflowError, AttributeError) as error:
        raise CorruptDataError("file is not a well-formed TFLite model; fetch it again") from error


def _constant(model: Any, subgraph: Any, index: int) -> Array | None:
    """Return a tensor's stored numbers, None where it is computed or of a type that no importer reads."""
    tensor = subgraph.Tensors(index)
    raw = model.Buffers(tensor.Buffer()).DataAsNumpy()
    dtype = {0: "<f4", 2: "<i4"}.get(tensor.Type())  # TensorType FLOAT32 and INT32 of the TFLite schema
    if not isinstance(raw, np.ndarray) or raw.size == 0 or dtype is None:
        return None
    if raw.size > 4 * MAX_ELEMENTS:
        raise ValueError("tensor is too large")
    shape = tuple(int(n) for n in tensor.ShapeAsNumpy()) if tensor.ShapeLength() else ()
    return np.frombuffer(raw.tobytes(), dtype).reshape(shape)


def _node(tflite: Any, model: Any, operator: Any) -> Node:
    code = model.OperatorCodes(operator.OpcodeIndex())
    builtin = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
    op = {value: name for name, value in vars(tflite.BuiltinOperator).items() if isinstance(value, int)}[builtin]
    attributes: dict[str, object] = {}
    if op in ("CONV_2D", "DEPTHWISE_CONV_2D"):
        options = tflite.Conv2DOptions() if op == "CONV_2D" else tflite.DepthwiseConv2DOptions()
        table = operator.BuiltinOptions()
        options.Init(table.Bytes, table.Pos)
        attributes = {
            "stride": (options.StrideH(), options.StrideW()),
            "padding": "SAME" if options.Padding() == tflite.Padding.SAME else "VALID",
            "dilation": (options.DilationHFactor(), options.DilationWFactor()),
            "activation": options.FusedActivationFunction(),
        }
        if op == "DEPTHWISE_CONV_2D":
            attributes["multiplier"] = options.DepthMultiplier()
    return Node(op, _names(operator.InputsAsNumpy()), _names(operator.OutputsAsNumpy()), attributes)


def _names(indices: Any) -> tuple[str, ...]:
    return tuple(str(int(index)) for index in indices)
