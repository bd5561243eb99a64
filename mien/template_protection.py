"""Secret rotations of templates: references of one face under two keys are no more alike than those of two faces.

A rotation keeps every cosine, so a rotated probe compares with a rotated reference as the two did before. Each
reference has a key of its own; a new key gives a new reference of the same face (renewable), to which the old one bears
no likeness (unlinkable while the key is secret). Whoever has the key turns a reference back: nothing here is
irreversible, and D known pairs of a template and its rotated form give the rotation away. ISO/IEC 24745:2022 names the
properties; `docs/device.md` says which of them hold.

A rotation is three passes of secret signs, each followed by the same fixed orthogonal transform (a DCT): as fast as
three products with a matrix for any number of keys at once, where a matrix for each key would fill the memory.
Legend: N references, D dimensions.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

KEY_BYTES: Final = 32
_PASSES: Final = 3
_LABEL: Final = b"mien/template rotation/1"

Floats = NDArray[np.float32]


def rotate(vectors_ND: Floats, keys: Sequence[bytes]) -> Floats:
    """Return vectors (N, D), each turned by the rotation of its key."""
    turned_ND: Floats = vectors_ND
    mix_DD = _mix(vectors_ND.shape[1])
    for signs_ND in _signs(keys, vectors_ND.shape[1]):
        turned_ND = np.multiply(turned_ND, signs_ND) @ mix_DD.T
    return turned_ND


def unrotate(turned_ND: Floats, keys: Sequence[bytes]) -> Floats:
    """Return the vectors (N, D) that `rotate` was given."""
    vectors_ND: Floats = turned_ND
    mix_DD = _mix(turned_ND.shape[1])
    for signs_ND in reversed(_signs(keys, turned_ND.shape[1])):
        vectors_ND = np.multiply(vectors_ND @ mix_DD, signs_ND)
    return vectors_ND


def _signs(keys: Sequence[bytes], dim: int) -> list[Floats]:
    """Return the signs (N, D) of each pass: bits of SHAKE-256 over the key, the dimension in its input."""
    num_bytes = math.ceil(_PASSES * dim / 8)
    streams = [hashlib.shake_256(_LABEL + dim.to_bytes(4, "big") + _checked(key)).digest(num_bytes) for key in keys]
    bits = np.unpackbits(np.frombuffer(b"".join(streams), np.uint8).reshape(len(keys), num_bytes), axis=1)
    signs = 1 - 2 * bits[:, : _PASSES * dim].astype(np.float32)
    return [np.ascontiguousarray(signs[:, k * dim : (k + 1) * dim]) for k in range(_PASSES)]


def _checked(key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise ValueError(f"a rotation's key has {len(key)} bytes, needs {KEY_BYTES}")
    return key


@functools.cache
def _mix(dim: int) -> Floats:
    """Return the orthonormal DCT-II matrix (D, D): every output depends on every input."""
    k_D1, n_1D = np.arange(dim)[:, None], np.arange(dim)[None, :]
    matrix_DD = np.cos(np.pi * (2 * n_1D + 1) * k_D1 / (2 * dim)) * math.sqrt(2 / dim)
    matrix_DD[0] /= math.sqrt(2)
    mix: Floats = matrix_DD.astype(np.float32)
    mix.setflags(write=False)
    return mix
