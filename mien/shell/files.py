"""Files that are whole or absent, private where they must be, with errors that say what to do."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import importlib.util
import mmap
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from mien.errors import (
    AlreadyExistsError,
    CorruptDataError,
    DiskFullError,
    FileAccessError,
    KeyStoreError,
    MissingDependencyError,
)

_UNFINISHED: Final = ".unfinished"
_BESIDE_CHARS: Final = 40


class InFolder:
    """An attribute that is the path of that name in its object's `folder`; `{0.name}` stands for the object's name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, home: Any, _kind: type) -> Path:
        folder: Path = home.folder
        return folder / self._name.format(home)


@contextlib.contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Turn the operating system's refusals while writing `what` into errors that say what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DiskFullError(f"no space left while writing {what}; free some space and run again") from error
        if error.errno == errno.EROFS:
            raise FileAccessError(f"cannot write {what}: the disk is read-only; name another folder") from error
        if error.errno in (errno.EACCES, errno.EPERM):
            raise FileAccessError(f"may not write {what}; check the folder's owner and permissions") from error
        raise


def file_of_package(package: str, name: str) -> Path:
    """Return where a file of an installed package is, without importing the package: that may load much more.

    Raises MissingDependencyError where the package is not installed.
    """
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise MissingDependencyError(
            f"the package {package} with {Path(name).name} is not installed; "
            "run: pip install '.[device]' in Mien's folder"
        )
    return Path(found.submodule_search_locations[0]) / name


def file_sha256(path: Path) -> str:
    """Return a file's SHA-256 in lower-case hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, or leave it as it is; raises AlreadyExistsError where a file is in the way."""
    try:
        with storage_errors(str(folder)):
            folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise AlreadyExistsError(f"{folder} cannot be a folder: a file is in the way; name another one") from error


def write_atomically(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write a file so that a crash at any instant leaves the old content or the new, never a mixture.

    `private` files are created with mode 0600 before the first byte is written.
    """
    with storage_errors(path.name), _made_beside(path, data, 0o600 if private else 0o644) as made:
        made.replace(path)


def create_private(path: Path, data: bytes) -> None:
    """Write a new private file; raises AlreadyExistsError rather than replace a key, one made meanwhile included.

    Where Linux and the file system can, it has no name until it is whole: a kill leaves no copy of it under another.
    """
    if path.exists():
        raise _is_there(path)
    with storage_errors(path.name):
        if not _create_nameless(path, data):
            with _made_beside(path, data, 0o600) as made:
                _put_in_place(made, path)


def remove_unfinished(folder: Path) -> None:
    """Remove what killed processes left of files that they were writing in a folder, second names of keys included.

    What a running process writes there meanwhile stays: it holds the lock of it. So does what is no file. Raises as
    `storage_errors` where one cannot be removed.
    """
    for path in folder.glob(f".*{_UNFINISHED}"):
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:  # gone meanwhile, or another one's
            continue
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                continue
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # being written, or nobody can tell
            continue
        else:
            with storage_errors(str(folder)):
                path.unlink(missing_ok=True)
        finally:
            os.close(handle)


@contextlib.contextmanager
def _made_beside(path: Path, data: bytes, mode: int) -> Iterator[Path]:
    """Write a file beside its place, on stable storage, for the block to put there."""
    handle, made = _opened_beside(path)
    try:
        with os.fdopen(handle, "wb") as file:
            _fill(file, data, mode)
            yield made
    except BaseException:
        made.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _opened_beside(path: Path) -> tuple[int, Path]:
    """Open a new file beside a place, locked for as long as it is open: `remove_unfinished` leaves it alone."""
    while True:
        try:
            # Part of the name, so that any name that a file may have leaves room for the rest.
            prefix = f".{path.name[:_BESIDE_CHARS]}."
            handle, name = tempfile.mkstemp(prefix=prefix, suffix=_UNFINISHED, dir=path.parent)
        except OSError as error:
            error.filename = os.fspath(path)  # nobody asked for a file of the temporary one's name
            raise
        with contextlib.suppress(OSError):  # a file system without locks: there nothing is removed either
            fcntl.flock(handle, fcntl.LOCK_EX)
        if Path(name).exists():  # not its number of links, which some file systems of networks do not tell
            return handle, Path(name)
        os.close(handle)  # removed before it was locked


def _create_nameless(path: Path, data: bytes) -> bool:
    """Write a file without a name and give it one; False where the system, or the file system, knows no such files."""
    if not hasattr(os, "O_TMPFILE"):
        return False
    try:
        with os.fdopen(os.open(path.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600), "wb") as file:
            _fill(file, data, 0o600)
            # Any handle of a folder makes it linkat, which follows the link to the file (open(2), O_TMPFILE).
            os.link(f"/proc/self/fd/{file.fileno()}", path, src_dir_fd=file.fileno(), follow_symlinks=True)
    except FileExistsError:
        raise _is_there(path) from None
    except OSError:  # whoever then writes beside meets it too, if it is the disk's
        return False
    sync_folder(path.parent)
    return True


def _fill(file: BinaryIO, data: bytes, mode: int) -> None:
    os.fchmod(file.fileno(), mode)
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


def _put_in_place(made: Path, path: Path) -> None:
    try:
        path.hardlink_to(made)  # a rename would replace what another process has put there
    except FileExistsError:
        raise _is_there(path) from None
    except OSError:  # a file system without links, or a system that lets apps make none
        if path.exists():
            raise _is_there(path) from None
        made.replace(path)
    else:
        made.unlink()


def _is_there(path: Path) -> AlreadyExistsError:
    return AlreadyExistsError(f"{path.name} exists already; it was not replaced")


def read_private(path: Path, *, what: str) -> bytes:
    """Return a secret file's bytes; raises KeyStoreError when it is missing or others may read it."""
    try:
        mode = path.stat().st_mode
        if mode & 0o077:
            raise KeyStoreError(f"{what} ({path.name}) can be read by others; run chmod 600 on it")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise KeyStoreError(
            f"{what} ({path.name}) is missing; restore it or start again from an empty folder"
        ) from error


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_limited(path: Path, limit_bytes: int, *, what: str) -> bytes:
    """Return a file's bytes if there are at most `limit_bytes`; raises CorruptDataError otherwise."""
    _check_size(path, limit_bytes, what)
    return path.read_bytes()


def map_limited(path: Path, limit_bytes: int, *, what: str) -> mmap.mmap | bytes:
    """Return a file's bytes where they lie, and not in memory until they are looked at; raises as `read_limited`.

    Only of a file that nobody writes to again: one that is replaced by another, or removed, stays as it was mapped.
    File systems that map no files, as some of networks and of containers, have it read.
    """
    if _check_size(path, limit_bytes, what) == 0:  # nothing cannot be mapped
        return b""
    with path.open("rb") as file:
        try:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError:
            return file.read()


def _check_size(path: Path, limit_bytes: int, what: str) -> int:
    if not path.is_file():
        raise CorruptDataError(f"{what} is missing: {path.name}")
    if (size := path.stat().st_size) > limit_bytes:
        raise CorruptDataError(f"{what} has {size} bytes; the limit is {limit_bytes}")
    return size
