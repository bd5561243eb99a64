"""MXNet's RecordIO archives (`train.rec` with `train.idx`), the form in which public training sets of faces come.

Read only, without MXNet. A record is a magic number, a word with three bits of continuation and 29 bits of length, the
content, and zeros up to a multiple of four; content that holds the magic number is split at it. An image record starts
with a header (flag, label, two ids); with a flag above 0 that many float32 labels follow in the label's place, then the
encoded image. In insightface's sets record 0 is no image: its labels are the key after the last image and the one after
the last person, and a person's record holds the range of the keys of that person's images.

Nothing is held in memory but the index: 16 bytes a record. Files are not trusted: lengths are checked against the file
before anything is read, and a record is at most `MAX_RECORD_BYTES` long.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from mien.errors import CorruptDataError, NotFoundError
from mien.shell.files import read_limited

MAGIC: Final = 0xCED7230A
MAX_RECORD_BYTES: Final = 64 * 2**20
MAX_INDEX_BYTES: Final = 2 * 2**30
MAX_LABELS: Final = 1024
_HEADER: Final = struct.Struct("<IfQQ")
_WORDS: Final = struct.Struct("<II")


@dataclass(frozen=True, eq=False)
class ImageRecord:
    """One record: its labels (one or more), its id, and an encoded image, empty where the record is no image."""

    labels: NDArray[np.float32]
    id: int
    image: bytes = field(repr=False)


class RecordArchive:
    """An open archive; use it in a `with` block. One process at a time may read through one object."""

    def __init__(self, rec: Path, idx: Path | None = None) -> None:
        """Open an archive and its index (`rec` with the ending `.idx` unless given).

        Raises NotFoundError for a missing file, CorruptDataError naming file and line for a damaged index.
        """
        self._path = rec
        idx = rec.with_suffix(".idx") if idx is None else idx
        for path in (rec, idx):
            if not path.is_file():
                raise NotFoundError(f"there is no file {path}; an archive is a .rec file with its .idx beside it")
        self._size = rec.stat().st_size
        self._keys, self._offsets = _read_index(idx, self._size)
        self._file: BinaryIO = rec.open("rb")

    def __enter__(self) -> RecordArchive:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the object cannot be used afterwards."""
        self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def keys(self) -> NDArray[np.int64]:
        """Keys of all records, ascending."""
        return self._keys

    def read(self, key: int) -> ImageRecord:
        """Return the record of that key.

        Raises NotFoundError for an unknown key, CorruptDataError naming file and key for a damaged record.
        """
        place = int(np.searchsorted(self._keys, key))
        if place == len(self._keys) or self._keys[place] != key:
            raise NotFoundError(f"{self._path.name} has no record {key}; its keys are in `keys`")
        where = f"{self._path.name}, record {key}"
        return _unpack(self._content(int(self._offsets[place]), where), where)

    def people(self) -> Iterator[tuple[int, range]]:
        """Yield each person's key and the range of the keys of their images, as insightface's sets name them.

        Raises CorruptDataError where record 0 or a person's record does not say so.
        """
        head = self.read(0)
        if head.image or len(head.labels) != 2:
            raise CorruptDataError(f"{self._path.name}, record 0: it names no people; use `keys` and `read` instead")
        for key in _range(head.labels, f"{self._path.name}, record 0"):
            labels = self.read(key).labels
            where = f"{self._path.name}, record {key}"
            if len(labels) != 2:
                raise CorruptDataError(f"{where}: it holds no range of images; fetch the archive again")
            yield key, _range(labels, where)

    def _content(self, offset: int, where: str) -> bytes:
        """Return a record's content, its parts joined by the magic number that they were split at."""
        parts = list[bytes]()
        total = 0
        while True:
            if offset + _WORDS.size > self._size:
                raise CorruptDataError(f"{where}: it starts beyond the file's end; fetch the archive again")
            self._file.seek(offset)
            magic, word = _WORDS.unpack(self._file.read(_WORDS.size))
            part, length = word >> 29, word & (2**29 - 1)
            if magic != MAGIC or part not in ((1, 0) if not parts else (2, 3)):
                raise CorruptDataError(f"{where}: it does not start where the index says; fetch the archive again")
            total += length + 4
            if total > MAX_RECORD_BYTES or offset + _WORDS.size + length > self._size:
                raise CorruptDataError(f"{where}: it is longer than the file or the limit; fetch the archive again")
            parts.append(self._file.read(length))
            if part in (0, 3):
                return struct.pack("<I", MAGIC).join(parts)
            offset += _WORDS.size + (length + 3) // 4 * 4


def _read_index(path: Path, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return keys, ascending, and the offsets of their records."""
    text = read_limited(path, MAX_INDEX_BYTES, what=path.name)
    lines = text.decode("ascii", "replace").splitlines()
    table = np.empty((len(lines), 2), np.int64)
    for number, line in enumerate(lines, 1):
        fields = line.split("\t")
        if len(fields) != 2 or not all(field.isdigit() and len(field) < 19 for field in fields):
            raise CorruptDataError(f"{path.name}, line {number}: it is not 'key<tab>offset'; fetch the index again")
        table[number - 1] = int(fields[0]), int(fields[1])
        if table[number - 1, 1] >= size:
            raise CorruptDataError(f"{path.name}, line {number}: it points beyond the archive's end; fetch both again")
    order = np.argsort(table[:, 0], kind="stable")
    keys, offsets = table[order, 0], table[order, 1]
    if len(keys) == 0 or (np.diff(keys) == 0).any():
        raise CorruptDataError(f"{path.name} is empty or names a key twice; fetch the index again")
    return keys, offsets


def _unpack(content: bytes, where: str) -> ImageRecord:
    if len(content) < _HEADER.size:
        raise CorruptDataError(f"{where}: it is shorter than a header; fetch the archive again")
    flag, label, record_id, _ = _HEADER.unpack_from(content)
    if flag == 0:
        return ImageRecord(_labels(np.array([label], np.float32), where), record_id, content[_HEADER.size :])
    end = _HEADER.size + 4 * flag
    if flag > MAX_LABELS or len(content) < end:
        raise CorruptDataError(f"{where}: it has fewer labels than its header says; fetch the archive again")
    return ImageRecord(
        _labels(np.frombuffer(content, "<f4", flag, _HEADER.size).copy(), where), record_id, content[end:]
    )


def _labels(labels: NDArray[np.float32], where: str) -> NDArray[np.float32]:
    if not np.isfinite(labels).all():
        raise CorruptDataError(f"{where}: a label is NaN or infinite; fetch the archive again")
    return labels


def _range(labels: NDArray[np.float32], where: str) -> range:
    first, end = (float(label) for label in labels)
    if not (0 <= first <= end and first.is_integer() and end.is_integer()):
        raise CorruptDataError(f"{where}: its labels are no range of keys; fetch the archive again")
    return range(int(first), int(end))
