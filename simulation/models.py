"""A model as two files in a folder: `model.json` (spec and layout, canonical JSON) and `theta.f32` (little-endian)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from mien.errors import LayoutMismatchError
from mien.layout import ParameterLayout, Vector, model_id
from mien.shell.files import read_limited, write_atomically
from mien.specs import ModelSpec
from mien.wire.canonical import MAX_JSON_BYTES, model_from_json, model_to_json

MAX_THETA_BYTES: Final = 2 << 30


@dataclass(frozen=True)
class Model:
    """A recogniser's description, layout and parameters."""

    spec: ModelSpec
    layout: ParameterLayout
    theta: Vector = field(repr=False)

    @property
    def model_id(self) -> str:
        """Content address of layout and parameters."""
        return model_id(self.layout.sha256, self.theta)


def read_model(folder: Path) -> Model:
    """Return the model in a folder; raises CorruptDataError, LayoutMismatchError or NonFiniteError."""
    spec, layout = model_from_json(read_limited(folder / "model.json", MAX_JSON_BYTES, what="model.json"))
    data = read_limited(folder / "theta.f32", MAX_THETA_BYTES, what="theta.f32")
    if len(data) != 4 * layout.size:
        raise LayoutMismatchError(
            f"theta.f32 has {len(data)} bytes, its layout needs {4 * layout.size}; export the model again"
        )
    return Model(spec, layout, layout.check(np.frombuffer(data, "<f4").astype(np.float32)))


def write_model(model: Model, folder: Path) -> None:
    """Write a model's two files; the parameters first, so that a `model.json` always has its parameters beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "theta.f32", np.ascontiguousarray(model.theta, "<f4").tobytes())
    write_atomically(folder / "model.json", model_to_json(model.spec, model.layout))
