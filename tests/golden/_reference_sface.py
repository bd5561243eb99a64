"""SFace's public file made runnable without any of Mien's code: quantisation undone by the operator's definition.

ONNX, DequantizeLinear-21: y = (x - x_zero_point) * x_scale, where with `block_size` b along `axis` element i takes the
scale at index i // b. The graph itself, BatchNorm and all, is left as it is for ONNX Runtime.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper


def dequantised(data: bytes) -> bytes:
    """Return the same model with float32 weights and only the image as graph input."""
    model = onnx.load_model_from_string(data)
    graph = model.graph
    arrays = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    made: dict[str, NDArray[np.generic]] = {}
    kept = []
    for node in graph.node:
        if node.op_type == "DequantizeLinear":
            quantised, scale, zero = (arrays[name] for name in node.input)
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            axis, size = attributes["axis"], attributes["block_size"]
            value = np.empty(quantised.shape, np.float32)
            for block in range(scale.shape[axis]):
                where = [slice(None)] * quantised.ndim
                where[axis] = slice(block * size, (block + 1) * size)
                at = [slice(None)] * quantised.ndim
                at[axis] = slice(block, block + 1)
                piece = quantised[tuple(where)].astype(np.float32) - zero[tuple(at)].astype(np.float32)
                value[tuple(where)] = piece * scale[tuple(at)]
            made[node.output[0]] = value
        elif node.op_type == "Reshape" and node.input[0] in made:
            made[node.output[0]] = made[node.input[0]].reshape(arrays[node.input[1]].tolist())
        else:
            kept.append(node)
    used = {name for node in kept for name in node.input}
    initializers = [numpy_helper.from_array(a, n) for n, a in {**arrays, **made}.items() if n in used]
    new = helper.make_graph(kept, "sface", [i for i in graph.input if i.name == "data"], graph.output, initializers)
    return bytes(
        helper.make_model(new, opset_imports=model.opset_import, ir_version=model.ir_version).SerializeToString()
    )


def embed(model: bytes, crops: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return ONNX Runtime's embeddings (N, 128) of crops (N, 112, 112, 3) uint8 RGB; the file scales them itself."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options)
    planes = crops.transpose(0, 3, 1, 2).astype(np.float32)
    return np.concatenate([session.run(None, {"data": image[None]})[0] for image in planes])
