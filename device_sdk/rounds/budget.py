"""Budget of training on a phone: memory and time that its owner gives, at low priority, visibly.

The memory that training takes is estimated, on the high side, from the part that is trained and the batch: copies of
the part's parameters, and what is larger of a step on the batch and of the frozen stages' forward pass, whose results
are kept. What an image takes was measured (`python -m benchmarks.device`), with torch and ONNX Runtime.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol, runtime_checkable

from device_sdk.rounds.watch import TrainingWatch
from mien.errors import ConfigError
from mien.layout import ParameterPart, Vector
from mien.methods.base import Crops, Embeddings, Objective, Runtime, Trained, TrainingJob, never_stop
from mien.shell.clock import Clock
from mien.specs import LocalSpec

PROGRESS_EVERY_S: Final = 5.0
MB: Final = 10**6
_OF_MOBILEFACENET: Final = {"stem": 33.0, "block7": 10.0, "block14": 2.0, "adapter": 1.5}
_OF_SFACE: Final = {"stem": 45.0, "block12": 5.4, "adapter": 1.5}
_STEP_MB: Final[Mapping[str, Mapping[str, float]]] = MappingProxyType(
    {
        "mobilefacenet_folded": _OF_MOBILEFACENET,
        "mobilefacenet192": _OF_MOBILEFACENET,
        "mobilefacenet192_adapter": _OF_MOBILEFACENET,
        "mobilefacenet192_gate": _OF_MOBILEFACENET,
        "sface": _OF_SFACE,
        "sface_adapter": _OF_SFACE,
        "sface_gate": _OF_SFACE,
    }
)
"""Memory of a step for an image of 112 x 112, by the first stage that it trains; between two, the earlier's."""
_FORWARD_MB: Final = MappingProxyType(
    {name: 16.0 if steps is _OF_MOBILEFACENET else 32.0 for name, steps in _STEP_MB.items()}
)
"""Memory of the frozen stages while they run, on four images at a time."""
_UNKNOWN_STEP_MB: Final = 170.0
_UNKNOWN_FORWARD_MB: Final = 85.0
_MEASURED_PIXELS: Final = 112 * 112
_COPIES_OF_PART: Final = 6


@dataclass(frozen=True)
class TrainingBudget:
    """Budget of one round's training on this phone: seconds, and megabytes beside the loaded program.

    None is without limit.
    """

    max_training_s: float | None = None
    max_memory_mb: float | None = None


@dataclass(frozen=True)
class MemoryEstimate:
    """Expected memory of training, whatever the batch, for each image of it, and at least, in bytes."""

    fixed_bytes: int
    image_bytes: int
    forward_bytes: int

    def bytes_for(self, num_images: int) -> int:
        """Return the memory of a step on so many images, or of the forward pass before it where that is more."""
        return self.fixed_bytes + max(num_images * self.image_bytes, self.forward_bytes)

    def most_images(self, limit_bytes: float) -> int:
        """Return the number of images of a batch that fit, 0 where not even one does."""
        left = limit_bytes - self.fixed_bytes
        return 0 if left < self.forward_bytes else int(left // self.image_bytes)


def estimate_memory(backbone: str, part: ParameterPart, image_pixels: int, image_factor: float = 1.0) -> MemoryEstimate:
    """Return the memory that training a part is expected to take beside the program, on the high side.

    A backbone that was not measured counts as a large one that is trained whole. `image_factor` is what an engine's
    steps take for an image, as a multiple of torch's.
    """
    stages = list(dict.fromkeys(entry.name.partition(".")[0] for entry in part.layout.entries))
    trained = {name.partition(".")[0] for name in part.names}
    first = next(number for number, stage in enumerate(stages) if stage in trained)
    measured = _STEP_MB.get(backbone, {})
    reached = [measured[stage] for stage in stages[: first + 1] if stage in measured]
    step_mb = reached[-1] if reached else _UNKNOWN_STEP_MB
    scale = MB * image_pixels / _MEASURED_PIXELS
    return MemoryEstimate(
        4 * _COPIES_OF_PART * part.size,
        max(1, round(step_mb * image_factor * scale)),
        round(_FORWARD_MB.get(backbone, _UNKNOWN_FORWARD_MB) * scale),
    )


@runtime_checkable
class Weighed(Protocol):
    """A runtime whose steps take another amount of memory than torch's."""

    @property
    def image_factor(self) -> float:
        """Memory of a step for an image, as a multiple of torch's."""
        ...


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
        """Return the runtime's embeddings."""
        return self.runtime.embed(theta, crops)

    def features(self, theta: Vector, crops: Crops) -> Embeddings:
        """Return the runtime's embeddings as the network gives them."""
        return self.runtime.features(theta, crops)

    def train(self, job: TrainingJob, should_stop: Callable[[], bool] = never_stop) -> Trained:
        """Return the runtime's training result.

        Raises LateError when the watch or `should_stop` says so, ConfigError where the batch does not fit into memory.
        """
        total, asked = job.local.num_steps(len(job.crops)), 0
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

        with self._fitting(job):
            trained = self.runtime.train(job, stops)
        if was_told:
            self.tell(total, total)
        return trained

    def _fitting(self, job: TrainingJob) -> AbstractContextManager[None]:
        """Return a block in which training fits into the owner's memory; raises ConfigError where it cannot."""
        crops = job.crops
        if self.max_memory_mb is None or len(crops) == 0 or not job.part.names:
            return nullcontext()
        batch = min(job.local.batch_size or len(crops), len(crops))
        factor = self.runtime.image_factor if isinstance(self.runtime, Weighed) else 1.0
        estimate = estimate_memory(self.backbone, job.part, crops.shape[1] * crops.shape[2], factor)
        fits = estimate.most_images(self.max_memory_mb * MB)
        if fits >= batch:
            return nullcontext()
        if fits and isinstance(self.runtime, Divisible) and self.runtime.can_divide(job.objective, job.local):
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
