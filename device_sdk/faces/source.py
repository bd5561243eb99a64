"""A labelled source: faces whose identities an operator knows, read from a folder for training and never stored."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from device_sdk.faces import FacePipeline, iter_image_files
from device_sdk.faces.images import shown_path
from mien.errors import (
    ConfigError,
    EmptyFolderError,
    ImageError,
    LowQualityError,
    MultipleFacesError,
    NoFaceError,
    NotFoundError,
)
from mien.methods.base import Crops

MAX_SOURCE_IMAGES: Final = 100_000
"""All crops of a source are in memory at once: 3.8 GB of them."""


@dataclass(frozen=True)
class SourceFaces:
    """Crops (N, 112, 112, 3) with `labels` (N,) from 0; `id` is a digest of the names behind them, in their order.

    The same folders give the same numbers; others give another source, for which training begins anew.
    """

    id: str
    crops: Crops = field(repr=False)
    labels: NDArray[np.int64] = field(repr=False)

    @property
    def num_people(self) -> int:
        """Number of identities."""
        return int(self.labels.max()) + 1


def read_source(
    folder: str | os.PathLike[str], pipeline: FacePipeline, *, on_refused: Callable[[str], None] = lambda _text: None
) -> SourceFaces:
    """Return the faces in `folder`, one folder a person with images in it; people are numbered in order of their names.

    `on_refused` hears why a picture is left out; a person without a usable one is left out too. Raises NotFoundError
    for a missing folder, ConfigError for one without people or with too many pictures.
    """
    root = Path(folder)
    if not root.is_dir():
        raise NotFoundError(f"there is no folder {shown_path(folder)}; check `source`")
    names: list[str] = []
    people: list[list[NDArray[np.uint8]]] = []
    num_images = 0
    for place in sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")):
        crops = _crops_of(place, pipeline, on_refused)
        num_images += len(crops)
        if num_images > MAX_SOURCE_IMAGES:
            raise ConfigError(f"{shown_path(folder)} holds more than {MAX_SOURCE_IMAGES} pictures; divide the source")
        if crops:
            names.append(place.name)
            people.append(crops)
    if not people:
        raise ConfigError(
            f"{shown_path(folder)} holds no usable faces: a source is a folder with one folder a person in it, "
            "named as you like, with that person's pictures"
        )
    labels = np.repeat(np.arange(len(people)), [len(crops) for crops in people])
    digest = hashlib.sha256("\n".join(names).encode(errors="surrogateescape")).hexdigest()
    return SourceFaces(digest, np.stack([crop for crops in people for crop in crops]), labels)


def _crops_of(folder: Path, pipeline: FacePipeline, on_refused: Callable[[str], None]) -> list[NDArray[np.uint8]]:
    try:
        files = iter_image_files(folder)
    except EmptyFolderError as error:
        on_refused(error.message)
        return []
    crops = []
    for file in files:
        try:
            crops.append(pipeline.acquire_file(file).crop)
        except (NoFaceError, MultipleFacesError, LowQualityError, ImageError, NotFoundError) as error:
            on_refused(error.message)
    return crops
