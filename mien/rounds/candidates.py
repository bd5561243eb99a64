"""Devices that offer to take part in a round: a value, of which one that differs in a few of them is made quickly.

A round that gathers devices hears of each again and again, and may wait while a whole population comes. To copy all of
them at each check-in, or to sort them, takes longer the more of them wait.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Mapping, Set
from typing import Final

from mien.protocol.ids import DeviceId

Line = tuple[tuple[bytes, DeviceId], ...]
"""Devices in order of a keyed hash, with that."""

_FEW: Final = 64
_CHANGES: Final = 4
"""A value shares a dict with others until it differs from it in so many, and in so many times the root of its size."""


class Candidates(Mapping[DeviceId, float]):
    """Maps devices to when they were last heard of; first are those that were not heard of for the longest.

    It never changes. What `heard` and `without` take grows with the root of the number of devices.
    """

    __slots__ = ("_beside", "_gone", "_shared")

    def __init__(self, seen: Mapping[DeviceId, float]) -> None:
        """Take devices in the order in which they were heard of."""
        self._shared: dict[DeviceId, float] = dict(seen)
        self._beside: dict[DeviceId, float] = {}
        self._gone: frozenset[DeviceId] = frozenset()

    @classmethod
    def of(cls, seen: Mapping[DeviceId, float]) -> Candidates:
        """Return devices as such a value, which they may be already."""
        return seen if isinstance(seen, Candidates) else cls(seen)

    def __getitem__(self, device: DeviceId) -> float:
        """Return when a device was last heard of."""
        if device in self._beside:
            return self._beside[device]
        if device in self._gone:
            raise KeyError(device)
        return self._shared[device]

    def __contains__(self, device: object) -> bool:
        """Return whether a device is one of them."""
        return device in self._beside or (device in self._shared and device not in self._gone)

    def __len__(self) -> int:
        """Return how many they are."""
        return len(self._shared) - len(self._gone) + len(self._beside)

    def __iter__(self) -> Iterator[DeviceId]:
        """Return an iterator over the devices."""
        yield from (device for device in self._shared if device not in self._gone)
        yield from self._beside

    def heard(self, devices: Collection[DeviceId], now: float) -> Candidates:
        """Return these devices and some that were heard of now."""
        return self._with(devices, dict.fromkeys(devices, now))

    def without(self, devices: Collection[DeviceId]) -> Candidates:
        """Return these devices but for some."""
        return self._with(devices, {}) if any(device in self for device in devices) else self

    def silent(self, since: float) -> list[DeviceId]:
        """Return those that were not heard of since a time; it looks at no others, as long as time goes forward."""
        found = list[DeviceId]()
        for device in self:
            if self[device] >= since:
                break
            found.append(device)
        return found

    def _with(self, devices: Collection[DeviceId], there: Mapping[DeviceId, float]) -> Candidates:
        """Return a value that has of some devices only what is `there`."""
        made = Candidates.__new__(Candidates)
        kept = {device: seen for device, seen in self._beside.items() if device not in devices}
        made._shared, made._beside = self._shared, {**kept, **there}
        made._gone = self._gone.union(device for device in devices if device in self._shared)
        if len(made._gone) + len(made._beside) <= _FEW + _CHANGES * math.isqrt(len(self._shared)):
            return made
        return Candidates({**{d: seen for d, seen in made._shared.items() if d not in made._gone}, **made._beside})


def lined_up(
    line: Line, seed: int, come: Set[DeviceId], left: Set[DeviceId], room: int
) -> tuple[Line, frozenset[DeviceId]]:
    """Return a line with some more devices and without some that are in it, and those for which there is no room.

    The place of each follows from a hash keyed by the round's seed: connecting fast or often helps nobody forward.
    """
    places = sorted((_place(seed, device), device) for device in come)
    if not left and (not places or (len(line) >= room and places[0] > line[-1])):
        return line, frozenset(come)
    if len(left) > _FEW:
        kept = [each for each in line if each[1] not in left]
    else:
        kept = [*line]
        for device in left:
            del kept[bisect_left(kept, (_place(seed, device), device))]
    if len(places) > _FEW:
        kept = sorted((*kept, *places))
    else:
        for place in places:
            insort(kept, place)
    return tuple(kept[:room]), frozenset(device for _, device in kept[room:])


def _place(seed: int, device: DeviceId) -> bytes:
    return hashlib.sha256(f"mien/waiting/1\n{seed}\n{device}".encode()).digest()
