"""Training's records in the gallery: private state, a round that has not ended, who did what."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from device_sdk.people.enrolled import crop_in, opened
from device_sdk.people.training_state import Kept, Numbered
from device_sdk.storage.vault import Reader, Record, Writer
from mien.contribution import Arrays
from mien.methods.base import Crops
from mien.protocol.ids import AttemptNumber, RoundNumber, TaskId
from mien.protocol.rounds import Role, RoundRef
from mien.protocol.tensors import pack_tensors, unpack_tensors
from mien.records import from_mapping, to_mapping

if TYPE_CHECKING:
    from device_sdk.people.round_terms import Asked, SumTerms

TOGETHER: Final = 0
"""Owner number of what training keeps of several people together: nobody's own."""
SOURCE: Final = -1
"""Owner number of what training keeps of a source's faces, who are no people of this device."""
ROLE_MARKS: Final = -2
"""Owner number of the record of which faces trained in a task and which judged it."""
STATE: Final = "the private training state"
_ROLES_NOTE: Final = "the note of which faces trained and which judged"


@dataclass(frozen=True)
class Pending:
    """A round that this device has trained for but that has not ended: what it sends, and what it keeps if it counts.

    `people` are those whose pictures trained, in the order of their numbers; nobody where a `source` did, which is then
    named. `task_id`, `round` and `attempt` name the round; `contribution` is what training gave, kept so that a restart
    goes on with the very same bytes; `private` replaces their private state if the round closes with this contribution
    in its sum, each person's own rows of `per_identity` with that person. `terms` is what a private sum needs besides,
    None where the sum is plain. `asked` and `role` are what the owner agreed to, to be checked again before a restart
    sends anything; None is what nobody can check.
    """

    people: tuple[int, ...]
    task_id: TaskId
    round: RoundNumber
    attempt: AttemptNumber
    contribution: bytes = field(repr=False)
    private: Arrays = field(default_factory=dict, repr=False)
    terms: SumTerms | None = field(default=None, repr=False)
    per_identity: tuple[str, ...] = ()
    source: str = ""
    asked: Asked | None = None
    role: Role = Role.TRAIN

    @property
    def ref(self) -> RoundRef:
        """Reference to the attempt that it trained for."""
        return RoundRef(self.task_id, self.round, self.attempt)


@dataclass(frozen=True)
class TrainingFaces(Numbered):
    """Training faces of a round: crops (N, 112, 112, 3) of its people, and `labels` (N,), their numbers; None where the
    method asks for none.
    """

    crops: Crops = field(repr=False)
    labels: NDArray[np.int64] | None = field(repr=False)


def kept_of(view: Reader, people: Sequence[int], task_id: str) -> Kept:
    """Return the training state of people, and of several together."""
    own: dict[int, Arrays] = {}
    together: Arrays = {}
    members: tuple[int, ...] = ()
    for record in view.select("states", tag=task_id):
        if record.person in people:
            own[record.person] = unpack_tensors(record.content, what=STATE)
        elif record.person == TOGETHER:
            together, facts = opened(record, STATE)
            members = tuple(facts["members"])
    return Kept(own, together, members)


def put_state(
    change: Writer, person: int, task_id: str, private: Arrays, facts: Mapping[str, object], *, is_kept: bool = False
) -> None:
    """Replace a state; an empty one leaves a record only where its facts are to be kept."""
    change.delete("states", person=person, tag=task_id)
    if private or is_kept:
        content = pack_tensors(private, {"facts": json.dumps(facts)})
        change.insert("states", content, person=person, tag=task_id)


def forget_training(change: Writer, person_id: int) -> None:
    """Remove what training kept of a person: their own, what is of several with them among those, what is unsent."""
    change.delete("states", person=person_id)
    for record in list(change.select("states", person=TOGETHER)):
        if person_id in opened(record, STATE)[1]["members"]:
            change.delete("states", person=TOGETHER, tag=record.tag)
    for record in list(change.select("pending")):
        if person_id in unpack_pending(record).people:
            change.delete("pending", tag=record.tag)


def digests_of(crops: Crops) -> NDArray[np.int64]:
    """Return a number for each crop that another crop has only by a chance of 2**-64."""
    hashed = b"".join(hashlib.blake2b(crop.tobytes(), digest_size=8).digest() for crop in crops)
    return np.frombuffer(hashed, "<i8").astype(np.int64)


def role_marks(view: Reader, task_id: str) -> dict[tuple[Role, int], NDArray[np.int64]]:
    """Return the digests of the crops that had a role in a task, by role and person, or SOURCE."""
    return {
        _role_and_person(name): digests
        for record in view.select("states", person=ROLE_MARKS, tag=task_id)
        for name, digests in unpack_tensors(record.content, what=_ROLES_NOTE).items()
    }


def _role_and_person(name: str) -> tuple[Role, int]:
    role, person = name.split("/")
    return Role(role), int(person)


def _put_role_marks(change: Writer, task_id: str, marks: Mapping[tuple[Role, int], NDArray[np.int64]]) -> None:
    change.delete("states", person=ROLE_MARKS, tag=task_id)
    if marks:
        content = pack_tensors({f"{role.value}/{person}": digests for (role, person), digests in marks.items()})
        change.insert("states", content, person=ROLE_MARKS, tag=task_id)


def mark_roles(change: Writer, pending: Pending, source_crops: Crops | None) -> None:
    marks = role_marks(change, pending.task_id)
    done = {
        person: np.stack([crop_in(record) for record in change.select("crops", person=person)])
        for person in pending.people
    }
    if source_crops is not None:
        done[SOURCE] = source_crops
    for person, crops in done.items():
        key = (pending.role, person)
        marks[key] = np.union1d(marks.get(key, np.empty(0, np.int64)), digests_of(crops))
    _put_role_marks(change, pending.task_id, marks)


def forget_roles(change: Writer, person_id: int) -> None:
    """Remove the note of what a removed person's pictures did."""
    for task_id in [record.tag for record in change.select("states", person=ROLE_MARKS)]:
        marks = role_marks(change, task_id)
        _put_role_marks(change, task_id, {key: marked for key, marked in marks.items() if key[1] != person_id})


def round_tag(pending: Pending) -> str:
    return f"{pending.task_id}/{pending.round}/{pending.attempt}"


def pack_pending(pending: Pending) -> bytes:
    facts: dict[str, Any] = {
        name: getattr(pending, name) for name in ("people", "task_id", "round", "attempt", "per_identity", "source")
    }
    facts["duty"] = pending.role.value
    for name, record in (("terms", pending.terms), ("asked", pending.asked)):
        if record is not None:
            facts[name] = to_mapping(record)
    tensors: dict[str, NDArray[Any]] = {f"private/{name}": array for name, array in pending.private.items()}
    tensors["contribution"] = np.frombuffer(pending.contribution, np.uint8)
    return pack_tensors(tensors, {"facts": json.dumps(facts)})


def unpack_pending(record: Record) -> Pending:
    from device_sdk.people.round_terms import Asked, SumTerms  # secure aggregation, which only rounds need

    tensors, facts = opened(record, "the round that this device trained for")
    contribution = tensors.pop("contribution").tobytes()
    private = {name.removeprefix("private/"): array for name, array in tensors.items()}
    terms = from_mapping(SumTerms, facts["terms"]) if "terms" in facts else None
    return Pending(
        tuple(facts["people"]),
        facts["task_id"],
        facts["round"],
        facts["attempt"],
        contribution,
        private,
        terms,
        tuple(facts["per_identity"]),
        facts["source"],
        # What an earlier version kept says neither.
        from_mapping(Asked, facts["asked"]) if "asked" in facts else None,
        Role(facts.get("duty", Role.TRAIN.value)),
    )
