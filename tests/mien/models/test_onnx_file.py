"""Our reader of ONNX files beside the package onnx, which phones do not have."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from mien.errors import CorruptDataError
from mien.models.graph import MAX_ELEMENTS, MAX_OPERATORS
from mien.models.onnx_file import read_onnx

ARRAYS = {
    "float32": np.array([[1.5, -2.0], [0.0, np.pi]], np.float32),
    "float64": np.array([1e300, -1.0]),
    "float16": np.array([0.5, -2.0], np.float16),
    "int8": np.array([-128, 127], np.int8),
    "uint8": np.array([0, 255], np.uint8),
    "int32": np.array([-(2**31), 2**31 - 1], np.int32),
    "int64": np.array([-(2**63), 2**63 - 1], np.int64),
    "scalar": np.array(3.0, np.float32),
}


def model_of(*tensors: TensorProto) -> bytes:
    nodes = [
        helper.make_node("Conv", ["x", tensors[0].name], ["y"], strides=[2, 2], pads=[1, 1, 1, 1], group=-3),
        helper.make_node("Elu", ["y"], ["z"], alpha=0.25),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "z")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], list(tensors))
    return bytes(helper.make_model(graph).SerializeToString())


@pytest.mark.parametrize("name", ARRAYS)
def test_numbers_are_those_of_the_package(name: str) -> None:
    graph = read_onnx(model_of(numpy_helper.from_array(ARRAYS[name], name)))
    found: NDArray[np.generic] = graph.constants[name]
    assert found.dtype == ARRAYS[name].dtype
    np.testing.assert_array_equal(found, ARRAYS[name])


@pytest.mark.parametrize(
    ("kind", "values"),
    [(TensorProto.FLOAT, [1.5, -2.0]), (TensorProto.INT64, [-1, 300]), (TensorProto.INT8, [-7, 3])],
    ids=["float_data", "int64_data", "int32_data"],
)
def test_numbers_in_typed_fields_are_read_too(kind: int, values: list[float]) -> None:
    tensor = helper.make_tensor("w", kind, [2], values)
    assert not tensor.raw_data
    np.testing.assert_array_equal(read_onnx(model_of(tensor)).constants["w"], values)


def test_operators_come_with_their_attributes() -> None:
    graph = read_onnx(model_of(numpy_helper.from_array(ARRAYS["float32"], "w")))
    conv, elu = graph.nodes
    assert (conv.op, conv.inputs, conv.outputs) == ("Conv", ("x", "w"), ("y",))
    assert conv.attributes == {"strides": [2, 2], "pads": [1, 1, 1, 1], "group": -3}
    assert elu.attributes == {"alpha": 0.25}
    assert (graph.inputs, graph.outputs) == (("x",), ("z",))


@pytest.mark.parametrize(
    "data",
    [b"", b"\x08", b"\x3a\x05\x0a", b"\x3a\x00\x3a\x00", b"\x3a\x02\x0a\x7f", b"\x3b", b"\xff" * 11, b"\x38\x01"],
    ids=["nothing", "no_value", "short_graph", "two_graphs", "short_node", "group", "long_number", "number_for_graph"],
)
def test_damaged_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptDataError, match="not a well-formed ONNX model"):
        read_onnx(data)


def folded_of(quantised: TensorProto, scale: TensorProto, *nodes: NodeProto) -> bytes:
    graph = helper.make_graph(list(nodes), "g", [], [], [quantised, scale])
    return bytes(helper.make_model(graph).SerializeToString())


def dequantise(output: str = "w", **attributes: int) -> NodeProto:
    return helper.make_node("DequantizeLinear", ["q", "s"], [output], **attributes)


def stated(name: str, kind: int, *shape: int) -> TensorProto:
    """Return a tensor of zeros of which the bytes are few, where a dimension is 0."""
    size = 0 if 0 in shape else int(np.prod(shape))
    return TensorProto(name=name, data_type=kind, dims=shape, raw_data=bytes(size * (4 if kind == 1 else 1)))


@pytest.mark.parametrize(
    ("quantised", "scale", "attributes"),
    [
        ((0, 10**12), (0, 10**12), {"axis": 1, "block_size": 1}),
        ((1000, 1), (1000,), {"axis": 1}),
        ((1, 1000), (1000, 1), {"axis": 1, "block_size": 1000}),
        ((4,), (0,), {"axis": 0}),
        ((4,), (3,), {"axis": 0, "block_size": 2}),
        ((4,), (1,), {"axis": 0, "block_size": -1}),
    ],
    ids=["endless_blocks", "product_of_shapes", "product_of_blocks", "no_scale", "too_many_blocks", "negative_block"],
)
def test_shapes_whose_product_would_fill_the_memory_are_refused(
    quantised: tuple[int, ...], scale: tuple[int, ...], attributes: dict[str, int]
) -> None:
    data = folded_of(stated("q", TensorProto.INT8, *quantised), stated("s", 1, *scale), dequantise(**attributes))
    with pytest.raises(CorruptDataError, match="not a well-formed ONNX model"):
        read_onnx(data)


def test_one_constant_unfolded_again_and_again_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_ELEMENTS >= 6_400_000
    monkeypatch.setattr("mien.models.onnx_file.MAX_ELEMENTS", 100)
    quantised, scale = stated("q", TensorProto.INT8, 40), stated("s", 1, 1)
    twice = [dequantise(f"w{number}") for number in range(2)]
    assert set(read_onnx(folded_of(quantised, scale, *twice)).constants) == {"q", "s", "w0", "w1"}
    with pytest.raises(CorruptDataError, match="not a well-formed ONNX model"):
        read_onnx(folded_of(quantised, scale, *twice, dequantise("w2")))


def test_operators_without_end_are_refused_before_all_are_read() -> None:
    node = b"\x0a\x00"
    data = (MAX_OPERATORS + 1) * node + b"\x3b"  # what follows is damaged, and is not reached
    size = len(data)
    graph = b"\x3a" + bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14]) + data
    with pytest.raises(CorruptDataError, match="too many operators"):
        read_onnx(graph)
