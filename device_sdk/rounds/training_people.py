"""Training people of a device: those of its gallery who agreed, or a source that an operator named."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from device_sdk.faces.source import SourceFaces
from device_sdk.people.enrolled import Person, not_agreed
from device_sdk.people.trained import TrainingFaces
from device_sdk.rounds.ports import TrainingGallery
from mien.errors import ConfigError
from mien.methods.base import Crops, Method, Property
from mien.protocol.ids import TaskId
from mien.protocol.rounds import Role


@dataclass(frozen=True)
class RoundFaces(TrainingFaces):
    """Faces of one round; `source` names a source that trains instead of people, `roles` is what any of these faces did
    in the task before.
    """

    source: str
    roles: frozenset[Role]

    @property
    def pictures(self) -> bytes:
        """Hash of the pictures, SHA-256 over shape and each one's hash: which of two sums hold the same is known by it.

        Whatever their order: tasks number a phone's people each in an order of their own.
        """
        return _hash_of(self.crops)


@dataclass(frozen=True)
class Pool:
    """Everybody whose pictures may train now: `people` who agreed, or the faces of a `source`."""

    people: tuple[Person, ...] = ()
    source: SourceFaces | None = None

    @property
    def num_people(self) -> int:
        """Number of identities."""
        return len(self.people) if self.source is None else self.source.num_people

    @property
    def num_images(self) -> int:
        """Number of pictures."""
        return sum(person.num_images for person in self.people) if self.source is None else len(self.source.crops)

    @property
    def labels(self) -> NDArray[np.int64]:
        """Whose each picture is, by number."""
        if self.source is not None:
            return self.source.labels
        return np.repeat(np.arange(len(self.people)), [person.num_images for person in self.people]).astype(np.int64)

    def narrowed(self, method: Method) -> Pool:
        """Return the pool that a method takes: of several people the one enrolled first, where it trains on one person.

        First by number, so that it is the same person in every round. Raises ConfigError for a source of such a method.
        """
        if method.properties & {Property.SEVERAL_PEOPLE, Property.UNLABELLED}:
            return self
        if self.source is not None:
            raise ConfigError(
                f"method {method.name} trains on the pictures of one person, and `source` is for methods over "
                f"many identities ({_OVER_MANY}); leave it out, or take part in another task"
            )
        return replace(self, people=(min(self.people, key=lambda person: person.id),))

    def pictures(self, gallery: TrainingGallery, methods: Iterable[Method]) -> frozenset[bytes]:
        """Return the hashes of the pictures that rounds of these methods train on (`RoundFaces.pictures`).

        Raises ConfigError where somebody does not agree any more.
        """
        if self.source is not None:
            return frozenset({_hash_of(self.source.crops)})
        groups = {tuple(person.id for person in self.narrowed(method).people) for method in methods}
        return frozenset(_hash_of(gallery.training_faces(people, TaskId("")).crops) for people in groups)

    def faces(self, gallery: TrainingGallery, task_id: TaskId, method: Method) -> RoundFaces:
        """Return a task's training faces of a round; raises ConfigError where somebody does not agree any more."""
        if self.source is not None:
            state = gallery.source_state(self.source.id, task_id)
            crops, roles = self.source.crops, gallery.roles(task_id, (), self.source.crops)
            return RoundFaces((), state, bool(state), crops, self.source.labels, self.source.id, roles)
        found = gallery.training_faces([person.id for person in self.people], task_id, method.per_identity)
        labels = found.labels if Property.SEVERAL_PEOPLE in method.properties and len(self.people) > 1 else None
        roles = gallery.roles(task_id, found.people, found.crops)
        return RoundFaces(found.people, found.private, found.is_continued, found.crops, labels, "", roles)


def _hash_of(crops: Crops) -> bytes:
    each = sorted(hashlib.sha256(crop.tobytes()).digest() for crop in crops)
    return hashlib.sha256(b"".join([repr(crops.shape).encode(), *each])).digest()


_OVER_MANY: Final = "fedavg, fedgc, fedfr, fedfr_uda, pfm_fv and others"


def pool_of(gallery: TrainingGallery, person: str, source: SourceFaces | None) -> Pool:
    """Return the pool of training pictures: a source's, one named person's, or those of everybody who agreed.

    Raises ConfigError when nobody agreed, or a person is named beside a source.
    """
    if source is not None:
        if person:
            raise person_beside_source()
        return Pool(source=source)
    if person:
        named = gallery.person(person)
        if not named.trains:
            raise not_agreed(named.name)
        return Pool((named,))
    agreed = tuple(each for each in gallery.people() if each.trains)
    if not agreed:
        raise ConfigError("nobody enrolled has agreed to training; when somebody does, call `Device.set_consent()`")
    return Pool(agreed)


def person_beside_source() -> ConfigError:
    """Return the error for a person who is named beside a source."""
    return ConfigError("`participation.person` and `source` say two things about whose pictures train; leave one out")
