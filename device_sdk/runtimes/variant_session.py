"""ONNX Runtime with a variant of a model: its parameters are built in, and it only embeds."""

from __future__ import annotations

from typing import Final

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from device_sdk.runtimes.onnx_runtime import REFUSALS, session_options
from mien.errors import CorruptDataError
from mien.methods.base import Embeddings

INPUT: Final = "x"
_PIECE: Final = 4
"""Images of one run: more of them need more memory and are no faster."""


class VariantSession:
    """A variant's graph, loaded."""

    def __init__(self, data: bytes, *, tier: str, dim: int, threads: int = 1) -> None:
        """Load the graph, which gives embeddings of `dim` numbers; raises CorruptDataError for what is none."""
        options = session_options(threads)
        self._dim, self._tier = dim, tier
        try:
            self._session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except REFUSALS as error:
            raise CorruptDataError(f"ONNX Runtime cannot load variant {self._tier}; tell the operator") from error

    def run(self, input_N3HW: NDArray[np.float32]) -> Embeddings:
        """Return embeddings (N, dim); raises CorruptDataError for a graph that takes or gives something else."""
        pieces = [np.empty((0, self._dim), np.float32)]
        try:
            for start in range(0, len(input_N3HW), _PIECE):
                pieces += self._session.run(None, {INPUT: input_N3HW[start : start + _PIECE]})
        except (*REFUSALS, ValueError) as error:
            raise CorruptDataError(
                f"variant {self._tier} does not take the model's faces; tell the operator"
            ) from error
        if any(piece.ndim != 2 or piece.shape[1] != self._dim for piece in pieces):
            raise CorruptDataError(f"variant {self._tier} gives embeddings of another size; tell the operator")
        embeddings: Embeddings = np.concatenate(pieces).astype(np.float32)
        return embeddings
