"""A contribution: the named addends that leave a phone, in one flat vector, and their sum over a cohort.

A contribution is one float32 vector whose lanes are laid end to end; the server needs nothing but the sum of these
vectors. Lanes outside the sum ("revealed") exist only where the task opted in, and say so in their layout.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mien.errors import CorruptDataError, NonFiniteError
from mien.layout import Vector

Arrays = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Lane:
    """A named run of float32 elements of a contribution.

    A masked update's lanes are scaled to `privacy.l2_clip` together; one with a `clip` of its own is scaled to that L2
    norm apart from the others. Plain sums are not clipped.
    """

    name: str
    size: int
    clip: float = 0.0


@dataclass(frozen=True)
class ContributionLayout:
    """The lanes of a contribution: `summed` ones, then `revealed` ones that the server sees in clear.

    Every method's first two summed lanes are `count` (always 1) and `weight` (the number of images, capped).
    """

    summed: tuple[Lane, ...]
    revealed: tuple[Lane, ...] = ()

    @cached_property
    def summed_size(self) -> int:
        """Elements of the summed part."""
        return sum(lane.size for lane in self.summed)

    @cached_property
    def size(self) -> int:
        """Elements of a whole contribution."""
        return self.summed_size + sum(lane.size for lane in self.revealed)

    @property
    def size_bytes(self) -> int:
        """Length of an upload: 4 bytes an element."""
        return 4 * self.size

    @property
    def revealed_bytes(self) -> int:
        """Length of what the server sees in clear, which follows the masked vector where sums are masked."""
        return 4 * (self.size - self.summed_size)

    def parse_revealed(self, data: bytes | memoryview) -> dict[str, Vector]:
        """Return the revealed lanes in their bytes (little-endian float32), by name.

        Raises CorruptDataError for another length, NonFiniteError for NaN or infinity.
        """
        if len(data) != self.revealed_bytes:
            raise CorruptDataError(f"what is revealed has {len(data)} bytes, this task needs {self.revealed_bytes}")
        values = np.frombuffer(data, "<f4").astype(np.float32)
        if not np.isfinite(values).all():
            raise NonFiniteError("what is revealed holds NaN or infinity; it was not counted")
        start = self.summed_size
        return {
            lane.name: values[self.slices[lane.name].start - start : self.slices[lane.name].stop - start]
            for lane in self.revealed
        }

    @cached_property
    def sha256(self) -> str:
        """Hex digest over names and sizes in order, summed and revealed apart."""
        lanes = [[[lane.name, lane.size] for lane in part] for part in (self.summed, self.revealed)]
        return hashlib.sha256(json.dumps(lanes, separators=(",", ":")).encode()).hexdigest()

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Position of each lane in the vector."""
        slices, position = {}, 0
        for lane in (*self.summed, *self.revealed):
            slices[lane.name] = slice(position, position + lane.size)
            position += lane.size
        return slices

    def pack(self, lanes: Arrays) -> Contribution:
        """Return the contribution made of one array per lane, each of the lane's size.

        Raises NonFiniteError when a lane holds NaN or infinity: such an update must not leave the phone.
        """
        if set(lanes) != set(self.slices):
            raise CorruptDataError(f"contribution needs lanes {sorted(self.slices)}, got {sorted(lanes)}")
        vector = np.empty(self.size, np.float32)
        for name, place in self.slices.items():
            values = np.asarray(lanes[name], np.float32).reshape(-1)
            if values.size != place.stop - place.start:
                raise CorruptDataError(f"lane {name} has {values.size} elements, needs {place.stop - place.start}")
            if not np.isfinite(values).all():
                raise NonFiniteError(f"lane {name} of the update holds NaN or infinity; the device leaves the round")
            vector[place] = values
        return Contribution(self, vector)

    def parse(self, data: bytes | memoryview) -> Contribution:
        """Return the contribution in an upload's bytes (little-endian float32).

        Raises CorruptDataError for another length, NonFiniteError for NaN or infinity or a count other than 1.
        """
        if len(data) != self.size_bytes:
            raise CorruptDataError(
                f"contribution has {len(data)} bytes, this task needs {self.size_bytes}; send it again"
            )
        vector = np.frombuffer(data, "<f4")
        if not np.isfinite(vector).all():
            raise NonFiniteError("contribution holds NaN or infinity; it was not counted")
        return Contribution(self, vector)


@dataclass(frozen=True)
class Contribution:
    """Addends of one device (and, where the task opted in, what it reveals)."""

    layout: ContributionLayout
    vector: Vector = field(repr=False)

    def to_bytes(self) -> bytes:
        """Return the upload: the vector as little-endian float32."""
        return np.ascontiguousarray(self.vector, "<f4").tobytes()

    @property
    def summed(self) -> Vector:
        """The addends: shape (layout.summed_size,)."""
        return self.vector[: self.layout.summed_size]

    def revealed(self) -> dict[str, Vector]:
        """Vectors that the server sees in clear, by lane name; empty for tasks that reveal nothing."""
        return {lane.name: self.vector[self.layout.slices[lane.name]] for lane in self.layout.revealed}


@dataclass(frozen=True)
class Total:
    """The sum of a cohort's addends in float64, and how many contributions it holds."""

    layout: ContributionLayout
    vector: NDArray[np.float64] = field(repr=False)
    num_reports: int

    @classmethod
    def empty(cls, layout: ContributionLayout) -> Total:
        """Return the sum over an empty cohort."""
        return cls(layout, np.zeros(layout.summed_size), 0)

    def __getitem__(self, lane: str) -> NDArray[np.float64]:
        return self.vector[self.layout.slices[lane]]

    def plus(self, contribution: Contribution) -> Total:
        """Return this total with one more contribution; O(size) memory, whatever the cohort.

        The vector is updated in place and handed on: the old total must not be used again.
        """
        self.vector[:] += contribution.summed
        return Total(self.layout, self.vector, self.num_reports + 1)

    def merge(self, other: Total) -> Total:
        """Return the total over both cohorts, which must not overlap."""
        return Total(self.layout, self.vector + other.vector, self.num_reports + other.num_reports)

    def mean(self, lane: str) -> NDArray[np.float64]:
        """Return the lane's weighted mean over the cohort: sum(w x) / sum(w)."""
        weight = float(self["weight"][0])
        if weight <= 0 or self.num_reports == 0:
            raise NonFiniteError("the cohort's total weight is zero; the round is aborted")
        return self[lane] / weight
