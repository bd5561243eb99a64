"""Folders of people as labelled crops, through the product's own face pipeline; nobody is dropped silently."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from device_sdk.faces import FacePipeline, iter_image_files
from mien.errors import EmptyFolderError, InputError, NotFoundError

People = Mapping[str, list[Path]]


@dataclass(frozen=True)
class Failure:
    """An image that gave no crop, and the stable code of why."""

    file: str
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

    Raises NotFoundError if there is no such folder, EmptyFolderError if nobody is left.
    """
    if not folder.is_dir():
        raise NotFoundError(f"there is no folder {folder}; name one that holds a folder of images per person")
    people = {}
    for child in sorted(p for p in folder.iterdir() if p.is_dir()):
        try:
            files = list(iter_image_files(child))
        except EmptyFolderError:
            continue
        if len(files) >= min_images:
            people[child.name] = files
    if not people:
        raise EmptyFolderError(
            f"{folder} holds nobody with at least {min_images} images; it must hold one folder of images per person"
        )
    return people


def read_people(people: People, pipeline: FacePipeline) -> LabelledCrops:
    """Return everybody's crops; images without a usable face are listed as failures, never dropped silently.

    Raises EmptyFolderError if no image at all gives a crop.
    """
    crops, labels, failures = [], [], []
    for label, (_, files) in enumerate(people.items()):
        for path in files:
            try:
                crops.append(pipeline.acquire_file(path).crop)
                labels.append(label)
            except InputError as error:
                failures.append(Failure(f"{path.parent.name}/{path.name}", error.code))
    if not crops:
        raise EmptyFolderError("no image of these people gives a usable face; see the quality hints of `mien-device`")
    return LabelledCrops(np.stack(crops), np.array(labels, np.int64), tuple(people), tuple(failures))


def digest(people: People) -> str:
    """Return a hex digest over the names and contents of everybody's files: the data set's identity in records."""
    total = hashlib.sha256()
    for name, path in _files(people):
        total.update(f"{name}/{path.name}".encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def split_people(people: People, counts: Iterable[int], seed: int) -> list[dict[str, list[Path]]]:
    """Return disjoint groups of people, drawn by `seed`; raises EmptyFolderError if there are too few.

    A count of -1 takes everybody who is left and may stand last only.
    """
    names = sorted(people)
    np.random.default_rng(seed).shuffle(names)
    groups, position = [], 0
    for count in counts:
        stop = len(names) if count < 0 else position + count
        if stop > len(names) or stop == position:
            raise EmptyFolderError(f"the folder holds {len(names)} usable people, which is too few for this split")
        groups.append({name: people[name] for name in sorted(names[position:stop])})
        position = stop
    return groups


def _files(people: People) -> Iterator[tuple[str, Path]]:
    return ((name, path) for name, files in sorted(people.items()) for path in files)
