"""Ports of a device that takes part in rounds, as `participate` needs them: people, models, a log of sums.

On a phone these are the encrypted `Gallery`, `ModelStore` and `Attempts`. Emulated phones, hundreds in one process,
hold the same in memory (`simulation.phones`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from device_sdk.models.models import KnownModel, Model
from device_sdk.people.enrolled import Person
from device_sdk.people.trained import Pending, TrainingFaces
from device_sdk.rounds.attempts import Budget, OwnSum
from device_sdk.server.client import CoordinatorClient
from device_sdk.server.offers import Manifest, Progress
from mien.contribution import Arrays
from mien.methods.base import Crops
from mien.protocol.ids import TaskId
from mien.protocol.rounds import Role
from mien.protocol.tensors import PublicShard
from mien.secagg import AttemptId, AttemptLog


class TrainingGallery(Protocol):
    """People who agreed to training, their crops, and what training keeps: see `Gallery` for each method."""

    @property
    def model_id(self) -> str | None:
        """The model that verifies; None before anybody was enrolled."""
        ...

    def people(self) -> tuple[Person, ...]:
        """Return everybody enrolled."""
        ...

    def person(self, name: str) -> Person:
        """Return the person of that name; raises NotEnrolledError."""
        ...

    def training_faces(self, people: Sequence[int], task_id: TaskId, per_identity: Sequence[str] = ()) -> TrainingFaces:
        """Return the training faces of a round."""
        ...

    def source_state(self, source: str, task_id: TaskId) -> Arrays:
        """Return the private state of a source's faces from a task's last counted round."""
        ...

    def roles(self, task_id: TaskId, people: Sequence[int], crops: Crops) -> frozenset[Role]:
        """Return the roles that these faces have had in a task so far."""
        ...

    def pending(self) -> Pending | None:
        """Return the round that was trained for and has not ended."""
        ...

    def keep_pending(self, pending: Pending, source_crops: Crops | None = None) -> None:
        """Keep a trained round before anything about it is reported."""
        ...

    def is_pending(self, pending: Pending) -> bool:
        """Return whether a round is still to be brought to its end."""
        ...

    def settle(self, pending: Pending, *, counted: bool) -> None:
        """Forget a round's contribution; its private state is kept if the round counted it."""
        ...


class RoundModels(Protocol):
    """Models by id, fetched where they are missing: see `ModelStore` for each method."""

    def has(self, model: str) -> bool:
        """Return whether a model can be loaded without a network."""
        ...

    def known(self, model: str) -> KnownModel:
        """Return the facts about a stored model besides its parameters; raises NotFoundError."""
        ...

    def load(self, model: str) -> Model:
        """Return a stored model; raises NotFoundError, CorruptDataError."""
        ...

    def load_shard(self, model: Model) -> PublicShard | None:
        """Return the public faces that came with a model."""
        ...

    def fetch(self, client: CoordinatorClient, unverified: Manifest, *, progress: Progress | None = None) -> Model:
        """Return a model, fetching what is not stored yet."""
        ...

    def keep_only(self, models: Iterable[str]) -> None:
        """Remove what no round needs any more; `models` may be read as late as that, or not at all."""
        ...

    def size_to_fetch(self, unverified: Manifest) -> int:
        """Return about how many bytes `fetch` will load."""
        ...


class SumLog(AttemptLog, Protocol):
    """Log of private sums: see `Attempts` for each method."""

    def under(self, budget: Budget, pictures: bytes = ...) -> AttemptLog:
        """Return the same log, which asks `budget` before it begins an attempt with these `pictures`."""
        ...

    def has_begun(self, attempt: AttemptId) -> bool:
        """Return whether an attempt, or a later one of its task, was begun."""
        ...

    def record_closed(self, attempt: AttemptId) -> None:
        """Remember that an attempt's round closed with this device in the sum."""
        ...

    def sums(self) -> Sequence[OwnSum]:
        """Return every sum that this device is or may be in, oldest first."""
        ...
