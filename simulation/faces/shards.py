"""Public faces as the shard that a model's bundle carries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from device_sdk.faces import ChoiceRule, FacePipeline
from mien.errors import AlreadyExistsError, ConfigError, NotFoundError
from mien.protocol.tensors import PublicShard
from mien.shell.files import write_atomically
from mien.specs import FaceInputSpec
from simulation.faces.datasets import digest, find_people, read_people


def pack_shard(folder: Path, out: Path, *, licence: str, source: str, aligned: bool = False) -> dict[str, Any]:
    """Write `folder`/name/*.jpg as a public shard and return its counts; names are not kept, labels are numbers.

    People of whom no image gives a face are not in it and not counted. Raises AlreadyExistsError rather than replace a
    file, EmptyFolderError if no face is usable, ConfigError without a licence: whoever gets the faces must know it.
    """
    if out.exists():
        raise AlreadyExistsError(f"{out} exists already; name a new file")
    if not out.parent.is_dir():
        raise NotFoundError(f"there is no folder {out.parent}; make it, or name a file in another one")
    for option, text in (("licence", licence), ("source", source)):
        if not text.strip():
            raise ConfigError(f"--{option} is empty; say under which terms and from where these faces come")
    people = find_people(folder)
    faces = read_people(people, FacePipeline(FaceInputSpec(), None, ChoiceRule.CENTRE, aligned=aligned))
    data = PublicShard(faces.crops, faces.labels, licence, source).to_bytes()
    write_atomically(out, data)
    return {
        "file": str(out),
        "identities": int(np.unique(faces.labels).size),
        "images": len(faces.labels),
        "fte": len(faces.failures),
        "size_bytes": len(data),
        "dataset_sha256": digest(people),
    }
