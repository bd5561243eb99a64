"""Runtimes around another one: embeddings made once a round, and a control that leaves the phones' own pictures out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from mien.errors import ConfigError
from mien.layout import Vector
from mien.methods.base import Crops, Embeddings, Runtime, Trained, TrainingJob, never_stop


@dataclass
class OncePerRound:
    """A runtime that embeds the same crops under the same model once: simulated phones share their public people."""

    runtime: Runtime
    _theta: Vector | None = field(default=None, repr=False)
    _crops: Crops | None = field(default=None, repr=False)
    _embeddings: Embeddings | None = field(default=None, repr=False)

    def embed(self, theta: Vector, crops: Crops) -> Embeddings:
        """Return the runtime's embeddings; the last call's where both arguments are the very same arrays."""
        if self._embeddings is None or theta is not self._theta or crops is not self._crops:
            self._embeddings = self.runtime.embed(theta, crops)
            self._theta, self._crops = theta, crops
        return self._embeddings

    def features(self, theta: Vector, crops: Crops) -> Embeddings:
        """Return the runtime's embeddings as the network gives them."""
        return self.runtime.features(theta, crops)

    def train(self, job: TrainingJob, should_stop: Callable[[], bool] = never_stop) -> Trained:
        """Return what the runtime trains."""
        return self.runtime.train(job, should_stop)


@dataclass(frozen=True)
class PublicOnly:
    """A control: a runtime that trains the private form with the phones' own images at weight 0."""

    runtime: Runtime

    def embed(self, theta: Vector, crops: Crops) -> Embeddings:
        """Return the runtime's embeddings."""
        return self.runtime.embed(theta, crops)

    def features(self, theta: Vector, crops: Crops) -> Embeddings:
        """Return the runtime's embeddings as the network gives them."""
        return self.runtime.features(theta, crops)

    def train(self, job: TrainingJob, should_stop: Callable[[], bool] = never_stop) -> Trained:
        """Return what the public images alone make of the part."""
        rows = job.objective.per_crop
        if "sample_weight" not in rows:
            raise ConfigError("this task's loss does not weigh images, so the phones' own cannot be left out")
        weight = rows["sample_weight"] * (1 - rows["target"][:, 0])
        public = replace(job.objective, per_crop={**rows, "sample_weight": weight})
        return self.runtime.train(replace(job, objective=public), should_stop)
