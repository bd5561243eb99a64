"""Public faces as the shard that a model's bundle carries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from device_sdk.faces import ChoiceRule, FacePipeline
from mien.errors import AlreadyExistsError
from mien.shell.files import write_atomically
from mien.specs import FaceInputSpec
from mien.wire.tensors import PublicShard
from simulation.datasets import digest, find_people, read_people


def pack_shard(folder: Path, out: Path, *, licence: str, source: str, aligned: bool = False) -> dict[str, Any]:
    """Write `folder`/name/*.jpg as a public shard and return its counts; names are not kept, labels are numbers.

    Raises AlreadyExistsError rather than replace a file, EmptyFolderError if no face is usable.
    """
    if out.exists():
        raise AlreadyExistsError(f"{out} exists already; name a new file")
    people = find_people(folder)
    faces = read_people(people, FacePipeline(FaceInputSpec(), None, ChoiceRule.CENTRE, aligned=aligned))
    data = PublicShard(faces.crops, faces.labels, licence, source).to_bytes()
    write_atomically(out, data)
    return {
        "file": str(out),
        "identities": len(people),
        "images": len(faces.labels),
        "fte": len(faces.failures),
        "size_bytes": len(data),
        "dataset_sha256": digest(people),
    }
