"""Folders of people as labelled crops, through the product's own face pipeline; nobody is dropped silently."""

from __future__ import annotations

import functools
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from device_sdk.faces import FacePipeline, iter_image_files
from mien.errors import ConfigError, EmptyFolderError, InputError, LateError, NotFoundError
from mien.methods.base import never_stop
from mien.shell.doing import counting
from simulation.synthetic import SPLITS, committed_faces

People = Mapping[str, list[Path]]
MIN_IMAGES: Final = 4
"""Images that a person of a study's folder has at least."""


@dataclass(frozen=True)
class Failure:
    """An image that gave no crop, what it was called, and the stable code of why."""

    name: str
    code: str


@dataclass(frozen=True)
class LabelledCrops:
    """Aligned crops (N, H, W, 3) uint8 RGB with labels (N,), and the images that failed to be acquired."""

    crops: NDArray[np.uint8] = field(repr=False)
    labels: NDArray[np.int64] = field(repr=False)
    names: tuple[str, ...] = field(repr=False)
    failures: tuple[Failure, ...] = ()

    def of(self, name: str) -> NDArray[np.uint8]:
        """Return one person's crops."""
        chosen: NDArray[np.uint8] = self.crops[self.labels == self.names.index(name)]
        return chosen


def find_people(folder: Path, *, min_images: int = 1) -> dict[str, list[Path]]:
    """Return name -> image files of `folder`/name/*.jpg, sorted; people with too few images are left out.

    Hidden folders and files are left out, links are followed. Raises NotFoundError if there is no such folder or it
    cannot be read, EmptyFolderError if nobody is left, ConfigError if a link shows one person under two names.
    """
    if not folder.is_dir():
        raise NotFoundError(f"there is no folder {folder}; name one that holds a folder of images per person")
    people, folder_of = {}, dict[Path, str]()
    try:
        for child in sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")):
            files = _image_files(child)
            if len(files) < max(1, min_images):
                continue
            # The same person twice would be scored as two people and could land on both sides of a split.
            if (other := folder_of.setdefault(child.resolve(), child.name)) != child.name:
                raise ConfigError(f"{folder}: {other} and {child.name} are one folder; remove the link")
            people[child.name] = files
    except OSError as error:
        raise NotFoundError(f"{folder} cannot be read ({error.strerror}); check its permissions") from error
    if not people:
        raise EmptyFolderError(
            f"{folder} holds nobody with at least {min_images} images; it must hold one folder of images per person"
        )
    return people


def people_of(faces: Path | None) -> People:
    """Return everybody in the folder, or all people of the shipped synthetic faces."""
    if faces is not None:
        return find_people(faces, min_images=MIN_IMAGES)
    return {name: files for split in SPLITS for name, files in committed_faces(split).items()}


@functools.cache
def dataset_of(faces: Path | None) -> str:
    """Return the digest of everybody's files, which names the data set in a study's records."""
    return digest(people_of(faces))


def _image_files(folder: Path) -> list[Path]:
    try:
        return list(iter_image_files(folder))
    except EmptyFolderError:
        return []


def read_people(people: People, pipeline: FacePipeline, should_stop: Callable[[], bool] = never_stop) -> LabelledCrops:
    """Return everybody's crops; images without a usable face are listed as failures, never dropped silently.

    Raises EmptyFolderError if no image at all gives a crop, LateError when `should_stop`, which is asked before every
    image, says so.
    """
    crops, labels, failures = [], [], []
    pictures = [(label, path) for label, files in enumerate(people.values()) for path in files]
    for label, path in counting("Reading the faces", pictures):
        if should_stop():
            raise LateError("the pictures are not wanted any more")
        try:
            crops.append(pipeline.acquire_file(path).crop)
            labels.append(label)
        except InputError as error:
            failures.append(Failure(f"{path.parent.name}/{path.name}", error.code))
    if not crops:
        reasons = ", ".join(f"{code} ({count})" for code, count in Counter(f.code for f in failures).most_common())
        raise EmptyFolderError(f"no image of these {len(people)} people gives a face: {reasons}; use other images")
    return LabelledCrops(np.stack(crops), np.array(labels, np.int64), tuple(people), tuple(failures))


def digest(people: People) -> str:
    """Return a hex digest over the names and contents of everybody's files: the data set's identity in records.

    Raises NotFoundError for a file that cannot be read (any more).
    """
    total = hashlib.sha256()
    for name, path in _files(people):
        try:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").digest()
        except OSError as error:
            raise NotFoundError(f"{name}/{path.name} cannot be read ({error.strerror}); the set has changed") from error
        total.update(os.fsencode(f"{name}/{path.name}") + b"\0" + content)
    return total.hexdigest()


def split_people(people: People, counts: Iterable[int], seed: int) -> list[dict[str, list[Path]]]:
    """Return disjoint groups of people, drawn by `seed`; raises EmptyFolderError if one of them would lack people.

    A count of -1 takes everybody who is left and may stand last only.
    """
    names = sorted(people)
    np.random.default_rng(seed).shuffle(names)
    groups, position = [], 0
    for count in counts:
        stop = len(names) if count == -1 else position + count
        if not position < stop <= len(names):
            raise EmptyFolderError(f"the folder holds {len(names)} usable people, which is too few for this split")
        groups.append({name: people[name] for name in sorted(names[position:stop])})
        position = stop
    return groups


def _files(people: People) -> Iterator[tuple[str, Path]]:
    return ((name, path) for name, files in sorted(people.items()) for path in files)
