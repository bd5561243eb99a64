"""Settings of a process's memory: what the allocator keeps, and that none of it is written out when it crashes."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import resource
from collections.abc import Iterator, Mapping
from typing import Final

_TRIM_THRESHOLD: Final = -1  # mallopt(3)
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
_MIB: Final = 1024 * 1024
_NEW_OBJECTS: Final = 10_000
_PR_GET_DUMPABLE: Final = 3  # prctl(2)
_PR_SET_DUMPABLE: Final = 4


def keep_freed_memory(*, keep_bytes: int = 32 * _MIB, largest_bytes: int = 4 * _MIB) -> None:
    """Let the process keep up to `keep_bytes` of freed memory, of pieces up to `largest_bytes`, in one place.

    A server that takes in messages of some hundred kilobytes one after the other would otherwise ask the system for the
    same pages again and again, and have each one zeroed: a tenth of all its time. And each of its threads would keep
    free memory of its own, that others cannot use. Nothing happens where the C library is not glibc.
    """
    _set({_ARENA_MAX: 1, _TRIM_THRESHOLD: keep_bytes, _MMAP_THRESHOLD: largest_bytes})


def return_freed_memory(*, largest_bytes: int = 0) -> None:
    """Give the system back what the process has freed, holes between what it holds included.

    Pieces of `largest_bytes` and more, if that is not 0, go back from now on as they are freed: less memory, and more
    time for whoever asks for it anew. Nothing happens where the C library is not glibc.
    """
    if largest_bytes:
        _set({_MMAP_THRESHOLD: largest_bytes})
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def collect_rarely() -> None:
    """Have Python look for cycles of dead objects less often, and never again among those that there are now.

    A server that has started holds some hundred thousand objects, which stay; and a call makes more objects than the
    700 after which Python looks by itself. Nearly all of them go when nobody refers to them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, 10, 10)


def limit_arenas(count: int) -> None:
    """Let all threads take memory from `count` places instead of one for each; as above where it is not glibc.

    What glibc frees in one place is not used in another.
    """
    _set({_ARENA_MAX: count})


def forget_pages(array: object) -> None:
    """Take an array that lies in a mapped file out of this process's memory; what is looked at is mapped again.

    Nothing happens to any other array, nor where the system gives no such advice.
    """
    while not isinstance(array, mmap.mmap):
        array = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)
        if array is None:
            return
    if hasattr(mmap, "MADV_DONTNEED"):
        array.madvise(mmap.MADV_DONTNEED)


def refuse_core_dumps() -> None:
    """Have the system write no image of this process's memory: keys, faces and updates lie in it.

    On Linux no other process of the same user may read its memory any more. Children inherit the limit on files alone:
    where the system hands dumps to a program, each of Mien's programs refuses for itself.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


@contextlib.contextmanager
def own_proc_files() -> Iterator[None]:
    """A block in which /proc/self belongs to the process again: of one that may not be dumped it is root's."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    was = 1 if prctl is None else prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0)
    if prctl is None or was == 1:
        yield
        return
    prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _set(options: Mapping[int, int]) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in options.items():
            mallopt(option, value)
