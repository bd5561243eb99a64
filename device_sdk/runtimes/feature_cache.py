"""A memory of what a frozen trunk makes of crops, so that training a tail costs only the tail."""

from __future__ import annotations

import hashlib
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mien.methods.base import Crops

Features = Any
"""One crop's features: a torch tensor or a numpy array, as the runtime has it; both know their `nbytes`."""

DEFAULT_CAPACITY_BYTES: Final = 192 * 2**20


_Key = tuple[bytes, bool]
"""A crop's SHA-256, and whether it is mirrored."""


class FeatureCache:
    """Features by crop, for one trunk at a time; in memory only, least recently used first out.

    A trunk is known by `trunk_id`, which must differ wherever its parameters or its depth do. Capacity 0 keeps nothing.
    """

    def __init__(self, capacity_bytes: int = DEFAULT_CAPACITY_BYTES) -> None:
        self._capacity_bytes = capacity_bytes
        self._size_bytes = 0
        self._trunk_id = b""
        self._entries: OrderedDict[_Key, Features] = OrderedDict()
        self._digests: dict[int, tuple[weakref.ref[Crops], list[bytes]]] = {}

    def __repr__(self) -> str:
        return f"FeatureCache({len(self._entries)} crops, {self._size_bytes} of {self._capacity_bytes} bytes)"

    def features(
        self, trunk_id: bytes, crops: Crops, flipped: NDArray[np.bool_], compute: Callable[[Crops], Iterable[Features]]
    ) -> list[Features]:
        """Return the features of each crop, mirrored where `flipped` says so; `compute` makes the missing ones."""
        if trunk_id != self._trunk_id:
            self._entries.clear()
            self._size_bytes, self._trunk_id = 0, trunk_id
        keys = [(digest, bool(flip)) for digest, flip in zip(self.digests(crops), flipped, strict=True)]
        found = {key: self._entries[key] for key in keys if key in self._entries}
        missing = {key: i for i, key in enumerate(keys) if key not in found}
        if missing:
            wanted = np.stack([crops[i, :, ::-1] if mirrored else crops[i] for (_, mirrored), i in missing.items()])
            found.update(zip(missing, compute(wanted), strict=True))
        for key in keys:
            self._keep(key, found[key])
        return [found[key] for key in keys]

    def digests(self, crops: Crops) -> list[bytes]:
        """Return the SHA-256 of each crop; of an array that nobody can write to, they are worked out once."""
        if crops.flags.writeable:
            return _digests(crops)
        address = id(crops)
        known = self._digests.get(address)
        if known is not None and known[0]() is crops:
            return known[1]
        digests = _digests(crops)
        self._digests[address] = (weakref.ref(crops, lambda _: self._digests.pop(address, None)), digests)
        return digests

    def _keep(self, key: _Key, features: Features) -> None:
        if key in self._entries:
            self._entries.move_to_end(key)
            return
        size_bytes = int(features.nbytes)
        if size_bytes > self._capacity_bytes:
            return
        # A row of a batch would keep the whole batch alive.
        self._entries[key] = features.copy() if isinstance(features, np.ndarray) else features.clone()
        self._size_bytes += size_bytes
        while self._size_bytes > self._capacity_bytes:
            _, oldest = self._entries.popitem(last=False)
            self._size_bytes -= int(oldest.nbytes)


def _digests(crops: Crops) -> list[bytes]:
    return [hashlib.sha256(crop.tobytes()).digest() for crop in crops]
