"""The encrypted gallery: who is enrolled, their templates and aligned crops, and what training keeps in private.

Templates carry the id of the form that made them (a model, or a variant of it: `mien.models.variants`) and are never
compared with another form's; when a model is released, or another form of it chosen, they are made again from the
crops, all in one transaction. Crops are kept for that, and for training where the
person consented. Everything about a person is stored or removed together.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from device_sdk.people.enrolled import (
    BackedUp,
    LastRound,
    Person,
    References,
    StoredTemplate,
    Template,
    backed_up,
    check_model,
    consent_ended,
    crop_in,
    crops_of,
    find,
    found,
    name_is_taken,
    not_agreed,
    opened,
    people_in,
    person_json,
    picture_digest,
    replace_person,
    stored_templates,
    unpack_template,
)
from device_sdk.people.protection import TemplateKeys
from device_sdk.people.stored_personal import StoredPersonal
from device_sdk.people.trained import (
    SOURCE,
    STATE,
    TOGETHER,
    Pending,
    TrainingFaces,
    digests_of,
    forget_roles,
    forget_training,
    kept_of,
    mark_roles,
    pack_pending,
    put_state,
    role_marks,
    round_tag,
    unpack_pending,
)
from device_sdk.people.training_state import by_person, for_round
from device_sdk.storage.keystore import KeyStore
from device_sdk.storage.vault import Reader, Vault, VaultKind, Writer
from mien.contribution import Arrays
from mien.errors import (
    AlreadyExistsError,
    ConfigError,
    CorruptDataError,
    UnreachableError,
)
from mien.methods.base import Crops, Embeddings
from mien.models.variants import model_of
from mien.protocol.canonical import parse_json
from mien.protocol.names import clean_name, isolated, name_key
from mien.protocol.rounds import Role
from mien.protocol.tensors import pack_tensors, unpack_metadata, unpack_tensors
from mien.records import to_mapping
from mien.shell.doing import counting
from mien.specs import FaceInputSpec

KIND: Final = VaultKind(
    label="gallery",
    tables=("persons", "templates", "crops", "states", "pending"),
    what="the gallery",
    repair="restore it from a copy, or wipe and enrol again",
)
PERSONAL: Final = -3
"""Owner number of the personal model's record: it goes with any change of people, pictures, consent or model."""
_REEMBED_TRIES: Final = 5
_STAYS_OUT: Final = "stays_out"
_STAYS_OUT_TOLD: Final = "stays_out_told"
_LAST_ROUND: Final = "last_round"
_REVOKED: Final = "revoked_unix_s"
_OWNER_ADDRESS: Final = "owner_address"


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
    def form_id(self) -> str | None:
        """The form that made every template in here; None before anybody was enrolled."""
        with self._vault.reading() as view:
            return view.facts.get("model_id")

    @property
    def model_id(self) -> str | None:
        """The model whose form made every template in here; None before anybody was enrolled."""
        form = self.form_id
        return None if form is None else model_of(form)

    def people(self) -> tuple[Person, ...]:
        """Return everybody enrolled, by name."""
        with self._vault.reading() as view:
            return tuple(sorted(people_in(view), key=lambda person: name_key(person.name)))

    def has(self, name: str) -> bool:
        """Return whether somebody of that name is enrolled; raises ConfigError for what is no name."""
        with self._vault.reading() as view:
            return found(view, name) is not None

    def person(self, name: str) -> Person:
        """Return the person of that name; raises NotEnrolledError."""
        with self._vault.reading() as view:
            return find(view, name)

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
        with self._vault.writing() as change, _agreement_noted(change):
            check_model(change.facts.get("model_id"), template.model_id)
            person = found(change, name)
            if person is not None and not add:
                raise name_is_taken(person.name)
            consent_unix_s = now_unix_s if consent else None
            if person is None:
                person_id = change.insert("persons", person_json(clean_name(name), now_unix_s, consent_unix_s))
            else:
                person_id = person.id
                if consent and not person.trains:
                    replace_person(change, replace(person, consent_unix_s=consent_unix_s))
            self._insert_template(change, person_id, crops, template)
            change.delete("states", person=PERSONAL)
        return self.person(name)

    def set_consent(self, name: str, *, granted_unix_s: int | None) -> Person:
        """Record that a person agreed (at that time) or no longer agrees (None) that their images train the model.

        Withdrawal also removes the private training state that was made of their images. What is in a round's sum
        already stays in it.
        """
        with self._vault.writing() as change, _agreement_noted(change):
            person = replace(find(change, name), consent_unix_s=granted_unix_s)
            replace_person(change, person)
            if granted_unix_s is None:
                forget_training(change, person.id)
                change.delete("states", person=PERSONAL)
        return person

    def remove(self, name: str) -> Person:
        """Remove a person with their templates, crops and private training state; returns who was removed.

        Other people's own training state stays.
        """
        with self._vault.writing() as change, _agreement_noted(change):
            person = find(change, name)
            for table in KIND.tables:
                change.delete(table, person=person.id)
            change.delete("states", person=PERSONAL)
            forget_training(change, person.id)
            forget_roles(change, person.id)
        return person

    @property
    def stays_out(self) -> bool | None:
        """Wish about being left out of rounds that the coordinator is still to be told, True for out; None for no news.

        It is to stay out once the last person who agreed to training no longer does, until somebody agrees again. A new
        gallery does not know what a wiped one had told: the first agreement in a new one is always told.
        """
        with self._vault.reading() as view:
            wanted = view.facts.get(_STAYS_OUT)
            return None if wanted is None or wanted == view.facts.get(_STAYS_OUT_TOLD) else wanted == "yes"

    @property
    def wants_out(self) -> bool:
        """True if this device asks to be left out of rounds, told or not."""
        with self._vault.reading() as view:
            return view.facts.get(_STAYS_OUT, "no") == "yes"

    def note_told(self, *, stays_out: bool) -> None:
        """Remember the wish that the coordinator was told."""
        with self._vault.writing() as change:
            change.set_fact(_STAYS_OUT_TOLD, "yes" if stays_out else "no")

    @property
    def last_round(self) -> LastRound | None:
        """The last round that this device took part in, None where none is noted."""
        with self._vault.reading() as view:
            text = view.facts.get(_LAST_ROUND)
            return None if text is None else LastRound.from_text(text)

    def note_round(self, last: LastRound) -> None:
        """Remember the last round that this device took part in."""
        with self._vault.writing() as change:
            change.set_fact(_LAST_ROUND, last.to_text())

    @property
    def revoked_unix_s(self) -> int | None:
        """Time of the last refusal of this device as revoked; None where it was admitted since, or never refused."""
        with self._vault.reading() as view:
            text = view.facts.get(_REVOKED, "")
            return int(text) if text else None

    @property
    def owner_address(self) -> str:
        """Where this device was last told that its tasks are run, unverified; empty for where it joined."""
        with self._vault.reading() as view:
            return view.facts.get(_OWNER_ADDRESS, "")

    def note_owner_address(self, address: str) -> None:
        """Remember where this device's tasks are run."""
        with self._vault.writing() as change:
            change.set_fact(_OWNER_ADDRESS, address)

    def note_revoked(self, unix_s: int | None) -> None:
        """Remember that this device was refused as a revoked one at that time, or (None) that it was admitted."""
        with self._vault.writing() as change:
            change.set_fact(_REVOKED, "" if unix_s is None else str(unix_s))

    # --- templates and crops ---

    def references(self, model_id: str) -> References:
        """Return all templates for comparison with embeddings of the form `model_id`; kept until the gallery changes.

        Raises ModelMismatchError when a template was made by another model or form: re-embed first.
        """
        version = self._vault.version
        if self._all is None or self._all[0] != version or self._all[1].model_id != model_id:
            with self._vault.reading() as view:
                names, stored = stored_templates(view, model_id, {person.id: person.name for person in people_in(view)})
                self._all = version, References(model_id, names, self._turned_back(view, stored))
        return self._all[1]

    def scores(self, name: str, model_id: str, probe_D: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the cosine of an embedding (D,) with each template of a person, (N,); errors as `references`.

        The probe is turned as each template is; the templates stay as they are stored.
        """
        with self._vault.reading() as view:
            person = find(view, name)
            _, stored = stored_templates(view, model_id, {person.id: person.name})
            salts = [each.salt for each in stored if each.salt]
            turned = iter(self._keys.turn(view, np.repeat(probe_D[None], len(salts), axis=0), salts))
            return np.array([each.row @ (next(turned) if each.salt else probe_D) for each in stored], np.float32)

    def renew(self, name: str) -> int:
        """Give each template of a person a new secret rotation; returns how many. Stolen old ones match nothing."""
        with self._vault.writing() as change:
            person = find(change, name)
            records = list(change.select("templates", person=person.id))
            for record in records:
                stored = unpack_template(record)
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

    def pictures(self, name: str) -> frozenset[bytes]:
        """Return the digests (`enrolled.picture_digest`) of the crops that a person's templates are made of."""
        with self._vault.reading() as view:
            person = find(view, name)
            return frozenset(picture_digest(crop_in(record)) for record in view.select("crops", person=person.id))

    def training_crops(self, name: str) -> Crops:
        """Return a person's crops (N, 112, 112, 3) for training; raises ConfigError without their consent."""
        with self._vault.reading() as view:
            person = find(view, name)
            if not person.trains:
                raise not_agreed(person.name)
            return np.stack([crop_in(record) for record in view.select("crops", person=person.id)])

    def reembed(self, model_id: str, spec: FaceInputSpec, embed: Callable[[Crops], Embeddings]) -> int:
        """Make every template again with another model, or another form (`model_id`), in one switch; returns how many.

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
        for template_id in counting("Making the templates again", ids):
            with self._vault.reading() as view:
                if view.state != state:
                    return None
                crops = crops_of(view, template_id)
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

        Raises UnreachableError when the gallery has changed since, its people or pictures may be others now, and when
        its templates are of another form than the model that it was made on.
        """
        with self._vault.writing() as change:
            if change.state != made_from or change.facts.get("model_id", personal.model_id) != personal.model_id:
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
        """Return the private state of all people together from the newest task that kept any; empty at first."""
        with self._vault.reading() as view:
            records = list(view.select("states", person=TOGETHER))
        return opened(records[-1], STATE)[0] if records else {}

    # --- what training keeps ---

    def training_faces(self, people: Sequence[int], task_id: str, per_identity: Sequence[str] = ()) -> TrainingFaces:
        """Return a round's training faces: these people's crops, and the state that their last counted rounds left.

        Raises ConfigError where one of them was removed or does not agree (any more).
        """
        with self._vault.reading() as view:
            if not set(people) <= {person.id for person in people_in(view) if person.trains}:
                raise consent_ended()
            numbered = for_round(kept_of(view, people, task_id), people, per_identity)
            crops = [
                np.stack([crop_in(record) for record in view.select("crops", person=person)])
                for person in numbered.people
            ]
        labels = np.repeat(np.arange(len(crops)), [len(of_one) for of_one in crops])
        people, private, is_continued = numbered.people, numbered.private, numbered.is_continued
        return TrainingFaces(people, private, is_continued, np.concatenate(crops), labels)

    def private_state(self, person_id: int, task_id: str) -> Arrays:
        """Return a person's own private state from their last counted round of a task; empty at first."""
        with self._vault.reading() as view:
            return kept_of(view, (person_id,), task_id).own.get(person_id, {})

    def source_state(self, source: str, task_id: str) -> Arrays:
        """Return the private state of a source's faces from a task's last counted round; empty for another source."""
        with self._vault.reading() as view:
            for record in view.select("states", person=SOURCE, tag=task_id):
                tensors, facts = opened(record, STATE)
                return tensors if facts["source"] == source else {}
        return {}

    def pending(self) -> Pending | None:
        """Return the round that this device has trained for and that has not ended, if there is one."""
        with self._vault.reading() as view:
            for record in view.select("pending"):
                return unpack_pending(record)
        return None

    def roles(self, task_id: str, people: Sequence[int], crops: Crops) -> frozenset[Role]:
        """Return the roles that these people, or any of these crops (N, 112, 112, 3), have had in a task so far.

        It is asked by person and by crop: one person may have other pictures now, the same pictures another name.
        """
        digests = digests_of(crops)
        with self._vault.reading() as view:
            marks = role_marks(view, task_id)
        return frozenset(
            role for (role, person), marked in marks.items() if person in people or bool(np.isin(digests, marked).any())
        )

    def keep_pending(self, pending: Pending, source_crops: Crops | None = None) -> None:
        """Store a trained round before anything about it is reported; replaces an earlier one.

        What its faces did in the task is noted with it, and stays noted however the round ends; `source_crops` are a
        source's faces. Withdrawn consent leaves the note, removal takes a person's own along.
        Raises ConfigError when one of its people was removed or withdrew their consent while the phone trained.
        """
        with self._vault.writing() as change:
            if not set(pending.people) <= {person.id for person in people_in(change) if person.trains}:
                raise consent_ended()
            change.delete("pending")
            change.insert("pending", pack_pending(pending), person=TOGETHER, tag=round_tag(pending))
            mark_roles(change, pending, source_crops)

    def is_pending(self, pending: Pending) -> bool:
        """Return whether a round is still to be brought to its end: not settled, and nobody of it withdrew."""
        with self._vault.reading() as view:
            return any(
                unpack_pending(record).people == pending.people
                for record in view.select("pending", tag=round_tag(pending))
            )

    def settle(self, pending: Pending, *, counted: bool) -> None:
        """Forget a round's contribution; its private state becomes its people's if the round counted it.

        Does nothing for a round that is no longer pending (somebody was removed or withdrew meanwhile).
        """
        with self._vault.writing() as change:
            if not any(True for _ in change.select("pending", tag=round_tag(pending))):
                return
            change.delete("pending")
            if not counted:
                return
            if pending.source:
                put_state(change, SOURCE, pending.task_id, pending.private, {"source": pending.source})
                return
            kept = by_person(pending.private, pending.people, pending.per_identity)
            for person in pending.people:
                put_state(change, person, pending.task_id, kept.own.get(person, {}), {})
            facts = {"members": kept.members}
            put_state(change, TOGETHER, pending.task_id, kept.together, facts, is_kept=bool(kept.members))

    # --- backup ---

    def to_plain(self) -> bytes:
        """Return people and their crops in one blob, in clear: for `device_sdk.people.backup`, never for a disk.

        Templates are left out: they are made again from the crops, by whatever model the other gallery has.
        """
        tensors: dict[str, NDArray[Any]] = {}
        people = []
        with self._vault.reading() as view:
            for person in people_in(view):
                kept = []
                for record in view.select("templates", person=person.id):
                    tensors[f"crops/{record.id}"] = crops_of(view, record.id)
                    kept.append({"id": record.id})
                people.append({**to_mapping(person), "templates": kept})
        return pack_tensors(tensors, {"people": json.dumps(people)})

    def restore(self, people: Sequence[tuple[BackedUp, Sequence[Template]]]) -> None:
        """Add people from a backup, all or none, with templates made of their crops by the gallery's model.

        Raises AlreadyExistsError when one of the names is taken.
        """
        with self._vault.writing() as change, _agreement_noted(change):
            taken = {name_key(person.name) for person in people_in(change)}
            names = [person.name for person, _ in people]
            for person, templates in people:
                if name_key(person.name) in taken or names.count(person.name) > 1:
                    raise AlreadyExistsError(f"'{isolated(person.name)}' is enrolled already; nobody was added")
                content = person_json(person.name, person.enrolled_unix_s, person.consent_unix_s)
                person_id = change.insert("persons", content)
                for crops, template in zip(person.crops, templates, strict=True):
                    check_model(change.facts.get("model_id"), template.model_id)
                    self._insert_template(change, person_id, crops, template)
            change.delete("states", person=PERSONAL)


def from_plain(data: bytes) -> tuple[BackedUp, ...]:
    """Return the people in what `Gallery.to_plain` gave; raises CorruptDataError for anything else."""
    tensors = unpack_tensors(data, what="the exported gallery")
    people = parse_json(
        unpack_metadata(data).get("people", "").encode(), what="the exported gallery", remedy="export it again"
    )
    if not isinstance(people, list):
        raise CorruptDataError("the exported gallery holds no list of people; export it again")
    try:
        return tuple(backed_up(person, tensors) for person in people)
    except (KeyError, TypeError, ConfigError) as error:
        raise CorruptDataError("the exported gallery is of another format; export it again") from error


@contextlib.contextmanager
def _agreement_noted(change: Writer) -> Iterator[None]:
    """A block that may change who agrees to training; what the coordinator is to be told of it is noted with it."""
    agreed = any(person.trains for person in people_in(change))
    yield
    if any(person.trains for person in people_in(change)):
        change.set_fact(_STAYS_OUT, "no")
    elif agreed:
        change.set_fact(_STAYS_OUT, "yes")
