"""From folders of people, LFW, or record archives to a data set: in several processes, and again after a kill."""

from __future__ import annotations

import functools
import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from device_sdk.faces import ChoiceRule, FacePipeline, decode_image
from device_sdk.faces.images import display_name
from mien.errors import ConfigError, EmptyFolderError, InputError, NotFoundError
from mien.shell.doing import doing
from mien.shell.exits import end_with_parent
from mien.shell.version import software
from mien.specs import FaceInputSpec
from simulation.faces.datasets import find_people
from simulation.faces.recordio import RecordArchive
from simulation.faces.store import StoreManifest
from simulation.faces.writer import Imported, StoreTerms, StoreWriter

SourceKind = Literal["folder", "lfw", "rec"]
AHEAD: Final = 4
"""Identities that are handed to each process before its first one is done."""
MAX_IMAGES_EACH: Final = 100_000
UNREADABLE: Final = "unreadable"


@dataclass(frozen=True)
class ImportSource:
    """Source of an import: its kind and place. `is_aligned`: the images are crops of the right size already."""

    path: Path
    kind: SourceKind
    is_aligned: bool

    @classmethod
    def of(cls, path: Path, *, aligned: bool) -> ImportSource:
        """Return what lies at a path: an archive's .rec, LFW as its `images` and `protocol`, or a folder of people.

        The images of an archive are crops always. Raises NotFoundError where there is nothing.
        """
        if path.suffix == ".rec":
            return cls(path, "rec", is_aligned=True)
        if (path / "train.rec").is_file():
            return cls(path / "train.rec", "rec", is_aligned=True)
        if (path / "images").is_dir() and (path / "protocol").is_dir():
            return cls(path, "lfw", aligned)
        if not path.is_dir():
            raise NotFoundError(f"there is no folder {path}; name one with a folder of images per person, or a .rec")
        return cls(path, "folder", aligned)

    def identities(self) -> Iterator[tuple[str, Sequence[Any]]]:
        """Yield each identity with its images: paths, or keys of an archive; raises as its readers do."""
        if self.kind == "rec":
            with RecordArchive(self.path) as archive:
                for key, images in archive.people():
                    if len(images) > MAX_IMAGES_EACH:
                        raise ConfigError(f"person {key} of {self.path.name} has more than {MAX_IMAGES_EACH} images")
                    yield f"{self.path.resolve().parent.name}_{key:08d}", images
        else:
            yield from self._people().items()

    def version_sha256(self) -> str:
        """Return a digest of all files' names, sizes and times; they are not read, and it raises as their readers."""
        if self.kind == "rec":
            with RecordArchive(self.path):  # both files are there and the index is whole
                files = [(path.name, path) for path in (self.path, self.path.with_suffix(".idx"))]
        else:
            files = [(f"{name}/{path.name}", path) for name, paths in self._people().items() for path in paths]
        total = hashlib.sha256()
        for name, path in files:
            total.update(json.dumps([name, *_version(path)]).encode() + b"\n")
        return total.hexdigest()

    def _people(self) -> dict[str, list[Path]]:
        """Return everybody's pictures; a folder without any is somebody without pictures, who is not lost silently."""
        folder = self.path / "images" if self.kind == "lfw" else self.path
        found = find_people(folder)
        folders = (child.name for child in sorted(folder.iterdir()) if child.is_dir() and child.name[0] != ".")
        return {name: found.get(name, []) for name in folders}


def import_faces(
    source: ImportSource,
    to: Path,
    terms: StoreTerms,
    *,
    jobs: int = 1,
    tell: Callable[[str], None] = lambda _text: None,
) -> StoreManifest:
    """Write a data set of everybody's crops to a folder and return what it is.

    Images without a usable face are listed, by name and without a pixel. After a kill the same call goes on, unless the
    source's files are no longer what they were. Raises
    ConfigError, AlreadyExistsError as `StoreWriter`, EmptyFolderError where no image gave a crop.
    """
    spec = FaceInputSpec()
    plan = {
        "source": str(source.path.resolve()),
        "kind": source.kind,
        "is_aligned": source.is_aligned,
        "version_sha256": source.version_sha256(),
    }
    with (
        StoreWriter(to, terms, height=spec.height, width=spec.width, plan=plan) as writer,
        doing("Cutting out the faces") as step,
    ):
        if writer.done:
            tell(f"going on after {len(writer.done)} identities, {writer.num_images} crops")
        left = ((name, images) for name, images in source.identities() if name not in writer.done)
        for imported in _read(source, left, jobs):
            writer.add(imported)
            step.show(amount=f"{len(writer.done)} people, {writer.num_images} crops")
            if len(writer.done) % 1000 == 0:
                tell(f"{len(writer.done)} identities, {writer.num_images} crops, {writer.num_failures} failures")
        return writer.finish(software("mien"), tell)


def _version(path: Path) -> tuple[int, int]:
    """Return a file's size and time; of one that cannot be looked at, which the import lists as unreadable, none."""
    try:
        found = path.stat()
    except OSError:
        return -1, -1
    return found.st_size, found.st_mtime_ns


def _read(source: ImportSource, left: Iterable[tuple[str, Sequence[Any]]], jobs: int) -> Iterator[Imported]:
    """Yield identities in their order, read by as many processes."""
    if jobs == 1:
        yield from (_identity(source, name, images) for name, images in left)
        return
    waiting: deque[Future[Imported]] = deque()
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=end_with_parent) as pool:
        try:
            for name, images in left:
                waiting.append(pool.submit(_identity, source, name, images))
                if len(waiting) >= AHEAD * jobs:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _identity(source: ImportSource, name: str, images: Sequence[Any]) -> Imported:
    """Return one identity's crops; what gives none is listed."""
    pipeline = _pipeline(source.is_aligned)
    crops, files, failures = [], [], []
    if not images:
        failures.append((f"{display_name(name)}/", EmptyFolderError.code))
    for image in images:
        file = display_name(image.name if isinstance(image, Path) else f"{image:08d}")
        try:
            crops.append(pipeline.acquire(decode_image(_encoded(source, image))).crop)
            files.append(file)
        except InputError as error:
            failures.append((f"{display_name(name)}/{file}", error.code))
        except OSError:
            failures.append((f"{display_name(name)}/{file}", UNREADABLE))
    height, width = pipeline.spec.height, pipeline.spec.width
    stacked = np.stack(crops) if crops else np.empty((0, height, width, 3), np.uint8)
    return Imported(name, stacked, tuple(files), tuple(failures))


def _encoded(source: ImportSource, image: Any) -> bytes | Path:
    return image if isinstance(image, Path) else _opened(source.path).read(image).image


@functools.lru_cache(maxsize=1)
def _opened(archive: Path) -> RecordArchive:
    return RecordArchive(archive)


@functools.lru_cache(maxsize=2)
def _pipeline(is_aligned: bool) -> FacePipeline:
    return FacePipeline(FaceInputSpec(), None, ChoiceRule.CENTRE, aligned=is_aligned)
