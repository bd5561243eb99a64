"""A model as two files in a folder: `model.json` (spec and layout, canonical JSON) and `theta.f32` (little-endian)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from mien.errors import AlreadyExistsError, LayoutMismatchError, NotFoundError
from mien.layout import ParameterLayout, Vector, model_id
from mien.protocol.canonical import MAX_JSON_BYTES, model_from_json, model_to_json
from mien.shell.files import make_folder, read_limited, write_atomically
from mien.specs import ModelSpec

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
    """Return the model in a folder; raises NotFoundError, CorruptDataError, LayoutMismatchError or NonFiniteError."""
    if not folder.is_dir():
        raise NotFoundError(f"there is no folder {folder}; name one that mien-coordinator model export wrote")
    spec, layout = model_from_json(read_limited(folder / "model.json", MAX_JSON_BYTES, what="model.json"))
    data = read_limited(folder / "theta.f32", MAX_THETA_BYTES, what="theta.f32")
    if len(data) != 4 * layout.size:
        raise LayoutMismatchError(
            f"theta.f32 has {len(data)} bytes, its layout needs {4 * layout.size}; export the model again"
        )
    return Model(spec, layout, layout.check(np.frombuffer(data, "<f4").astype(np.float32)))


def write_model(model: Model, folder: Path) -> None:
    """Write a model's two files; the parameters first, so that a `model.json` always has its parameters beside it.

    Raises AlreadyExistsError for a folder that holds a model: a crash in between would leave parts of both.
    """
    if (folder / "model.json").exists():
        raise AlreadyExistsError(f"{folder} holds a model already; name a new folder")
    make_folder(folder)
    write_atomically(folder / "theta.f32", np.ascontiguousarray(model.theta, "<f4").tobytes())
    write_atomically(folder / "model.json", model_to_json(model.spec, model.layout))
