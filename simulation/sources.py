"""The faces that an experiment names, read where they lie: counted without opening an image, decoded when needed."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from device_sdk.faces import ChoiceRule, FacePipeline, decode_image
from mien.errors import EmptyFolderError, InputError, NotFoundError
from mien.methods.base import Crops
from mien.specs import FaceInputSpec
from simulation.datasets import People, find_people
from simulation.experiment import FacesSource
from simulation.partitions import Counts, Holding
from simulation.workbench import people_of

T = TypeVar("T")
KEEP_BYTES: Final = 4 << 30
"""Decoded crops that stay in memory; a larger cohort is decoded client by client, each round anew."""


def place_of(source: FacesSource, root: Path) -> Path:
    """Return where a source lies: its path, taken from `root` unless it is absolute."""
    return root / source.path


def is_there(source: FacesSource, root: Path) -> bool:
    """Return whether a source's data are on this machine."""
    return source.kind == "shipped" or place_of(source, root).exists()


def counts_of(source: FacesSource, root: Path) -> Counts:
    """Return identity -> number of images of a source, without its excluded identities."""
    return {name: len(files) for name, files in files_of(source, root).items()}


def files_of(source: FacesSource, root: Path) -> People:
    """Return identity -> image files of a source; raises NotFoundError where its data or its exclusions are missing."""
    people = people_of(None) if source.kind == "shipped" else find_people(place_of(source, root))
    if not source.exclude:
        return people
    listed = root / source.exclude
    try:
        excluded = set(listed.read_text(encoding="utf-8").split())
    except OSError as error:
        raise NotFoundError(f"{listed} cannot be read ({error.strerror}); it lists identities to leave out") from error
    return {name: files for name, files in people.items() if name not in excluded}


@dataclass
class Reader:
    """Decodes images of holdings; images that give no face are counted by their error's code, never silently lost."""

    files: People = field(repr=False)
    spec: FaceInputSpec
    failures: Counter[str] = field(default_factory=Counter)
    _pipelines: dict[bool, FacePipeline] = field(default_factory=dict, repr=False)

    def read(self, held: tuple[Holding, ...]) -> tuple[Crops, NDArray[np.int64]]:
        """Return crops (N, H, W, 3) and the number of each crop's holding; raises EmptyFolderError for no crop."""
        crops, labels = [], []
        for label, holding in enumerate(held):
            files = self.files[holding.identity]
            pipeline = self._pipeline(self._is_aligned(files[0]))
            for image in holding.images:
                try:
                    crops.append(pipeline.acquire_file(files[image]).crop)
                    labels.append(label)
                except InputError as error:
                    self.failures[error.code] += 1
        if not crops:
            raise EmptyFolderError(f"no image of {len(held)} people gives a face; use other images")
        return np.stack(crops), np.array(labels, np.int64)

    def _pipeline(self, aligned: bool) -> FacePipeline:
        if aligned not in self._pipelines:
            self._pipelines[aligned] = FacePipeline(self.spec, None, ChoiceRule.CENTRE, aligned=aligned)
        return self._pipelines[aligned]

    def _is_aligned(self, path: Path) -> bool:
        try:
            return decode_image(path.read_bytes()).shape[:2] == (self.spec.height, self.spec.width)
        except (OSError, InputError):
            return False


class ClientFaces:
    """Every client's crops and labels as two mappings that decode a client when it is asked for."""

    def __init__(self, reader: Reader, clients: Mapping[str, tuple[Holding, ...]], image_bytes: int) -> None:
        total = sum(len(h.images) for held in clients.values() for h in held) * image_bytes
        self._clients = clients
        self._read = functools.lru_cache(maxsize=None if total <= KEEP_BYTES else 1)(self._decode)
        self._reader = reader

    @property
    def crops(self) -> Mapping[str, Crops]:
        """Client -> crops."""
        return _Lazy(self._clients, lambda client: self._read(client)[0])

    @property
    def labels(self) -> Mapping[str, NDArray[np.int64]]:
        """Client -> the number of each crop's identity on that client."""
        return _Lazy(self._clients, lambda client: self._read(client)[1])

    def _decode(self, client: str) -> tuple[Crops, NDArray[np.int64]]:
        crops, labels = self._reader.read(self._clients[client])
        return crops, np.unique(labels, return_inverse=True)[1].astype(np.int64)


class _Lazy(Mapping[str, T]):
    """A mapping whose values are made when they are asked for."""

    def __init__(self, keys: Mapping[str, object], make: Callable[[str], T]) -> None:
        self._keys = keys
        self._make = make

    def __getitem__(self, key: str) -> T:
        if key not in self._keys:
            raise KeyError(key)
        return self._make(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)
