"""Replies of a method's server with an assignment: short arrays in the message, long ones as a stream.

The stream is a safetensors blob that is made of the arrays as it is read, never held as a whole beside them: any number
of devices may fetch what the server holds once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Final

import numpy as np

from mien.contribution import Arrays
from mien.errors import CorruptDataError, ViolationError
from mien.protocol import CHUNK_BYTES

INLINE_BYTES: Final = 256 * 1024
"""The most that a reply's arrays may take in an assignment, which is one message."""

SHORT_BYTES: Final = 4096
"""Arrays up to this length stay in the message where others are streamed."""

_MARGIN_BYTES: Final = 64 * 1024


def longest_reply(num_elements: int) -> int:
    """Return the most bytes that a reply may have: one float32 for each element of a contribution, and some numbers.

    A device holds the server to it before it makes room for anything.
    """
    return 4 * num_elements + _MARGIN_BYTES


def check_reply(told: Arrays, *, names: Collection[str], most_bytes: int) -> Arrays:
    """Return what a server told; raises CorruptDataError unless it is finite float32 arrays, within `most_bytes`.

    Raises ViolationError for an array that is not one of `names` (`mien.methods.base.reply_names`). Only a list of rows
    may be empty: before the first round there is nothing to list. The bound is `longest_reply`'s, or what fits into an
    assignment where that is more.
    """
    for name, values in told.items():
        if name not in names:
            raise ViolationError(
                f"the server told {name[:40]!r}, which phones of this task are not told; it could be there to read one "
                "phone's update out of the sum: leave the round, and tell the operator"
            )
        is_list = values.ndim > 1 and len(values) == 0 and 0 not in values.shape[1:]
        if values.dtype != np.float32 or not (values.size or is_list) or not np.isfinite(values).all():
            raise CorruptDataError(
                f"the server told {name[:40]!r}, which is not finite float32 numbers; leave the round, and tell the "
                "operator"
            )
    num_bytes = sum(values.nbytes for values in told.values())
    if num_bytes > max(most_bytes, INLINE_BYTES):
        raise CorruptDataError(
            f"the server told {num_bytes} bytes, and this task's method has no use for more than "
            f"{max(most_bytes, INLINE_BYTES)}; leave the round, and tell the operator"
        )
    return told


def split_reply(reply: Arrays) -> tuple[Arrays, Arrays]:
    """Return the arrays that travel in the assignment's message, and those that are streamed."""
    if sum(values.nbytes for values in reply.values()) <= INLINE_BYTES:
        return reply, {}
    short = {name: values for name, values in reply.items() if values.nbytes <= SHORT_BYTES}
    if sum(values.nbytes for values in short.values()) > INLINE_BYTES:
        short = {}
    return short, {name: values for name, values in reply.items() if name not in short}


class TensorStream:
    """Float32 arrays as one safetensors blob, piece by piece: O(1) memory beside the arrays."""

    def __init__(self, arrays: Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]) -> None:
        held = {name: np.ascontiguousarray(arrays[name], "<f4") for name in sorted(arrays)}
        entries, end = {}, 0
        for name, values in held.items():
            start, end = end, end + values.nbytes
            entries[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [start, end]}
        header = json.dumps(entries, separators=(",", ":")).encode()
        header += b" " * (-len(header) % 8)
        self._parts = (
            memoryview(len(header).to_bytes(8, "little") + header),
            *(values.reshape(-1).view(np.uint8).data for values in held.values()),
        )
        self.size_bytes = sum(len(part) for part in self._parts)

    def __repr__(self) -> str:
        return f"TensorStream({self.size_bytes} bytes)"

    @cached_property
    def sha256(self) -> str:
        """The blob's name: SHA-256 in lower-case hex."""
        digest = hashlib.sha256()
        for part in self._parts:
            digest.update(part)
        return digest.hexdigest()

    def pieces(self, offset: int = 0) -> Iterator[bytes]:
        """Yield the bytes from `offset` on, in pieces of at most `CHUNK_BYTES`."""
        for part in self._parts:
            for start in range(min(offset, len(part)), len(part), CHUNK_BYTES):
                yield bytes(part[start : start + CHUNK_BYTES])
            offset = max(offset - len(part), 0)
