"""Data sets by name: `shipped`, and what lies in a folder of data sets (MIEN_DATA); LFW by the names of its files."""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from mien.errors import ConfigError, NotFoundError

SHIPPED: Final = "shipped"
LFW: Final = "lfw"
LFW_LAYOUTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "aacd42dcb6273897f99b82eef42ad6f69799a53c1e53755560bb713a882fb9b7": "all of LFW: 13,233 images of 5,749 people",
        "3750ad23a46ff3fc5c8892ad5bdce4f66212f2b48b438f80001fddb11e0e6c85": (
            "View 2's images, and the first 30 of everybody with eight or more: 9,897 images of 4,282 people"
        ),
    }
)
"""`layout_sha256` of the published lists (lfw-names.txt and pairs.txt) -> which images these are."""

MOST_SHOWN: Final = 12
_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*")


def data_folder() -> Path:
    """Return the folder of data sets: MIEN_DATA, else this one."""
    return Path(os.environ.get("MIEN_DATA", "."))


def find_here(name: str) -> Path:
    """Return the folder of a data set in MIEN_DATA; raises NotFoundError where it is unset, and as `find`."""
    if "MIEN_DATA" not in os.environ:
        raise NotFoundError(
            f"there is no folder {name} here, and MIEN_DATA, the folder of data sets by name, is unset; set it, name a "
            f"folder by its path, or take the faces that come with the package: {SHIPPED}"
        )
    return find(name, data_folder())


def is_name(faces: Path | None) -> bool:
    """Return whether these are faces by name: one word, and no folder here has it."""
    return faces is not None and bool(_NAME.fullmatch(str(faces))) and not faces.exists()


def names_in(root: Path) -> tuple[str, ...]:
    """Return the names that stand for faces where data sets lie in `root`, the shipped ones first."""
    paths = root.iterdir() if root.is_dir() else ()
    return (SHIPPED, *sorted(path.name for path in paths if path.is_dir() and _NAME.fullmatch(path.name)))


def find(name: str, root: Path) -> Path:
    """Return the folder of a data set in `root`: of people, name/*.jpg, or one of `mien-sim data import`.

    A folder with `images` and `protocol`, as LFW comes, gives its images. Raises NotFoundError, with the names that
    there are, for another name; ConfigError where LFW is not LFW, as far as its files' names tell.
    """
    folder = root / name
    if not _NAME.fullmatch(name) or not folder.is_dir():
        known = names_in(root)
        more = f" and {len(known) - MOST_SHOWN} more" if len(known) > MOST_SHOWN else ""
        raise NotFoundError(
            f"there are no faces named {name!r} in {root.resolve()}; known there: {', '.join(known[:MOST_SHOWN])}{more}"
            ". Name one of these, or a folder by its path, or set MIEN_DATA to the folder that holds your data sets"
        )
    if (folder / "images").is_dir() and (folder / "protocol").is_dir():
        folder /= "images"
    if name == LFW:
        check_lfw(folder)
    return folder


def folder_of(faces: Path | None) -> Path | None:
    """Return the folder of what --faces names, by path or by name in MIEN_DATA; None for the shipped faces.

    Raises as `find_here`, and NotFoundError for a path at which there is no folder.
    """
    if faces is None or (str(faces) == SHIPPED and is_name(faces)):
        return None
    if is_name(faces):
        return find_here(str(faces))
    if not faces.is_dir():
        raise NotFoundError(f"there is no folder {faces}; name one that holds a folder of images per person")
    return faces


@functools.cache
def check_lfw(folder: Path) -> None:
    """Raise ConfigError where a folder's files are not those of LFW by their names; no picture is opened."""
    if (found := layout_sha256(folder)) not in LFW_LAYOUTS:
        raise ConfigError(
            f"{folder} is not LFW as its lists have it: the names of its files give SHA-256 {found[:16]}..., and known "
            f"are {'; '.join(f'{digest[:16]}... ({what})' for digest, what in LFW_LAYOUTS.items())}. Complete it, as "
            "NAME/NAME_0001.jpg, or name this folder by its path, which is not checked"
        )


def layout_sha256(folder: Path) -> str:
    """Return the digest of the names of a folder's pictures, one NAME/FILE.jpg a line, sorted; hidden ones left out."""
    people = (path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    files = sorted(f"{path.name}/{file.name}\n" for path in people for file in path.glob("*.jpg"))
    return hashlib.sha256("".join(files).encode("utf-8", "surrogateescape")).hexdigest()
