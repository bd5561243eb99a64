"""Allocator settings of the C library for memory that a server frees."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Final

_TRIM_THRESHOLD: Final = -1  # mallopt(3)
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
_MIB: Final = 1024 * 1024


def keep_freed_memory(*, keep_bytes: int = 32 * _MIB, largest_bytes: int = 4 * _MIB) -> None:
    """Let the process keep up to `keep_bytes` of freed memory, of pieces up to `largest_bytes`, in one place.

    A server that takes in messages of some hundred kilobytes one after the other would otherwise ask the system for the
    same pages again and again, and have each one zeroed: a tenth of all its time. And each of its threads would keep
    free memory of its own, that others cannot use. Nothing happens where the C library is not glibc.
    """
    _set({_ARENA_MAX: 1, _TRIM_THRESHOLD: keep_bytes, _MMAP_THRESHOLD: largest_bytes})


def limit_arenas(count: int) -> None:
    """Let all threads take memory from `count` places instead of one for each; as above where it is not glibc.

    What glibc frees in one place is not used in another.
    """
    _set({_ARENA_MAX: count})


def _set(options: Mapping[int, int]) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in options.items():
            mallopt(option, value)
