"""The faces that an experiment names, read where they lie: counted without opening an image, decoded when needed."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from device_sdk.faces import ChoiceRule, FacePipeline, decode_image
from device_sdk.faces.crops import fit_crops
from mien.errors import ConfigError, EmptyFolderError, InputError, NotFoundError
from mien.methods.base import Crops
from mien.shell.doing import counting
from mien.specs import FaceInputSpec
from simulation.faces import named
from simulation.faces.datasets import digest, find_people, people_of
from simulation.faces.partitions import Counts, Holding
from simulation.faces.recordio import RecordArchive
from simulation.faces.store import CropStore, is_store, read_manifest, taken

T = TypeVar("T")
KEEP_BYTES: Final = 4 << 30
"""Decoded crops that stay in memory; a larger cohort is decoded client by client, each round anew."""

MAX_IDENTITIES: Final = 10_000_000
MAX_IMAGES: Final = 100_000_000


@dataclass(frozen=True)
class FacesSource:
    """One data set: a `folder` of name/*.jpg, a record archive (`rec`, the path of train.rec), a `store` (the folder
    of mien-sim data import), one that is `named` (`simulation.faces.named`), or the `shipped` faces.

    Its people belong to `domain`, or, where that is empty, to what stands before the last underscore of their name.
    Clients whose people are not `labelled` do not know who is who (targets of domain adaptation; they need `domain`).
    `people`, a shell-style pattern, takes only those whose names match it, so that one data set may be several sources.
    `exclude` is a text file of identities, one a line, that are left out (people of a test set). `identities` and
    `images` are how many there should be: a dry run without the data draws lists of that size. `synthetic` says that
    these are nobody's faces, so that reports may map their embeddings; the shipped faces are.
    """

    kind: Literal["folder", "rec", "store", "named", "shipped"] = "folder"
    path: str = ""
    domain: str = ""
    labelled: bool = True
    exclude: str = ""
    identities: int = 0
    images: int = 0
    synthetic: bool = False
    people: str | None = None

    def __post_init__(self) -> None:
        if (self.kind == "shipped") == bool(self.path):
            raise ConfigError("faces.path names a folder or archive; the shipped faces have none")
        if self.kind == "named" and self.path == named.SHIPPED:
            raise ConfigError('the shipped faces are a kind of their own; write kind = "shipped" and leave path out')
        if not (self.labelled or self.domain):
            raise ConfigError("faces.labelled = false needs faces.domain, by which clients of these people are known")
        if not 0 <= self.identities <= max(self.images, 0):
            raise ConfigError("faces.images must be at least faces.identities; neither may be negative")
        if self.identities > MAX_IDENTITIES or self.images > MAX_IMAGES:
            raise ConfigError(
                f"faces.identities is {self.identities} and faces.images {self.images}; at most {MAX_IDENTITIES} "
                f"people and {MAX_IMAGES} images are divided here"
            )

    @property
    def is_nobody(self) -> bool:
        """True if these are faces of people who do not exist."""
        return self.synthetic or self.kind == "shipped"


RIGHT_THERE: Final = "."


def faces_root(faces: Path | None) -> Path:
    """Return where the paths of an experiment's faces start: `faces` if that is a folder, else MIEN_DATA, else here."""
    if faces is None or named.is_name(faces):
        return named.data_folder()
    if not faces.is_dir():
        raise NotFoundError(f"there is no folder {faces}; name the one in which the experiment's faces lie")
    return faces


def faces_named(faces: Path | None) -> dict[str, str]:
    """Return the table [[faces]] that --faces stands for: a data set's, by its name, or what lies right in a folder.

    That of a folder has the path `RIGHT_THERE`, from `faces_root`. Empty for None. Raises as
    `simulation.faces.named.find_here`.
    """
    if faces is None:
        return {}
    if not named.is_name(faces):
        return {"kind": "store" if is_store(faces) else "folder", "path": RIGHT_THERE}
    if str(faces) == named.SHIPPED:
        return {"kind": "shipped"}
    named.find_here(str(faces))
    return {"kind": "named", "path": str(faces)}


def place_of(source: FacesSource, root: Path) -> Path:
    """Return a source's path, taken from `root` unless it is absolute; of a named one as `named.find`."""
    return named.find(source.path, root) if source.kind == "named" else root / source.path


def kind_of(source: FacesSource, root: Path) -> str:
    """Return a source's kind; that of a named one is `store` or `folder`, by what lies there."""
    return source.kind if source.kind != "named" else "store" if is_store(place_of(source, root)) else "folder"


def is_there(source: FacesSource, root: Path) -> bool:
    """Return whether a source's data are on this machine."""
    return source.kind == "shipped" or (root / source.path).exists()


class Image(Protocol):
    """An encoded image, wherever it lies."""

    def read_bytes(self) -> bytes:
        """Return the image as it is encoded."""
        ...


@dataclass(frozen=True)
class ArchivedImage:
    """An image of a record archive, by its key."""

    archive: Path
    key: int

    def read_bytes(self) -> bytes:
        """Return the encoded image; raises as `RecordArchive.read`."""
        return _opened(self.archive).read(self.key).image


@dataclass(frozen=True)
class StoredImages:
    """One person's crops in a data set of `mien-sim data import`."""

    store: CropStore = field(repr=False)
    number: int

    def __len__(self) -> int:
        return int(self.store.starts[self.number + 1] - self.store.starts[self.number])

    def crops(self, images: Sequence[int]) -> Crops:
        """Return some of them (N, H, W, 3): a view of the mapped file where they stand together."""
        return taken(self.store.crops_of(self.number), images)


PersonImages = Sequence[Image] | StoredImages


@functools.lru_cache(maxsize=4)
def _opened(archive: Path) -> RecordArchive:
    return RecordArchive(archive)


def counts_of(source: FacesSource, root: Path) -> Counts:
    """Return identity -> number of images of a source, without its excluded identities."""
    return {name: len(images) for name, images in images_of(source, root).items()}


def images_of_all(sources: Sequence[FacesSource], root: Path) -> Mapping[str, PersonImages]:
    """Return identity -> images of several sources, the last one's where two name the same person."""
    return {name: images for source in sources for name, images in images_of(source, root).items()}


def images_of(source: FacesSource, root: Path) -> Mapping[str, PersonImages]:
    """Return identity -> images of a source; raises NotFoundError where its data or its exclusions are missing.

    Raises EmptyFolderError where nobody has a name as `people` asks, ConfigError where `synthetic` contradicts a data
    set's own word. People of an archive are named DOMAIN_KEY by the key of their record, or by the archive's name
    without a domain.
    """
    people: dict[str, PersonImages]
    _check_there(source, root)
    kind = kind_of(source, root)
    if kind == "rec":
        people = _archived(source, place_of(source, root))
    elif kind == "store":
        store = CropStore(place_of(source, root))
        people = {name: StoredImages(store, number) for number, name in enumerate(store.names())}
    else:
        found = people_of(None) if kind == "shipped" else find_people(place_of(source, root))
        people = {name: list[Image](files) for name, files in found.items()}
    if source.people is not None:
        matching = {name: images for name, images in people.items() if fnmatchcase(name, source.people)}
        if not matching:
            raise EmptyFolderError(
                f"faces.people is {source.people!r}, which is the name of none of the {len(people)} people of the "
                f"{source.path or source.kind} faces; give a pattern of their names, or leave it out"
            )
        people = matching
    if not source.exclude:
        return people
    listed = root / source.exclude
    try:
        excluded = set(listed.read_text(encoding="utf-8").split())
    except OSError as error:
        raise NotFoundError(f"{listed} cannot be read ({error.strerror}); it lists identities to leave out") from error
    return {name: images for name, images in people.items() if name not in excluded}


def data_sha256(sources: Sequence[FacesSource], root: Path) -> str:
    """Return one digest of all sources' faces: of the names and contents of files; of an archive its index and length;
    of a data set its own.

    Raises as `images_of`.
    """
    total = hashlib.sha256()
    for source in sources:
        _check_there(source, root)
        if source.kind == "rec":
            archive = place_of(source, root)
            _opened(archive)  # raises for an archive without its index
            total.update(archive.with_suffix(".idx").read_bytes() + str(archive.stat().st_size).encode())
        elif kind_of(source, root) == "store":
            total.update(read_manifest(place_of(source, root)).content_sha256.encode())
        else:
            found = images_of(source, root).items()
            files = {n: [p for p in each if isinstance(p, Path)] for n, each in found if isinstance(each, list)}
            total.update(digest(files).encode())
    return total.hexdigest()


def _check_there(source: FacesSource, root: Path) -> None:
    """Raise NotFoundError, which says where it was looked for, where a source's data are missing.

    Raises ConfigError for a data set of real people that the experiment calls synthetic: reports would map them.
    """
    if source.kind == "named":
        place_of(source, root)
    elif not is_there(source, root):
        raise NotFoundError(
            f"there is no {source.path} in {root.resolve()}: relative paths of an experiment's faces start at --faces, "
            "else at MIEN_DATA, else here; name that folder, or give an absolute path (--dry-run needs no faces)"
        )
    if source.synthetic and kind_of(source, root) == "store" and not read_manifest(place_of(source, root)).is_synthetic:
        raise ConfigError(
            f"faces.synthetic is true, and the data set {source.path} was imported as one of real people; leave "
            "synthetic out, or import the faces again with --synthetic if they are nobody's"
        )


def _archived(source: FacesSource, archive: Path) -> dict[str, PersonImages]:
    prefix = source.domain or archive.parent.name
    people: dict[str, PersonImages] = {}
    for key, images in _opened(archive).people():
        people[f"{prefix}_{key:08d}"] = list[Image]([ArchivedImage(archive, image) for image in images])
    return {name: images for name, images in people.items() if len(images)}


@dataclass
class Reader:
    """Decodes images of holdings; images that give no face are counted by their error's code, never silently lost.

    An image counts once, however often it is read.
    """

    images: Mapping[str, PersonImages] = field(repr=False)
    spec: FaceInputSpec
    _failed: dict[tuple[str, int], str] = field(default_factory=dict, repr=False)
    _pipelines: dict[bool, FacePipeline] = field(default_factory=dict, repr=False)

    @property
    def failures(self) -> Counter[str]:
        """How many images gave no face, by the code of the error."""
        return Counter(self._failed.values())

    def read(self, held: tuple[Holding, ...]) -> tuple[Crops, NDArray[np.int64]]:
        """Return crops (N, H, W, 3) and the number of each crop's holding; raises EmptyFolderError for no crop."""
        parts, labels = [], []
        for label, holding in enumerate(counting("Reading the faces of people", held)):
            crops = self._crops(holding)
            parts.append(crops)
            labels += [label] * len(crops)
        if not labels:
            raise EmptyFolderError(f"no image of {len(held)} people gives a face; use other images")
        return parts[0] if len(parts) == 1 else np.concatenate(parts), np.array(labels, np.int64)

    def _crops(self, holding: Holding) -> Crops:
        """Return one person's crops (N, H, W, 3); those of a data set are a view where nothing has to be cut."""
        images, numbers = self.images[holding.identity], holding.images
        if isinstance(images, StoredImages):
            return self._fitted(images.crops(numbers))
        pipeline, crops = self._pipeline(self._is_aligned(images[0])), []
        for number in numbers:
            try:
                crops.append(pipeline.acquire(decode_image(images[number].read_bytes())).crop)
            except InputError as error:
                self._failed[holding.identity, number] = error.code
        return np.stack(crops) if crops else np.empty((0, self.spec.height, self.spec.width, 3), np.uint8)

    def _fitted(self, crops: Crops) -> Crops:
        return crops if crops.shape[1:3] == (self.spec.height, self.spec.width) else fit_crops(crops, self.spec)

    def _pipeline(self, aligned: bool) -> FacePipeline:
        if aligned not in self._pipelines:
            self._pipelines[aligned] = FacePipeline(self.spec, None, ChoiceRule.CENTRE, aligned=aligned)
        return self._pipelines[aligned]

    def _is_aligned(self, image: Image) -> bool:
        try:
            return decode_image(image.read_bytes()).shape[:2] == (self.spec.height, self.spec.width)
        except (OSError, InputError):
            return False


def check_kept(what: str, people: Iterable[Holding], image_bytes: int, settings: str) -> None:
    """Raise ConfigError, which names the `settings` to lower, where the crops of `people` fill more than KEEP_BYTES."""
    num_images = sum(len(each.images) for each in people)
    if num_images * image_bytes > KEEP_BYTES:
        raise ConfigError(
            f"{what} in memory: {num_images} images take {num_images * image_bytes / 1e9:.1f} GB, and "
            f"{KEEP_BYTES / 1e9:.1f} are the most; lower {settings}"
        )


class ClientFaces:
    """Every client's crops and labels as two mappings that decode a client when it is asked for."""

    def __init__(self, reader: Reader, clients: Mapping[str, tuple[Holding, ...]], image_bytes: int) -> None:
        total = sum(len(h.images) for held in clients.values() for h in held) * image_bytes
        self._clients = clients
        self._read = functools.lru_cache(maxsize=None if total <= KEEP_BYTES else 1)(self._decode)
        self._reader = reader

    def read(self, client: str) -> tuple[Crops, NDArray[np.int64]]:
        """Return a client's crops (N, H, W, 3) and the number of each crop's holding.

        Raises EmptyFolderError where none of its images gives a face.
        """
        return self._read(client)

    @property
    def crops(self) -> Mapping[str, Crops]:
        """Client -> crops; `num_images` tells how many images a client has without decoding them."""
        return _LazyCrops(self._clients, lambda client: self._read(client)[0])

    def labels_of(self, clients: Sequence[str]) -> Mapping[str, NDArray[np.int64]]:
        """Return client -> the number of each crop's identity on that client, without gaps, of these clients."""
        return Lazy(dict.fromkeys(clients), self._labels)

    def _decode(self, client: str) -> tuple[Crops, NDArray[np.int64]]:
        crops, labels = self._reader.read(self._clients[client])
        crops.flags.writeable = False  # so that engines know them by the array, and hash them once
        return crops, labels

    def _labels(self, client: str) -> NDArray[np.int64]:
        return np.unique(self._read(client)[1], return_inverse=True)[1].astype(np.int64)


class Lazy(Mapping[str, T]):
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


class _LazyCrops(Lazy[Crops]):
    """Crops of clients, decoded when they are asked for."""

    def __init__(self, clients: Mapping[str, tuple[Holding, ...]], make: Callable[[str], Crops]) -> None:
        super().__init__(clients, make)
        self._clients = clients

    def num_images(self, client: str) -> int:
        """Return how many images a client has; of those that give no face there is no crop."""
        return sum(len(holding.images) for holding in self._clients[client])
