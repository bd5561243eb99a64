"""SFace out of its public ONNX file: its layout and its numbers as our network has them. No torch is needed.

`mien.backbones.sface` is the network; what both have to agree on stands here, where phones can read it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from mien.layout import ParameterEntry, ParameterLayout, Vector
from mien.models.graph import Array64, Tensors, Walk
from mien.models.known_models import FACE_INPUTS, KnownModel
from mien.models.onnx_file import read_onnx
from mien.specs import ModelSpec

# (output channels, stride) of each depthwise-separable block, in order.
BLOCKS: Final = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))
STEM_CHANNELS: Final = 32
# The last block's pointwise convolution alone has 1,048,576 weights: it stays frozen, so that a phone sends few.
DEFAULT_TRAINABLE: Final = (
    "block12.*",
    "block13.depthwise.*",
    "block13.pointwise.conv.bias",
    "block13.pointwise.act.weight",
)


def read_known_sface(
    onnx_bytes: bytes, known: KnownModel, *, adapter: bool = False
) -> tuple[ModelSpec, ParameterLayout, Vector]:
    """Return the recogniser in a file that is `known`, with an adapter behind it where wanted, which maps to itself.

    What `mien.backbones.importers` makes of the same file, without torch. Raises what `read_sface` raises.
    """
    layout, theta = read_sface(onnx_bytes)
    backbone, trainable = "sface", tuple[str, ...](DEFAULT_TRAINABLE)
    if adapter:
        dim = FACE_INPUTS["sface"].dim
        added = (ParameterEntry("adapter.weight", (dim, dim)), ParameterEntry("adapter.bias", (dim,)))
        layout = ParameterLayout((*layout.entries, *added))
        theta = np.concatenate([theta, np.eye(dim, dtype=np.float32).reshape(-1), np.zeros(dim, np.float32)])
        backbone, trainable = "sface_adapter", ("adapter.*",)
    spec = ModelSpec(backbone, layout.sha256, FACE_INPUTS["sface"], known.source, known.terms, trainable)
    return spec, layout, theta


def read_sface(onnx_bytes: bytes) -> tuple[ParameterLayout, Vector]:
    """Return SFace's layout and its flat vector from an ONNX file, quantised in blocks or float32.

    Every BatchNorm is folded in float64: after a convolution into it, before and after the FC into the FC. Raises
    CorruptDataError, LayoutMismatchError, NonFiniteError.
    """
    with np.errstate(over="ignore"):  # a number beyond float32 becomes infinity, which the check refuses
        tensors = _tensors(onnx_bytes)
        layout = ParameterLayout(tuple(ParameterEntry(name, tensor.shape) for name, tensor in tensors.items()))
        return layout, layout.check(layout.flatten(tensors), what="sface model file")


def _tensors(onnx_bytes: bytes) -> dict[str, Vector]:
    """Return SFace's tensors in their order, each in float32 as soon as it is made: phones have little memory."""
    walk = Walk(read_onnx(onnx_bytes), "SFace")
    spec = FACE_INPUTS["sface"]
    shift = walk.constant(walk.take("Sub"), 0, (1,))
    factor = walk.constant(walk.take("Mul"), 0, (1,))
    walk.require(bool(shift == spec.mean) and bool(factor == 1 / spec.scale), "scaling (x - 127.5) / 128")
    made = _float32(_unit(walk, "stem", 3, STEM_CHANNELS, kernel=3, stride=1, depthwise=False))
    previous = STEM_CHANNELS
    for i, (channels, stride) in enumerate(BLOCKS, start=1):
        depthwise = _unit(walk, f"block{i}.depthwise", previous, previous, kernel=3, stride=stride, depthwise=True)
        pointwise = _unit(walk, f"block{i}.pointwise", previous, channels, kernel=1, stride=1, depthwise=False)
        made |= _float32(depthwise) | _float32(pointwise)
        previous = channels
    made |= _float32(_embedding(walk, previous, spec.dim))
    walk.finish()
    return made


def _float32(tensors: Tensors) -> dict[str, Vector]:
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


def _unit(
    walk: Walk, name: str, in_channels: int, channels: int, *, kernel: int, stride: int, depthwise: bool
) -> Tensors:
    """Return a ConvUnit's tensors from Conv, BatchNormalization and PRelu, the norm folded in."""
    group = in_channels if depthwise else 1
    attributes = {"group": group, "strides": [stride] * 2, "pads": [kernel // 2] * 4, "dilations": [1, 1]}
    conv = walk.take("Conv", attributes=attributes)
    weight = walk.constant(conv, 0, (channels, in_channels // group, kernel, kernel))
    scale, shift = _affine(walk, channels)
    slope = walk.constant(walk.take("PRelu"), 0, (channels, 1, 1))
    return {
        f"{name}.conv.weight": weight * scale[:, None, None, None],
        f"{name}.conv.bias": shift,
        f"{name}.act.weight": slope.reshape(-1),
    }


def _embedding(walk: Walk, channels: int, dim: int) -> Tensors:
    """Return the head's tensors from BatchNormalization, Dropout, Flatten, Gemm and BatchNormalization."""
    map_scale, map_shift = _affine(walk, channels)
    walk.take("Dropout")
    walk.take("Flatten")
    gemm = walk.take("Gemm", attributes={"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 1})
    size = FACE_INPUTS["sface"].height // 16
    pixels = size * size
    weight = walk.constant(gemm, 0, (dim, channels * pixels))
    bias = walk.constant(gemm, 1, (dim,)) + weight @ map_shift.repeat(pixels)
    scale, shift = _affine(walk, dim)
    # In place: two thirds of a model's numbers are here, and each copy of them in float64 takes 51 MB.
    weight *= map_scale.repeat(pixels)
    weight *= scale[:, None]
    return {
        "embedding.fc.weight": weight,
        "embedding.fc.bias": bias * scale + shift,
    }


def _affine(walk: Walk, channels: int) -> tuple[Array64, Array64]:
    """Return a BatchNormalization as (scale, shift) per channel."""
    node = walk.take("BatchNormalization")
    gamma, beta, mean, var = (walk.constant(node, i, (channels,)) for i in range(4))
    epsilon = node.attributes.get("epsilon", 1e-5)
    walk.require(isinstance(epsilon, float) and epsilon > 0 and bool((var >= 0).all()), "BatchNormalization statistics")
    scale = gamma / np.sqrt(var + epsilon)
    return scale, beta - mean * scale
