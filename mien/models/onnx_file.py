"""An ONNX file as a `Graph`, with the quantisation of its weights undone; phones read it too, without the package onnx.

What a hostile file could do is refused: references to other files, sizes that do not fit their data. The fields that
are read are those of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto, in protobuf's wire format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from mien.errors import CorruptDataError
from mien.models.graph import MAX_ELEMENTS, MAX_OPERATORS, Array, Graph, Node

_DTYPES: Final = {1: "<f4", 2: "u1", 3: "i1", 6: "<i4", 7: "<i8", 10: "<f2", 11: "<f8"}
"""NumPy's types by TensorProto.DataType, as far as weights have them."""
_EXTERNAL: Final = 1
_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5

_Value = int | memoryview


def read_onnx(data: bytes) -> Graph:
    """Return the graph of an ONNX file; block-quantised weights become float32 constants.

    `DequantizeLinear` of a constant and `Reshape` of its result become constants, operators without data inputs
    (`Constant`) vanish. Raises CorruptDataError for bytes that are no well-formed ONNX model.
    """
    try:
        (graph,) = (value for number, value in _fields(memoryview(data)) if number == 7)
        nodes: list[Node] = []
        constants: dict[str, Array] = {}
        inputs: list[str] = []
        outputs: list[str] = []
        for number, value in _fields(_message(graph)):
            if number == 1:
                nodes.append(_node(_message(value)))
                if len(nodes) > MAX_OPERATORS:
                    raise CorruptDataError(
                        "model has too many operators to be a face recogniser; use a known model file"
                    )
            elif number == 5:
                name, array = _tensor(_message(value))
                constants[name] = array
            elif number in (11, 12):
                (inputs if number == 11 else outputs).append(_name(_message(value)))
        nodes, constants = _fold(nodes, constants)
        return Graph(tuple(nodes), constants, tuple(inputs), tuple(outputs))
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, AttributeError, struct.error) as error:
        raise CorruptDataError("file is not a well-formed ONNX model; fetch it again") from error


def _node(data: memoryview) -> Node:
    """Return a NodeProto."""
    inputs: list[str] = []
    outputs: list[str] = []
    op, attributes = "", dict[str, Any]()
    for number, value in _fields(data):
        if number == 1:
            inputs.append(_text(value))
        elif number == 2:
            outputs.append(_text(value))
        elif number == 4:
            op = _text(value)
        elif number == 5:
            name, found = _attribute(_message(value))
            attributes[name] = found
    return Node(op, tuple(inputs), tuple(outputs), attributes)


def _attribute(data: memoryview) -> tuple[str, Any]:
    """Return an AttributeProto's name and value: a number, or a list of integers; None for any other kind."""
    name, kind, numbers = "", 0, list[int]()
    single: dict[int, Any] = {}
    for number, value in _fields(data):
        if number == 1:
            name = _text(value)
        elif number == 2:
            single[1] = struct.unpack("<f", _message(value))[0]
        elif number == 3:
            single[2] = _signed(value)
        elif number == 8:
            numbers += _integers(value)
        elif number == 20:
            kind = _unsigned(value)
    return name, numbers if kind == 7 else single.get(kind, 0 if kind in (1, 2) else None)


def _tensor(data: memoryview) -> tuple[str, Array]:
    """Return a TensorProto's name and numbers; raises CorruptDataError where these are in another file."""
    name, kind, shape = "", 0, list[int]()
    raw, integers, floats = memoryview(b""), list[int](), list[memoryview]()
    for number, value in _fields(data):
        if number == 1:
            shape += _integers(value)
        elif number == 2:
            kind = _unsigned(value)
        elif number == 4:
            floats.append(_message(value))
        elif number in (5, 7):
            integers += _integers(value)
        elif number == 8:
            name = _text(value)
        elif number == 9:
            raw = _message(value)
        elif number == 13 or (number == 14 and value == _EXTERNAL):
            raise CorruptDataError("model keeps weights in another file, which is never opened; export it as one file")
    dtype = np.dtype(_DTYPES[kind])
    if integers:
        array: Array = np.array(integers, np.int64).astype(dtype)
    else:
        array = np.frombuffer(b"".join(floats) if floats else raw, dtype)
    return name, array.reshape(shape)


def _name(data: memoryview) -> str:
    """Return a ValueInfoProto's name."""
    return next((_text(value) for number, value in _fields(data) if number == 1), "")


# --- protobuf's wire format ---


def _fields(data: memoryview) -> Iterator[tuple[int, _Value]]:
    """Yield a message's fields in order: number, and an integer or the bytes."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            integer, position = _varint(data, position)
            yield number, integer
            continue
        if wire == _BYTES:
            size, position = _varint(data, position)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError("a field of an unknown kind")
        if size > len(data) - position:
            raise ValueError("a field ends after its message")
        yield number, data[position : position + size]
        position += size


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """Return the number at a position, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]  # IndexError where the message ends
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), position
    raise ValueError("a number of more than ten bytes")


def _message(value: _Value) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number where bytes belong")  # noqa: TRY004  (damaged bytes are no wrong type)
    return value


def _unsigned(value: _Value) -> int:
    if not isinstance(value, int):
        raise ValueError("bytes where a number belongs")  # noqa: TRY004
    return value


def _signed(value: _Value) -> int:
    number = _unsigned(value)
    return number - 2**64 if number >= 2**63 else number


def _integers(value: _Value) -> list[int]:
    """Return the integers of a repeated field, packed or one of them."""
    if isinstance(value, int):
        return [_signed(value)]
    numbers, position = list[int](), 0
    while position < len(value):
        number, position = _varint(value, position)
        numbers.append(_signed(number))
    return numbers


def _text(value: _Value) -> str:
    return bytes(_message(value)).decode()


def _fold(nodes: list[Node], constants: dict[str, Array]) -> tuple[list[Node], dict[str, Array]]:
    """Return the nodes that compute on data, and the constants with those that the other nodes make of constants."""
    kept: list[Node] = []
    room = MAX_ELEMENTS  # for all together: a thousand operators may name the same constant
    for node in nodes:
        if node.op == "DequantizeLinear" and all(name in constants for name in node.inputs if name):
            folded = _dequantise(
                *(constants[name] for name in node.inputs if name),
                axis=int(node.attributes.get("axis", 1)),
                block_size=int(node.attributes.get("block_size", 0)),
                room=room,
            )
            constants[node.outputs[0]], room = folded, room - folded.size
        elif node.op == "Reshape" and all(name in constants for name in node.inputs):
            constants[node.outputs[0]] = constants[node.inputs[0]].reshape(constants[node.inputs[1]].astype(int))
        elif node.op == "Constant":
            constants[node.outputs[0]] = np.zeros(0, np.float32)  # only ever a dropout rate, which inference ignores
        else:
            kept.append(node)
    return kept, constants


def _dequantise(
    quantised: Array, scale: Array, zero: Array | None = None, *, axis: int, block_size: int, room: int
) -> Array:
    """Return (quantised - zero) * scale as float32: one scale a block, channel or tensor (ONNX operator set 21).

    Shapes are compared before anything is computed: a few bytes can state shapes whose product fills the memory.
    """
    zero = np.zeros(scale.shape, np.float32) if zero is None else zero
    if zero.shape != scale.shape or not 0 < quantised.size <= room or block_size < 0:
        raise ValueError("quantisation parameters do not fit their tensor")
    shape = list(quantised.shape)
    in_blocks = quantised.shape
    if block_size:
        axis = range(quantised.ndim)[axis]
        size = shape[axis]
        shape[axis] = -(-size // block_size)
        if scale.shape != tuple(shape):
            raise ValueError("quantisation blocks do not fit their tensor")
        if size % block_size:
            blocks = np.arange(size) // block_size
            scale, zero = scale.take(blocks, axis), zero.take(blocks, axis)
        else:
            in_blocks = (*quantised.shape[:axis], shape[axis], block_size, *quantised.shape[axis + 1 :])
            scale, zero = np.expand_dims(scale, axis + 1), np.expand_dims(zero, axis + 1)
    elif scale.size != 1:
        if scale.size != shape[axis]:
            raise ValueError("quantisation parameters do not fit their tensor")
        shape = [1] * quantised.ndim
        shape[axis] = scale.size
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    with np.errstate(over="ignore", invalid="ignore"):  # whoever uses the numbers checks that they are finite
        # In place: a recogniser has millions of numbers, and filling new memory takes longer than computing them.
        folded: Array = quantised.reshape(in_blocks).astype(np.float32)
        folded -= zero.astype(np.float32)
        folded *= scale.astype(np.float32)
    return folded.reshape(quantised.shape)
