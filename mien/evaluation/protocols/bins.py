"""`.bin` pair sets as insightface publishes them: LFW, CFP-FP, AgeDB-30, CALFW, CPLFW, VGG2-FP.

The file is a pickle of `(bins, issame)`: 2 P encoded images, pair i being images 2 i and 2 i + 1, and P flags. A pickle
is a program, so this one is run by a machine that can make nothing but lists, tuples, bytes, numbers and flat arrays of
them: every other name is refused before it is looked up, and numpy's own constructors are never called.

VGG2-FP is known to be published in this form (and as a `bcolz` folder, which needs that library and is not read); a
text list of its pairs could not be confirmed. Legend: P pairs, D dimensions.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mien.errors import ConfigError, CorruptDataError
from mien.evaluation.kfold import FoldAccuracy, kfold_accuracy
from mien.evaluation.scores import Comparisons, pair_scores

PROTOCOL: Final = "bin-pairs-10fold"
VERSION: Final = "1"
NUM_FOLDS: Final = 10
MAX_PAIRS: Final = 1_000_000
MAX_ELEMENTS: Final = 10_000_000


@dataclass(frozen=True, eq=False)
class BinPairs:
    """Encoded images (2 P, JPEG or PNG as bytes), whether each pair is mated (P,), and the file's SHA-256.

    Images are crops of 112 x 112 that somebody else aligned: say so wherever a result uses them.
    """

    images: tuple[bytes, ...] = field(repr=False)
    mated: NDArray[np.bool_] = field(repr=False)
    sha256: str

    @property
    def folds(self) -> NDArray[np.int64]:
        """Fold of each pair, (P,) from 0: ten runs of equal length in file order, the first ones longer by one."""
        sizes = [len(block) for block in np.array_split(np.arange(len(self.mated)), NUM_FOLDS)]
        return np.repeat(np.arange(NUM_FOLDS), sizes)

    def scores(self, embeddings: ArrayLike) -> NDArray[np.float64]:
        """Return the cosine of each pair (P,), given the embeddings (2 P, D) of the images in file order."""
        emb_ND = np.asarray(embeddings)
        if emb_ND.ndim != 2 or len(emb_ND) != len(self.images):
            raise ConfigError(f"{len(self.images)} images but embeddings of shape {emb_ND.shape}; give one for each")
        return pair_scores(emb_ND[0::2], emb_ND[1::2])

    def comparisons(self, embeddings: ArrayLike) -> Comparisons:
        """Return all pairs pooled; the format names no identities, so intervals by identity are not to be had."""
        scores = self.scores(embeddings)
        return Comparisons(scores[self.mated], scores[~self.mated])

    def accuracy(self, embeddings: ArrayLike) -> FoldAccuracy:
        """Return ten-fold accuracy over squared distances, as on LFW."""
        return kfold_accuracy(2.0 - 2.0 * self.scores(embeddings), self.mated, self.folds)


def parse_bin(data: bytes, name: str = "pair set") -> BinPairs:
    """Return the pairs in the bytes of a `.bin` file; images are not decoded.

    Raises CorruptDataError, naming the file, for anything else: a pickle that names what it may not, a damaged or
    truncated one, a number of flags that is not half the number of images, an entry that is no image's bytes.
    """
    loaded = _load(data, name)
    if not isinstance(loaded, tuple | list) or len(loaded) != 2:
        raise CorruptDataError(f"{name} does not hold a pair (images, flags); fetch the file again")
    images, mated = _images(loaded[0], name), _flags(loaded[1], name)
    if len(images) != 2 * len(mated):
        raise CorruptDataError(
            f"{name} has {len(images)} images and {len(mated)} flags; there must be two images a flag"
        )
    if len(mated) < NUM_FOLDS:
        raise CorruptDataError(f"{name} has {len(mated)} pairs, too few for {NUM_FOLDS} folds; fetch the file again")
    return BinPairs(images, mated, hashlib.sha256(data).hexdigest())


def _images(value: object, name: str) -> tuple[bytes, ...]:
    items = value.items() if isinstance(value, _Array) else value
    if not isinstance(items, list | tuple) or len(items) > 2 * MAX_PAIRS:
        raise CorruptDataError(f"{name}: its images are no list of at most {2 * MAX_PAIRS}; fetch the file again")
    images = tuple(_flat(item, name).tobytes() if isinstance(item, _Array) else item for item in items)
    for number, image in enumerate(images):
        if not isinstance(image, bytes) or not image:
            raise CorruptDataError(f"{name}: image {number} is no bytes of an encoded picture; fetch the file again")
    return images


def _flags(value: object, name: str) -> NDArray[np.bool_]:
    items: object = _flat(value, name).tolist() if isinstance(value, _Array) else value
    if not isinstance(items, list | tuple) or len(items) > MAX_PAIRS:
        raise CorruptDataError(f"{name}: its flags are no list of at most {MAX_PAIRS}; fetch the file again")
    for number, item in enumerate(items):
        if not isinstance(item, bool | int) or item not in (0, 1):
            raise CorruptDataError(f"{name}: flag {number} is neither true nor false; fetch the file again")
    return np.array(items, dtype=np.bool_)


# The machine. It sees numpy's constructors by name only: what stands for them here copies bytes and counts.

_KINDS: Final[Mapping[str, np.dtype[Any]]] = {code: np.dtype(f"<{code}") for code in ("b1", "u1", "i1", "i4", "i8")}


class _NdarrayName:
    """Stands for `numpy.ndarray`, which a pickle only hands on to `_reconstruct`."""


class _Dtype:
    """Stands for `numpy.dtype`: its code, its state ignored but for a big-endian mark, which is refused."""

    def __init__(self, code: object, *_flags: object) -> None:
        text = code.decode("ascii", "replace") if isinstance(code, bytes) else code
        if text not in (*_KINDS, "O"):
            raise pickle.UnpicklingError("an array of another kind than bool or integer")
        self.code = str(text)

    def __setstate__(self, state: object) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else None
        if order in (">", b">"):
            raise pickle.UnpicklingError("an array of big-endian numbers")


class _Array:
    """Stands for a `numpy.ndarray`: kept as its shape, its kind and its bytes (or list of objects)."""

    def __init__(self) -> None:
        self.code = "u1"
        self.content: object = b""

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 5 or not isinstance(state[2], _Dtype):
            raise pickle.UnpicklingError("an array without shape, kind and content")
        _, shape, dtype, _, content = state
        if not isinstance(shape, tuple) or len(shape) != 1 or not isinstance(shape[0], int):
            raise pickle.UnpicklingError("an array that is not flat")
        width = 1 if dtype.code == "O" else _KINDS[dtype.code].itemsize
        if not isinstance(content, list if dtype.code == "O" else bytes) or not 0 <= shape[0] <= MAX_ELEMENTS:
            raise pickle.UnpicklingError("an array whose content is of another kind, or too large")
        if len(content) != shape[0] * width:
            raise pickle.UnpicklingError("an array whose content is not as long as its shape says")
        self.code, self.content = dtype.code, content

    def items(self) -> object:
        """Return the members of an array of objects, or None for one of numbers."""
        return self.content if self.code == "O" else None


def _flat(array: _Array, name: str) -> NDArray[Any]:
    if array.code == "O" or not isinstance(array.content, bytes):
        raise CorruptDataError(f"{name} has an array of objects where one of numbers should be; fetch the file again")
    return np.frombuffer(array.content, _KINDS[array.code])


def _reconstruct(*_arguments: object) -> _Array:
    """Return an empty array, whatever shape a pickle asks memory for; its content comes with its state."""
    return _Array()


def _frombuffer(content: object, dtype: object, shape: object, *_order: object) -> _Array:
    """Return an array as pickles of protocol 5 hand it over: its content first."""
    array = _Array()
    array.__setstate__((1, shape, dtype, False, bytes(content) if isinstance(content, bytearray) else content))
    return array


def _scalar(dtype: object, content: object = b"") -> int:
    """Return a numpy scalar of a kind that is allowed, as an int."""
    if not isinstance(dtype, _Dtype) or not isinstance(content, bytes) or dtype.code == "O":
        raise pickle.UnpicklingError("a scalar without kind and content")
    if len(content) != _KINDS[dtype.code].itemsize:
        raise pickle.UnpicklingError("a scalar of another size than its kind")
    return int(np.frombuffer(content, _KINDS[dtype.code])[0])


def _encode(text: object, encoding: object = "latin1") -> bytes:
    """Return the bytes that Python 3 writes as text in old pickles."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("bytes in an unknown form")
    return text.encode("latin1")


_ALLOWED: Final = MappingProxyType[tuple[str, str], Callable[..., object]](
    {
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy.core.multiarray", "scalar"): _scalar,
        ("numpy._core.multiarray", "scalar"): _scalar,
        ("numpy.core.numeric", "_frombuffer"): _frombuffer,
        ("numpy._core.numeric", "_frombuffer"): _frombuffer,
        ("numpy", "ndarray"): _NdarrayName,
        ("numpy", "dtype"): _Dtype,
        ("_codecs", "encode"): _encode,
    }
)


_PLACES: Final = ("PUT", "BINPUT", "LONG_BINPUT")


class _Restricted(pickle.Unpickler):
    """Refuses every name but those of `_ALLOWED`, which it answers with stand-ins of this module."""

    def find_class(self, module: str, name: str) -> Callable[..., object]:
        """Return the stand-in for an allowed name; raises UnpicklingError for every other, importing nothing."""
        found = _ALLOWED.get((module, name))
        if found is None:
            raise pickle.UnpicklingError(f"it names {module[:40]}.{name[:40]}, which no pair set needs")
        return found

    def persistent_load(self, pid: object) -> object:
        """Raise UnpicklingError: a pair set refers to nothing outside itself."""
        raise pickle.UnpicklingError("it refers to an object outside of itself")


def _check_memory(data: bytes) -> None:
    """Raise ValueError for a program that takes more memory than its bytes may: its memo grows to the place it names.

    Python's machine also loses the memory of a bytearray whose bytes are missing; reading every argument finds that.
    """
    for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        if opcode.name in _PLACES and not (isinstance(argument, int) and 0 <= argument <= count):
            raise ValueError("it names a place that no pair set needs")


def _load(data: bytes, name: str) -> object:
    try:
        _check_memory(data)
        loaded: object = _Restricted(io.BytesIO(data), encoding="bytes").load()
    except (
        pickle.UnpicklingError,
        EOFError,
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
        OverflowError,
        MemoryError,
        RecursionError,
        ImportError,
    ) as error:
        reason = str(error) if isinstance(error, pickle.UnpicklingError) else "it is damaged"
        raise CorruptDataError(
            f"{name} was not read: {reason[:120]}; take pair sets from a source you trust"
        ) from error
    return loaded
