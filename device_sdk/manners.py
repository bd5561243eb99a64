"""How a phone trains without being in the way: within memory and time that its owner gives, at low priority, visibly.

The memory that training takes is estimated, on the high side, from the trained part and the batch. Parameters count
exactly. What a step keeps of an image was measured for whole networks (`python -m benchmarks.device`, torch, which
takes more than ONNX Runtime); a part from a later stage on is taken to need its share of the stages, though later
stages need less.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from device_sdk.clock import Clock
from device_sdk.runtimes.schedule import num_steps
from device_sdk.watch import TrainingWatch
from mien.errors import ConfigError
from mien.layout import ParameterPart, Vector
from mien.methods.base import Crops, Embeddings, Objective, Runtime, Trained, never_stop
from mien.specs import LocalSpec

PROGRESS_EVERY_S: Final = 5.0
MB: Final = 10**6
# What a step keeps for one image while a whole network trains, by its input's pixels.
_BYTES_PER_PIXEL: Final = {"mobilefacenet": 4_500, "mobilefacenet_folded": 4_500, "mobilefacenet192": 4_500}
_BYTES_PER_PIXEL_AT_MOST: Final = 13_500
# The frozen stages run on so many images at a time and keep little of them.
_FORWARD_IMAGES: Final = 4
_FORWARD_SHARE: Final = 1 / 8
_COPIES_OF_MODEL: Final = 2
_COPIES_OF_PART: Final = 6


@dataclass(frozen=True)
class TrainingBudget:
    """What one round's training may take of this phone: seconds, and megabytes beside the loaded program.

    None is without limit.
    """

    max_training_s: float | None = None
    max_memory_mb: float | None = None


@dataclass(frozen=True)
class MemoryEstimate:
    """What training is expected to take, whatever the batch and for each image of it, in bytes."""

    fixed_bytes: int
    image_bytes: int

    def bytes_for(self, num_images: int) -> int:
        """Return what a step on so many images takes."""
        return self.fixed_bytes + num_images * self.image_bytes

    def most_images(self, limit_bytes: float) -> int:
        """Return how many images of a batch fit, 0 where not even one does."""
        return max(0, int((limit_bytes - self.fixed_bytes) // self.image_bytes))


def estimate_memory(backbone: str, part: ParameterPart, image_pixels: int) -> MemoryEstimate:
    """Return the memory that training a part is expected to take beside the program, on the high side."""
    stages = list(dict.fromkeys(entry.name.partition(".")[0] for entry in part.layout.entries))
    trained = {name.partition(".")[0] for name in part.names}
    first = next(number for number, stage in enumerate(stages) if stage in trained)
    whole = _BYTES_PER_PIXEL.get(backbone, _BYTES_PER_PIXEL_AT_MOST) * image_pixels
    forward = _FORWARD_IMAGES * _FORWARD_SHARE * whole
    parameters = 4 * (_COPIES_OF_MODEL * part.layout.size + _COPIES_OF_PART * part.size)
    return MemoryEstimate(round(parameters + forward), max(1, round(whole * (len(stages) - first) / len(stages))))


@runtime_checkable
class Divisible(Protocol):
    """A runtime that can take a step in pieces of its batch, with the same result."""

    def can_divide(self, objective: Objective, local: LocalSpec) -> bool:
        """Return whether a batch's images can be worked out one after another."""
        ...

    def in_pieces(self, num_images: int) -> AbstractContextManager[None]:
        """Hold so many images of a batch in memory at most, while the block runs."""
        ...


@dataclass(frozen=True)
class MannerlyRuntime:
    """A runtime that keeps to a budget, stops when it is told to, and says how far training is.

    `tell` hears steps done and steps of all, every few seconds and at the end of a training that took longer than that.
    """

    runtime: Runtime
    backbone: str
    watch: TrainingWatch
    clock: Clock
    max_memory_mb: float | None = None
    tell: Callable[[int, int], None] = lambda _done, _total: None

    def embed(self, theta: Vector, crops: Crops) -> Embeddings:
        """Return what the runtime embeds."""
        return self.runtime.embed(theta, crops)

    def train(
        self,
        theta: Vector,
        part: ParameterPart,
        crops: Crops,
        objective: Objective,
        local: LocalSpec,
        seed: int,
        should_stop: Callable[[], bool] = never_stop,
    ) -> Trained:
        """Return what the runtime trains.

        Raises LateError when the watch or `should_stop` says so, ConfigError where the batch does not fit into memory.
        """
        total, asked = num_steps(local, len(crops)), 0
        next_told_s = self.clock.monotonic_s() + PROGRESS_EVERY_S
        was_told = False

        def stops() -> bool:
            nonlocal asked, next_told_s, was_told
            done, asked = asked, asked + 1
            if self.watch(max(total - done, 0)) or should_stop():
                return True
            if self.clock.monotonic_s() >= next_told_s:
                self.tell(done, total)
                next_told_s, was_told = self.clock.monotonic_s() + PROGRESS_EVERY_S, True
            return False

        with self._fitting(part, crops, objective, local):
            trained = self.runtime.train(theta, part, crops, objective, local, seed, stops)
        if was_told:
            self.tell(total, total)
        return trained

    def _fitting(
        self, part: ParameterPart, crops: Crops, objective: Objective, local: LocalSpec
    ) -> AbstractContextManager[None]:
        """Return a block in which training fits into the owner's memory; raises ConfigError where it cannot."""
        if self.max_memory_mb is None or len(crops) == 0 or not part.names:
            return nullcontext()
        batch = min(local.batch_size or len(crops), len(crops))
        estimate = estimate_memory(self.backbone, part, crops.shape[1] * crops.shape[2])
        fits = estimate.most_images(self.max_memory_mb * MB)
        if fits >= batch:
            return nullcontext()
        if fits and isinstance(self.runtime, Divisible) and self.runtime.can_divide(objective, local):
            return self.runtime.in_pieces(fits)
        raise ConfigError(
            f"training would take about {estimate.bytes_for(batch) / MB:.0f} MB (an estimate, on the high side, for "
            f"{batch} images a step), and participation.max_memory_mb is {self.max_memory_mb:g}; the phone leaves the "
            "round before it trains, and nothing is lost; raise the limit, or wait for a task with smaller batches"
        )


def lower_priority(nice: int) -> bool:
    """Give other programs precedence over this one, by a nice value (0 to 19); tells whether that changed anything.

    It holds until the program ends: without privileges the system does not take it back.
    """
    if not hasattr(os, "nice"):  # not a Unix
        return False
    missing = nice - os.nice(0)
    if missing > 0:
        os.nice(missing)
    return missing > 0
