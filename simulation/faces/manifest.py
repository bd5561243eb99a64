"""The file that says what a store is, and the hashes that hold it together."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mien.errors import ConfigError, CorruptDataError, NotFoundError, VersionError
from mien.protocol.canonical import parse_json, to_canonical_json
from mien.records import from_mapping, to_mapping
from mien.shell.files import read_limited

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


def read_manifest(folder: Path) -> StoreManifest:
    """Return the manifest of the store in a folder.

    Raises NotFoundError where there is none, VersionError for a later format, CorruptDataError for a damaged file.
    """
    if not (folder / MANIFEST).is_file():
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
