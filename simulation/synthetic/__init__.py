"""Synthetic faces: 60 people who do not exist, 10 pictures each, and the generator that drew them.

`committed_faces` and `verify_manifest` need nothing but the standard library; drawing new faces needs the extra
`[synthetic]` (see `faces/README.md` and `python -m simulation.synthetic --help`).
"""

from __future__ import annotations

import hashlib
import importlib.resources
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mien.errors import ConfigError, CorruptDataError, NotFoundError

SPLITS: Final = ("phones", "public", "test")
FACES_SOURCE: Final = "Mien synthetic faces (shipped)"
FACES_TERMS: Final = "rendered from a parametric model (CC0): nobody's faces"
MANIFEST: Final = "manifest.json"
FORMAT: Final = 1


@dataclass(frozen=True)
class Manifest:
    """Manifest of a generated set: how it was drawn, and each file's SHA-256 by its path in the set."""

    seed: int
    identities: int
    images_per_identity: int
    licence: str
    command: str
    versions: Mapping[str, str]
    sha256_of_file: Mapping[str, str]
    attempt_of_file: Mapping[str, int]  # how many draws of a picture were refused before this one

    @property
    def dataset_sha256(self) -> str:
        """One hash for the whole set, as metric records name it: of all paths and hashes, in the paths' order."""
        lines = (f"{digest}  {path}\n" for path, digest in sorted(self.sha256_of_file.items()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def to_json(self) -> str:
        """The text of the manifest file; `read_manifest` reads it back."""
        head = {
            "format": FORMAT,
            "seed": self.seed,
            "identities": self.identities,
            "images_per_identity": self.images_per_identity,
            "licence": self.licence,
            "command": self.command,
            "versions": dict(self.versions),
        }
        files = {
            path: {"sha256": digest, "attempt": self.attempt_of_file[path]}
            for path, digest in sorted(self.sha256_of_file.items())
        }
        return json.dumps({**head, "files": files}, indent=1) + "\n"


def committed_root() -> Path:
    """The folder of the committed set, inside the installed package."""
    root = importlib.resources.files(__name__) / "faces"
    if not isinstance(root, Path) or not root.is_dir():
        raise NotFoundError("the synthetic faces are not installed as files; install mien from its wheel or its source")
    return root


def committed_faces(split: str, root: Path | None = None) -> dict[str, list[Path]]:
    """The pictures of one split by identity, such as {"african_0000": [.../00.jpg, ...]}, both in order.

    `split` is `phones` (people who own a phone), `public` (data that everybody may have) or `test`; nobody is in two
    of them. `root` is another generated set in the committed one's place. Raises ConfigError for another split.
    """
    if split not in SPLITS:
        raise ConfigError(f"split {split!r} is unknown; use one of {', '.join(SPLITS)}")
    folder = committed_root() if root is None else root
    faces: dict[str, list[Path]] = {}
    for path in sorted(read_manifest(folder).sha256_of_file):
        of_split, identity, _ = path.split("/")
        if of_split == split:
            faces.setdefault(identity, []).append(folder / path)
    return faces


def read_manifest(root: Path | None = None) -> Manifest:
    """The manifest of the committed set, or of the set in `root`; its files are not looked at.

    Raises NotFoundError where there is none and CorruptDataError where it is not of the known format.
    """
    path = (committed_root() if root is None else root) / MANIFEST
    if not path.is_file():
        raise NotFoundError(f"{path.parent.name} holds no {MANIFEST}; generate the set again")
    try:
        return _parse(json.loads(path.read_text(encoding="utf-8")))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptDataError(f"{MANIFEST} is not of format {FORMAT} ({error!r}); generate the set again") from error


def _parse(value: Any) -> Manifest:
    if value["format"] != FORMAT:
        raise ValueError(f"format {value['format']!r}")
    for path in value["files"]:
        split, identity, name = path.split("/")
        if split not in SPLITS or "" in (identity, name) or ".." in (identity, name):
            raise ValueError(f"path {path!r}")
    return Manifest(
        seed=int(value["seed"]),
        identities=int(value["identities"]),
        images_per_identity=int(value["images_per_identity"]),
        licence=str(value["licence"]),
        command=str(value["command"]),
        versions={str(k): str(v) for k, v in value["versions"].items()},
        sha256_of_file={path: str(entry["sha256"]) for path, entry in value["files"].items()},
        attempt_of_file={path: int(entry["attempt"]) for path, entry in value["files"].items()},
    )


def verify_manifest(root: Path | None = None) -> Manifest:
    """The manifest of the committed set (or of the set in `root`), after comparing it with every file.

    Raises CorruptDataError that names the first picture which is missing, changed, or not in the manifest.
    """
    folder = committed_root() if root is None else root
    manifest = read_manifest(folder)
    present = {path.relative_to(folder).as_posix() for path in folder.glob("*/*/*.jpg")}
    if differing := present ^ set(manifest.sha256_of_file):
        path = min(differing)
        what = "is not in" if path in present else "is missing but stands in"
        raise CorruptDataError(f"{path} {what} {MANIFEST}; restore the set or generate it again")
    for path, expected in manifest.sha256_of_file.items():
        if hashlib.sha256((folder / path).read_bytes()).hexdigest() != expected:
            raise CorruptDataError(f"{path} is not the picture that {MANIFEST} names; restore or generate it again")
    return manifest
