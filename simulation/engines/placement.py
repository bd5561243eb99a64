"""Shards of devices that are run together: a cut of a cohort that depends on nothing but the cohort.

Workers come and go; the cut stays, so that a sum over the shards in their order is the same bit for bit whoever ran
them.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

PER_SHARD: Final = 16
"""Devices of a shard on average: few enough to share out evenly, and enough for one batched program."""


@dataclass(frozen=True)
class Shard:
    """Devices that one worker runs together, in order of name, and how many images they hold."""

    devices: tuple[str, ...]
    images: int


def shards_of(images: Mapping[str, int], per_shard: int = PER_SHARD) -> tuple[Shard, ...]:
    """Return the cut of these devices (name -> images): the largest goes first, each to the least filled shard so far.

    Source: Graham (1969), longest processing time first: no shard holds more than 4/3 of what the best cut must give to
    one. The largest shards come first, so that workers that take them in turn end together.
    """
    bins: list[tuple[int, int, list[str]]] = [(0, i, []) for i in range(-(-len(images) // per_shard))]
    for device in sorted(images, key=lambda name: (-images[name], name)):
        load, number, held = heapq.heappop(bins)
        held.append(device)
        heapq.heappush(bins, (load + images[device], number, held))
    filled = [Shard(tuple(sorted(held)), load) for load, _, held in sorted(bins, key=lambda each: each[1])]
    return tuple(sorted((shard for shard in filled if shard.devices), key=lambda shard: -shard.images))
