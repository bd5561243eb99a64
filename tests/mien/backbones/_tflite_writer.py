"""Writes the 192-d MobileFaceNet as a TFLite file: the importer's counterpart, from the format and the public file.

Operator order, PReLU as RELU, ABS, SUB, MUL, ADD, and "SAME" padding are those of the public file.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import flatbuffers
import numpy as np
import tflite
from numpy.typing import NDArray

Float = NDArray[np.float32]
OPS = tflite.BuiltinOperator


@dataclass
class Op:
    """One operator to write: builtin code, tensor indices, and (stride, is_same, is_depthwise) of a convolution."""

    code: int
    inputs: list[int]
    output: int
    conv: tuple[int, bool, bool] | None = None


@dataclass
class Net:
    """Tensors and operators collected so far; `value` is the tensor that the last operator wrote."""

    tensors: list[tuple[tuple[int, ...], NDArray[np.generic] | None]] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    value: int = 0

    def tensor(self, shape: tuple[int, ...], data: NDArray[np.generic] | None = None) -> int:
        self.tensors.append((shape, data))
        return len(self.tensors) - 1

    def constant(self, data: NDArray[np.generic]) -> int:
        return self.tensor(data.shape, data)

    def op(
        self, code: int, inputs: list[int], shape: tuple[int, ...], conv: tuple[int, bool, bool] | None = None
    ) -> int:
        self.value = self.tensor(shape)
        self.ops.append(Op(code, inputs, self.value, conv))
        return self.value

    def unit(self, theta: dict[str, Float], name: str, *, stride: int = 1, same: bool = True, act: bool = True) -> None:
        weight, bias = theta[f"{name}.conv.weight"], theta[f"{name}.conv.bias"]
        depthwise = weight.shape[1] == 1 and weight.shape[0] > 1
        laid = weight.transpose(1, 2, 3, 0) if depthwise else weight.transpose(0, 2, 3, 1)
        n, height, width, _ = self.tensors[self.value][0]
        kernel = weight.shape[2]
        out = -(-height // stride) if same else height - kernel + 1
        shape = (n, out, out, len(bias))
        assert height == width
        code = OPS.DEPTHWISE_CONV_2D if depthwise else OPS.CONV_2D
        x = self.op(code, [self.value, self.constant(laid), self.constant(bias)], shape, (stride, same, depthwise))
        if act:
            positive, magnitude = self.op(OPS.RELU, [x], shape), self.op(OPS.ABS, [x], shape)
            difference = self.op(OPS.SUB, [x, magnitude], shape)
            slope = self.constant(theta[f"{name}.act.weight"] / 2)
            product = self.op(OPS.MUL, [slope, difference], shape)
            self.op(OPS.ADD, [positive, product], shape)


def write_mobilefacenet192(theta: dict[str, Float]) -> bytes:
    """Return the TFLite file of these tensors, named and shaped as in Mien's layout."""
    net = Net()
    net.tensor((2, 112, 112, 3))
    net.unit(theta, "stem", stride=2)
    net.unit(theta, "stem_depthwise")
    net.unit(theta, "stem_pointwise", act=False)
    for i in range(1, 16):
        shortcut = net.value
        net.unit(theta, f"block{i}.expand")
        net.unit(theta, f"block{i}.depthwise", stride=2 if i in (1, 6, 13) else 1)
        net.unit(theta, f"block{i}.project", act=False)
        if i not in (1, 6, 13):
            net.op(OPS.ADD, [net.value, shortcut], net.tensors[net.value][0])
    net.unit(theta, "head")
    net.unit(theta, "gdconv", same=False, act=False)
    net.unit(theta, "gdconv_pointwise", same=False, act=False)
    weight, bias = theta["embedding.fc.weight"], theta["embedding.fc.bias"]
    constants = [net.constant(weight[:, None, None, :]), net.constant(bias)]
    net.op(OPS.CONV_2D, [net.value, *constants], (2, 1, 1, 192), (1, True, False))
    net.op(OPS.RESHAPE, [net.value, net.constant(np.array([2, 192], np.int32))], (2, 192))
    return serialise(net)


def serialise(net: Net) -> bytes:
    """Return the net as a flatbuffer with the identifier TFL3."""
    b = flatbuffers.Builder(1 << 23)
    buffers = [_buffer(b, None)]
    tensors = []
    for shape, data in net.tensors:
        if data is not None:
            buffers.append(_buffer(b, data))
        dims = b.CreateNumpyVector(np.array(shape, np.int32))
        name = b.CreateString("t")
        tflite.TensorStart(b)
        tflite.TensorAddShape(b, dims)
        tflite.TensorAddType(b, 2 if data is not None and data.dtype == np.int32 else 0)
        tflite.TensorAddBuffer(b, len(buffers) - 1 if data is not None else 0)
        tflite.TensorAddName(b, name)
        tensors.append(tflite.TensorEnd(b))
    codes = sorted({op.code for op in net.ops})
    operators = [_operator(b, op, codes) for op in net.ops]
    code_tables = [_code(b, code) for code in codes]
    ends = [b.CreateNumpyVector(np.array([i], np.int32)) for i in (0, net.value)]
    vectors = [_vector(b, items) for items in (tensors, operators)]
    tflite.SubGraphStart(b)
    tflite.SubGraphAddTensors(b, vectors[0])
    tflite.SubGraphAddInputs(b, ends[0])
    tflite.SubGraphAddOutputs(b, ends[1])
    tflite.SubGraphAddOperators(b, vectors[1])
    subgraph = tflite.SubGraphEnd(b)
    parts = [_vector(b, items) for items in (code_tables, [subgraph], buffers)]
    tflite.ModelStart(b)
    tflite.ModelAddVersion(b, 3)
    tflite.ModelAddOperatorCodes(b, parts[0])
    tflite.ModelAddSubgraphs(b, parts[1])
    tflite.ModelAddBuffers(b, parts[2])
    b.Finish(tflite.ModelEnd(b), file_identifier=b"TFL3")
    return bytes(b.Output())


def _vector(b: flatbuffers.Builder, items: list[int]) -> int:
    b.StartVector(4, len(items), 4)
    for item in reversed(items):
        b.PrependUOffsetTRelative(item)
    return int(b.EndVector())


def _buffer(b: flatbuffers.Builder, data: NDArray[np.generic] | None) -> int:
    content = None if data is None else b.CreateByteVector(np.ascontiguousarray(data).tobytes())
    tflite.BufferStart(b)
    if content is not None:
        tflite.BufferAddData(b, content)
    return int(tflite.BufferEnd(b))


def _code(b: flatbuffers.Builder, code: int) -> int:
    tflite.OperatorCodeStart(b)
    tflite.OperatorCodeAddDeprecatedBuiltinCode(b, code)
    tflite.OperatorCodeAddBuiltinCode(b, code)
    tflite.OperatorCodeAddVersion(b, 1)
    return int(tflite.OperatorCodeEnd(b))


def _operator(b: flatbuffers.Builder, op: Op, codes: list[int]) -> int:
    inputs = b.CreateNumpyVector(np.array(op.inputs, np.int32))
    outputs = b.CreateNumpyVector(np.array([op.output], np.int32))
    options, kind = (None, 0) if op.conv is None else _conv_options(b, *op.conv)
    tflite.OperatorStart(b)
    tflite.OperatorAddOpcodeIndex(b, codes.index(op.code))
    tflite.OperatorAddInputs(b, inputs)
    tflite.OperatorAddOutputs(b, outputs)
    if options is not None:
        tflite.OperatorAddBuiltinOptionsType(b, kind)
        tflite.OperatorAddBuiltinOptions(b, options)
    return int(tflite.OperatorEnd(b))


def _conv_options(b: flatbuffers.Builder, stride: int, same: bool, depthwise: bool) -> tuple[int, int]:
    padding = tflite.Padding.SAME if same else tflite.Padding.VALID
    if depthwise:
        tflite.DepthwiseConv2DOptionsStart(b)
        tflite.DepthwiseConv2DOptionsAddPadding(b, padding)
        tflite.DepthwiseConv2DOptionsAddStrideH(b, stride)
        tflite.DepthwiseConv2DOptionsAddStrideW(b, stride)
        tflite.DepthwiseConv2DOptionsAddDepthMultiplier(b, 1)
        return int(tflite.DepthwiseConv2DOptionsEnd(b)), int(tflite.BuiltinOptions.DepthwiseConv2DOptions)
    tflite.Conv2DOptionsStart(b)
    tflite.Conv2DOptionsAddPadding(b, padding)
    tflite.Conv2DOptionsAddStrideH(b, stride)
    tflite.Conv2DOptionsAddStrideW(b, stride)
    return int(tflite.Conv2DOptionsEnd(b)), int(tflite.BuiltinOptions.Conv2DOptions)
