"""A disk that refuses writes, and power that goes in the middle of one: `shim.c`, loaded before a program."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("shim.c")
_WORD: Final = struct.Struct("=i")
_WORDS: Final = 4
_REFUSAL, _FUSE, _AFTER, _DEATHS = range(_WORDS)

REFUSALS: Final = {"full": errno.ENOSPC, "read-only": errno.EROFS, "failing": errno.EIO}
"""What a disk can have against a write."""


def missing() -> str:
    """Return why a disk cannot be made to fail here, nothing if it can."""
    return "" if shutil.which("gcc") is not None else "gcc is not installed: disks do not fail in this run"


class Disk:
    """The disk of all programs that are started with `environment`."""

    def __init__(self, folder: Path) -> None:
        library, control = folder / "shim.so", folder / "control"
        build = ["gcc", "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
        subprocess.run(build, check=True, timeout=120)
        control.write_bytes(bytes(_WORDS * _WORD.size))
        with control.open("r+b") as file:
            self._words = mmap.mmap(file.fileno(), 0)
        self.environment = {"LD_PRELOAD": str(library), "MIEN_CHAOS_CONTROL": str(control)}

    def refuse(self, how: str) -> None:
        """Refuse every write from now on; `how` is one of REFUSALS."""
        self._set(_REFUSAL, REFUSALS[how])

    def mend(self) -> None:
        """Refuse nothing any more."""
        self._set(_REFUSAL, 0)

    def light_fuse(self, writes: int, *, after: bool) -> None:
        """End the program at its n-th write from now on, with that write done or not."""
        self._set(_AFTER, int(after))
        self._set(_FUSE, writes)

    def douse(self) -> None:
        """Put the fuse out."""
        self._set(_FUSE, 0)

    @property
    def deaths(self) -> int:
        """How many programs a fuse has ended."""
        return int(_WORD.unpack_from(self._words, _DEATHS * _WORD.size)[0])

    def _set(self, word: int, value: int) -> None:
        _WORD.pack_into(self._words, word * _WORD.size, value)


def environment(disk: Disk | None) -> dict[str, str]:
    """Return what a program is started with."""
    return {**os.environ, **({} if disk is None else disk.environment)}
