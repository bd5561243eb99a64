"""Public model files as backbones: weights out of ONNX and TFLite bytes, into our layouts.

Nothing of a file is ever executed: its graph is compared, operator by operator, with the architecture that it should
hold, and its numbers are copied. `import_model` is the door; see `mien.models.known_models` for the files that it
takes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import nn

from mien.backbones import BACKBONES, Backbone, adapter, build_backbone, gate, layout_of, load_theta, theta_of
from mien.backbones._tflite import MAGIC as TFLITE_MAGIC
from mien.backbones._tflite import read_tflite
from mien.backbones._units import ConvUnit, EmbeddingHead
from mien.backbones.mobilefacenet import Bottleneck
from mien.errors import ConfigError
from mien.layout import ParameterLayout, Vector
from mien.models.graph import Array64, Tensors, Walk
from mien.models.known_models import KNOWN_MODELS, recognise
from mien.models.sface_file import read_sface
from mien.specs import ModelSpec

ONNX_FIRST_BYTE: Final = b"\x08"  # protobuf tag of ModelProto.ir_version, which every writer puts first


@dataclass(frozen=True)
class ImportedModel:
    """A model file's content in Mien's terms: what it is, where its tensors lie, and their numbers."""

    spec: ModelSpec
    layout: ParameterLayout = field(repr=False)
    theta: Vector = field(repr=False)


def import_model(data: bytes, filename: str, *, unverified: bool = False) -> ImportedModel:
    """Return the recogniser in a public model file; `filename` is for messages only.

    The file must be one of `known_models`, by sha256. `unverified` admits another file of the same architecture, whose
    terms are then marked as unknown. Raises ConfigError for any other file, CorruptDataError for damaged bytes,
    LayoutMismatchError for another network, NonFiniteError for weights that are not finite.
    """
    known = recognise(data)
    if known is None and not unverified:
        raise ConfigError(
            f"{filename} is not a model file that Mien knows (sha256 {hashlib.sha256(data).hexdigest()[:12]}...); "
            f"supported: {_supported()}"
        )
    if known is not None and known.backbone is None:
        raise ConfigError(
            f"{filename} is {known.title}, a face {known.kind}, not a recogniser; supported: {_supported()}"
        )
    if data[4:8] == TFLITE_MAGIC:
        backbone, theta = import_mobilefacenet192(data)
    elif data[:1] == ONNX_FIRST_BYTE:
        backbone, theta = import_sface(data)
    else:
        raise ConfigError(f"{filename} is neither ONNX nor TFLite; supported: {_supported()}")
    layout = layout_of(backbone)
    source, terms = (known.source, known.terms) if known else _unknown_origin(data, filename)
    spec = ModelSpec(backbone.name, layout.sha256, backbone.input_spec, source, terms, backbone.default_trainable)
    return ImportedModel(spec, layout, theta)


def with_adapter(model: ImportedModel) -> ImportedModel:
    """Return the model with an adapter behind it, of which nothing else is trained; it embeds as before.

    Raises ConfigError for a backbone that has no form with an adapter.
    """
    return _extended(model, adapter.SUFFIX, "an adapter", model.spec.input.dim)


def with_gate(model: ImportedModel, population: Mapping[str, NDArray[np.float32]]) -> ImportedModel:
    """Return the model with a closed gate behind it, of which the adapter alone is made anew; it embeds as before.

    `population` are the tensors that `mien.methods.gate.population_of` gives of people whom the model was made for.
    Raises ConfigError for a backbone that has no form with a gate.
    """
    found = _extended(model, gate.SUFFIX, "a gate", 2 * model.spec.input.dim + 1)
    layout = found.layout
    for name, values in population.items():
        found.theta[layout.offsets[name] : layout.offsets[name] + layout.sizes[name]] = values.reshape(-1)
    return found


def _extended(model: ImportedModel, suffix: str, what: str, dim: int) -> ImportedModel:
    """Return the model in the form that begins with its own stages and bears `suffix`."""
    name = model.spec.backbone + suffix
    if name not in BACKBONES:
        raise ConfigError(
            f"backbone {model.spec.backbone} has no form with {what}; those that have: "
            f"{', '.join(each.removesuffix(suffix) for each in BACKBONES if each.endswith(suffix))}"
        )
    backbone = build_backbone(name, replace(model.spec.input, dim=dim))
    layout = layout_of(backbone)
    theta = theta_of(backbone)
    theta[: model.layout.size] = model.theta  # new stages are the last ones, and folded nets have no buffers
    spec = replace(
        model.spec,
        backbone=name,
        layout_sha256=layout.sha256,
        input=backbone.input_spec,
        trainable=backbone.default_trainable,
    )
    return ImportedModel(spec, layout, theta)


def import_sface(onnx_bytes: bytes) -> tuple[Backbone, Vector]:
    """Return SFace and its flat vector from an ONNX file; raises what `mien.models.sface_file.read_sface` raises."""
    layout, theta = read_sface(onnx_bytes)
    backbone = build_backbone("sface")
    load_theta(backbone, layout, theta)
    return backbone, theta


def import_mobilefacenet192(tflite_bytes: bytes) -> tuple[Backbone, Vector]:
    """Return the 192-d MobileFaceNet and its flat vector from a TFLite file.

    Raises CorruptDataError, LayoutMismatchError, NonFiniteError, MissingDependencyError.
    """
    walk = Walk(read_tflite(tflite_bytes), "MobileFaceNet-192")
    tensors: Tensors = {}
    for stage_name, stage in build_backbone("mobilefacenet192").named_children():
        if isinstance(stage, Bottleneck):
            shortcut = walk.value
            for unit_name, unit in stage.named_children():
                tensors |= _tflite_unit(walk, f"{stage_name}.{unit_name}", unit)
            if stage.is_residual:
                walk.take("ADD", data=(walk.value, shortcut))
        elif isinstance(stage, EmbeddingHead):
            tensors |= _tflite_embedding(walk, stage)
        else:
            tensors |= _tflite_unit(walk, stage_name, stage)
    walk.take("RESHAPE")
    walk.finish()
    return _filled("mobilefacenet192", tensors)


def _tflite_unit(walk: Walk, name: str, unit: nn.Module) -> Tensors:
    """Return a ConvUnit's tensors from CONV_2D or DEPTHWISE_CONV_2D and the five operators that stand for PReLU.

    TFLite orders weights (out, height, width, in), depthwise (1, height, width, channels). PReLU stands there as
    relu(x) + c * (x - |x|), so its slope is 2c.
    """
    if not isinstance(unit, ConvUnit):
        raise TypeError(f"{name} is no ConvUnit")
    conv = unit.conv
    out_channels, in_channels, height, width = conv.weight.shape
    is_depthwise = conv.groups > 1
    attributes: dict[str, object] = {"stride": conv.stride, "dilation": (1, 1), "activation": 0}
    if conv.kernel_size != (1, 1):  # a 1x1 kernel of stride 1 needs no padding, so both rules mean the same
        attributes["padding"] = "SAME" if conv.padding != (0, 0) else "VALID"
    if is_depthwise:
        attributes["multiplier"] = 1
    node = walk.take("DEPTHWISE_CONV_2D" if is_depthwise else "CONV_2D", attributes=attributes)
    if is_depthwise:
        weight = walk.constant(node, 0, (1, height, width, out_channels)).transpose(3, 0, 1, 2)
    else:
        weight = walk.constant(node, 0, (out_channels, height, width, in_channels)).transpose(0, 3, 1, 2)
    tensors = {f"{name}.conv.weight": weight, f"{name}.conv.bias": walk.constant(node, 1, (out_channels,))}
    if unit.act is not None:
        tensors[f"{name}.act.weight"] = _tflite_slope(walk, out_channels)
    return tensors


def _tflite_slope(walk: Walk, channels: int) -> Array64:
    """Return the slope of a PReLU written as relu(x) + c * (x - |x|)."""
    x = walk.value
    positive = walk.take("RELU", data=(x,)).outputs[0]
    magnitude = walk.take("ABS", data=(x,)).outputs[0]
    walk.take("SUB", data=(x, magnitude))
    half_slope = walk.constant(walk.take("MUL"), 0, (channels,))
    walk.take("ADD", data=(positive, walk.value))
    return 2 * half_slope


def _tflite_embedding(walk: Walk, head: EmbeddingHead) -> Tensors:
    """Return the head's tensors from the 1x1 CONV_2D that ends the graph."""
    dim, channels = head.fc.weight.shape
    node = walk.take("CONV_2D", attributes={"stride": (1, 1), "dilation": (1, 1), "activation": 0})
    return {
        "embedding.fc.weight": walk.constant(node, 0, (dim, 1, 1, channels)).reshape(dim, channels),
        "embedding.fc.bias": walk.constant(node, 1, (dim,)),
    }


def _filled(name: str, tensors: Tensors) -> tuple[Backbone, Vector]:
    """Return the named backbone with these tensors, and its flat vector, checked to be finite."""
    backbone = build_backbone(name)
    layout = layout_of(backbone)
    with np.errstate(over="ignore"):  # a number beyond float32 becomes infinity, which the check refuses
        theta = layout.check(layout.flatten(tensors), what=f"{name} model file")
    load_theta(backbone, layout, theta)
    return backbone, theta


def _supported() -> str:
    return "; ".join(f"{m.filename} ({m.fetch})" for m in KNOWN_MODELS if m.kind == "recogniser")


def _unknown_origin(data: bytes, filename: str) -> tuple[str, str]:
    return (
        f"file {filename}, sha256 {hashlib.sha256(data).hexdigest()}, not verified",
        "unknown; ask whoever gave you the file",
    )
