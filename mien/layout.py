"""The one order of parameters: named tensors <-> one flat float32 vector.

A `ParameterLayout` is fixed by the architecture; its hash travels in every manifest and assignment. A `ParameterPart`
is the piece of it that a task trains and sends. Buffers (BatchNorm running statistics) may be part of a layout; integer
counters never are, because they are no addends.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from mien.errors import ConfigError, LayoutMismatchError, NonFiniteError

Vector = NDArray[np.float32]
Kind = Literal["parameter", "buffer"]
_PIECE: Final = 2**18


@dataclass(frozen=True)
class ParameterEntry:
    """One named tensor of a layout: name, shape, and whether it is a parameter or a buffer."""

    name: str
    shape: tuple[int, ...]
    kind: Kind = "parameter"

    @property
    def size(self) -> int:
        """Number of float32 elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class ParameterLayout:
    """The order, names and shapes of an architecture's tensors in its flat vector."""

    entries: tuple[ParameterEntry, ...]

    def __post_init__(self) -> None:
        names = [entry.name for entry in self.entries]
        if len(set(names)) != len(names):
            raise ConfigError("layout names a tensor twice; give every tensor its own name")
        if any(dim <= 0 for entry in self.entries for dim in entry.shape):
            raise ConfigError("layout holds an empty tensor; remove it")

    @cached_property
    def size(self) -> int:
        """Number of float32 elements of the flat vector."""
        return sum(entry.size for entry in self.entries)

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Index of each tensor's first element in the flat vector."""
        offsets, position = {}, 0
        for entry in self.entries:
            offsets[entry.name] = position
            position += entry.size
        return offsets

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Number of elements of each tensor."""
        return {entry.name: entry.size for entry in self.entries}

    @cached_property
    def sha256(self) -> str:
        """Hex digest over names and shapes in order; equal digests mean interchangeable vectors."""
        text = json.dumps([[e.name, list(e.shape), e.kind] for e in self.entries], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def check(self, vector: NDArray[np.float32], *, what: str = "parameter vector") -> Vector:
        """Return `vector` as contiguous float32 of this layout's size.

        Raises LayoutMismatchError for another size or type, NonFiniteError for NaN or infinity.
        """
        if vector.dtype != np.float32 or vector.shape != (self.size,):
            raise LayoutMismatchError(
                f"{what} has shape {vector.shape} {vector.dtype}, this layout needs ({self.size},) float32; "
                "use the model that was assigned"
            )
        if not all(np.isfinite(piece).all() for piece in _pieces(vector)):
            raise NonFiniteError(f"{what} holds NaN or infinity; it was not used")
        return np.ascontiguousarray(vector)

    def flatten(self, tensors: Mapping[str, NDArray[np.generic]]) -> Vector:
        """Return the flat vector of named tensors; names and shapes must be this layout's exactly."""
        missing = [e.name for e in self.entries if e.name not in tensors]
        extra = sorted(set(tensors) - set(self.offsets))
        if missing or extra:
            raise LayoutMismatchError(f"tensors do not fit the layout: missing {missing[:5]}, unknown {extra[:5]}")
        vector = np.empty(self.size, np.float32)
        for entry in self.entries:
            tensor = tensors[entry.name]
            if tuple(tensor.shape) != entry.shape:
                raise LayoutMismatchError(f"{entry.name} has shape {tuple(tensor.shape)}, layout says {entry.shape}")
            start = self.offsets[entry.name]
            vector[start : start + entry.size] = np.asarray(tensor, np.float32).reshape(-1)
        return vector

    def unflatten(self, vector: Vector) -> dict[str, Vector]:
        """Return views of the flat vector, one per tensor, in its shape."""
        vector = self.check(vector)
        return {
            e.name: vector[self.offsets[e.name] : self.offsets[e.name] + e.size].reshape(e.shape) for e in self.entries
        }

    def part(self, patterns: Sequence[str] = ("*",)) -> ParameterPart:
        """Return the part whose tensor names match any of the shell-style `patterns`.

        Every pattern must match something, so that a typo never silently freezes a layer.
        """
        for pattern in patterns:
            if not any(fnmatch.fnmatchcase(e.name, pattern) for e in self.entries):
                raise ConfigError(f"trainable pattern {pattern!r} matches no tensor; `model export` shows their names")
        names = tuple(e.name for e in self.entries if any(fnmatch.fnmatchcase(e.name, p) for p in patterns))
        return ParameterPart(self, names)

    def to_json(self) -> list[dict[str, object]]:
        """Return the layout as plain data for a manifest."""
        return [{"name": e.name, "shape": list(e.shape), "kind": e.kind} for e in self.entries]

    @classmethod
    def from_json(cls, rows: Iterable[Mapping[str, object]]) -> ParameterLayout:
        """Return the layout that `to_json` wrote; raises LayoutMismatchError when it is malformed."""
        entries = []
        for row in rows:
            if not isinstance(row, Mapping):
                raise LayoutMismatchError("manifest holds a malformed layout; fetch the model again")
            name, shape, kind = row.get("name"), row.get("shape"), row.get("kind")
            if not isinstance(name, str) or not isinstance(shape, list) or kind not in ("parameter", "buffer"):
                raise LayoutMismatchError("manifest holds a malformed layout; fetch the model again")
            if not all(isinstance(dim, int) and not isinstance(dim, bool) and dim > 0 for dim in shape):
                raise LayoutMismatchError("manifest holds a malformed shape; fetch the model again")
            entries.append(ParameterEntry(name, tuple(shape), "buffer" if kind == "buffer" else "parameter"))
        if len({entry.name for entry in entries}) != len(entries):
            raise LayoutMismatchError("manifest names a tensor twice; fetch the model again")
        return cls(tuple(entries))


@dataclass(frozen=True)
class ParameterPart:
    """The tensors of a layout that a task trains and sends, in layout order."""

    layout: ParameterLayout
    names: tuple[str, ...]
    _slices: tuple[slice, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.names:
            raise ConfigError("the trainable part is empty; name at least one tensor")
        unknown = [name for name in self.names if name not in self.layout.offsets]
        if unknown or len(set(self.names)) != len(self.names):
            fault = f"names unknown tensors {unknown[:5]}" if unknown else "names a tensor twice"
            raise LayoutMismatchError(f"the trainable part {fault}; use the model that was assigned")
        sizes = {e.name: e.size for e in self.layout.entries}
        runs: list[slice] = []
        for name in self.names:
            start = self.layout.offsets[name]
            if runs and runs[-1].stop == start:
                runs[-1] = slice(runs[-1].start, start + sizes[name])
            else:
                runs.append(slice(start, start + sizes[name]))
        object.__setattr__(self, "_slices", tuple(runs))

    @cached_property
    def size(self) -> int:
        """Number of float32 elements that are trained and sent."""
        return sum(run.stop - run.start for run in self._slices)

    @cached_property
    def sha256(self) -> str:
        """Hex digest over the layout's hash and the chosen names."""
        text = json.dumps([self.layout.sha256, list(self.names)], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def gather(self, theta: Vector) -> Vector:
        """Return this part's elements of the full vector, concatenated: shape (size,)."""
        return np.concatenate(self.runs(theta))

    def runs(self, theta: Vector) -> list[Vector]:
        """Return views of this part's elements of the full vector, which laid end to end are what `gather` returns."""
        self._require_whole(theta)
        return [theta[run] for run in self._slices]

    def change(self, theta: Vector, values: Vector) -> Vector:
        """Return `values`, of shape (size,), minus this part's elements of the full vector."""
        if values.shape != (self.size,):
            raise LayoutMismatchError(f"part has {self.size} elements, got {values.shape}; use the assigned model")
        self._require_whole(theta)
        result, position = np.empty_like(values), 0
        for run in self._slices:
            place = slice(position, position + run.stop - run.start)
            np.subtract(values[place], theta[run], out=result[place])
            position = place.stop
        return result

    def scatter(self, theta: Vector, values: Vector) -> Vector:
        """Return a copy of the full vector with this part replaced by `values` of shape (size,)."""
        if values.shape != (self.size,):
            raise LayoutMismatchError(f"part has {self.size} elements, got {values.shape}; use the assigned model")
        self._require_whole(theta)
        result, position = theta.copy(), 0
        for run in self._slices:
            length = run.stop - run.start
            result[run] = values[position : position + length]
            position += length
        return result

    def _require_whole(self, theta: Vector) -> None:
        if theta.shape != (self.layout.size,):
            raise LayoutMismatchError(
                f"vector has shape {theta.shape}, the layout needs ({self.layout.size},); use the assigned model"
            )


def _pieces(vector: Vector) -> Iterator[Vector]:
    """Yield views of a vector, each so short that what is worked out of it for a moment takes a megabyte at most."""
    for start in range(0, len(vector), _PIECE):
        yield vector[start : start + _PIECE]


def model_id(layout_sha256: str, theta: Vector) -> str:
    """Return the content address of a model: sha256(layout_sha256 bytes || theta as little-endian float32)."""
    digest = hashlib.sha256(bytes.fromhex(layout_sha256))
    digest.update(np.ascontiguousarray(theta, "<f4").data)
    return digest.hexdigest()
