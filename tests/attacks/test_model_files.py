"""Hostile and damaged model files: whatever the bytes, an importer answers with an error of ours and opens nothing."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from mien.backbones import build_backbone, layout_of, theta_of
from mien.backbones.importers import import_mobilefacenet192, import_model, import_sface
from mien.errors import CorruptDataError, LayoutMismatchError, MienError, NonFiniteError
from mien.models.known_models import SFACE
from tests.golden._reference_sface import dequantised
from tests.mien.backbones._models import wheel_model
from tests.mien.backbones._tflite_writer import write_mobilefacenet192

FEW = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture(scope="module")
def sface() -> bytes:
    return wheel_model(SFACE.filename)


@pytest.fixture(scope="module")
def sface_model(sface: bytes) -> onnx.ModelProto:
    return onnx.load_model_from_string(dequantised(sface))


@pytest.fixture(scope="module")
def tflite_theta() -> dict[str, NDArray[np.float32]]:
    torch.manual_seed(0)
    backbone = build_backbone("mobilefacenet192")
    return dict(layout_of(backbone).unflatten(theta_of(backbone)))


@pytest.fixture(scope="module")
def tflite_file(tflite_theta: dict[str, NDArray[np.float32]]) -> bytes:
    return write_mobilefacenet192(tflite_theta)


@given(st.binary(max_size=300))
def test_random_bytes(data: bytes) -> None:
    for prefix in (b"", b"\x08\x06", b"\x18\x00\x00\x00TFL3"):
        with pytest.raises(MienError):
            import_model(prefix + data, "file", unverified=True)
    with pytest.raises(MienError):
        import_sface(data)
    with pytest.raises(MienError):
        import_mobilefacenet192(data)


@FEW
@given(st.floats(0, 1, exclude_max=True))
def test_truncated_files(sface: bytes, tflite_file: bytes, share: float) -> None:
    with pytest.raises(MienError):
        import_mobilefacenet192(tflite_file[: int(share * len(tflite_file))])
    with pytest.raises(MienError):
        import_sface(sface[: int(share * len(sface))])


@FEW
@given(st.lists(st.tuples(st.integers(0, 200_000), st.integers(0, 255)), min_size=1, max_size=8))
def test_damaged_tables_of_a_tflite_file(tflite_file: bytes, changes: list[tuple[int, int]]) -> None:
    """The flatbuffer's own tables lie at both ends; a changed byte there may be harmless, but never a crash."""
    for end in (1, -1):
        data = bytearray(tflite_file)
        for position, value in changes:
            data[end * (1 + position // 8)] = value
        with contextlib.suppress(MienError):
            import_mobilefacenet192(bytes(data))


@FEW
@given(st.data())
def test_damaged_structure_of_an_onnx_file(sface_model: onnx.ModelProto, data: st.DataObject) -> None:
    """Bytes are changed in the part that describes the graph, without the megabytes of numbers."""
    stripped = onnx.ModelProto()
    stripped.CopyFrom(sface_model)
    for tensor in stripped.graph.initializer:
        tensor.raw_data = tensor.raw_data[:8]
    content = bytearray(stripped.SerializeToString())
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with pytest.raises(MienError):
        import_sface(bytes(content))


def test_weights_in_another_file_are_never_opened(
    sface_model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = onnx.ModelProto()
    model.CopyFrom(sface_model)
    tensor = next(t for t in model.graph.initializer if t.name == "pre_fc1_weight_dequantized")
    (tmp_path / "secret").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="secret")
    with pytest.raises(CorruptDataError, match="never opened"):
        import_sface(model.SerializeToString())


@pytest.mark.parametrize(
    ("shape", "scale_shape", "attributes"),
    [
        ((4, 4), (4, 1), {"block_size": 1 << 40, "axis": 0}),
        ((4, 4), (4, 4), {"block_size": -1, "axis": 1}),
        ((4, 4), (4, 3), {"block_size": 2, "axis": 1}),
        ((4, 4), (4, 1), {"block_size": 4, "axis": 7}),
        ((4, 4), (5,), {"axis": 1}),
        ((0, 4), (0, 2), {"block_size": 2, "axis": 0}),
    ],
)
def test_quantisation_that_does_not_fit(
    shape: tuple[int, ...], scale_shape: tuple[int, ...], attributes: dict[str, int]
) -> None:
    node = helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], **attributes)
    constants = [
        numpy_helper.from_array(np.zeros(shape, np.int8), "q"),
        numpy_helper.from_array(np.ones(scale_shape, np.float32), "s"),
        numpy_helper.from_array(np.zeros(scale_shape, np.int8), "z"),
    ]
    graph = helper.make_graph([node], "g", [], [], constants)
    with pytest.raises(CorruptDataError):
        import_sface(helper.make_model(graph).SerializeToString())


def changed(model: onnx.ModelProto, op: str, index: int, attribute: str, value: object) -> bytes:
    """Return the model with one attribute of its index-th operator of a kind replaced."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    node = next(itertools.islice((n for n in copy.graph.node if n.op_type == op), index, None))
    kept = [a for a in node.attribute if a.name != attribute]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(attribute, value)])
    return bytes(copy.SerializeToString())


@pytest.mark.parametrize(
    ("op", "index", "attribute", "value"),
    [
        ("Conv", 3, "strides", [1, 1]),
        ("Conv", 0, "pads", [0, 0, 0, 0]),
        ("Conv", 5, "dilations", [2, 2]),
        ("Gemm", 0, "alpha", 0.5),
        ("BatchNormalization", 2, "epsilon", -1.0),
        ("BatchNormalization", 2, "epsilon", "much"),
    ],
)
def test_a_graph_that_computes_something_else(
    sface_model: onnx.ModelProto, op: str, index: int, attribute: str, value: object
) -> None:
    with pytest.raises(LayoutMismatchError, match="another network than SFace"):
        import_sface(changed(sface_model, op, index, attribute, value))


def test_an_operator_wired_past_its_neighbour(sface_model: onnx.ModelProto) -> None:
    copy = onnx.ModelProto()
    copy.CopyFrom(sface_model)
    relus = [n for n in copy.graph.node if n.op_type == "PRelu"]
    convs = [n for n in copy.graph.node if n.op_type == "Conv"]
    convs[20].input[0] = relus[17].output[0]
    with pytest.raises(LayoutMismatchError, match="Conv on the value before it"):
        import_sface(copy.SerializeToString())


def test_extra_operators_at_the_end(sface_model: onnx.ModelProto) -> None:
    copy = onnx.ModelProto()
    copy.CopyFrom(sface_model)
    copy.graph.node.append(helper.make_node("Neg", ["fc1"], ["more"]))
    with pytest.raises(LayoutMismatchError, match="end of the graph"):
        import_sface(copy.SerializeToString())


def with_constant(model: onnx.ModelProto, name: str, value: float) -> bytes:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for i, tensor in enumerate(copy.graph.initializer):
        if tensor.name == name:
            array = numpy_helper.to_array(tensor).copy()
            array.flat[0] = value
            copy.graph.initializer[i].CopyFrom(numpy_helper.from_array(array, name))
    return bytes(copy.SerializeToString())


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_numbers_that_are_not_finite(sface_model: onnx.ModelProto, value: float) -> None:
    with pytest.raises(NonFiniteError):
        import_sface(with_constant(sface_model, "fc1_gamma", value))


@pytest.mark.parametrize(("name", "value"), [("scalar_op1", 0.0), ("fc1_moving_var", -1.0)])
def test_scaling_and_statistics_that_make_no_sense(sface_model: onnx.ModelProto, name: str, value: float) -> None:
    with pytest.raises(LayoutMismatchError):
        import_sface(with_constant(sface_model, name, value))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_tflite_numbers_that_are_not_finite(tflite_theta: dict[str, NDArray[np.float32]], value: float) -> None:
    slopes = tflite_theta["block7.expand.act.weight"].copy()
    slopes[3] = value
    with pytest.raises(NonFiniteError):
        import_mobilefacenet192(write_mobilefacenet192({**tflite_theta, "block7.expand.act.weight": slopes}))


def test_a_tflite_file_of_another_size(tflite_theta: dict[str, NDArray[np.float32]]) -> None:
    wider = {
        "embedding.fc.weight": np.zeros((256, 512), np.float32),
        "embedding.fc.bias": np.zeros(256, np.float32),
    }
    with pytest.raises(LayoutMismatchError, match="another network than MobileFaceNet-192"):
        import_mobilefacenet192(write_mobilefacenet192({**tflite_theta, **wider}))
