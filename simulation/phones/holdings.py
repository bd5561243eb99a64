"""An emulated phone's data, in memory: its identity, its one person, its log of sums; and what all of them share.

The gallery of a phone is an encrypted database of its own, and its model store a folder: right for one phone, and a
hundred times the files, keys and copies of the model for a hundred of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from device_sdk.models.models import KnownModel, Model, ModelStore
from device_sdk.people.enrolled import Person
from device_sdk.people.trained import Pending, TrainingFaces
from device_sdk.people.training_state import Kept, by_person, for_round
from device_sdk.rounds.attempts import ANY_PICTURES, Budget, OwnSum, unlimited
from device_sdk.runtimes import load_runtime
from device_sdk.server.client import CoordinatorClient
from device_sdk.server.identity import Identity
from device_sdk.server.offers import Manifest, Progress
from mien.contribution import Arrays
from mien.errors import InviteError, NotEnrolledError
from mien.layout import Vector
from mien.methods.base import Crops, Embeddings, Runtime, Trained, TrainingJob, never_stop
from mien.protocol.rounds import Role
from mien.protocol.tensors import PublicShard
from mien.secagg import AttemptId, AttemptLog, MemoryLog, RoundConfig
from mien.shell.keys import p256_key

MODELS_KEPT: Final = 3
"""Models in memory: that of the round, and those that phones which are late still train on."""


class MemoryIdentity:
    """An emulated phone's key and certificates."""

    def __init__(self) -> None:
        self._key = p256_key()
        self._identity: Identity | None = None

    def key(self) -> ec.EllipticCurvePrivateKey:
        """Return the phone's key."""
        return self._key

    def joined(self) -> bool:
        """Tell whether the phone has joined."""
        return self._identity is not None

    def load(self) -> Identity:
        """Return the identity; raises InviteError before the phone has joined."""
        if self._identity is None:
            raise InviteError("this emulated phone has not joined yet; give it an invite")
        return self._identity

    def save(self, identity: Identity) -> None:
        """Keep an identity."""
        self._identity = identity


class MemoryGallery:
    """One consenting person with crops (N, H, W, 3), which are not copied, and what training keeps of them.

    It survives that the phone vanishes, as a disk does.
    """

    model_id: str | None = None

    def __init__(self, crops: Crops) -> None:
        self.crops = crops
        self._person = Person(1, "owner", 0, consent_unix_s=0, num_images=len(crops))
        self._kept: dict[str, Kept] = {}
        self._roles: dict[str, frozenset[Role]] = {}
        self._pending: Pending | None = None

    def people(self) -> tuple[Person, ...]:
        """Return the owner."""
        return (self._person,)

    def person(self, name: str) -> Person:
        """Return the owner; raises NotEnrolledError for another name."""
        if name != self._person.name:
            raise NotEnrolledError(f"nobody called {name!r} is enrolled on an emulated phone")
        return self._person

    def training_faces(self, people: Sequence[int], task_id: str, per_identity: Sequence[str] = ()) -> TrainingFaces:
        """Return the owner's crops, and what the last counted round of the task left."""
        numbered = for_round(self._kept.get(task_id, Kept()), people, per_identity)
        labels = np.zeros(len(self.crops), np.int64)
        return TrainingFaces(numbered.people, numbered.private, numbered.is_continued, self.crops, labels)

    def source_state(self, source: str, task_id: str) -> Arrays:
        """Return nothing: emulated phones have no sources."""
        return {}

    def roles(self, task_id: str, people: Sequence[int], crops: Crops) -> frozenset[Role]:
        """Return what the owner's faces have done in a task so far."""
        return self._roles.get(task_id, frozenset())

    def pending(self) -> Pending | None:
        """Return the round that the phone trained for and that has not ended."""
        return self._pending

    def keep_pending(self, pending: Pending, source_crops: Crops | None = None) -> None:
        """Keep a trained round, in an earlier one's place."""
        self._pending = pending
        self._roles[pending.task_id] = self._roles.get(pending.task_id, frozenset()) | {pending.role}

    def is_pending(self, pending: Pending) -> bool:
        """Tell whether a round is still to be brought to its end."""
        return self._pending is pending

    def settle(self, pending: Pending, *, counted: bool) -> None:
        """Forget a round's contribution; keep its private state if the round counted it."""
        if self._pending is not pending:
            return
        self._pending = None
        if counted:
            self._kept[pending.task_id] = by_person(pending.private, pending.people, pending.per_identity)


@dataclass
class SumsInMemory(MemoryLog):
    """An emulated phone's log of private sums, with the terms of each that it began."""

    budget: Budget = unlimited
    pictures: bytes = ANY_PICTURES
    begun_sums: list[OwnSum] = field(default_factory=list)

    def under(self, budget: Budget, pictures: bytes = ANY_PICTURES) -> AttemptLog:
        """Return the same log, which asks `budget` before it begins an attempt with these `pictures`."""
        return replace(self, budget=budget, pictures=pictures)

    def has_begun(self, attempt: AttemptId) -> bool:
        """Tell whether an attempt, or a later one of its task, was begun."""
        return attempt.order <= self.begun.get(attempt.task_id, (-1, -1))

    def record_closed(self, attempt: AttemptId) -> None:
        """Remember that an attempt's round closed with this phone in the sum."""
        self.unmasked.add(attempt)

    def sums(self) -> tuple[OwnSum, ...]:
        """Return every sum that this phone is or may be in; their times are not kept."""
        masked = set(self.masked)
        return tuple(
            replace(sum_, is_released=sum_.terms.attempt_id in self.unmasked)
            for sum_ in self.begun_sums
            if sum_.terms.attempt_id in masked
        )

    def begin(self, config: RoundConfig) -> None:
        """Remember an attempt; raises ReplayError, BudgetExceededError."""
        coming = OwnSum(config, self.pictures)
        self.budget(coming, self.sums())
        super().begin(config)
        self.begun_sums[:] = [*self.sums(), coming]


class SharedModels:
    """A process's models: fetched once for all its phones, checked once, and in memory once."""

    def __init__(self, store: ModelStore) -> None:
        self._store, self._lock = store, threading.Lock()
        self._loaded: dict[str, Model] = {}
        self._shards: dict[str, PublicShard | None] = {}

    def has(self, model: str) -> bool:
        """Tell whether a model is here."""
        with self._lock:
            return model in self._loaded

    def known(self, model: str) -> KnownModel:
        """Return the facts about a model that was fetched; raises NotFoundError."""
        return self.load(model)

    def load(self, model: str) -> Model:
        """Return a model that was fetched; raises NotFoundError."""
        with self._lock:
            return self._loaded[model] if model in self._loaded else self._keep(self._store.load(model))

    def load_shard(self, model: Model) -> PublicShard | None:
        """Return the public faces that came with a model, None where it has none."""
        if model.public_shard is None:
            return None
        with self._lock:
            sha256 = model.public_shard.sha256
            if sha256 not in self._shards:
                self._shards = {sha256: self._store.load_shard(model)}
            return self._shards[sha256]

    def fetch(self, client: CoordinatorClient, unverified: Manifest, *, progress: Progress | None = None) -> Model:
        """Return a model; the first phone that asks fetches it, the others wait for that."""
        with self._lock:
            known = self._loaded.get(unverified.model_id)
            return self._keep(self._store.fetch(client, unverified, progress=progress)) if known is None else known

    def keep_only(self, models: Iterable[str]) -> None:
        """Do nothing: which models are kept is not one phone's to say."""

    def size_to_fetch(self, unverified: Manifest) -> int:
        """Return about how many bytes `fetch` will load."""
        with self._lock:
            return 0 if unverified.model_id in self._loaded else self._store.size_to_fetch(unverified)

    def _keep(self, model: Model) -> Model:
        model.theta.flags.writeable = False  # so that the runtime may keep it loaded for all phones
        self._loaded[model.model_id] = model
        for name in list(self._loaded)[:-MODELS_KEPT]:
            del self._loaded[name]
        self._store.keep_only(self._loaded)
        return model


class SharedRuntimes:
    """One runtime for all phones of a process, by the architecture of the model; one phone trains at a time.

    All training is done by one thread: what a library keeps for each thread that it worked for is kept once.
    """

    def __init__(self, load: Callable[[Model], Runtime] | None = None) -> None:
        self._load = load or (lambda model: load_runtime(model.spec, model.layout))
        self._lock = threading.Lock()
        self._runtimes: dict[str, Runtime] = {}
        self._trainer = ThreadPoolExecutor(1, thread_name_prefix="trainer")

    def for_model(self, model: Model) -> Runtime:
        """Return the runtime that trains a model."""
        with self._lock:
            if (found := self._runtimes.get(model.layout.sha256)) is None:
                loaded = self._trainer.submit(self._load, model).result()
                found = self._runtimes[model.layout.sha256] = _InTurn(loaded, self._trainer)
            return found

    def close(self) -> None:
        """Let the training thread end."""
        self._trainer.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True)
class _InTurn:
    """A runtime that serves one phone after another, in a thread of its own."""

    runtime: Runtime
    trainer: ThreadPoolExecutor = field(repr=False)

    def embed(self, theta: Vector, crops: Crops) -> Embeddings:
        """Return the runtime's embeddings."""
        return self.trainer.submit(self.runtime.embed, theta, crops).result()

    def features(self, theta: Vector, crops: Crops) -> Embeddings:
        """Return the runtime's embeddings as the network gives them."""
        return self.trainer.submit(self.runtime.features, theta, crops).result()

    def train(self, job: TrainingJob, should_stop: Callable[[], bool] = never_stop) -> Trained:
        """Return what the runtime trains."""
        return self.trainer.submit(self.runtime.train, job, should_stop).result()


@dataclass(frozen=True)
class ReplayRuntime:
    """A runtime that trains nothing: it answers with random numbers of the right shape, for load alone."""

    dim: int
    step: float = 1e-4

    def embed(self, theta: Vector, crops: Crops) -> Embeddings:
        """Return random unit vectors (N, dim)."""
        drawn_ND = np.random.default_rng(len(crops)).standard_normal((len(crops), self.dim)).astype(np.float32)
        return np.asarray(drawn_ND / np.linalg.norm(drawn_ND, axis=1, keepdims=True), np.float32)

    def features(self, theta: Vector, crops: Crops) -> Embeddings:
        """Return the same, as a network that gives unit vectors does."""
        return self.embed(theta, crops)

    def train(self, job: TrainingJob, should_stop: Callable[[], bool] = never_stop) -> Trained:
        """Return the part moved by random numbers, and the private tensors as they were."""
        values = job.part.gather(job.theta)
        moved = np.random.default_rng(job.seed).standard_normal(values.size, np.float32) * np.float32(self.step)
        private = {name: np.asarray(values_) for name, values_ in job.objective.private.items()}
        return Trained(job.part, job.theta, values + moved, private, loss_before=0.0, loss_after=0.0, num_steps=0)
