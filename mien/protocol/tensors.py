"""Named tensors as bytes (safetensors), and the shard of public faces that a bundle carries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from mien.errors import CorruptDataError
from mien.specs import FaceInputSpec


def pack_tensors(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return named tensors as one safetensors blob, each with its shape, () too."""
    contiguous = {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}
    return safetensors.numpy.save(contiguous, dict(metadata) if metadata else None)


def unpack_tensors(data: bytes, *, what: str) -> dict[str, NDArray[Any]]:
    """Return the named tensors of a blob; raises CorruptDataError naming `what`."""
    try:
        return dict(safetensors.numpy.load(data))
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise CorruptDataError(f"{what} is damaged; fetch or create it again") from error


@dataclass(frozen=True)
class PublicShard:
    """Aligned crops of public (consented or synthetic) faces, with identity labels, source and licence.

    `crops` (K, H, W, 3) uint8 RGB; `labels` (K,) int64, equal for images of one person.
    """

    crops: NDArray[np.uint8] = field(repr=False)
    labels: NDArray[np.int64] = field(repr=False)
    licence: str
    source: str

    def to_bytes(self) -> bytes:
        """Return the shard as one safetensors blob."""
        metadata = {"licence": self.licence, "source": self.source}
        return pack_tensors({"crops": self.crops, "labels": self.labels}, metadata)

    @classmethod
    def from_bytes(cls, data: bytes, spec: FaceInputSpec) -> PublicShard:
        """Return the shard in `data`; raises CorruptDataError unless it fits the model's face input."""
        tensors = unpack_tensors(data, what="public shard")
        crops, labels = tensors.get("crops"), tensors.get("labels")
        if (
            crops is None
            or labels is None
            or crops.dtype != np.uint8
            or labels.dtype != np.int64
            or crops.shape[1:] != (spec.height, spec.width, 3)
            or labels.shape != crops.shape[:1]
            or len(labels) == 0
        ):
            raise CorruptDataError(
                f"public shard needs crops (K, {spec.height}, {spec.width}, 3) uint8 and labels (K,); pack it again"
            )
        metadata = unpack_metadata(data)
        return cls(crops, labels, metadata.get("licence", "unknown"), metadata.get("source", "unknown"))


def unpack_metadata(data: bytes) -> dict[str, str]:
    """Return the text entries of a blob that `unpack_tensors` has already opened."""
    length = int.from_bytes(data[:8], "little")
    entries = json.loads(data[8 : 8 + length]).get("__metadata__") or {}  # null is none
    return {str(key): str(value) for key, value in entries.items()}
