"""ONNX Runtime with a variant of a model: its parameters are built in, and it only embeds."""

from __future__ import annotations

from typing import Final

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from mien.errors import CorruptDataError
from mien.methods.base import Embeddings

# What ONNX Runtime may raise for a graph that it cannot load or run; it has no public base class for them.
_STATE: Final = onnxruntime.capi.onnxruntime_pybind11_state
_REFUSALS: Final = (
    _STATE.Fail,
    _STATE.InvalidGraph,
    _STATE.InvalidProtobuf,
    _STATE.InvalidArgument,
    _STATE.NotImplemented,
)
INPUT: Final = "x"
_PIECE: Final = 4
"""Images of one run: more of them need more memory and are no faster."""


class VariantSession:
    """A variant's graph, loaded."""

    def __init__(self, data: bytes, *, tier: str, dim: int, threads: int = 1) -> None:
        """Load the graph, which gives embeddings of `dim` numbers; raises CorruptDataError for what is none."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = False  # it keeps what it ever held, and a phone embeds a face now and then
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._dim, self._tier = dim, tier
        try:
            self._session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except _REFUSALS as error:
            raise CorruptDataError(f"ONNX Runtime cannot load variant {self._tier}; tell the operator") from error

    def run(self, input_N3HW: NDArray[np.float32]) -> Embeddings:
        """Return embeddings (N, dim); raises CorruptDataError for a graph that takes or gives something else."""
        pieces = [np.empty((0, self._dim), np.float32)]
        try:
            for start in range(0, len(input_N3HW), _PIECE):
                pieces += self._session.run(None, {INPUT: input_N3HW[start : start + _PIECE]})
        except (*_REFUSALS, ValueError) as error:
            raise CorruptDataError(
                f"variant {self._tier} does not take the model's faces; tell the operator"
            ) from error
        if any(piece.ndim != 2 or piece.shape[1] != self._dim for piece in pieces):
            raise CorruptDataError(f"variant {self._tier} gives embeddings of another size; tell the operator")
        embeddings: Embeddings = np.concatenate(pieces).astype(np.float32)
        return embeddings
