"""Enrolment: from pictures of one person to a template, with every refused picture and its reason."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from device_sdk.faces import FacePipeline, ImageSource, iter_image_files
from device_sdk.faces.crops import MASTER
from device_sdk.faces.images import name_of, shown_path
from device_sdk.people.enrolled import BackedUp, Person, References, Template, picture_digest
from device_sdk.people.gallery import Gallery
from device_sdk.people.recogniser import Recogniser
from mien.errors import (
    AlreadyExistsError,
    ConfigError,
    ImageError,
    LowQualityError,
    MienError,
    MultipleFacesError,
    NoFaceError,
    NotFoundError,
)
from mien.methods.base import Crops, Embeddings
from mien.protocol.names import isolated, name_key
from mien.shell.doing import counting

DEFAULT_MIN_IMAGES: Final = 3

DUPLICATE: Final = "duplicate"
UNLIKE: Final = "unlike_the_others"
UNREADABLE: Final = "unreadable"
NO_FACE: Final = "no_face"
MULTIPLE_FACES: Final = "multiple_faces"
_REASON_OF: Final[dict[type[MienError], str]] = {
    NoFaceError: NO_FACE,
    MultipleFacesError: MULTIPLE_FACES,
    ImageError: UNREADABLE,
    NotFoundError: UNREADABLE,
}


@dataclass(frozen=True)
class RefusedImage:
    """A picture that was not used: its file's path as given (or number), stable words for why, and what to do."""

    name: str
    reasons: tuple[str, ...]
    message: str


@dataclass(frozen=True)
class Enrollment:
    """Result of enrolling: the person, how many pictures the template is made of, and which were refused."""

    person: Person
    num_used: int
    refused: tuple[RefusedImage, ...]


@dataclass(frozen=True)
class Collected:
    """The usable faces of one person: crops (N, 112, 112, 3) and their embeddings (N, dim)."""

    crops: Crops = field(repr=False)
    features: Embeddings = field(repr=False)
    refused: tuple[RefusedImage, ...]


def enroll(
    name: str,
    images: Sequence[ImageSource],
    gallery: Gallery,
    recogniser: Recogniser,
    pipeline: FacePipeline,
    *,
    now_unix_s: int,
    consent: bool,
    add: bool = False,
    min_images: int = DEFAULT_MIN_IMAGES,
    unlike_below: float | None = None,
    alike_from: float | None = None,
    on_refused: Callable[[RefusedImage], None] = lambda _image: None,
) -> Enrollment:
    """Enrol a person with all usable pictures or not at all; see `collect` for what is usable.

    `on_refused` hears of every refused picture at once. Raises LowQualityError when fewer than `min_images` are usable,
    AlreadyExistsError for a name that is taken (see `Gallery.enroll`), and what `check_stored` raises: None for
    `unlike_below` and `alike_from` takes the pictures for this person's, whatever they look like.
    """
    known = gallery.pictures(name) if add and gallery.has(name) else frozenset[bytes]()
    collected = collect(images, recogniser, pipeline, unlike_below=unlike_below, known=known, on_refused=on_refused)
    num_used = len(collected.crops)
    if num_used < min_images:
        reasons = tuple(dict.fromkeys(reason for image in collected.refused for reason in image.reasons))
        otherwise = (
            "give `anyway=True` if all are of one person" if UNLIKE in reasons else "lower `enrollment.min_images`"
        )
        needed = f"{min_images} are needed"
        if add and gallery.has(name):
            needed += " for one more template"
        raise LowQualityError(
            f"{num_used} of {len(images)} pictures can be used, {needed}; nothing was stored. "
            f"Add {'better' if collected.refused else 'more'} pictures, or {otherwise}",
            reasons=reasons,
        )
    template = recogniser.template(collected.features)
    references = gallery.references(recogniser.form_id)
    own = gallery.person(name).name if gallery.has(name) else None
    check_stored(name, own, template, references, unlike_below=unlike_below, alike_from=alike_from)
    person = gallery.enroll(
        name,
        collected.crops,
        template,
        now_unix_s=now_unix_s,
        consent=consent,
        add=add,
    )
    return Enrollment(person, num_used, collected.refused)


def collect(
    images: Sequence[ImageSource],
    recogniser: Recogniser,
    pipeline: FacePipeline,
    *,
    unlike_below: float | None = None,
    known: Collection[bytes] = (),
    on_refused: Callable[[RefusedImage], None] = lambda _image: None,
) -> Collected:
    """Return the usable faces in pictures of one person, of whom the pictures of digests `known` are enrolled already.

    Refused are: what has no single good face, the same picture twice or once more, and, where `unlike_below` is given
    (the model's threshold), pictures that reach it with fewer than half of the others: probably another person. Raises
    LowQualityError where those match one another and are at least half as many as the rest: two people.
    """
    refused: list[RefusedImage] = []

    def refuse(name: str, reasons: tuple[str, ...], message: str) -> None:
        refused.append(RefusedImage(name, reasons, message))
        on_refused(refused[-1])

    names: list[str] = []
    crops: list[NDArray[np.uint8]] = []
    seen: dict[bytes, str] = {}
    for number, image in enumerate(counting("Looking for faces", images), start=1):
        name = _name_of(image, number)
        try:
            crop = pipeline.acquire_source(image).crop
        except (NoFaceError, MultipleFacesError, LowQualityError, ImageError, NotFoundError) as error:
            refuse(name, _reasons(error), error.message)
            continue
        digest = picture_digest(crop)
        if digest in known:
            refuse(name, (DUPLICATE,), f"{name}: this picture is enrolled already; add another one.")
            continue
        if digest in seen:
            refuse(name, (DUPLICATE,), f"{name}: the same picture as {seen[digest]}; add another one.")
            continue
        seen[digest] = name
        names.append(name)
        crops.append(crop)
    if not crops:
        none = np.empty((0, MASTER.height, MASTER.width, 3), np.uint8)
        return Collected(none, np.empty((0, recogniser.input.dim), np.float32), tuple(refused))
    features = recogniser.embed(np.stack(crops))
    strangers = [] if unlike_below is None else _strangers(features, unlike_below)
    if unlike_below is not None and (second := _second_group(features, strangers, unlike_below)):
        raise LowQualityError(
            f"the pictures seem to show different people: {', '.join(names[index] for index in second)} look like one, "
            "and the others like another; nobody was enrolled. Enrol each person with pictures of only them, or give "
            "`anyway=True` if all are of one",
            reasons=(UNLIKE,),
        )
    for index in strangers:
        refuse(names[index], (UNLIKE,), f"{names[index]}: {_UNLIKE_HINT}")
    keep = [index for index in range(len(crops)) if index not in strangers]
    return Collected(np.stack(crops)[keep], features[keep], tuple(refused))


def check_stored(
    name: str,
    enrolled: str | None,
    template: Template,
    references: References,
    *,
    unlike_below: float | None,
    alike_from: float | None,
    one_person: str = "To add pictures name that person and `add=True`",
) -> None:
    """Refuse a template of `name` that contradicts who is enrolled: `enrolled`, if this person is already, and others.

    Raises LowQualityError where it reaches `unlike_below` with none of this person's own templates, and
    AlreadyExistsError where it looks more like somebody else, from `alike_from` on: one face under two names, of which
    `one_person` says what to do.
    """
    scored = references.best(template.embedding, -np.inf)
    own = -np.inf if enrolled is None else scored.pop(enrolled, -np.inf)
    alike = [] if alike_from is None else [who for who, score in scored.items() if score >= max(alike_from, own)]
    others = " and ".join(map(isolated, sorted(alike)))
    if enrolled is not None and unlike_below is not None and own < unlike_below:
        but = f", but like {others}" if others else ""
        raise LowQualityError(
            f"these pictures do not look like {isolated(enrolled)} as enrolled{but}; nothing was stored. Name the "
            "right person, or give `anyway=True` if you are sure that it is them",
            reasons=(UNLIKE,),
        )
    if others:
        raise AlreadyExistsError(
            f"{isolated(name)} has the face of {others}, who is enrolled already; nothing was stored. {one_person}; "
            "if these are two people who look alike, give `anyway=True`"
        )


def check_restored(
    people: Sequence[tuple[BackedUp, Sequence[Template]]],
    references: References,
    *,
    unlike_below: float | None,
    alike_from: float | None,
) -> None:
    """Refuse people of a backup whose templates contradict one another or who is enrolled; errors as `check_stored`.

    Raises AlreadyExistsError for a name that somebody has here, whatever they look like.
    """
    here = {name_key(name): name for name in references.names}
    for person, _ in people:
        if (name := here.get(name_key(person.name))) is not None:
            raise AlreadyExistsError(
                f"{isolated(name)} is enrolled here already; nobody was added. To have the pictures of the exported "
                f"gallery in their place, remove {isolated(name)} here first"
            )
    remove = "If they are one person, remove that one here first"
    names, embeddings = list(references.names), list(references.embeddings)
    for person, templates in people:
        for number, template in enumerate(templates):
            dim = len(template.embedding)
            known = References(template.model_id, tuple(names), np.reshape(embeddings, (-1, dim)).astype(np.float32))
            own = person.name if number else None
            check_stored(
                *(person.name, own, template, known),
                unlike_below=unlike_below,
                alike_from=alike_from,
                one_person=remove,
            )
            names.append(person.name)
            embeddings.append(template.embedding)


_UNLIKE_HINT: Final = (
    "was left out: it does not look like the person in the other pictures; if it is them, add clearer ones."
)


def _strangers(features: Embeddings, threshold: float) -> list[int]:
    """Return the rows that do not belong with the rest, worst first.

    Each that stays matches at least half of the others that stay, one by one: a mean over pictures of two people
    resembles both. One at a time, so that no picture of the person falls with a stranger's. Two pictures that differ
    cannot tell which is right: both stay.
    """
    scores = _scores(features)
    left, out = list(range(len(features))), []
    while len(left) > 2:
        others = scores[np.ix_(left, left)]
        np.fill_diagonal(others, -np.inf)
        middle = np.sort(others, axis=1)[:, -(len(left) // 2)]
        worst = int(np.argmin(middle))
        if middle[worst] >= threshold:
            break
        out.append(left.pop(worst))
    return out


def _second_group(features: Embeddings, strangers: Sequence[int], threshold: float) -> list[int]:
    """Return strangers who match one of them, where they are at least half as many as those who stay; else none."""
    scores = _scores(features)
    groups = ([other for other in strangers if other == one or scores[one, other] >= threshold] for one in strangers)
    largest = max(groups, key=len, default=[])
    return sorted(largest) if len(largest) >= max(2, (len(features) - len(strangers)) / 2) else []


def _scores(features: Embeddings) -> NDArray[np.float64]:
    exact = features.astype(np.float64)
    return exact @ exact.T


def gather_images(paths: Sequence[str | os.PathLike[str]]) -> tuple[Path, ...]:
    """Return the image files that a person named: files as they are, folders with what is in them.

    Raises NotFoundError for what does not exist, EmptyFolderError for a folder without images.
    """
    if not paths:
        raise ConfigError("name at least one image or folder")
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            found.extend(iter_image_files(path))
        elif path.exists():
            found.append(path)
        else:
            raise NotFoundError(f"there is no file or folder {shown_path(path)}; check the path")
    return tuple(dict.fromkeys(found))


def _name_of(image: ImageSource, number: int) -> str:
    return name_of(image) or f"image {number}"


def _reasons(error: MienError) -> tuple[str, ...]:
    if isinstance(error, LowQualityError):
        return tuple(str(reason) for reason in error.reasons)
    return (_REASON_OF[type(error)],)
