"""The vector that is masked: all addends of a device in one list of ring elements (`pipeline` makes it).

::

    count = 1 | weight w | clip_bit | w q(metric)... | checksum | w q(update)...

`clip_bit` is 1 where the update's norm did not exceed the L2 clip: its sum steers an adaptive clip (0 where nothing
would hide it: differential privacy with a fixed clip). The checksum is the
sum over the other lanes of r_j x_j, r public words drawn from R; being linear, it holds for the sum too, and catches
any fault of masks, packing or shares. (It stops no device that lies: whoever lies can make it fit.) Image count, losses
and metrics exist nowhere else, least of all beside the vector in clear.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mien.contribution import Contribution, ContributionLayout, Lane, Total
from mien.errors import CorruptDataError, LayoutMismatchError, NonFiniteError
from mien.secagg.canonical import tagged_hash
from mien.secagg.masks import BLOCK_WORDS, Words, WordStream
from mien.secagg.quantise import NumberFormat, to_signed

COUNT: Final = 0
WEIGHT: Final = 1
CLIP_BIT: Final = 2
FIRST_METRIC: Final = 3


@dataclass(frozen=True)
class VectorLayout:
    """Position of each lane in a vector with `num_metrics` metrics and an update of `size` elements."""

    size: int
    num_metrics: int

    @property
    def checksum(self) -> int:
        """Index of the checksum."""
        return FIRST_METRIC + self.num_metrics

    @property
    def metrics(self) -> slice:
        """Slice of the metrics."""
        return slice(FIRST_METRIC, self.checksum)

    @property
    def update(self) -> slice:
        """Slice of the update: the end of the vector."""
        return slice(self.checksum + 1, self.num_words)

    @cached_property
    def num_words(self) -> int:
        """Elements of the whole vector."""
        return self.size + self.num_metrics + 4


@dataclass(frozen=True)
class Addends:
    """Addends of one device before weighting, rounding and masking.

    `update` (d,) float32 and `metrics` are per-image means: the weight (images, capped) is applied after rounding.
    `blocks` are the slices of `update` that have an L2 clip of their own, and these clips.
    `noise` (d,) int64 is the device's share of distributed noise in steps, or None. `tells_clip` is False where the
    clip bit must stay 0, because nothing would hide it (differential privacy with a fixed clip).
    """

    weight: int
    update: NDArray[np.float32] = field(repr=False)
    metrics: tuple[float, ...] = field(default=(), repr=False)
    noise: NDArray[np.int64] | None = field(default=None, repr=False)
    tells_clip: bool = field(default=True, repr=False)
    blocks: tuple[tuple[slice, float], ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class OpenedSum:
    """A cohort's sum: everything the server learns of it.

    `update` (d,) is sum(w x) in float64, exact multiples of 2^-frac_bits; `metrics` are sum(w metric); `num_unclipped`
    devices had an update within the L2 clip.
    """

    count: int
    weight: int
    num_unclipped: int
    metrics: tuple[float, ...]
    update: NDArray[np.float64] = field(repr=False)

    @property
    def mean(self) -> NDArray[np.float64]:
        """The weighted mean update."""
        return self.update / self.weight


def checksum(vector: Words, layout: VectorLayout, binding: bytes) -> np.uint32:
    """Return sum of r_j x_j modulo 2^32 over all lanes but the checksum itself."""
    coefficients = WordStream(tagged_hash("checksum", binding))
    total = 0
    for start in range(0, len(vector), BLOCK_WORDS):
        block = vector[start : start + BLOCK_WORDS]
        products = coefficients.take(len(block)) * block
        if start <= layout.checksum < start + len(block):
            products[layout.checksum - start] = 0
        total += int(products.sum(dtype=np.uint64))
    return np.uint32(total & 0xFFFFFFFF)


# Decoding, on the server


def decode(words: Words, layout: VectorLayout, numbers: NumberFormat, binding: bytes, num_survivors: int) -> OpenedSum:
    """Return the sum in an unmasked vector, once it has passed every check that a sum can pass.

    Raises CorruptDataError where checksum, count, weight or norm do not fit `num_survivors` honest devices.
    """
    ring = np.uint32((1 << numbers.ring_bits) - 1)
    if (checksum(words, layout, binding) ^ words[layout.checksum]) & ring:
        raise CorruptDataError("the sum's checksum does not fit: a mask was not removed; nothing of it is used")
    head = to_signed(words[: layout.checksum], numbers.ring_bits)
    count, weight, unclipped = (int(value) for value in head[:FIRST_METRIC])
    if count != num_survivors or not count <= weight <= count * numbers.max_weight:
        raise CorruptDataError(
            f"the sum says {count} devices of weight {weight}, {num_survivors} took part; nothing of it is used"
        )
    update = to_signed(words[layout.update], numbers.ring_bits).astype(np.float64)
    update *= 2.0**-numbers.frac_bits
    metrics = head[layout.metrics] * 2.0**-numbers.metric_frac_bits
    # A device that lies about its bit must not make whether a sum is refused depend on another's: bounded, not refused.
    unclipped = min(max(unclipped, 0), count)
    return OpenedSum(count, weight, unclipped, tuple(float(value) for value in metrics), update)


def check_norm(opened: OpenedSum, numbers: NumberFormat, noise_allowance: float = 0.0) -> None:
    """Raise CorruptDataError if the update is larger than clipped updates can add up to: a device did not clip."""
    bound = numbers.norm_bound(opened.weight, len(opened.update)) + noise_allowance
    norm = math.sqrt(float(np.einsum("i,i->", opened.update, opened.update)))
    if not norm <= bound * (1 + 1e-9):
        raise CorruptDataError(
            f"the sum has norm {norm:.4g}, clipped updates reach at most {bound:.4g}; nothing of it is used"
        )


# To and from the contributions of `mien.methods`


@dataclass(frozen=True)
class ContributionMap:
    """Mapping of a method's summed lanes to metrics (lanes of one element) and update (all others), in lane order."""

    layout: ContributionLayout

    def __post_init__(self) -> None:
        names = [lane.name for lane in self.layout.summed]
        if names[:2] != ["count", "weight"] or any(lane.size != 1 for lane in self.layout.summed[:2]):
            raise LayoutMismatchError("a summed contribution begins with count and weight; use this program's methods")

    @cached_property
    def metric_lanes(self) -> tuple[Lane, ...]:
        """Lanes of one element besides count and weight."""
        return tuple(lane for lane in self.layout.summed[2:] if lane.size == 1)

    @cached_property
    def update_lanes(self) -> tuple[Lane, ...]:
        """Lanes of more than one element, laid end to end in the update."""
        return tuple(lane for lane in self.layout.summed[2:] if lane.size > 1)

    @cached_property
    def vector_layout(self) -> VectorLayout:
        """The vector that carries these lanes."""
        return VectorLayout(sum(lane.size for lane in self.update_lanes), len(self.metric_lanes))

    @cached_property
    def blocks(self) -> tuple[tuple[slice, float], ...]:
        """Slices of the update that have an L2 clip of their own, and these clips."""
        ends = accumulate(lane.size for lane in self.update_lanes)
        return tuple(
            (slice(end - lane.size, end), lane.clip)
            for lane, end in zip(self.update_lanes, ends, strict=True)
            if lane.clip
        )

    def addends(self, contribution: Contribution) -> Addends:
        """Return a contribution's lanes divided by its weight, which the rounding multiplies in again exactly."""
        weight = float(contribution.summed[self.layout.slices["weight"]][0])
        if contribution.summed[self.layout.slices["count"]][0] != 1 or not (weight >= 1 and weight.is_integer()):
            raise NonFiniteError("a contribution counts 1 and weighs a whole number of images; the device leaves")
        lanes = {lane.name: contribution.summed[self.layout.slices[lane.name]] for lane in self.layout.summed}
        parts = [lanes[lane.name] for lane in self.update_lanes]
        update = np.concatenate(parts) if parts else np.zeros(0, np.float32)
        metrics = tuple(float(lanes[lane.name][0]) / weight for lane in self.metric_lanes)
        return Addends(int(weight), update / np.float32(weight), metrics, blocks=self.blocks)

    def total(self, opened: OpenedSum) -> Total:
        """Return the opened sum as the total that a method's server half takes."""
        total = Total(self.layout, np.zeros(self.layout.summed_size), opened.count)
        total["count"][:], total["weight"][:] = opened.count, opened.weight
        for lane, value in zip(self.metric_lanes, opened.metrics, strict=True):
            total[lane.name][:] = value
        position = 0
        for lane in self.update_lanes:
            total[lane.name][:] = opened.update[position : position + lane.size]
            position += lane.size
        return total
