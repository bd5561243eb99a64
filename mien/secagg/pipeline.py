"""The pipeline of a contribution: all steps between a device's addends and what leaves the device, in order.

    ContributionMap.addends -> protect -> clip -> quantise -> add_noise -> add_checksum -> mask -> upload

`pipeline` is that list, for a device and, without masks, for simulations. Each step takes a draft one further, and
says what it needs and what it promises. The coordinator's half of the way is `vector.decode`, then `noise.noised`.
Chance is drawn in the order of the list: a share of noise, then 32 bytes, the seed of the rounding words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mien.dp.mechanisms import RandomBytes
from mien.errors import ConfigError, LayoutMismatchError
from mien.secagg import noise
from mien.secagg.config import RoundConfig
from mien.secagg.keys import KEY_BYTES
from mien.secagg.masks import Words, WordStream, add_masks
from mien.secagg.quantise import NumberFormat, RoundingWords, l2_norm, quantise_metrics, quantise_update
from mien.secagg.vector import CLIP_BIT, COUNT, WEIGHT, Addends, VectorLayout, checksum
from mien.specs import DpSpec


@dataclass
class Draft:
    """Draft of a contribution: its addends, what scales its update, and the vector that is made of both."""

    addends: Addends = field(repr=False)
    layout: VectorLayout
    factor: float = 1.0
    vector: Words = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.addends.update.shape != (self.layout.size,) or len(self.addends.metrics) != self.layout.num_metrics:
            raise LayoutMismatchError(
                f"the update has {self.addends.update.shape} elements and {len(self.addends.metrics)} metrics, the "
                f"round needs ({self.layout.size},) and {self.layout.num_metrics}; use the model that was assigned"
            )
        self.vector = np.zeros(self.layout.num_words, np.uint32)


Step = Callable[[Draft], None]


def pipeline(
    config: RoundConfig, dp: DpSpec, binding: bytes, random: RandomBytes, mask: Step | None = None
) -> tuple[Step, ...]:
    """Return the steps of a round under `config`, whose task promises `dp`; a simulation has no `mask`."""
    return (
        partial(protect, config=config, dp=dp, random=random),
        *encoding(config.numbers, binding, lambda: WordStream(random(KEY_BYTES))),
        *([] if mask is None else [mask]),
    )


def encoding(numbers: NumberFormat, binding: bytes, rounding: Callable[[], RoundingWords]) -> tuple[Step, ...]:
    """Return the steps that make a vector of numbers: all but the first and the last."""
    return (
        partial(clip, numbers=numbers),
        partial(quantise, numbers=numbers, rounding=rounding),
        add_noise,
        partial(add_checksum, binding=binding),
    )


def run(steps: Sequence[Step], addends: Addends, layout: VectorLayout) -> Words:
    """Return the vector (num_words,) that the steps make; raises LayoutMismatchError for addends of another size."""
    draft = Draft(addends, layout)
    for step in steps:
        step(draft)
    return draft.vector


def encode(
    addends: Addends, layout: VectorLayout, numbers: NumberFormat, binding: bytes, rounding: RoundingWords
) -> Words:
    """Return the vector of a device, ready to be masked; rounding words go to metrics, then update.

    Raises what its steps raise.
    """
    return run(encoding(numbers, binding, lambda: rounding), addends, layout)


# The steps.


def protect(draft: Draft, *, config: RoundConfig, dp: DpSpec, random: RandomBytes) -> None:
    """Withhold what the promise does not cover, and draw the device's share of the noise (see `noise.protect`)."""
    draft.addends = noise.protect(draft.addends, config, dp, random)


def clip(draft: Draft, *, numbers: NumberFormat) -> None:
    """Scale the update to L2 norm S at most, and say whether it was within: one device changes a sum by S at most.

    Blocks with clips of their own are scaled each to its clip, and all else to what S leaves beside these. The bit
    stays 0 where nothing would hide it. Raises NonFiniteError for NaN or infinity.
    """
    if draft.addends.blocks:
        draft.addends, is_within = _clipped_by_block(draft.addends, numbers)
    else:
        norm = l2_norm(draft.addends.update)
        is_within = norm <= numbers.l2_clip
        draft.factor = 1.0 if is_within else numbers.l2_clip / norm
    draft.vector[CLIP_BIT] = is_within and draft.addends.tells_clip


def _clipped_by_block(addends: Addends, numbers: NumberFormat) -> tuple[Addends, bool]:
    """Return the addends with every block of the update within its clip, and whether all were within before."""
    update, is_within = addends.update.copy(), True
    rest = np.ones(len(update), bool)
    for place, _ in addends.blocks:
        rest[place] = False
    left = math.sqrt(max(0.0, numbers.l2_clip**2 - sum(clip**2 for _, clip in addends.blocks)))
    parts: list[tuple[slice | NDArray[np.bool_], float]] = [*addends.blocks, (rest, left)]
    for where, most in parts:
        norm = l2_norm(update[where])
        if norm > most:
            update[where] *= np.float32(most / norm)
            is_within = False
    return replace(addends, update=update), is_within


def quantise(draft: Draft, *, numbers: NumberFormat, rounding: Callable[[], RoundingWords]) -> None:
    """Clip each element, round it at random without bias, and multiply by the integer weight: sums cannot wrap.

    Raises NonFiniteError for NaN or infinity, ConfigError for a weight that the round does not permit: it is never
    capped in silence.
    """
    addends, vector, layout = draft.addends, draft.vector, draft.layout
    if not 1 <= addends.weight <= numbers.max_weight:
        raise ConfigError(f"weight {addends.weight} is outside 1..{numbers.max_weight}; cap the number of images")
    words = rounding()
    vector[COUNT], vector[WEIGHT] = 1, addends.weight
    vector[layout.metrics] = quantise_metrics(addends.metrics, numbers, addends.weight, words).view(np.uint32)
    quantise_update(addends.update, draft.factor, numbers, addends.weight, words, vector[layout.update])


def add_noise(draft: Draft) -> None:
    """Add the device's share of distributed noise, whole steps, where `protect` has drawn one."""
    if draft.addends.noise is not None:
        draft.vector[draft.layout.update] += draft.addends.noise.astype(np.uint32)


def add_checksum(draft: Draft, *, binding: bytes) -> None:
    """Write the checksum of all other lanes, noise included: it is linear, so that the sum's must fit too."""
    draft.vector[draft.layout.checksum] = checksum(draft.vector, draft.layout, binding)


def mask(draft: Draft, *, plus: Sequence[bytes], minus: Sequence[bytes], threads: int) -> None:
    """Hide the vector: to whoever lacks one of the seeds it is random words, and over the cohort the masks cancel."""
    add_masks(draft.vector, plus, minus, threads=threads)
