"""Registered phones by the million, of which only those that are drawn cost anything.

Phone number i is called by its number, with as many digits as all need, so that order of number is order of name and no
name has to be kept; its crops are made when they are asked for.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, overload, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mien.errors import ConfigError
from mien.methods.base import Crops


class PhoneNames(Sequence[str]):
    """The names of `number` phones, in order: "phone-000000", "phone-000001", ..."""

    def __init__(self, number: int, prefix: str = "phone") -> None:
        if number < 1:
            raise ConfigError(f"a population has {number} phones; give it at least one")
        self._number, self._prefix, self._digits = number, f"{prefix}-", len(str(number - 1))

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(self._number)))
        if not -self._number <= index < self._number:
            raise IndexError(index)
        return f"{self._prefix}{index % self._number:0{self._digits}d}"

    def __len__(self) -> int:
        return self._number

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._number_of(name) is not None

    def index(self, name: str, start: int = 0, stop: int | None = None) -> int:
        """Return a phone's number; raises ValueError for a name of no phone between `start` and `stop`."""
        number = self._number_of(name)
        if number is None or not start <= number < (self._number if stop is None else stop):
            raise ValueError(f"{name!r} is no phone of this population")
        return number

    def _number_of(self, name: str) -> int | None:
        digits = name.removeprefix(self._prefix)
        if len(digits) != self._digits or not digits.isascii() or not digits.isdecimal():
            return None
        number = int(digits)
        return number if number < self._number and self[number] == name else None


class Population(Mapping[str, Crops]):
    """The crops of `number` phones by name, as a cohort's `crops`; `read` makes those of phone number i, each time.

    `num_images` says how many phone i has without reading them.
    """

    def __init__(
        self, number: int, read: Callable[[int], Crops], num_images: Callable[[int], int], *, prefix: str = "phone"
    ) -> None:
        self.names = PhoneNames(number, prefix)
        self._read, self._num_images = read, num_images

    def __getitem__(self, name: str) -> Crops:
        try:
            return self._read(self.names.index(name))
        except ValueError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def num_images(self, name: str) -> int:
        """Return how many crops a phone holds."""
        return self._num_images(self.names.index(name))


@dataclass(frozen=True, eq=False)
class Table:
    """Phones' rows in one array of crops, such as a mapped file: phone i holds those from `starts[i]` on.

    `starts` (phones + 1,) begins at 0 and ends at the number of crops.
    """

    starts: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.starts.ndim != 1 or len(self.starts) < 2 or self.starts[0] != 0 or (np.diff(self.starts) < 1).any():
            raise ConfigError("a table of phones begins at 0 and grows by at least one crop a phone")

    def population(self, crops: Crops, *, prefix: str = "phone") -> Population:
        """Return the phones that hold `crops` (N, H, W, 3); raises ConfigError for another number of crops."""
        if len(crops) != self.starts[-1]:
            raise ConfigError(f"the table is of {self.starts[-1]} crops, and there are {len(crops)}")
        return Population(
            len(self.starts) - 1,
            lambda i: np.asarray(crops[self.starts[i] : self.starts[i + 1]]),
            lambda i: int(self.starts[i + 1] - self.starts[i]),
            prefix=prefix,
        )


@runtime_checkable
class _CountsImages(Protocol):
    """Crops that know how many a phone has without reading them."""

    def num_images(self, name: str) -> int:
        """Return how many crops a phone holds."""
        ...


def num_images(crops: Mapping[str, Crops], name: str) -> int:
    """Return how many crops a phone holds; they are read only where nothing else tells."""
    return crops.num_images(name) if isinstance(crops, _CountsImages) else len(crops[name])


def without(names: Sequence[str], busy: set[str]) -> Sequence[str]:
    """Return names in order, but for some of them; costs what those cost."""
    return _Others(names, sorted(_place(names, name) for name in busy)) if busy else names


def _place(names: Sequence[str], name: str) -> int:
    return names.index(name) if isinstance(names, PhoneNames) else bisect.bisect_left(names, name)


class _Others(Sequence[str]):
    """Names in order without those at some places."""

    def __init__(self, names: Sequence[str], left_out: Sequence[int]) -> None:
        self._names, self._left_out = names, left_out

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        place = index % len(self)
        for gap in self._left_out:
            if gap > place:
                break
            place += 1
        return self._names[place]

    def __len__(self) -> int:
        return len(self._names) - len(self._left_out)
