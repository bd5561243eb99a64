"""Writing a data set, identity by identity, so that a kill at any instant loses no more than the last few of them.

Crops are appended to one file. An identity counts once its line is in the journal, which is written after its crops are
on the disk: going on cuts off what comes behind the last whole line's crops.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, KeysView
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from mien.errors import AlreadyExistsError, ConfigError, CorruptDataError, EmptyFolderError
from mien.methods.base import Crops
from mien.protocol.canonical import to_canonical_json
from mien.records import to_mapping
from mien.shell.files import make_folder, read_limited, storage_errors, sync_folder, write_atomically
from mien.shell.lock import exclusive
from simulation.faces.store import (
    CROPS,
    FAILURES,
    FILES,
    INDEX,
    MANIFEST,
    NAMES,
    SHARD_BYTES,
    HashedFile,
    StoreManifest,
)

JOURNAL: Final = "import.jsonl"
PLAN: Final = "import.json"
PART: Final = "crops.part"
LOCK: Final = "import.lock"
_MAKING: Final = ".crops.making"
_HALF_WRITTEN: Final = tuple(f".{name}." for name in (PLAN, INDEX, NAMES, FILES, FAILURES, MANIFEST))
MAX_JOURNAL_BYTES: Final = 8 * 2**30
SYNC_BYTES: Final = 32 * 2**20
"""So much is at most lost by a kill, and done again."""


@dataclass(frozen=True)
class Imported:
    """One identity's crops (N, H, W, 3), what each was called, and the images that gave none, with a stable code."""

    name: str
    crops: Crops = field(repr=False)
    files: tuple[str, ...]
    failures: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class StoreTerms:
    """A store's own terms, beside its content."""

    licence: str
    origin: str
    is_synthetic: bool = False

    def __post_init__(self) -> None:
        for option, text in (("licence", self.licence), ("origin", self.origin)):
            if not text.strip():
                raise ConfigError(f"--{option} is empty; say under which terms and from where these faces come")


@dataclass(frozen=True)
class _Line:
    """An identity as the journal has it."""

    name: str
    images: int
    files: tuple[str, ...]
    failures: tuple[tuple[str, str], ...]


class StoreWriter:
    """A data set that is being written in a folder; begun anew, or gone on with where it was stopped.

    `plan` is what it is made of (source and options): going on with another one is refused. Identities may come in any
    order, each once. One writer at a time holds a folder; the kernel lets it go with the process.
    """

    def __init__(self, folder: Path, terms: StoreTerms, *, height: int, width: int, plan: dict[str, Any]) -> None:
        """Raise AlreadyExistsError for a folder with something else in it or with another import at work in it.

        ConfigError says where faces must not lie.
        """
        _check_place(folder, terms)
        make_folder(folder)
        self._folder, self._terms, self._height, self._width = folder, terms, height, width
        packed = to_canonical_json({**plan, **to_mapping(terms), "height": height, "width": width})
        self._check_free(packed)  # before the lock, which would be a new file in somebody else's folder
        self._lines: dict[str, _Line] = {}
        self._num_images = self._num_failures = self._journal_bytes = 0
        with ExitStack() as opened:
            opened.enter_context(exclusive(folder / LOCK, program="import", option="folder with --to"))
            self._begin(packed)
            self._read_journal()
            self._check_part()
            self._crops: BinaryIO = opened.enter_context(_private(folder / PART))
            self._journal: BinaryIO = opened.enter_context(_private(folder / JOURNAL))
            self._cut()
            self._opened = opened.pop_all()
        self._unsynced: list[_Line] = []
        self._unsynced_bytes = 0

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def done(self) -> KeysView[str]:
        """Identities that are written, as a view: millions of them are asked for one by one."""
        return self._lines.keys()

    @property
    def num_images(self) -> int:
        """Crops that are written."""
        return self._num_images

    @property
    def num_failures(self) -> int:
        """Images that gave no crop."""
        return self._num_failures

    def add(self, imported: Imported) -> None:
        """Append an identity; raises ConfigError for crops of another size or a name that was there."""
        crops = imported.crops
        if imported.name in self._lines or not imported.name:
            raise ConfigError(f"identity {imported.name!r} comes twice or has no name; rename one of its folders")
        if len(crops) != len(imported.files):
            raise ConfigError("every crop needs the name of its file")
        if len(crops) and (crops.shape[1:] != (self._height, self._width, 3) or crops.dtype != np.uint8):
            raise ConfigError(f"crops are {crops.shape[1:]} {crops.dtype}; this set's are {self._width}x{self._height}")
        line = _Line(imported.name, len(crops), imported.files, imported.failures)
        with storage_errors(CROPS):
            self._crops.write(np.ascontiguousarray(crops).data)
        self._count(line)
        self._unsynced.append(line)
        self._unsynced_bytes += crops.nbytes
        if self._unsynced_bytes >= SYNC_BYTES:
            self.sync()

    def sync(self) -> None:
        """Make what was added survive a kill."""
        with storage_errors(CROPS):
            _flush(self._crops)
            for line in self._unsynced:
                self._journal.write(_packed(line))
            _flush(self._journal)
        self._unsynced, self._unsynced_bytes = [], 0

    def finish(self, software: str, tell: Callable[[str], None] = lambda _text: None) -> StoreManifest:
        """Put identities in order, hash everything, and write the manifest last: with it the data set is there.

        Raises EmptyFolderError where no image gave a crop.
        """
        self.sync()
        order = sorted((line for line in self._lines.values() if line.images), key=lambda line: _encoded(line.name))
        if not order:
            raise EmptyFolderError("no image gives a face; use other images, or say --aligned where they are crops")
        tell("putting identities in order")
        self._sorted_crops(order)
        files = {
            INDEX: _index(order),
            NAMES: _texts(line.name for line in order),
            FILES: _texts(name for line in order for name in line.files),
            FAILURES: _failures(self._lines.values()),
        }
        for name, data in files.items():
            write_atomically(self._folder / name, data, private=True)
        tell("hashing")
        manifest = StoreManifest(
            height=self._height,
            width=self._width,
            images=sum(line.images for line in order),
            identities=len(order),
            failures=self.num_failures,
            licence=self._terms.licence,
            origin=self._terms.origin,
            is_synthetic=self._terms.is_synthetic,
            crops=tuple(_shards(self._folder / CROPS)),
            files={
                name: to_mapping(HashedFile(len(data), hashlib.sha256(data).hexdigest()))
                for name, data in files.items()
            },
            software=software,
        )
        write_atomically(self._folder / MANIFEST, manifest.to_json(), private=True)
        self._tidy()
        return manifest

    # --- inside ---

    def _begin(self, plan: bytes) -> None:
        """Begin, or go on with the same plan, without what a kill left of files that were being written."""
        if (self._folder / MANIFEST).exists():
            self._tidy()
        self._check_free(plan)  # again: another import may have begun or ended since
        self._remove_half_written()
        if not (self._folder / PLAN).exists():
            write_atomically(self._folder / PLAN, plan, private=True)

    def _check_free(self, plan: bytes) -> None:
        """Raise AlreadyExistsError unless the folder is empty or holds the beginning of this very import."""
        if (self._folder / MANIFEST).exists() and not (self._folder / PLAN).exists():
            raise AlreadyExistsError(f"{self._folder} holds a data set already; name a new folder with --to")
        kept = self._folder / PLAN
        if kept.exists():
            if read_limited(kept, len(plan) + 2**20, what=PLAN) != plan:
                raise AlreadyExistsError(
                    f"{self._folder} holds the beginning of another import, or of this one before files of its source "
                    "were changed; begin anew in a new folder with --to, or go on with the same source and options"
                )
        elif any(path.name != LOCK and not _half_written(path.name) for path in self._folder.iterdir()):
            raise AlreadyExistsError(f"{self._folder} is not empty; name a new folder with --to")

    def _tidy(self) -> None:
        """Remove what only an import needs, the plan last: a kill here is made good as long as it lies there."""
        self._remove_half_written()
        for name in (PART, JOURNAL, PLAN, LOCK):
            (self._folder / name).unlink(missing_ok=True)

    def _remove_half_written(self) -> None:
        for path in self._folder.iterdir():
            if _half_written(path.name):
                path.unlink()

    def _read_journal(self) -> None:
        """Take over the identities whose whole lines are in the journal; a torn last line does not count."""
        path = self._folder / JOURNAL
        if not path.exists():
            return
        for text in read_limited(path, MAX_JOURNAL_BYTES, what=JOURNAL).splitlines(keepends=True):
            if not text.endswith(b"\n"):
                return
            line = _unpacked(text)
            if line.name in self._lines:
                raise CorruptDataError(f"{JOURNAL} names an identity twice; import into a new folder")
            self._count(line)
            self._journal_bytes += len(text)

    def _count(self, line: _Line) -> None:
        self._lines[line.name] = line
        self._num_images += line.images
        self._num_failures += len(line.failures)

    def _check_part(self) -> None:
        part = self._folder / PART
        if (part.stat().st_size if part.exists() else 0) < self._counted_bytes:
            raise CorruptDataError(f"{PART} is shorter than its journal says; import into a new folder")

    @property
    def _counted_bytes(self) -> int:
        """Crops of the identities in the journal."""
        return self.num_images * self._image_bytes

    def _cut(self) -> None:
        """Cut both files to what counts."""
        for file, length in ((self._crops, self._counted_bytes), (self._journal, self._journal_bytes)):
            file.truncate(length)
            file.seek(length)

    @property
    def _image_bytes(self) -> int:
        return self._height * self._width * 3

    def _sorted_crops(self, order: list[_Line]) -> None:
        """Write the crops in the order of their identities; where they came in it, the file is only renamed."""
        written = [line for line in self._lines.values() if line.images]
        part, making = self._folder / PART, self._folder / _MAKING
        making.unlink(missing_ok=True)  # of an import that was stopped here; it may be the very file that is read
        if written == order:
            os.link(part, making)
        else:
            self._copy_crops(written, order, making)
        making.replace(self._folder / CROPS)
        making.unlink(missing_ok=True)  # POSIX renames nothing where both names are one file
        sync_folder(self._folder)

    def _copy_crops(self, written: list[_Line], order: list[_Line], target: Path) -> None:
        places, at = dict[str, int](), 0
        for line in written:
            places[line.name] = at
            at += line.images * self._image_bytes
        with (self._folder / PART).open("rb") as source, _private(target) as out, storage_errors(CROPS):
            for line in order:
                source.seek(places[line.name])
                out.write(source.read(line.images * self._image_bytes))
            _flush(out)


def _check_place(folder: Path, terms: StoreTerms) -> None:
    """Raise ConfigError where real faces would come into a git work tree, from where they are easily published."""
    if terms.is_synthetic:
        return
    place = folder.resolve()
    for above in (place, *place.parents):
        if (above / ".git").exists():
            raise ConfigError(
                f"{folder} lies in the git work tree {above.name}, where real faces must not be; name a folder outside "
                "of it with --to, or say --synthetic where the faces are nobody's"
            )


def _half_written(name: str) -> bool:
    """Return whether that is what a killed import left of a file that it was writing (`write_atomically`, crops)."""
    return name == _MAKING or name.startswith(_HALF_WRITTEN)


def _private(path: Path) -> BinaryIO:
    """Open a file to write on in, its owner's alone."""
    with storage_errors(path.name):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.fchmod(handle, 0o600)
    return os.fdopen(handle, "r+b")


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _packed(line: _Line) -> bytes:
    return json.dumps([line.name, line.images, line.files, line.failures]).encode() + b"\n"


def _unpacked(text: bytes) -> _Line:
    try:
        name, images, files, failures = json.loads(text)
        return _Line(str(name), int(images), tuple(map(str, files)), tuple((str(f), str(c)) for f, c in failures))
    except (ValueError, TypeError) as error:
        raise CorruptDataError(f"{JOURNAL} is damaged; import into a new folder") from error


def _index(order: list[_Line]) -> bytes:
    images = np.cumsum([0, *(line.images for line in order)], dtype="<u8")
    names = np.cumsum([0, *(len(_encoded(line.name)) + 1 for line in order)], dtype="<u8")
    files = np.cumsum([0, *(len(_encoded(name)) + 1 for line in order for name in line.files)], dtype="<u8")
    return np.concatenate([images, names, files]).astype("<u8").tobytes()


def _texts(texts: Iterable[str]) -> bytes:
    return b"".join(_encoded(text) + b"\n" for text in texts)


def _failures(lines: Iterable[_Line]) -> bytes:
    pairs = sorted(pair for line in lines for pair in line.failures)
    return _texts(f"{code}\t{name}" for name, code in pairs)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _shards(path: Path) -> Iterable[str]:
    with path.open("rb") as file:
        while data := file.read(SHARD_BYTES):
            yield hashlib.sha256(data).hexdigest()
