"""Contributions as they arrive: one sealed, append-only file per device and round, resumable at any byte.

File: a block (4096 bytes) with ``MSP2`` and a 16-byte salt, then frames, each from a block's start on:
``u32 little-endian length || nonce || ciphertext || tag``, and zeros to the block's end. Each frame seals one piece
under a key of this file alone; its associated data names round, device and the piece's offset, so that frames can
neither move nor change places. A frame that a crash tore is cut off when the file is opened again.

A plain contribution says something about one person, and what a task reveals says more: none is on disk in clear.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import struct
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from coordinator.rounds.block_file import BLOCK_BYTES, BlockFile, Buffers, Entries, whole_blocks
from coordinator.store.blobs import write_errors
from coordinator.store.sealing import MasterKey
from mien.contribution import ContributionLayout
from mien.errors import CorruptDataError, LateError, NonFiniteError, OffsetError
from mien.protocol import CHUNK_BYTES
from mien.protocol.ids import DeviceId, RoundId
from mien.protocol.rounds import BlobId
from mien.shell.files import sync_folder
from mien.shell.keys import secret_bytes, secret_hex
from mien.shell.sealing import OVERHEAD_BYTES, Sealer

_MAGIC: Final = b"MSP2"
_SALT_BYTES: Final = 16
_LENGTH: Final = struct.Struct("<I")
_MAX_FRAME: Final = CHUNK_BYTES + OVERHEAD_BYTES
_FRAME_BLOCKS: Final = whole_blocks(_LENGTH.size + _MAX_FRAME)
_FRAMES_AT_ONCE: Final = 4
_SMALL_BYTES: Final = CHUNK_BYTES // 2
"""Pieces shorter than this are gathered: each frame fills its last block with zeros."""

_GONE: Final = ".gone"
_REMEMBERED: Final = 1000
"""Of how many rounds it is known that they are over: longer than any call about one of them takes."""

_FIRST_LANES: Final = struct.Struct("<ff")


class Spool:
    """The folder of spool files; rounds are named by their row ids."""

    def __init__(self, folder: Path, key: MasterKey) -> None:
        self._folder, self._key = folder, key
        self._buffers = Buffers(BLOCK_BYTES + _FRAMES_AT_ONCE * _FRAME_BLOCKS)
        self._entries = Entries()
        self._cleaner = ThreadPoolExecutor(1, thread_name_prefix="spool-cleaner")
        self._forgotten: deque[int] = deque(maxlen=_REMEMBERED)
        with write_errors("the spool folder"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for gone in folder.glob(f"*{_GONE}"):  # a stop came before they were deleted
            self._cleaner.submit(shutil.rmtree, gone, ignore_errors=True)

    def open(self, round_id: RoundId, device_id: DeviceId, *, is_read_soon: bool = False) -> SpoolFile:
        """Return a device's spool file, with what arrived earlier; a new one is empty.

        What is read again as soon as it is complete goes through the page cache, all else past it. Raises LateError
        once the round is forgotten: another thread may just have heard of its end.
        """
        folder = self._folder / str(round_id)
        with write_errors("the spool folder"):
            if not folder.exists():
                folder.mkdir(mode=0o700, exist_ok=True)
                sync_folder(self._folder)
        if round_id in self._forgotten:  # after the folder is made, so that either this or the removal sees it
            self._remove(round_id)
            raise _over()
        try:
            with write_errors("a contribution"):
                file = BlockFile(folder / device_id, is_direct=not is_read_soon)
        except FileNotFoundError as error:
            raise _over() from error
        return SpoolFile(file, f"{round_id}/{device_id}", self._key, self._buffers, self._entries)

    def stored_bytes(self, round_id: RoundId, device_id: DeviceId) -> int:
        """Return how much of what a device sends is on stable storage; nothing is made where nothing arrived."""
        if not (self._folder / str(round_id) / device_id).exists():
            return 0
        with self.open(round_id, device_id) as file:
            return file.sync()

    def read(self, round_id: RoundId, device_id: DeviceId, blob: BlobId) -> bytes:
        """Return a committed contribution; raises CorruptDataError unless it is the announced one."""
        data = self.read_unhashed(round_id, device_id, blob.size_bytes)
        if hashlib.sha256(data).hexdigest() != blob.sha256:
            raise _damaged(round_id, device_id)
        return data

    def read_unhashed(self, round_id: RoundId, device_id: DeviceId, size_bytes: int) -> bytes:
        """Return what a device sent, whole and as this coordinator sealed it, for a caller that checks its hash."""
        path = self._folder / str(round_id) / device_id
        try:
            data = b"".join(piece for piece, _ in _frames(path, f"{round_id}/{device_id}", self._key))
        except FileNotFoundError as error:
            raise CorruptDataError(f"spool file {round_id}/{device_id} is missing; the round cannot close") from error
        if len(data) != size_bytes:
            raise _damaged(round_id, device_id)
        return data

    def remove_round(self, round_id: RoundId) -> None:
        """Forget everything that devices sent in a round: it is out of sight at once, and deleted in a moment."""
        self._forgotten.append(round_id)
        self._remove(round_id)

    def _remove(self, round_id: RoundId) -> None:
        folder = self._folder / str(round_id)
        self._entries.forget(folder)
        with contextlib.suppress(OSError):  # what cannot be deleted now is left to the next start
            gone = folder.rename(folder.with_name(f"{round_id}.{secret_hex(4)}{_GONE}"))
            self._cleaner.submit(shutil.rmtree, gone, ignore_errors=True)

    def rounds(self) -> set[RoundId]:
        """Return the rounds that have spool files."""
        return {RoundId(int(path.name)) for path in self._folder.iterdir() if path.name.isdecimal()}


def _over() -> LateError:
    return LateError("that round ended during the upload; nothing is lost, check in again")


def _damaged(round_id: RoundId, device_id: DeviceId) -> CorruptDataError:
    return CorruptDataError(f"spool file {round_id}/{device_id} is damaged; the round cannot close")


def _frames(path: Path, place: str, key: MasterKey) -> Iterator[tuple[bytes, int]]:
    """Yield each whole frame's piece and where the next begins; stops at the first that is torn or damaged."""
    with write_errors("a contribution"), path.open("rb", buffering=0) as file:
        header = file.read(len(_MAGIC) + _SALT_BYTES)
        if len(header) < len(_MAGIC) + _SALT_BYTES or not header.startswith(_MAGIC):
            return
        sealer, offset, at = key.sealer("spool", header[len(_MAGIC) :]), 0, BLOCK_BYTES
        while len(head := os.pread(file.fileno(), _LENGTH.size, at)) == _LENGTH.size:
            (length,) = _LENGTH.unpack(head)
            if not OVERHEAD_BYTES < length <= _MAX_FRAME:
                return
            sealed = os.pread(file.fileno(), length, at + _LENGTH.size)
            if len(sealed) != length:
                return
            try:
                piece = sealer.open(sealed, place=_at(place, offset))
            except CorruptDataError:
                return
            offset += len(piece)
            at += whole_blocks(_LENGTH.size + length)
            yield piece, at


def _salt_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(_MAGIC) + _SALT_BYTES)[len(_MAGIC) :]


def _cut(pieces: Iterable[bytes | memoryview]) -> Iterator[memoryview]:
    """Yield pieces, long ones in parts that fit a frame."""
    for piece in pieces:
        view = memoryview(piece)
        for start in range(0, len(view), CHUNK_BYTES):
            yield view[start : start + CHUNK_BYTES]


def _at(place: str, offset: int) -> bytes:
    return f"{place}/{offset}".encode()


class SpoolFile:
    """One device's contribution to one round. One writer at a time; use as a context manager."""

    def __init__(self, file: BlockFile, place: str, key: MasterKey, buffers: Buffers, entries: Entries) -> None:
        self._file, self._path, self._place = file, file.path, place
        self._key, self._buffers, self._entries = key, buffers, entries
        self._pending = bytearray()
        self.received_bytes = 0
        self._entry = entries.made()
        try:
            with write_errors("a contribution"):
                self._sealer = self._start()
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
        """Return this file's sealer: count what is whole and cut off what a crash tore, or begin a new file."""
        end, salt = 0, secret_bytes(_SALT_BYTES)
        if self._file.end:
            for piece, next_frame in _frames(self._path, self._place, self._key):
                self.received_bytes += len(piece)
                end = next_frame
            if end:
                salt = _salt_of(self._path)
            self._file.cut(end)
        self._header = b"" if end else _MAGIC + salt
        return self._key.sealer("spool", salt)

    def pieces(self) -> Iterator[bytes]:
        """Yield what has been written, in order."""
        for piece, _ in _frames(self._path, self._place, self._key):
            yield piece

    @property
    def next_offset(self) -> int:
        """Offset at which the next piece belongs."""
        return self.received_bytes + len(self._pending)

    def out_of_place(self, offset: int) -> OffsetError:
        """Return the error of a piece that belongs elsewhere."""
        return OffsetError(
            f"upload goes on at byte {offset}, the server has {self.received_bytes}; ask for the status, then go on"
        )

    def append(self, *pieces: bytes | memoryview, offset: int) -> None:
        """Take the next pieces; raises OffsetError unless they continue what is there, DiskFullError when it cannot."""
        if offset != self.next_offset:
            raise self.out_of_place(offset)
        ready: list[bytes | memoryview] = []
        for piece in pieces:
            if not self._pending and len(piece) >= _SMALL_BYTES:
                ready.append(piece)
                continue
            self._pending += piece
            if len(self._pending) >= _SMALL_BYTES:
                ready.append(self._taken())
        self._write(ready)

    def _taken(self) -> bytes:
        data, self._pending = bytes(self._pending), bytearray()
        return data

    def _write(self, pieces: Iterable[bytes | memoryview]) -> None:
        """Seal pieces into frames and write these, several at once."""
        with write_errors("a contribution"), self._buffers.lent() as buffer:
            used, received_bytes = self._begin(buffer), self.received_bytes
            for piece in _cut(pieces):
                if used + _FRAME_BLOCKS > len(buffer):
                    self._keep(buffer[:used], received_bytes)
                    used = 0
                used += self._frame(piece, received_bytes, buffer[used:])
                received_bytes += len(piece)
            self._keep(buffer[:used], received_bytes)

    def _begin(self, out: memoryview) -> int:
        """Lay down the header of a file that has none yet, and return how many bytes its block has."""
        if not self._header:
            return 0
        out[:BLOCK_BYTES] = self._header.ljust(BLOCK_BYTES, b"\0")
        return BLOCK_BYTES

    def _keep(self, blocks: memoryview, received_bytes: int) -> None:
        self._file.append(blocks)
        self._header, self.received_bytes = b"", received_bytes

    def _frame(self, piece: bytes | memoryview, offset: int, out: memoryview) -> int:
        """Lay a piece down as a frame and return how many bytes its blocks have."""
        length = self._sealer.seal_into(out[_LENGTH.size :], piece, place=_at(self._place, offset))
        _LENGTH.pack_into(out, 0, length)
        end, used = _LENGTH.size + length, whole_blocks(_LENGTH.size + length)
        out[end:used] = bytes(used - end)
        return used

    def sync(self) -> int:
        """Return how many bytes are on stable storage now."""
        if self._pending:
            self._write([self._taken()])
        with write_errors("a contribution"):
            self._file.sync()
            self._entries.sync(self._path.parent, self._entry)
        return self.received_bytes

    def remove(self) -> None:
        """Forget the file."""
        self._path.unlink(missing_ok=True)


class MaskedArrivalCheck:
    """Judges a masked contribution as it arrives: its hash; what is in it nobody can see but the sum's opening."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._size = 0

    def update(self, data: bytes | memoryview) -> None:
        """Take the next piece."""
        self._digest.update(data)
        self._size += len(data)

    def finish(self, announced: BlobId) -> None:
        """Raise CorruptDataError unless the bytes are the announced ones."""
        if BlobId(self._digest.hexdigest(), self._size) != announced:
            raise CorruptDataError("the contribution arrived damaged; it was not counted, send it again")


class ArrivalCheck(MaskedArrivalCheck):
    """Judges a contribution piece by piece as it arrives: its hash, that it is finite, and its first two lanes."""

    def __init__(self, layout: ContributionLayout, max_weight: int) -> None:
        super().__init__()
        self._layout, self._max_weight = layout, max_weight
        self._first = self._rest = b""
        self._is_finite = True

    def update(self, data: bytes | memoryview) -> None:
        """Take the next piece."""
        super().update(data)
        if len(self._first) < _FIRST_LANES.size:
            self._first = (self._first + bytes(data[: _FIRST_LANES.size]))[: _FIRST_LANES.size]
        if self._rest:
            data = self._rest + bytes(data)
        whole = len(data) - len(data) % 4
        self._rest = bytes(data[whole:])
        self._is_finite = self._is_finite and _are_finite(np.frombuffer(data, "<f4", whole // 4))

    def finish(self, announced: BlobId) -> None:
        """Raise CorruptDataError unless the bytes are the announced ones, NonFiniteError unless they can be added.

        The lanes `count` and `weight` lead every contribution: a count other than 1 or a weight beyond the task's cap
        would let one device speak for many.
        """
        super().finish(announced)
        if not self._is_finite:
            raise NonFiniteError("the contribution holds NaN or infinity; it was not counted")
        count, weight = _FIRST_LANES.unpack(self._first)
        if count != 1 or not 0 < weight <= self._max_weight:
            raise NonFiniteError(
                f"the contribution has count {count:g} and weight {weight:g}; the count must be 1 and the weight lie "
                f"in (0, {self._max_weight}]: it was not counted"
            )


def _are_finite(values: NDArray[np.float32]) -> bool:
    """Return whether no value is NaN or infinite: either makes the sum so; one that only overflows is looked into."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(np.add.reduce(values))) or bool(np.isfinite(values).all())
