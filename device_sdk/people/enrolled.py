"""Enrolled people in the gallery's records, with their templates and their crops."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from device_sdk.storage.vault import Reader, Record, Writer
from mien.errors import (
    AlreadyExistsError,
    ConfigError,
    CorruptDataError,
    ModelMismatchError,
    NonFiniteError,
    NotEnrolledError,
)
from mien.methods.base import Crops, Embeddings
from mien.models.variants import model_of, variant_of
from mien.protocol.canonical import parse_json, to_canonical_json
from mien.protocol.names import as_written, clean_name, clean_text, isolated, name_key, stored_name
from mien.protocol.tensors import unpack_metadata, unpack_tensors
from mien.records import from_mapping, to_mapping
from mien.specs import FaceInputSpec

_LAST_UNIX_S: Final = 253_402_300_799  # the end of the year 9999, the last one that can be shown


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
        """True if this person's images may be used for training."""
        return self.consent_unix_s is not None


@dataclass(frozen=True)
class Template:
    """A person's reference: the normalised mean of the normalised features of `num_images` images.

    `model_id` is the form that made it: a model's id, and for a variant of it the hash of that
    (`mien.models.variants`).
    """

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

    def best(self, probe_D: NDArray[np.float32], floor: float) -> dict[str, float]:
        """Return the highest cosine with an embedding (D,) of the nearest and of everybody who reaches `floor`."""
        best: dict[str, float] = {}
        if self.names:
            score_N = self.embeddings @ probe_D
            for row in np.flatnonzero(score_N >= min(floor, score_N.max())):
                best[self.names[row]] = max(float(score_N[row]), best.get(self.names[row], -np.inf))
        return best

    def nearest(self, probe_D: NDArray[np.float32]) -> tuple[str, float]:
        """Return the owner of the template nearest to an embedding (D,), and its cosine: exact search, one product."""
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
class StoredTemplate:
    """A template as it lies in the gallery: turned under `salt`, or not at all (none) by an earlier program."""

    row: NDArray[np.float32] = field(repr=False)
    salt: bytes = field(repr=False)
    num_images: int
    input: FaceInputSpec


def name_is_taken(name: str) -> AlreadyExistsError:
    """Return the error for a name that somebody enrolled has."""
    return AlreadyExistsError(
        f"'{isolated(as_written(name))}' is enrolled already; remove them first, choose another name, or give "
        "`add=True`"
    )


def not_agreed(name: str) -> ConfigError:
    """Return the error for a person who has not agreed to training."""
    return ConfigError(
        f"'{isolated(name)}' has not agreed that their images train the model; when they do, call "
        "`Device.set_consent()`"
    )


def consent_ended() -> ConfigError:
    """Return the error for a round after whose start somebody was removed or withdrew their consent."""
    return ConfigError("a person whose pictures trained no longer agrees or was removed; nothing was sent")


def check_model(have: str | None, need: str) -> None:
    if have is not None and have != need:
        raise ModelMismatchError(
            f"the gallery's templates were made by model {_in_short(have)}, not {_in_short(need)}; "
            "call `Device.update()` to re-embed them"
        )


def _in_short(form: str) -> str:
    variant = variant_of(form)
    return model_of(form)[:12] + (f" (variant {variant[:12]})" if variant else "")


def people_in(view: Reader) -> Iterable[Person]:
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


def found(view: Reader, name: str) -> Person | None:
    """Return the person of that name: as it is stored, before any other spelling that names one person.

    Earlier programs took more for names, and told more of them apart. Raises ConfigError for what is no name, and for
    a spelling that fits several people.
    """
    people = tuple(people_in(view))
    for exact in (as_written(name), clean_text(name)):
        if same := [person for person in people if person.name == exact]:
            return same[0]
    wanted = name_key(clean_name(name))
    alike = [person for person in people if name_key(person.name) == wanted]
    if len(alike) > 1:
        names = ", ".join(isolated(person.name) for person in alike)
        raise ConfigError(
            f"{len(alike)} people have that name ({names}); write it exactly as `Device.people()` shows it"
        )
    return alike[0] if alike else None


def find(view: Reader, name: str) -> Person:
    person = found(view, name)
    if person is None:
        raise NotEnrolledError(
            f"nobody called '{isolated(clean_name(name))}' is enrolled; see `Device.people()`, or enrol them"
        )
    return person


def person_json(name: str, enrolled_unix_s: int, consent_unix_s: int | None) -> bytes:
    return to_canonical_json({"name": name, "enrolled_unix_s": enrolled_unix_s, "consent_unix_s": consent_unix_s})


def replace_person(change: Writer, person: Person) -> None:
    record = next(iter(change.select("persons", person=person.id)))
    change.replace(record, person_json(person.name, person.enrolled_unix_s, person.consent_unix_s))


def checked_crops(crops: NDArray[Any]) -> Crops:
    if crops.dtype != np.uint8 or crops.ndim != 4 or crops.shape[1:] != (112, 112, 3) or len(crops) == 0:
        raise CorruptDataError("the exported gallery holds crops of another form; export it again")
    return crops


def backed_up(person: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> BackedUp:
    """Return a person as an exported gallery lists them; raises KeyError, TypeError or a MienError for another form."""
    name, templates = stored_name(person["name"]), person["templates"]
    agreed_unix_s = person.get("consent_unix_s")
    if not isinstance(templates, list) or not templates:
        raise CorruptDataError("the exported gallery holds somebody without a template; export it again")
    return BackedUp(
        name,
        _unix_s(person["enrolled_unix_s"]),
        None if agreed_unix_s is None else _unix_s(agreed_unix_s),
        tuple(checked_crops(tensors[f"crops/{template['id']}"]) for template in templates),
    )


def _unix_s(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _LAST_UNIX_S:  # `True` is an int, and no moment
        raise CorruptDataError("the exported gallery holds a date that is none; export it again")
    return value


def stored_templates(
    view: Reader, model_id: str, people: Mapping[int, str]
) -> tuple[tuple[str, ...], list[StoredTemplate]]:
    """Return these people's templates as they are stored, and the owner of each."""
    names, stored = [], []
    for record in view.select("templates"):
        if record.person in people:
            check_model(record.tag, model_id)
            names.append(people[record.person])
            stored.append(unpack_template(record))
    return tuple(names), stored


def unpack_template(record: Record) -> StoredTemplate:
    tensors, facts = opened(record, "a template")
    spec = from_mapping(FaceInputSpec, facts["input"])
    return StoredTemplate(tensors["template"], bytes.fromhex(facts.get("salt", "")), facts["num_images"], spec)


def crop_in(record: Record) -> NDArray[np.uint8]:
    return unpack_tensors(record.content, what="a crop")["crop"]


def picture_digest(crop: NDArray[np.uint8]) -> bytes:
    """Return what two crops of the same picture have in common."""
    return hashlib.sha256(crop.tobytes()).digest()


def crops_of(view: Reader, template_id: int) -> Crops:
    """Return the crops (N, 112, 112, 3) that a template is made of."""
    return np.stack([crop_in(record) for record in view.select("crops", tag=str(template_id))])


def opened(record: Record, what: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return a record's tensors and the JSON beside them."""
    tensors = unpack_tensors(record.content, what=what)
    facts: dict[str, Any] = parse_json(unpack_metadata(record.content)["facts"].encode(), what=what)
    return tensors, facts


@dataclass(frozen=True)
class LastRound:
    """The last round that this device took part in: when it ended, and whether its contribution is in the sum.

    `peers` says by which rule peers counted, where the owner asks for an age.
    """

    unix_s: int
    counted: bool
    peers: str = ""

    def to_text(self) -> str:
        """Return it as it is kept."""
        return to_canonical_json(to_mapping(self)).decode()

    @classmethod
    def from_text(cls, text: str) -> LastRound:
        """Return the input of `to_text`; raises CorruptDataError for anything else."""
        value = parse_json(text.encode(), what="the note of the last round", remedy="take part again")
        try:
            return from_mapping(cls, value if isinstance(value, dict) else {})
        except ConfigError as error:
            raise CorruptDataError("the note of the last round cannot be read; take part again") from error


def said_of_threshold(threshold: float, tier: str) -> str:
    """Return the notice to an owner whose own threshold decides for a form of the model."""
    return (
        f"A threshold that was given by hand decides, {threshold:.3f} (verification.threshold): it is right for {tier} "
        f"only if it was measured on this model in {tier}; without it the model's own decides."
    )
