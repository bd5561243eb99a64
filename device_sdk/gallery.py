"""The encrypted gallery: who is enrolled, their templates and aligned crops, and what training keeps in private.

Templates carry the id of the model that made them and are never compared with another model's; when a model is
released they are made again from the crops, all in one transaction. Crops are kept for that, and for training where the
person consented. Everything about a person is stored or removed together.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from device_sdk.client import Duty
from device_sdk.disclosure import Asked
from device_sdk.keystore import KeyStore
from device_sdk.masked import SumTerms
from device_sdk.protection import TemplateKeys
from device_sdk.stored_personal import StoredPersonal
from device_sdk.training_state import Kept, Numbered, by_person, for_round
from device_sdk.vault import Reader, Record, Vault, VaultKind, Writer
from mien.errors import (
    AlreadyExistsError,
    ConfigError,
    CorruptDataError,
    ModelMismatchError,
    NonFiniteError,
    NotEnrolledError,
    UnreachableError,
)
from mien.methods.base import Crops, Embeddings
from mien.records import from_mapping, to_mapping
from mien.specs import FaceInputSpec
from mien.wire.canonical import parse_json, to_canonical_json
from mien.wire.tensors import pack_tensors, unpack_metadata, unpack_tensors

KIND: Final = VaultKind(
    label="gallery",
    tables=("persons", "templates", "crops", "states", "pending"),
    what="the gallery",
    repair="restore it from a copy, or wipe and enrol again",
)
MAX_NAME: Final = 80
TOGETHER: Final = 0
"""Whose record it is what training keeps of several people together: nobody's own."""
SOURCE: Final = -1
"""Whose record it is what training keeps of a source's faces, who are no people of this device."""
DUTIES: Final = -2
"""Whose record it is which faces trained in a task and which judged it."""
PERSONAL: Final = -3
"""Whose record the personal model is: it goes with any change of people, pictures, consent or model."""
_REEMBED_TRIES: Final = 5
_STAYS_OUT: Final = "stays_out"
_STAYS_OUT_TOLD: Final = "stays_out_told"
_STATE: Final = "the private training state"
_DUTIES_NOTE: Final = "the note of which faces trained and which judged"

Arrays = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Person:
    """One enrolled person; `consent_unix_s` is when they agreed that their images train the model, None if not."""

    id: int
    name: str
    enrolled_unix_s: int
    consent_unix_s: int | None
    num_templates: int = 0
    num_images: int = 0

    @property
    def trains(self) -> bool:
        """Whether this person's images may be used for training."""
        return self.consent_unix_s is not None


@dataclass(frozen=True)
class Template:
    """A person's reference: the normalised mean of the normalised features of `num_images` images."""

    embedding: NDArray[np.float32] = field(repr=False)
    num_images: int
    model_id: str
    input: FaceInputSpec

    @classmethod
    def of(cls, features_ND: Embeddings, model_id: str, spec: FaceInputSpec) -> Template:
        """Return the template of one person's features (N, dim), each normalised here.

        Raises NonFiniteError when a feature is not finite or has no direction.
        """
        norms = np.linalg.norm(features_ND, axis=1, keepdims=True)
        if not np.isfinite(features_ND).all() or (norms == 0).any():
            raise NonFiniteError("the recogniser gave an embedding that is not usable; fetch the model again")
        mean = (features_ND / norms).mean(axis=0)
        length = float(np.linalg.norm(mean))
        if length < 1e-6:
            raise NonFiniteError("the images of this person cancel each other out; enrol with pictures of one person")
        return cls((mean / length).astype(np.float32), len(features_ND), model_id, spec)


@dataclass(frozen=True)
class References:
    """All templates of the gallery, made by one model: names, and embeddings (N, dim) row by row, as they compare."""

    model_id: str
    names: tuple[str, ...] = field(repr=False)
    embeddings: Embeddings = field(repr=False)

    def of(self, name: str) -> Embeddings:
        """Return one person's templates (N, dim)."""
        return self.embeddings[[index for index, each in enumerate(self.names) if each == name]]

    def nearest(self, probe_D: NDArray[np.float32]) -> tuple[str, float]:
        """Return whose template is nearest to an embedding (D,), and its cosine: an exact search, one product."""
        score_N = self.embeddings @ probe_D
        best = int(np.argmax(score_N))
        return self.names[best], float(score_N[best])


@dataclass(frozen=True)
class BackedUp:
    """A person in a backup: `crops` holds one array (N, 112, 112, 3) a template."""

    name: str
    enrolled_unix_s: int
    consent_unix_s: int | None
    crops: tuple[Crops, ...] = field(repr=False)


@dataclass(frozen=True)
class Pending:
    """A round that this device has trained for but that has not ended: what it sends, and what it keeps if it counts.

    `people` are those whose pictures trained, in the order of their numbers; nobody where a `source` did, which is then
    named. `task_id`, `round` and `attempt` name the round; `contribution` is what training gave, kept so that a restart
    goes on with the very same bytes; `private` replaces their private state if the round closes with this contribution
    in its sum, each person's own rows of `per_identity` with that person. `terms` is what a private sum needs besides,
    None where the sum is plain. `asked` and `duty` are what the owner agreed to, to be checked again before a restart
    sends anything; None is what nobody can check.
    """

    people: tuple[int, ...]
    task_id: str
    round: int
    attempt: int
    contribution: bytes = field(repr=False)
    private: Arrays = field(default_factory=dict, repr=False)
    terms: SumTerms | None = field(default=None, repr=False)
    per_identity: tuple[str, ...] = ()
    source: str = ""
    asked: Asked | None = None
    duty: Duty = Duty.TRAIN


@dataclass(frozen=True)
class TrainingFaces:
    """What a round trains on: crops (N, 112, 112, 3) of the people `of`, and `labels` (N,), their numbers there."""

    of: Numbered
    crops: Crops = field(repr=False)
    labels: NDArray[np.int64] = field(repr=False)


class Gallery:
    """An open gallery. Every method is one transaction: it happens wholly or not at all, whenever the power fails."""

    def __init__(self, vault: Vault, keys: TemplateKeys) -> None:
        self._vault, self._keys = vault, keys
        self._all: tuple[tuple[int, int], References] | None = None

    @classmethod
    def open(cls, path: Path, key_store: KeyStore) -> Gallery:
        """Return the gallery in `path`, empty where there is none; errors as `Vault.open`."""
        return cls(Vault.open(path, key_store, KIND), TemplateKeys(key_store))

    @staticmethod
    def wipe(path: Path, key_store: KeyStore) -> None:
        """Destroy the gallery's keys, then its file: no copy of the file opens afterwards."""
        TemplateKeys(key_store).destroy()
        Vault.wipe(path, key_store, KIND)

    def rotate_key(self) -> None:
        """Seal everything anew under new keys and destroy the old ones; errors as `Vault.rotate_key`."""
        self._vault.rotate_key()

    def close(self) -> None:
        """Close the file."""
        self._vault.close()

    # --- who is enrolled ---

    @property
    def model_id(self) -> str | None:
        """The model that made every template in here; None before anybody was enrolled."""
        with self._vault.reading() as view:
            return view.facts.get("model_id")

    def people(self) -> tuple[Person, ...]:
        """Return everybody enrolled, by name."""
        with self._vault.reading() as view:
            return tuple(sorted(_people(view), key=lambda person: person.name.casefold()))

    def has(self, name: str) -> bool:
        """Tell whether somebody of that name is enrolled; raises ConfigError for what is no name."""
        with self._vault.reading() as view:
            return _found(view, name) is not None

    def person(self, name: str) -> Person:
        """Return the person of that name; raises NotEnrolledError."""
        with self._vault.reading() as view:
            return _find(view, name)

    def enroll(
        self,
        name: str,
        crops: Crops,
        template: Template,
        *,
        now_unix_s: int,
        consent: bool,
        add: bool = False,
    ) -> Person:
        """Store a person with the crops (N, 112, 112, 3) that their template was made of.

        With `add` an enrolled person gets one more template (another day, glasses); `consent` then adds to theirs.
        Raises AlreadyExistsError for a name that is taken, ModelMismatchError when the gallery is another model's.
        """
        clean = clean_name(name)
        with self._vault.writing() as change, _agreement_noted(change):
            _check_model(change.facts.get("model_id"), template.model_id)
            person = _found(change, clean)
            if person is not None and not add:
                raise name_is_taken(clean)
            consent_unix_s = now_unix_s if consent else None
            if person is None:
                person_id = change.insert("persons", _person_json(clean, now_unix_s, consent_unix_s))
            else:
                person_id = person.id
                if consent and not person.trains:
                    _replace_person(change, replace(person, consent_unix_s=consent_unix_s))
            self._insert_template(change, person_id, crops, template)
            change.delete("states", person=PERSONAL)
        return self.person(clean)

    def set_consent(self, name: str, *, granted_unix_s: int | None) -> Person:
        """Record that a person agreed (at that time) or no longer agrees (None) that their images train the model.

        Withdrawal also removes the private training state that was made of their images. What is in a round's sum
        already stays in it.
        """
        with self._vault.writing() as change, _agreement_noted(change):
            person = replace(_find(change, name), consent_unix_s=granted_unix_s)
            _replace_person(change, person)
            if granted_unix_s is None:
                _forget_training(change, person.id)
                change.delete("states", person=PERSONAL)
        return person

    def remove(self, name: str) -> Person:
        """Remove a person with their templates, crops and private training state; returns who was removed.

        Other people's own training state stays.
        """
        with self._vault.writing() as change, _agreement_noted(change):
            person = _find(change, name)
            for table in KIND.tables:
                change.delete(table, person=person.id)
            change.delete("states", person=PERSONAL)
            _forget_training(change, person.id)
            _forget_duties(change, person.id)
        return person

    @property
    def stays_out(self) -> bool | None:
        """Whether the coordinator is to leave this device out of rounds, where it has not been told so; else None.

        It is as soon as the last person who agreed to training no longer does, until somebody agrees again.
        """
        with self._vault.reading() as view:
            wanted = view.facts.get(_STAYS_OUT, "no")
            return None if wanted == view.facts.get(_STAYS_OUT_TOLD, "no") else wanted == "yes"

    def note_told(self, *, stays_out: bool) -> None:
        """Remember what the coordinator was told."""
        with self._vault.writing() as change:
            change.set_fact(_STAYS_OUT_TOLD, "yes" if stays_out else "no")

    # --- templates and crops ---

    def references(self, model_id: str) -> References:
        """Return all templates for comparison with embeddings of `model_id`; kept until the gallery changes.

        Raises ModelMismatchError when a template was made by another model: re-embed first.
        """
        version = self._vault.version
        if self._all is None or self._all[0] != version or self._all[1].model_id != model_id:
            with self._vault.reading() as view:
                names, stored = _stored(view, model_id, {person.id: person.name for person in _people(view)})
                self._all = version, References(model_id, names, self._turned_back(view, stored))
        return self._all[1]

    def scores(self, name: str, model_id: str, probe_D: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the cosine of an embedding (D,) with each template of a person, (N,); errors as `references`.

        The probe is turned as each template is; the templates stay as they are stored.
        """
        with self._vault.reading() as view:
            person = _find(view, name)
            _, stored = _stored(view, model_id, {person.id: person.name})
            salts = [each.salt for each in stored if each.salt]
            turned = iter(self._keys.turn(view, np.repeat(probe_D[None], len(salts), axis=0), salts))
            return np.array([each.row @ (next(turned) if each.salt else probe_D) for each in stored], np.float32)

    def renew(self, name: str) -> int:
        """Give each template of a person a new secret rotation; returns how many. Stolen old ones match nothing."""
        with self._vault.writing() as change:
            person = _find(change, name)
            records = list(change.select("templates", person=person.id))
            for record in records:
                stored = _unpack(record)
                (embedding_D,) = self._turned_back(change, [stored])
                template = Template(embedding_D, stored.num_images, record.tag, stored.input)
                change.replace(record, self._pack(change, template))
        return len(records)

    def _turned_back(self, view: Reader, stored: Sequence[StoredTemplate]) -> Embeddings:
        """Return embeddings (N, dim) of templates as they compare; those of earlier programs were not turned."""
        if not stored:
            return np.empty((0, 0), np.float32)
        embeddings_ND = np.stack([each.row for each in stored])
        turned = [index for index, each in enumerate(stored) if each.salt]
        if turned:
            salts = [stored[index].salt for index in turned]
            embeddings_ND[turned] = self._keys.turn_back(view, embeddings_ND[turned], salts)
        return embeddings_ND

    def _pack(self, change: Writer, template: Template) -> bytes:
        """Return a template's record, turned under a new salt."""
        salt = self._keys.new_salt(change)
        (row,) = self._keys.turn(change, template.embedding[None], [salt])
        facts = {"num_images": template.num_images, "input": to_mapping(template.input), "salt": salt.hex()}
        return pack_tensors({"template": row}, {"facts": json.dumps(facts)})

    def _insert_template(self, change: Writer, person_id: int, crops: Crops, template: Template) -> None:
        template_id = change.insert("templates", self._pack(change, template), person=person_id, tag=template.model_id)
        for crop in crops:
            change.insert("crops", pack_tensors({"crop": crop}), person=person_id, tag=str(template_id))
        change.set_fact("model_id", template.model_id)

    def training_crops(self, name: str) -> Crops:
        """Return a person's crops (N, 112, 112, 3) for training; raises ConfigError without their consent."""
        with self._vault.reading() as view:
            person = _find(view, name)
            if not person.trains:
                raise not_agreed(person.name)
            return np.stack([_crop(record) for record in view.select("crops", person=person.id)])

    def reembed(self, model_id: str, spec: FaceInputSpec, embed: Callable[[Crops], Embeddings]) -> int:
        """Make every template again with another model, in one switch; returns how many.

        `embed` maps crops (N, 112, 112, 3) to features (N, dim). Until the switch the old templates serve; a crash
        leaves the old ones or the new ones, never a mixture.
        """
        for _ in range(_REEMBED_TRIES):
            if (made := self._embed_all(model_id, spec, embed)) is None:
                continue
            state, templates = made
            with self._vault.writing() as change:
                if change.state != state:
                    continue
                for record in list(change.select("templates")):
                    change.replace(record, self._pack(change, templates[record.id]), tag=model_id)
                change.set_fact("model_id", model_id)
                change.delete("states", person=PERSONAL)
            return len(templates)
        raise UnreachableError("the gallery kept changing while it was re-embedded; run again")

    def _embed_all(
        self, model_id: str, spec: FaceInputSpec, embed: Callable[[Crops], Embeddings]
    ) -> tuple[str, dict[int, Template]] | None:
        """Return the new templates by id and the state they belong to; None when it changed meanwhile.

        One template's crops are in memory at a time, and no lock is held while the model runs.
        """
        with self._vault.reading() as view:
            state, ids = view.state, [record.id for record in view.select("templates")]
        templates = {}
        for template_id in ids:
            with self._vault.reading() as view:
                if view.state != state:
                    return None
                crops = _crops(view, template_id)
            templates[template_id] = Template.of(embed(crops), model_id, spec)
        return state, templates

    # --- the personal model ---

    @property
    def state(self) -> str:
        """A digest that changes with every change of the gallery."""
        with self._vault.reading() as view:
            return view.state

    def personal(self, model_id: str) -> StoredPersonal | None:
        """Return the personal model on top of that released one, None where there is none."""
        with self._vault.reading() as view:
            for record in view.select("states", person=PERSONAL, tag=model_id):
                return StoredPersonal.from_bytes(record.tag, record.content)
        return None

    def keep_personal(self, personal: StoredPersonal, made_from: str) -> None:
        """Store the personal model that was made of the gallery in that state, in an earlier one's place.

        Raises UnreachableError when the gallery has changed since: its people or pictures may be others now.
        """
        with self._vault.writing() as change:
            if change.state != made_from:
                raise UnreachableError("the gallery changed while it was personalised; run again")
            change.delete("states", person=PERSONAL)
            change.insert("states", personal.to_bytes(), person=PERSONAL, tag=personal.model_id)

    def forget_personal(self) -> bool:
        """Remove the personal model; tells whether there was one."""
        with self._vault.writing() as change:
            there_was = any(True for _ in change.select("states", person=PERSONAL))
            change.delete("states", person=PERSONAL)
        return there_was

    def latest_shared_state(self) -> Arrays:
        """Return what the newest task that kept any has left in private of all people together; empty at first."""
        with self._vault.reading() as view:
            records = list(view.select("states", person=TOGETHER))
        return _opened(records[-1], _STATE)[0] if records else {}

    # --- what training keeps ---

    def training_faces(self, people: Sequence[int], task_id: str, per_identity: Sequence[str] = ()) -> TrainingFaces:
        """Return what a round trains on: these people's crops, and what their last counted rounds of a task left.

        Raises ConfigError where one of them was removed or does not agree (any more).
        """
        with self._vault.reading() as view:
            if not set(people) <= {person.id for person in _people(view) if person.trains}:
                raise consent_ended()
            numbered = for_round(_kept(view, people, task_id), people, per_identity)
            crops = [
                np.stack([_crop(record) for record in view.select("crops", person=person)])
                for person in numbered.people
            ]
        labels = np.repeat(np.arange(len(crops)), [len(of_one) for of_one in crops])
        return TrainingFaces(numbered, np.concatenate(crops), labels)

    def private_state(self, person_id: int, task_id: str) -> Arrays:
        """Return what is a person's own of what their last counted round of a task left in private; empty at first."""
        with self._vault.reading() as view:
            return _kept(view, (person_id,), task_id).own.get(person_id, {})

    def source_state(self, source: str, task_id: str) -> Arrays:
        """Return what a task's last counted round left in private of a source's faces; empty for another source."""
        with self._vault.reading() as view:
            for record in view.select("states", person=SOURCE, tag=task_id):
                tensors, facts = _opened(record, _STATE)
                return tensors if facts["source"] == source else {}
        return {}

    def pending(self) -> Pending | None:
        """Return the round that this device has trained for and that has not ended, if there is one."""
        with self._vault.reading() as view:
            for record in view.select("pending"):
                return _unpack_pending(record)
        return None

    def duties(self, task_id: str, people: Sequence[int], crops: Crops) -> frozenset[Duty]:
        """Return what these people, or any of these crops (N, 112, 112, 3), have done in a task so far.

        It is asked by person and by crop: one person may have other pictures now, the same pictures another name.
        """
        digests = _digests(crops)
        with self._vault.reading() as view:
            marks = _duty_marks(view, task_id)
        return frozenset(
            duty for (duty, person), marked in marks.items() if person in people or bool(np.isin(digests, marked).any())
        )

    def keep_pending(self, pending: Pending, source_crops: Crops | None = None) -> None:
        """Store a trained round before anything about it is reported; replaces an earlier one.

        What its faces did in the task is noted with it, and stays noted however the round ends; `source_crops` are a
        source's faces. Withdrawn consent leaves the note, removal takes a person's own along.
        Raises ConfigError when one of its people was removed or withdrew their consent while the phone trained.
        """
        with self._vault.writing() as change:
            if not set(pending.people) <= {person.id for person in _people(change) if person.trains}:
                raise consent_ended()
            change.delete("pending")
            change.insert("pending", _pack_pending(pending), person=TOGETHER, tag=_round_tag(pending))
            _mark_duties(change, pending, source_crops)

    def is_pending(self, pending: Pending) -> bool:
        """Tell whether a round is still to be brought to its end: not settled, and nobody of it withdrew."""
        with self._vault.reading() as view:
            return any(
                _unpack_pending(record).people == pending.people
                for record in view.select("pending", tag=_round_tag(pending))
            )

    def settle(self, pending: Pending, *, counted: bool) -> None:
        """Forget a round's contribution; its private state becomes its people's if the round counted it.

        Does nothing for a round that is no longer pending (somebody was removed or withdrew meanwhile).
        """
        with self._vault.writing() as change:
            if not any(True for _ in change.select("pending", tag=_round_tag(pending))):
                return
            change.delete("pending")
            if not counted:
                return
            if pending.source:
                _put_state(change, SOURCE, pending.task_id, pending.private, {"source": pending.source})
                return
            kept = by_person(pending.private, pending.people, pending.per_identity)
            for person in pending.people:
                _put_state(change, person, pending.task_id, kept.own.get(person, {}), {})
            facts = {"members": kept.members}
            _put_state(change, TOGETHER, pending.task_id, kept.together, facts, is_kept=bool(kept.members))

    # --- backup ---

    def to_plain(self) -> bytes:
        """Return people and their crops in one blob, in clear: for `device_sdk.backup`, never for a disk.

        Templates are left out: they are made again from the crops, by whatever model the other gallery has.
        """
        tensors: dict[str, NDArray[Any]] = {}
        people = []
        with self._vault.reading() as view:
            for person in _people(view):
                kept = []
                for record in view.select("templates", person=person.id):
                    tensors[f"crops/{record.id}"] = _crops(view, record.id)
                    kept.append({"id": record.id})
                people.append({**to_mapping(person), "templates": kept})
        return pack_tensors(tensors, {"people": json.dumps(people)})

    def restore(self, people: Sequence[tuple[BackedUp, Sequence[Template]]]) -> None:
        """Add people from a backup, all or none, with templates made of their crops by the gallery's model.

        Raises AlreadyExistsError when one of the names is taken.
        """
        with self._vault.writing() as change, _agreement_noted(change):
            taken = {person.name.casefold() for person in _people(change)}
            for person, templates in people:
                if clean_name(person.name).casefold() in taken:
                    raise AlreadyExistsError(f"{person.name!r} is enrolled already; nobody was added")
                content = _person_json(person.name, person.enrolled_unix_s, person.consent_unix_s)
                person_id = change.insert("persons", content)
                taken.add(clean_name(person.name).casefold())
                for crops, template in zip(person.crops, templates, strict=True):
                    _check_model(change.facts.get("model_id"), template.model_id)
                    self._insert_template(change, person_id, crops, template)
            change.delete("states", person=PERSONAL)


def from_plain(data: bytes) -> tuple[BackedUp, ...]:
    """Return the people in what `Gallery.to_plain` gave; raises CorruptDataError for anything else."""
    tensors = unpack_tensors(data, what="the exported gallery")
    people = parse_json(unpack_metadata(data).get("people", "").encode(), what="the exported gallery")
    try:
        return tuple(
            BackedUp(
                clean_name(person["name"]),
                int(person["enrolled_unix_s"]),
                person.get("consent_unix_s"),
                tuple(_checked_crops(tensors[f"crops/{template['id']}"]) for template in person["templates"]),
            )
            for person in people
        )
    except (KeyError, TypeError, ConfigError) as error:
        raise CorruptDataError("the exported gallery is of another format; export it again") from error


@contextlib.contextmanager
def _agreement_noted(change: Writer) -> Iterator[None]:
    """A block that may change who agrees to training; what the coordinator is to be told of it is noted with it."""
    agreed = any(person.trains for person in _people(change))
    yield
    if any(person.trains for person in _people(change)):
        change.set_fact(_STAYS_OUT, "no")
    elif agreed:
        change.set_fact(_STAYS_OUT, "yes")


def name_is_taken(name: str) -> AlreadyExistsError:
    """Return the error for a name that somebody enrolled has."""
    return AlreadyExistsError(
        f"{clean_name(name)!r} is enrolled already; remove them first, choose another name, or use --add"
    )


def not_agreed(name: str) -> ConfigError:
    """Return the error for a person who has not agreed to training."""
    return ConfigError(
        f"{name!r} has not agreed that their images train the model; when they do, run `mien-device gallery consent`"
    )


def consent_ended() -> ConfigError:
    """Return the error for a round of which somebody was removed or withdrew their consent after it began."""
    return ConfigError("a person whose pictures trained no longer agrees or was removed; nothing was sent")


def clean_name(name: str) -> str:
    """Return a name as it is stored: Unicode NFC, no outer spaces; raises ConfigError for what is no name."""
    clean = unicodedata.normalize("NFC", name).strip()
    if not clean or len(clean) > MAX_NAME or not clean.isprintable():
        raise ConfigError(f"a name needs 1-{MAX_NAME} printable characters; choose another")
    return clean


def _check_model(have: str | None, need: str) -> None:
    if have is not None and have != need:
        raise ModelMismatchError(
            f"the gallery's templates were made by model {have[:12]}, not {need[:12]}; "
            "run `mien-device update` to re-embed them"
        )


def _people(view: Reader) -> Iterable[Person]:
    num_templates, num_images = view.counts("templates"), view.counts("crops")
    for record in view.select("persons"):
        stored = parse_json(record.content, what="a person's record")
        yield Person(
            record.id,
            stored["name"],
            stored["enrolled_unix_s"],
            stored["consent_unix_s"],
            num_templates.get(record.id, 0),
            num_images.get(record.id, 0),
        )


def _found(view: Reader, name: str) -> Person | None:
    wanted = clean_name(name).casefold()
    return next((person for person in _people(view) if person.name.casefold() == wanted), None)


def _find(view: Reader, name: str) -> Person:
    person = _found(view, name)
    if person is None:
        raise NotEnrolledError(f"nobody called {clean_name(name)!r} is enrolled; see `gallery list`, or enrol them")
    return person


def _person_json(name: str, enrolled_unix_s: int, consent_unix_s: int | None) -> bytes:
    return to_canonical_json({"name": name, "enrolled_unix_s": enrolled_unix_s, "consent_unix_s": consent_unix_s})


def _checked_crops(crops: NDArray[Any]) -> Crops:
    if crops.dtype != np.uint8 or crops.ndim != 4 or crops.shape[1:] != (112, 112, 3) or len(crops) == 0:
        raise CorruptDataError("the exported gallery holds crops of another form; export it again")
    return crops


def _replace_person(change: Writer, person: Person) -> None:
    record = next(iter(change.select("persons", person=person.id)))
    change.replace(record, _person_json(person.name, person.enrolled_unix_s, person.consent_unix_s))


@dataclass(frozen=True)
class StoredTemplate:
    """A template as it lies in the gallery: turned under `salt`, or not at all (none) by an earlier program."""

    row: NDArray[np.float32] = field(repr=False)
    salt: bytes = field(repr=False)
    num_images: int
    input: FaceInputSpec


def _stored(view: Reader, model_id: str, people: Mapping[int, str]) -> tuple[tuple[str, ...], list[StoredTemplate]]:
    """Return these people's templates as they lie, and whose each is."""
    names, stored = [], []
    for record in view.select("templates"):
        if record.person in people:
            _check_model(record.tag, model_id)
            names.append(people[record.person])
            stored.append(_unpack(record))
    return tuple(names), stored


def _unpack(record: Record) -> StoredTemplate:
    tensors, facts = _opened(record, "a template")
    spec = from_mapping(FaceInputSpec, facts["input"])
    return StoredTemplate(tensors["template"], bytes.fromhex(facts.get("salt", "")), facts["num_images"], spec)


def _crop(record: Record) -> NDArray[np.uint8]:
    return unpack_tensors(record.content, what="a crop")["crop"]


def _crops(view: Reader, template_id: int) -> Crops:
    """Return the crops (N, 112, 112, 3) that a template is made of."""
    return np.stack([_crop(record) for record in view.select("crops", tag=str(template_id))])


def _kept(view: Reader, people: Sequence[int], task_id: str) -> Kept:
    """Return what training kept of people, and of several together."""
    own: dict[int, Arrays] = {}
    together: Arrays = {}
    members: tuple[int, ...] = ()
    for record in view.select("states", tag=task_id):
        if record.person in people:
            own[record.person] = unpack_tensors(record.content, what=_STATE)
        elif record.person == TOGETHER:
            together, facts = _opened(record, _STATE)
            members = tuple(facts["members"])
    return Kept(own, together, members)


def _put_state(
    change: Writer, person: int, task_id: str, private: Arrays, facts: Mapping[str, object], *, is_kept: bool = False
) -> None:
    """Replace a state; an empty one leaves a record only where its facts are to be kept."""
    change.delete("states", person=person, tag=task_id)
    if private or is_kept:
        content = pack_tensors(private, {"facts": json.dumps(facts)})
        change.insert("states", content, person=person, tag=task_id)


def _forget_training(change: Writer, person_id: int) -> None:
    """Remove what training kept of a person: their own, what is of several with them among those, what is unsent."""
    change.delete("states", person=person_id)
    for record in list(change.select("states", person=TOGETHER)):
        if person_id in _opened(record, _STATE)[1]["members"]:
            change.delete("states", person=TOGETHER, tag=record.tag)
    for record in list(change.select("pending")):
        if person_id in _unpack_pending(record).people:
            change.delete("pending", tag=record.tag)


def _digests(crops: Crops) -> NDArray[np.int64]:
    """Return a number for each crop that another crop has only by a chance of 2**-64."""
    hashed = b"".join(hashlib.blake2b(crop.tobytes(), digest_size=8).digest() for crop in crops)
    return np.frombuffer(hashed, "<i8").astype(np.int64)


def _duty_marks(view: Reader, task_id: str) -> dict[tuple[Duty, int], NDArray[np.int64]]:
    """Return the digests of the crops that did a duty in a task, by duty and person, or SOURCE."""
    return {
        _duty_and_person(name): digests
        for record in view.select("states", person=DUTIES, tag=task_id)
        for name, digests in unpack_tensors(record.content, what=_DUTIES_NOTE).items()
    }


def _duty_and_person(name: str) -> tuple[Duty, int]:
    duty, person = name.split("/")
    return Duty(duty), int(person)


def _put_duty_marks(change: Writer, task_id: str, marks: Mapping[tuple[Duty, int], NDArray[np.int64]]) -> None:
    change.delete("states", person=DUTIES, tag=task_id)
    if marks:
        content = pack_tensors({f"{duty.value}/{person}": digests for (duty, person), digests in marks.items()})
        change.insert("states", content, person=DUTIES, tag=task_id)


def _mark_duties(change: Writer, pending: Pending, source_crops: Crops | None) -> None:
    marks = _duty_marks(change, pending.task_id)
    done = {
        person: np.stack([_crop(record) for record in change.select("crops", person=person)])
        for person in pending.people
    }
    if source_crops is not None:
        done[SOURCE] = source_crops
    for person, crops in done.items():
        key = (pending.duty, person)
        marks[key] = np.union1d(marks.get(key, np.empty(0, np.int64)), _digests(crops))
    _put_duty_marks(change, pending.task_id, marks)


def _forget_duties(change: Writer, person_id: int) -> None:
    """Remove the note of what a removed person's pictures did."""
    for task_id in [record.tag for record in change.select("states", person=DUTIES)]:
        marks = _duty_marks(change, task_id)
        _put_duty_marks(change, task_id, {key: marked for key, marked in marks.items() if key[1] != person_id})


def _round_tag(pending: Pending) -> str:
    return f"{pending.task_id}/{pending.round}/{pending.attempt}"


def _pack_pending(pending: Pending) -> bytes:
    facts: dict[str, Any] = {
        name: getattr(pending, name) for name in ("people", "task_id", "round", "attempt", "per_identity", "source")
    }
    facts["duty"] = pending.duty.value
    for name, record in (("terms", pending.terms), ("asked", pending.asked)):
        if record is not None:
            facts[name] = to_mapping(record)
    tensors: dict[str, NDArray[Any]] = {f"private/{name}": array for name, array in pending.private.items()}
    tensors["contribution"] = np.frombuffer(pending.contribution, np.uint8)
    return pack_tensors(tensors, {"facts": json.dumps(facts)})


def _unpack_pending(record: Record) -> Pending:
    tensors, facts = _opened(record, "the round that this device trained for")
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
        Duty(facts.get("duty", Duty.TRAIN.value)),
    )


def _opened(record: Record, what: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return a record's tensors and the JSON beside them."""
    tensors = unpack_tensors(record.content, what=what)
    facts: dict[str, Any] = parse_json(unpack_metadata(record.content)["facts"].encode(), what=what)
    return tensors, facts
