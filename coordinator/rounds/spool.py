"""Contributions as they arrive: one sealed, append-only file per device and round, resumable at any byte.

File: ``MSP1``, a 16-byte salt, then frames of ``u32 little-endian length || nonce || ciphertext || tag``. Each frame
seals one piece under a key of this file alone; its associated data names round, device and the piece's offset, so that
frames can neither move nor change places. A frame that a crash tore is cut off when the file is opened again.

A plain contribution says something about one person, and what a task reveals says more: none is on disk in clear.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from coordinator.store.blobs import write_errors
from coordinator.store.records import BlobId
from coordinator.store.sealing import OVERHEAD_BYTES, MasterKey, Sealer
from mien.contribution import ContributionLayout
from mien.errors import CorruptDataError, NonFiniteError, OffsetError
from mien.shell.files import sync_folder
from mien.wire import CHUNK_BYTES

_MAGIC: Final = b"MSP1"
_SALT_BYTES: Final = 16
_LENGTH: Final = struct.Struct("<I")
_MAX_PIECE: Final = 4 * CHUNK_BYTES
_MAX_FRAME: Final = _MAX_PIECE + OVERHEAD_BYTES
_FIRST_LANES: Final = struct.Struct("<ff")


class Spool:
    """The folder of spool files; rounds are named by their row ids."""

    def __init__(self, folder: Path, key: MasterKey) -> None:
        self._folder = folder
        self._key = key
        with write_errors("the spool folder"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def open(self, round_id: int, device_id: str) -> SpoolFile:
        """Return a device's spool file, with what arrived earlier; a new one is empty."""
        folder = self._folder / str(round_id)
        with write_errors("the spool folder"):
            if not folder.exists():
                folder.mkdir(mode=0o700, exist_ok=True)
                sync_folder(self._folder)
        return SpoolFile(folder / device_id, f"{round_id}/{device_id}", self._key)

    def read(self, round_id: int, device_id: str, blob: BlobId) -> bytes:
        """Return a committed contribution; raises CorruptDataError unless it is the announced one."""
        data = self.read_unhashed(round_id, device_id, blob.size_bytes)
        if hashlib.sha256(data).hexdigest() != blob.sha256:
            raise _damaged(round_id, device_id)
        return data

    def read_unhashed(self, round_id: int, device_id: str, size_bytes: int) -> bytes:
        """Return what a device sent, whole and as this coordinator sealed it, for a caller that checks its hash."""
        path = self._folder / str(round_id) / device_id
        try:
            file = SpoolFile(path, f"{round_id}/{device_id}", self._key, read_only=True)
        except FileNotFoundError as error:
            raise CorruptDataError(f"spool file {round_id}/{device_id} is missing; the round cannot close") from error
        with file:
            data = b"".join(file.pieces())
        if len(data) != size_bytes:
            raise _damaged(round_id, device_id)
        return data

    def remove_round(self, round_id: int) -> None:
        """Forget everything that devices sent in a round."""
        shutil.rmtree(self._folder / str(round_id), ignore_errors=True)

    def rounds(self) -> set[int]:
        """Return the rounds that have spool files."""
        return {int(path.name) for path in self._folder.iterdir() if path.name.isdecimal()}


def _damaged(round_id: int, device_id: str) -> CorruptDataError:
    return CorruptDataError(f"spool file {round_id}/{device_id} is damaged; the round cannot close")


class SpoolFile:
    """One device's contribution to one round. One writer at a time; use as a context manager."""

    def __init__(self, path: Path, place: str, key: MasterKey, *, read_only: bool = False) -> None:
        self._path, self._place, self._key = path, place, key
        self._read_only = read_only
        self._pending = bytearray()
        self._is_in_folder = False
        self.received_bytes = 0
        with write_errors("a contribution"):
            if read_only:
                self._file = path.open("rb", buffering=0)
            else:  # unbuffered: after a refused write nothing may linger that a later flush would bring back
                self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)
            try:
                self._sealer = self._start()
                if not read_only:
                    self._recover()
            except BaseException:
                self._file.close()
                raise

    def __enter__(self) -> SpoolFile:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file; what was not written yet is dropped, `sync` first to keep it."""
        self._file.close()

    def _start(self) -> Sealer:
        """Return this file's sealer, writing the header of a new (or torn) file first."""
        header = self._file.read(len(_MAGIC) + _SALT_BYTES)
        if len(header) < len(_MAGIC) + _SALT_BYTES and not self._read_only:
            header = _MAGIC + os.urandom(_SALT_BYTES)
            self._file.seek(0)
            self._file.truncate()
            self._write(header)
        if header[: len(_MAGIC)] != _MAGIC:
            raise CorruptDataError("a spool file is damaged; it cannot be used")
        return self._key.sealer("spool", header[len(_MAGIC) :])

    def _recover(self) -> None:
        """Count what is whole and cut off what a crash tore."""
        end = self._file.tell()
        for piece, place in self._frames():
            self.received_bytes += len(piece)
            end = place
        self._file.seek(end)
        self._file.truncate()

    def _frames(self) -> Iterator[tuple[bytes, int]]:
        """Yield each whole frame's piece and where the frame ends; stops at the first that is torn or damaged."""
        self._file.seek(len(_MAGIC) + _SALT_BYTES)
        offset = 0
        while len(head := self._file.read(_LENGTH.size)) == _LENGTH.size:
            (length,) = _LENGTH.unpack(head)
            sealed = self._file.read(length) if OVERHEAD_BYTES < length <= _MAX_FRAME else b""
            if len(sealed) != length:
                return
            try:
                piece = self._sealer.open(sealed, place=self._at(offset))
            except CorruptDataError:
                return
            offset += len(piece)
            yield piece, self._file.tell()

    def _at(self, offset: int) -> bytes:
        return f"{self._place}/{offset}".encode()

    def pieces(self) -> Iterator[bytes]:
        """Yield what has been written, in order."""
        for piece, _ in self._frames():
            yield piece

    @property
    def next_offset(self) -> int:
        """Where the next piece belongs."""
        return self.received_bytes + len(self._pending)

    def out_of_place(self, offset: int) -> OffsetError:
        """Return the error of a piece that belongs elsewhere."""
        return OffsetError(
            f"upload goes on at byte {offset}, the server has {self.received_bytes}; ask for the status, then go on"
        )

    def append(self, data: bytes, *, offset: int) -> None:
        """Take the next piece; raises OffsetError unless it continues what is there, DiskFullError when it cannot."""
        if offset != self.next_offset:
            raise self.out_of_place(offset)
        if self._pending or len(data) < CHUNK_BYTES:
            self._pending += data
            if len(self._pending) >= CHUNK_BYTES:
                self._write_pending()
        else:
            self._write_frames(data)

    def _write_pending(self) -> None:
        data, self._pending = bytes(self._pending), bytearray()
        self._write_frames(data)

    def _write_frames(self, data: bytes) -> None:
        with write_errors("a contribution"):
            start = self._file.seek(0, os.SEEK_END)
            try:
                for begin in range(0, len(data), _MAX_PIECE):
                    piece = memoryview(data)[begin : begin + _MAX_PIECE]
                    nonce, sealed = self._sealer.seal_in_two(piece, place=self._at(self.received_bytes))
                    self._write(_LENGTH.pack(len(nonce) + len(sealed)) + nonce, sealed)
                    start += _LENGTH.size + len(nonce) + len(sealed)
                    self.received_bytes += len(piece)
            except OSError:
                self._file.truncate(start)
                raise

    def _write(self, *parts: bytes) -> None:
        """Write parts one behind the other; the system may take fewer bytes than it is given."""
        views = [memoryview(part) for part in parts if part]
        while views:
            written = os.writev(self._file.fileno(), views)
            while views and written >= len(views[0]):
                written -= len(views.pop(0))
            if views:
                views[0] = views[0][written:]

    def sync(self) -> int:
        """Return how many bytes are on stable storage now."""
        self._write_pending()
        with write_errors("a contribution"):
            os.fsync(self._file.fileno())
            if not self._is_in_folder:
                sync_folder(self._path.parent)
                self._is_in_folder = True
        return self.received_bytes

    def remove(self) -> None:
        """Forget the file."""
        self._path.unlink(missing_ok=True)


class ArrivalCheck:
    """Judges a contribution piece by piece as it arrives: its hash, that it is finite, and its first two lanes."""

    def __init__(self, layout: ContributionLayout, max_weight: int) -> None:
        self._layout, self._max_weight = layout, max_weight
        self._digest = hashlib.sha256()
        self._first = b""
        self._rest = b""
        self._size = 0
        self._is_finite = True

    def update(self, data: bytes) -> None:
        """Take the next piece."""
        self._digest.update(data)
        self._size += len(data)
        if len(self._first) < _FIRST_LANES.size:
            self._first = (self._first + data)[: _FIRST_LANES.size]
        if self._rest:
            data = self._rest + data
        whole = len(data) - len(data) % 4
        self._rest = data[whole:]
        self._is_finite = self._is_finite and bool(np.isfinite(np.frombuffer(data, "<f4", whole // 4)).all())

    def finish(self, announced: BlobId) -> None:
        """Raise CorruptDataError unless the bytes are the announced ones, NonFiniteError unless they can be added.

        The lanes `count` and `weight` lead every contribution: a count other than 1 or a weight beyond the task's cap
        would let one device speak for many.
        """
        if BlobId(self._digest.hexdigest(), self._size) != announced:
            raise CorruptDataError("the contribution arrived damaged; it was not counted, send it again")
        if not self._is_finite:
            raise NonFiniteError("the contribution holds NaN or infinity; it was not counted")
        count, weight = _FIRST_LANES.unpack(self._first)
        if count != 1 or not 0 < weight <= self._max_weight:
            raise NonFiniteError(
                f"the contribution has count {count:g} and weight {weight:g}; the count must be 1 and the weight lie "
                f"in (0, {self._max_weight}]: it was not counted"
            )


class MaskedArrivalCheck:
    """Judges a masked contribution as it arrives: its hash; what is in it nobody can see but the sum's opening."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._size = 0

    def update(self, data: bytes) -> None:
        """Take the next piece."""
        self._digest.update(data)
        self._size += len(data)

    def finish(self, announced: BlobId) -> None:
        """Raise CorruptDataError unless the bytes are the announced ones."""
        if BlobId(self._digest.hexdigest(), self._size) != announced:
            raise CorruptDataError("the contribution arrived damaged; it was not counted, send it again")
