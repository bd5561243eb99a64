"""Local training as one thing that is handed on: for runtimes that stand around another one, or in its place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from mien.layout import ParameterPart, Vector
from mien.methods.base import Crops, Embeddings, Objective, Runtime, Trained, never_stop
from mien.specs import LocalSpec


@dataclass(frozen=True)
class TrainingJob:
    """What a device half wants trained: the arguments of `Runtime.train`, but for when to stop."""

    theta: Vector = field(repr=False)
    part: ParameterPart = field(repr=False)
    crops: Crops = field(repr=False)
    objective: Objective
    local: LocalSpec
    seed: int

    def done_by(self, runtime: Runtime, should_stop: Callable[[], bool] = never_stop) -> Trained:
        """Return what a runtime trains of it; raises as `Runtime.train` does."""
        return runtime.train(self.theta, self.part, self.crops, self.objective, self.local, self.seed, should_stop)


class JobRuntime(ABC):
    """A `Runtime` that is handed its training as one job."""

    @abstractmethod
    def embed(self, theta: Vector, crops: Crops) -> Embeddings:
        """Return embeddings as `Runtime.embed` does."""

    @abstractmethod
    def do(self, job: TrainingJob, should_stop: Callable[[], bool]) -> Trained:
        """Return what becomes of a job, as `Runtime.train` does."""

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
        """Return what becomes of these arguments as one job; see `Runtime.train`."""
        return self.do(TrainingJob(theta, part, crops, objective, local, seed), should_stop)
