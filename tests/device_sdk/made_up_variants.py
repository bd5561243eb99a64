"""Made-up variants: a small graph that embeds crops in its own way, described and listed as an operator would."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from mien.models.variants import ONNXRUNTIME, Variant, VariantCost, form_id
from mien.specs import FaceInputSpec, Threshold
from tests.device_sdk.made_up_people import SPEC

COST = VariantCost("faces", "d" * 64, 30, 100, 30_000, 1e-3, 0.05, 0.04, 0.045, 0.0011, 0.99, 0.97)


def graph(seed: int = 0, dim: int = 16) -> bytes:
    """Return a graph from crops (N, 3, 112, 112) to embeddings (N, dim): sixteenths of each colour, then a matrix."""
    weight = np.random.default_rng(seed).standard_normal((48, dim)).astype(np.float32)
    nodes = [
        helper.make_node("AveragePool", ["x"], ["pooled"], kernel_shape=[28, 28], strides=[28, 28]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weight"], ["embeddings"]),
    ]
    made = helper.make_graph(
        nodes,
        "variant",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 112, 112])],
        [helper.make_tensor_value_info("embeddings", TensorProto.FLOAT, ["N", dim])],
        [numpy_helper.from_array(weight, "weight")],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    data: bytes = model.SerializeToString()
    return data


def variant(
    model_id: str,
    data: bytes,
    *,
    tier: str = "int8",
    threshold: float = 0.9,
    spec: FaceInputSpec = SPEC,
    **changes: Any,
) -> Variant:
    """Return the description of a variant file of a model."""
    sha256 = hashlib.sha256(data).hexdigest()
    own = Threshold(threshold, 1e-3, "faces", 100, 30_000, form_id(model_id, sha256), "2026-01-01")
    made = Variant(
        tier, sha256, len(data), model_id, spec, ONNXRUNTIME, "made up", "nobody", (own,), COST, min_sdk="0.1.0"
    )
    return dataclasses.replace(made, **changes)
