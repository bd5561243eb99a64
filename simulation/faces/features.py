"""Features of a frozen trunk that outlive the process: a sweep's runs compute them once, not once each.

They lie in a private folder of the temporary directory, one file for each trunk, each crop's sealed under a key that is
the hash of that crop: who has the picture finds and opens its features, and who has the file alone learns nothing of
anybody. Deleting the folder costs the next run some minutes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import torch
from numpy.typing import NDArray

from device_sdk.runtimes.feature_cache import DEFAULT_CAPACITY_BYTES, FeatureCache, Features
from device_sdk.storage.sealing import SecretKey, seal, unseal
from mien.errors import CorruptDataError, StorageError
from mien.methods.base import Crops
from mien.shell.files import storage_errors
from mien.shell.sealing import NONCE_BYTES, TAG_BYTES
from mien.specs import FaceInputSpec

FORMAT: Final = 2
MAX_FEATURE_BYTES: Final = 16 << 10
"""Larger features are computed about as fast as they are read."""

MAX_FILE_BYTES: Final = 2 << 30
"""A file that would become longer is begun anew: what it held is computed again where somebody asks."""

_HEAD_BYTES: Final = 64
_NAME_BYTES: Final = 32
_SCAN_BYTES: Final = 4 << 20


def kept_features(spec: FaceInputSpec, backbone: str) -> FeatureCache:
    """Return a cache for a model's features; where nothing can be kept privately, one that is in memory only."""
    root = private_folder()
    return FeatureCache() if root is None else KeptFeatures(root, f"{FORMAT}/{backbone}/{spec}")


def private_folder() -> Path | None:
    """Return this user's folder in the temporary directory; None where it is not this user's alone."""
    root = Path(tempfile.gettempdir()) / f"mien-workbench-{os.getuid()}"
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        found = root.lstat()
    except OSError:
        return None
    is_private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return root if is_private else None


class KeptFeatures(FeatureCache):
    """A feature cache that finds what earlier runs computed and leaves what it computes to later ones.

    `model` tells models apart whose trunks have equal parameters and yet other inputs. Mirrored crops and large
    features are kept in memory only; so is everything where the disk is full.
    """

    def __init__(self, folder: Path, model: str, capacity_bytes: int = DEFAULT_CAPACITY_BYTES) -> None:
        super().__init__(capacity_bytes)
        self._folder, self._model = folder, model
        self._files: dict[bytes, _FeatureFile] = {}

    def features(
        self, trunk_id: bytes, crops: Crops, flipped: NDArray[np.bool_], compute: Callable[[Crops], Iterable[Features]]
    ) -> list[Features]:
        """Return the features of each crop, of which those that no run has computed are computed now."""
        if flipped.any():
            return super().features(trunk_id, crops, flipped, compute)
        file = self._file(trunk_id)

        def found_or_computed(missing: Crops) -> list[Features]:
            wanted = [_Picture.of(crop) for crop in missing]
            kept = file.find(wanted)
            unknown = [i for i, features in enumerate(kept) if features is None]
            fresh = dict(zip(unknown, compute(missing[unknown]), strict=True)) if unknown else {}
            file.add([wanted[i] for i in fresh], list(fresh.values()))
            return [fresh[i] if features is None else features for i, features in enumerate(kept)]

        return super().features(trunk_id, crops, flipped, found_or_computed)

    def _file(self, trunk_id: bytes) -> _FeatureFile:
        if trunk_id not in self._files:
            name = hashlib.sha256(self._model.encode() + trunk_id).hexdigest()[:32]
            self._files[trunk_id] = _FeatureFile(self._folder / f"features-{name}.bin")
        return self._files[trunk_id]


@dataclass(frozen=True)
class _Picture:
    """Secrets of a crop's own bytes: the name under which its features are kept, and the key that opens them."""

    name: bytes
    key: SecretKey

    @classmethod
    def of(cls, crop: NDArray[np.uint8]) -> _Picture:
        secret = hashlib.sha256(crop.tobytes()).digest()
        return cls(hashlib.sha256(b"name" + secret).digest(), SecretKey(hashlib.sha256(b"key" + secret).digest()))


class _FeatureFile:
    """Rows of a crop's name and its features (float32, sealed), under a head that says the features' shape.

    Several processes may add to it; each knows what was there when it began, and what it added itself. Only where rows
    lie is held in memory, 16 bytes each of earlier ones; what has moved since, or is being written, is computed again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._shape: tuple[int, ...] | None = None
        self._short_names: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._numbers: NDArray[np.int64] = np.empty(0, np.int64)
        self._added: dict[bytes, int] = {}
        try:
            with path.open("rb") as file:
                self._scan(file)
        except FileNotFoundError:
            pass
        except (ValueError, TypeError):  # not of this format: it is begun anew
            path.unlink(missing_ok=True)

    def find(self, pictures: Sequence[_Picture]) -> list[Features | None]:
        """Return pictures' features; None where nobody kept them, or what was kept is damaged."""
        numbers = [self._number(picture) for picture in pictures]
        if self._shape is None or all(number is None for number in numbers):
            return [None] * len(pictures)
        try:
            with self._path.open("rb") as file:
                return [
                    None if number is None else self._opened(file, number, picture, self._shape)
                    for number, picture in zip(numbers, pictures, strict=True)
                ]
        except FileNotFoundError:
            return [None] * len(pictures)

    def add(self, pictures: Sequence[_Picture], features: Sequence[Features]) -> None:
        """Keep features that are small; they are on disk afterwards unless it is full."""
        if not features or features[0].nbytes > MAX_FEATURE_BYTES or features[0].dtype != torch.float32:
            return
        arrays = [each.detach().cpu().numpy() for each in features]
        self._shape = self._shape or arrays[0].shape
        if any(array.shape != self._shape for array in arrays):
            return
        rows = {
            picture.name: seal(picture.key, array.tobytes(), self._context)
            for picture, array in zip(pictures, arrays, strict=True)
        }
        try:
            first = self._append(b"".join(name + sealed for name, sealed in rows.items()), self._shape)
        except StorageError:  # what is not kept is computed again
            return
        self._added.update(zip(rows, range(first, first + len(rows)), strict=True))

    @property
    def _context(self) -> bytes:
        return self._path.name.encode()

    def _number(self, picture: _Picture) -> int | None:
        """Return the number of the last row under a name that begins like the picture's."""
        if picture.name in self._added:
            return self._added[picture.name]
        short = np.frombuffer(picture.name, np.uint64, 1)[0]
        place = int(np.searchsorted(self._short_names, short, "right")) - 1
        return int(self._numbers[place]) if place >= 0 and self._short_names[place] == short else None

    def _opened(self, file: BinaryIO, number: int, picture: _Picture, shape: tuple[int, ...]) -> Features | None:
        width = _row_bytes(shape)
        file.seek(_HEAD_BYTES + number * width)
        row = file.read(width)
        if len(row) < width or row[:_NAME_BYTES] != picture.name:
            return None
        try:
            plain = unseal(picture.key, row[_NAME_BYTES:], self._context, what=self._path.name)
        except CorruptDataError:
            return None
        return torch.from_numpy(np.frombuffer(plain, np.float32).reshape(shape).copy())

    def _append(self, rows: bytes, shape: tuple[int, ...]) -> int:
        """Write rows behind those that are there and return the number of the first."""
        width = _row_bytes(shape)
        with storage_errors(self._path.name), self._path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = file.seek(0, os.SEEK_END)
            if size < _HEAD_BYTES or size + len(rows) > MAX_FILE_BYTES:
                file.truncate(0)
                file.write(json.dumps(shape).encode().ljust(_HEAD_BYTES))
                size = _HEAD_BYTES
            else:
                size -= (size - _HEAD_BYTES) % width
                file.truncate(size)  # a row that a killed process did not finish
            file.write(rows)
        return (size - _HEAD_BYTES) // width

    def _scan(self, file: BinaryIO) -> None:
        """Note where rows lie, by the first bytes of their names; of equal ones the last counts, which is looked at."""
        head = file.read(_HEAD_BYTES)
        if len(head) < _HEAD_BYTES:
            return
        shape = tuple(int(n) for n in json.loads(head))
        width = _row_bytes(shape)
        names = [np.empty(0, np.uint64)]
        while len(rows := file.read(max(1, _SCAN_BYTES // width) * width)) >= width:
            whole = np.frombuffer(rows, np.uint8, len(rows) // width * width).reshape(-1, width)
            names.append(whole[:, :8].copy().view(np.uint64)[:, 0])
        every = np.concatenate(names)
        self._numbers = np.argsort(every, kind="stable")
        self._short_names = every[self._numbers]
        self._shape = shape


def _row_bytes(shape: tuple[int, ...]) -> int:
    return _NAME_BYTES + NONCE_BYTES + 4 * int(np.prod(shape)) + TAG_BYTES
