"""Data sets of aligned crops in one memory-mapped file, with an index of whose they are and hashes of all of it.

::

    store.json     what it is: format, size of a crop, counts, terms, origin, and the hash of everything below
    crops.u8       all crops, (images, height, width, 3) uint8 RGB, one identity after another
    index.u64      where each identity's crops and name begin, and where each crop's file name does
    names.txt      identities in order, UTF-8, sorted by their bytes
    files.txt      what each crop was called where it came from
    failures.txt   images that gave no crop: error code, tab, identity/file

Crops of real people lie here in clear, as they do in the data sets that researchers get: files are their owner's alone
(mode 0600), and a store of real faces is never written into a git work tree. Phones keep theirs encrypted.

Of an open store only what is looked at is ever read, by as many processes as like.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mien.errors import ConfigError, CorruptDataError, NotFoundError, UnreachableError, VersionError
from mien.methods.base import Crops
from mien.protocol.canonical import parse_json, to_canonical_json
from mien.records import from_mapping, to_mapping
from mien.shell.doing import counting
from mien.shell.files import read_limited
from simulation.engines.population import Population, Table
from simulation.faces.datasets import Failure

FORMAT: Final = 1
MANIFEST: Final = "store.json"
CROPS: Final = "crops.u8"
INDEX: Final = "index.u64"
NAMES: Final = "names.txt"
FILES: Final = "files.txt"
FAILURES: Final = "failures.txt"
SHARD_BYTES: Final = 64 * 2**20
"""Of so many bytes of crops each has a hash of its own."""
MAX_MANIFEST_BYTES: Final = 16 * 2**20
MAX_IMAGES: Final = 2**32
MAX_SIDE: Final = 4096
_HEX: Final = re.compile(r"[0-9a-f]{64}")
AGAIN: Final = "import the data set again, or fetch another copy of it"
_READ: Final = 4 * 2**20


@dataclass(frozen=True)
class HashedFile:
    """A file's length and SHA-256."""

    size_bytes: int
    sha256: str

    def __post_init__(self) -> None:
        if self.size_bytes < 0 or not _HEX.fullmatch(self.sha256):
            raise ConfigError("a file has a length and a SHA-256 in lower-case hex")


@dataclass(frozen=True)
class StoreManifest:
    """Manifest of a store. `crops` are the hashes of `SHARD_BYTES` each of the crops, `files` those of the other files.

    `origin` says where the faces come from, `licence` under which terms, `is_synthetic` that they are nobody's.
    """

    height: int
    width: int
    images: int
    identities: int
    failures: int
    licence: str
    origin: str
    is_synthetic: bool
    crops: tuple[str, ...]
    files: Mapping[str, Any]
    software: str = ""
    format: int = FORMAT

    def __post_init__(self) -> None:
        if not (1 <= self.height <= MAX_SIDE and 1 <= self.width <= MAX_SIDE):
            raise ConfigError(f"crops of {self.width}x{self.height} are not possible")
        if not 1 <= self.identities <= self.images <= MAX_IMAGES or self.failures < 0:
            raise ConfigError(f"{self.images} crops of {self.identities} identities are not possible")
        if len(self.crops) != -(-self.crops_bytes // SHARD_BYTES) or not all(map(_HEX.fullmatch, self.crops)):
            raise ConfigError("crops need a SHA-256 for each shard of them")
        if set(self.files) != {INDEX, NAMES, FILES, FAILURES}:
            raise ConfigError(f"files are {sorted(self.files)}; they must be the store's own")

    @property
    def crops_bytes(self) -> int:
        """Length of all crops."""
        return self.images * self.height * self.width * 3

    def file(self, name: str) -> HashedFile:
        """Return what is known of a file beside the crops; raises ConfigError for another form."""
        value = self.files[name]
        if not isinstance(value, Mapping):
            raise ConfigError(f"files.{name} is {value!r}; it has a length and a hash")
        return from_mapping(HashedFile, value, where=f"files.{name}.")

    @property
    def content_sha256(self) -> str:
        """The data set's identity: a digest of the crops, whose they are and what they are called; not of its terms."""
        content = {
            "format": self.format,
            "shape": [self.images, self.height, self.width, 3],
            "crops": list(self.crops),
            "files": {name: self.file(name).sha256 for name in (INDEX, NAMES, FILES)},
        }
        return hashlib.sha256(to_canonical_json(content)).hexdigest()

    def to_json(self) -> bytes:
        """Return the file's content."""
        return to_canonical_json(to_mapping(self))


def is_store(folder: Path) -> bool:
    """Return whether a folder is one of `mien-sim data import`."""
    return (folder / MANIFEST).is_file()


def read_manifest(folder: Path) -> StoreManifest:
    """Return the manifest of the store in a folder.

    Raises NotFoundError where there is none, VersionError for a later format, CorruptDataError for a damaged file.
    """
    if not is_store(folder):
        raise NotFoundError(f"{folder} holds no data set; make one with mien-sim data import")
    data = parse_json(read_limited(folder / MANIFEST, MAX_MANIFEST_BYTES, what=MANIFEST), what=MANIFEST)
    if not isinstance(data, dict):
        raise CorruptDataError(f"{MANIFEST} is no manifest; import the data set again")
    if data.get("format") != FORMAT:
        raise VersionError(f"{MANIFEST} is of format {data.get('format')!r}, this program knows {FORMAT}; upgrade mien")
    try:
        manifest = from_mapping(StoreManifest, data)
        for name in manifest.files:
            manifest.file(name)
    except ConfigError as error:
        raise CorruptDataError(f"{MANIFEST} is damaged ({error.message}); import the data set again") from error
    return manifest


class CropStore:
    """A data set in a folder. Opening checks sizes and the index; `verify` checks every byte.

    Nothing is copied: crops are read-only views of the mapped file, which processes share. A file that is cut off while
    it is open is noticed before its crops are handed out.
    """

    def __init__(self, folder: Path) -> None:
        """Open a store; raises NotFoundError, VersionError, or CorruptDataError for files of other sizes or forms."""
        self.folder = folder
        self.manifest: StoreManifest = read_manifest(folder)
        made = self.manifest
        for name in made.files:
            _check_size(folder / name, made.file(name).size_bytes)
        identities = made.identities + 1
        _check_size(folder / INDEX, 8 * (2 * identities + made.images + 1))
        index = _mapped(folder / INDEX).view("<u8")
        self.starts: NDArray[np.int64] = index[:identities].astype(np.int64)
        """First crop of each identity, and the number of all crops: (identities + 1,)."""
        self._name_starts = index[identities : 2 * identities].astype(np.int64)
        self._file_starts = index[2 * identities :]
        self._names = _mapped(folder / NAMES)
        self._files = _mapped(folder / FILES)
        _check_starts(self.starts, made.images, least=1)
        _check_starts(self._name_starts, len(self._names), least=2)
        self._crops_path = folder / CROPS
        _check_size(self._crops_path, made.crops_bytes)
        shape = (made.images, made.height, made.width, 3)
        self._crops = _mapped(self._crops_path).reshape(shape)
        self._handle = os.open(self._crops_path, os.O_RDONLY)

    def __repr__(self) -> str:
        return f"CropStore({self.manifest.images} crops of {self.manifest.identities} identities)"

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            os.close(self._handle)

    def __reduce__(self) -> tuple[type[CropStore], tuple[Path]]:
        """Let another process open the same files instead of receiving them."""
        return CropStore, (self.folder,)

    def __len__(self) -> int:
        return self.manifest.identities

    # --- crops ---

    @property
    def crops(self) -> Crops:
        """All crops (N, H, W, 3), one identity after another, as a read-only view."""
        self._check_whole()
        return self._crops

    def crops_of(self, number: int) -> Crops:
        """Return the crops of identity `number`, a view in constant time."""
        self._check_whole()
        return self._crops[self.starts[number] : self.starts[number + 1]]

    @property
    def labels(self) -> NDArray[np.int64]:
        """The number of each crop's identity (N,)."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    def population(self) -> Population:
        """Return one phone an identity, numbered in the store's order."""
        return Table(self.starts).population(self.crops)

    # --- whose they are ---

    def name(self, number: int) -> str:
        """Return the name of identity `number`."""
        return self._name(number).decode("utf-8", "surrogateescape")

    def number(self, name: str) -> int:
        """Return the number of an identity, found by halving; raises NotFoundError."""
        wanted, low, high = name.encode("utf-8", "surrogateescape"), 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self._name(middle) < wanted:
                low = middle + 1
            else:
                high = middle
        if low == len(self) or self._name(low) != wanted:
            raise NotFoundError(f"{name!r} is nobody of this data set; mien-sim data info lists how many there are")
        return low

    def names(self) -> Iterator[str]:
        """Yield all identities in order."""
        return (self.name(number) for number in range(len(self)))

    def file(self, image: int) -> str:
        """Return the name of crop `image` where it came from."""
        first, end = (int(at) for at in self._file_starts[image : image + 2])
        if not 0 <= first < end <= len(self._files):
            raise CorruptDataError(f"{INDEX} points beyond {FILES}; {AGAIN}")
        return bytes(self._files[first : end - 1]).decode("utf-8", "replace")

    def failures(self) -> Iterator[Failure]:
        """Yield the images that gave no crop."""
        with (self.folder / FAILURES).open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                code, _, name = line.rstrip("\n").partition("\t")
                yield Failure(name, code)

    def _name(self, number: int) -> bytes:
        first, end = self._name_starts[number : number + 2]
        return bytes(self._names[first : end - 1])

    # --- whether it is what it says ---

    def verify(self) -> None:
        """Read everything and return if it is what its hashes say, in order, and all there; raises CorruptDataError."""
        made = self.manifest
        for number, expected in enumerate(counting("Checking the crops", made.crops)):
            flat = self._flat()[number * SHARD_BYTES : (number + 1) * SHARD_BYTES]
            if _hashed(flat) != expected:
                raise CorruptDataError(f"{CROPS}, shard {number} of {len(made.crops)}, was changed; {AGAIN}")
        for name in made.files:
            if hashlib.sha256((self.folder / name).read_bytes()).hexdigest() != made.file(name).sha256:
                raise CorruptDataError(f"{name} was changed; {AGAIN}")
        last = b""
        for number in range(len(self)):
            if (name_ := self._name(number)) <= last:
                raise CorruptDataError(f"{NAMES} is not in order; {AGAIN}")
            last = name_
        if sum(1 for _ in self.failures()) != made.failures:
            raise CorruptDataError(f"{FAILURES} does not list {made.failures} images; {AGAIN}")

    def _flat(self) -> NDArray[np.uint8]:
        self._check_whole()
        return self._crops.reshape(-1)

    def _check_whole(self) -> None:
        """Raise UnreachableError where the file was cut off since it was opened: reading it would end the process."""
        if os.fstat(self._handle).st_size != self.manifest.crops_bytes:
            raise UnreachableError(f"{CROPS} was changed while it was in use; {AGAIN}")


class StoreCrops(Mapping[str, Crops]):
    """Identity -> crops, views of the mapped file."""

    def __init__(self, store: CropStore) -> None:
        self._store = store

    def __getitem__(self, name: str) -> Crops:
        try:
            return self._store.crops_of(self._store.number(name))
        except NotFoundError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return self._store.names()

    def __len__(self) -> int:
        return len(self._store)

    def num_images(self, name: str) -> int:
        """Return how many crops an identity has, without reading them; raises NotFoundError."""
        number = self._store.number(name)
        return int(self._store.starts[number + 1] - self._store.starts[number])


def taken(crops: Crops, images: Sequence[int]) -> Crops:
    """Return some crops of one identity: a view where they stand together, else a copy."""
    first = images[0]
    if images == range(first, first + len(images)) or list(images) == list(range(first, first + len(images))):
        return crops[first : first + len(images)]
    return crops[list(images)]


def _check_size(path: Path, size: int) -> None:
    if not path.is_file():
        raise CorruptDataError(f"{path.name} is missing; {AGAIN}")
    if (found := path.stat().st_size) != size:
        raise CorruptDataError(f"{path.name} has {found} bytes for {size}; {AGAIN}")


def _check_starts(starts: NDArray[np.int64], end: int, *, least: int) -> None:
    """Raise CorruptDataError unless the numbers begin at 0, end at `end` and grow by at least `least`."""
    if starts[0] != 0 or starts[-1] != end or (np.diff(starts) < least).any():
        raise CorruptDataError(f"{INDEX} is damaged; {AGAIN}")


def _mapped(path: Path) -> NDArray[np.uint8]:
    """Return a file's bytes, mapped; an empty file cannot be mapped and is an empty array."""
    if path.stat().st_size == 0:
        return np.empty(0, np.uint8)
    return np.memmap(path, np.uint8, mode="r").view(np.ndarray)


def _hashed(flat: NDArray[np.uint8]) -> str:
    digest = hashlib.sha256()
    for start in range(0, len(flat), _READ):
        digest.update(flat[start : start + _READ].data)
    return digest.hexdigest()
