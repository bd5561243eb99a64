"""One file that holds a program's folder: a tar archive sealed under a password (`sealed_file`), its manifest first.

The manifest names every file, so that none can be added or left out; names of other forms than the program's are
refused, so that none leaves the folder. A folder is made of it whole or not at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, cast

from coordinator.home.sealed_file import OpeningReader, SealingWriter
from mien.errors import AlreadyExistsError, CorruptDataError, NotFoundError, VersionError
from mien.log.audit import Anchor
from mien.log.chain import canonical_json
from mien.shell.doing import counting, doing
from mien.shell.files import storage_errors, sync_folder

_FORMAT: Final = 1
_MANIFEST: Final = "manifest.json"
_MANIFEST_FIELDS: Final = {"format", "software", "created_unix_s", "audit_head", "files"}
_MAX_MANIFEST_BYTES: Final = 64 * 1024 * 1024
_PIECE: Final = 1024 * 1024


@dataclass(frozen=True)
class Kind:
    """The program whose folder an archive holds. `names` fits every file; those in `by_hash` are named by SHA-256."""

    program: str
    names: re.Pattern[str]
    by_hash: tuple[str, ...] = ()

    def unlike(self) -> CorruptDataError:
        """Return the error for content that is not this program's."""
        return CorruptDataError(
            f"the file's content is not that of a {self.program}'s backup; choose the file that backup wrote"
        )


@dataclass(frozen=True)
class Summary:
    """A backup's content in figures. `audit_head` is where the audit log stood, None without data."""

    files: int
    size_bytes: int
    created_unix_s: int
    audit_head: Anchor | None


@dataclass(frozen=True)
class Origin:
    """An archive's time, its program, and where its audit log stood: None without data."""

    software: str
    created_unix_s: int
    audit_head: Anchor | None


def write(kind: Kind, files: Mapping[str, Path], out: Path, password: str, origin: Origin) -> Summary:
    """Write the files that are such a program's as one sealed archive, whole or not at all."""
    files = {name: path for name, path in files.items() if kind.names.fullmatch(name)}
    manifest = {
        "format": _FORMAT,
        "software": origin.software,
        "created_unix_s": origin.created_unix_s,
        "audit_head": None if origin.audit_head is None else str(origin.audit_head),
        "files": sorted(files),
    }
    partial = out.with_name(f".{out.name}.part")
    partial.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            writer = SealingWriter(file, password)
            with tarfile.open(fileobj=cast("IO[bytes]", writer), mode="w|", format=tarfile.PAX_FORMAT) as archive:
                _add(archive, _MANIFEST, canonical_json(manifest))
                for name, path in counting("Writing the files of the backup", list(files.items())):
                    _add_file(archive, name, path)
            writer.finish()
            file.flush()
            os.fsync(file.fileno())
        partial.rename(out)
        sync_folder(out.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return Summary(len(files), out.stat().st_size, origin.created_unix_s, origin.audit_head)


@contextlib.contextmanager
def restoring(kind: Kind, file: Path, folder: Path, password: str) -> Iterator[tuple[Path, Summary]]:
    """Yield a folder beside `folder` that holds an archive's files, and become it when the block ends well.

    Raises AlreadyExistsError unless `folder` is new or empty, CorruptDataError for a damaged, truncated or forged file
    and for another password alike, VersionError for a newer program's; then nothing is left.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise AlreadyExistsError(f"{folder} is not empty; name a new --home, nothing was changed")
    if not file.is_file():
        raise NotFoundError(f"there is no file {file}; name the one that backup wrote")
    with storage_errors(str(folder)):
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.restore-", dir=folder.parent))
    try:
        with storage_errors(str(folder)), file.open("rb") as sealed:
            with doing("Opening the backup"):
                manifest = unpack(kind, OpeningReader(sealed, password), made)
            head = None if manifest["audit_head"] is None else Anchor.parse(str(manifest["audit_head"]))
            yield made, Summary(len(manifest["files"]), file.stat().st_size, manifest["created_unix_s"], head)
            if folder.exists():
                folder.rmdir()
            made.rename(folder)
            sync_folder(folder.parent)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def copy_database(source: Path, target: Path) -> None:
    """Copy an SQLite database that may be in use, as it is at one instant."""
    target.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(source)) as serving, contextlib.closing(sqlite3.connect(target)) as copy:
        serving.backup(copy)
    target.chmod(0o600)


def unpack(kind: Kind, reader: OpeningReader, folder: Path) -> dict[str, Any]:
    """Write an archive's files into a folder and return its manifest, once all of it has proved authentic."""
    manifest: dict[str, Any] | None = None
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", reader), mode="r|") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isreg() else None
                if content is None:
                    raise kind.unlike()
                if manifest is None:
                    manifest = _manifest(kind, member, content)
                else:
                    _extract(kind, member, content, folder)
    except (tarfile.TarError, FileExistsError) as error:
        raise kind.unlike() from error
    reader.finish()
    found = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    if manifest is None or found != manifest["files"]:
        raise kind.unlike()
    return manifest


def _manifest(kind: Kind, member: tarfile.TarInfo, content: IO[bytes]) -> dict[str, Any]:
    if member.name != _MANIFEST or member.size > _MAX_MANIFEST_BYTES:
        raise kind.unlike()
    try:
        manifest = json.loads(content.read())
    except (ValueError, RecursionError) as error:
        raise kind.unlike() from error
    if not isinstance(manifest, dict) or set(manifest) != _MANIFEST_FIELDS:
        raise kind.unlike()
    if manifest["format"] != _FORMAT:
        raise VersionError(f"the backup has format {manifest['format']}, this program knows {_FORMAT}; upgrade it")
    if not isinstance(manifest["created_unix_s"], int):
        raise kind.unlike()
    return manifest


def _extract(kind: Kind, member: tarfile.TarInfo, content: IO[bytes], folder: Path) -> None:
    """Write one file; names of other forms are refused, so that none leaves the folder."""
    if not kind.names.fullmatch(member.name):
        raise kind.unlike()
    path, digest = folder / member.name, hashlib.sha256()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        while piece := content.read(_PIECE):
            file.write(piece)
            digest.update(piece)
        file.flush()
        os.fsync(file.fileno())
    if member.name.startswith(kind.by_hash) and kind.by_hash and digest.hexdigest() != path.name:
        raise CorruptDataError(f"{member.name[:20]}… in the backup is damaged; use another copy")
    os.utime(path, (member.mtime, member.mtime))


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o600
    archive.addfile(info, io.BytesIO(data))


def _add_file(archive: tarfile.TarFile, name: str, path: Path) -> None:
    with path.open("rb") as file:
        found, info = os.fstat(file.fileno()), tarfile.TarInfo(name)
        info.size, info.mtime, info.mode = found.st_size, found.st_mtime, 0o600
        archive.addfile(info, file)
