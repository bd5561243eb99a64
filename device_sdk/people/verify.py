"""Verification (1:1) and identification (1:N, open set): typed outcomes, accept iff score >= threshold.

A score is a cosine in [-1, 1], never a percentage or a probability. In identification over N people the false positive
rate is up to N times the threshold's false match rate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from device_sdk.faces import FacePipeline, ImageSource
from device_sdk.people.enrolled import Person
from device_sdk.people.gallery import Gallery
from device_sdk.people.liveness import PadCheck, is_attack
from device_sdk.people.personal import PersonalRecogniser
from device_sdk.people.recogniser import Operating, Recogniser
from mien.errors import LowQualityError, MultipleFacesError, NoFaceError, NotEnrolledError

Crop = NDArray[np.uint8]


@dataclass(frozen=True)
class Match:
    """The face is the claimed (or an enrolled) person's: the best of their templates scored at least the threshold."""

    name: str
    score: float = field(repr=False)
    operating: Operating


@dataclass(frozen=True)
class Unknown:
    """A good face, but not the claimed person's; in identification: of nobody enrolled. `score` is the best one."""

    score: float = field(repr=False)
    operating: Operating


@dataclass(frozen=True)
class NoFace:
    """No face was found."""

    message: str


@dataclass(frozen=True)
class MultipleFaces:
    """Several people are in the picture; which one is meant is not guessed."""

    message: str


@dataclass(frozen=True)
class LowQuality:
    """A face that cannot be compared fairly; `reasons` are stable words, `message` says what to do."""

    reasons: tuple[str, ...]
    message: str


@dataclass(frozen=True)
class PresentationAttack:
    """The liveness check takes the face for a picture or a mask; nothing was compared."""

    message: str


Outcome = Match | Unknown | NoFace | MultipleFaces | LowQuality | PresentationAttack


def verify(
    name: str,
    image: ImageSource,
    gallery: Gallery,
    recogniser: Recogniser,
    pipeline: FacePipeline,
    at: Operating,
    personal: PersonalRecogniser | None = None,
    pad: PadCheck | None = None,
) -> Outcome:
    """Return whether the face in an image is the enrolled person's of that name, by the personal model if it has them.

    Raises NotEnrolledError for a name that is not enrolled, ModelMismatchError when the gallery's templates are
    another model's.
    """
    person = gallery.person(name)

    def decide(crop: Crop) -> Match | Unknown:
        if personal is not None and personal.covers(person):
            return _decide([_own_score(personal.embed(crop[np.newaxis])[0], person, gallery, personal)])
        (probe_D,) = recogniser.embed(crop[np.newaxis])
        return _decide([(person.name, float(gallery.scores(person.name, recogniser.form_id, probe_D).max()), at)])

    return _look(image, pipeline, pad, decide)


def identify(
    image: ImageSource,
    gallery: Gallery,
    recogniser: Recogniser,
    pipeline: FacePipeline,
    at: Operating,
    personal: PersonalRecogniser | None = None,
    pad: PadCheck | None = None,
) -> Outcome:
    """Return the enrolled person whose face is in an image, or Unknown; errors as `verify`.

    The personal model decides only where it was made for everybody: scores of two models cannot be compared.
    """
    references, people = gallery.references(recogniser.form_id), gallery.people()
    if not references.names:
        raise NotEnrolledError("nobody is enrolled yet; run `mien-device enroll` first")

    def decide(crop: Crop) -> Match | Unknown:
        if personal is not None and all(map(personal.covers, people)):
            (probe_D,) = personal.embed(crop[np.newaxis])
            return _decide([_own_score(probe_D, person, gallery, personal) for person in people])
        return _decide([(*references.nearest(recogniser.embed(crop[np.newaxis])[0]), at)])

    return _look(image, pipeline, pad, decide)


def _own_score(
    probe_D: NDArray[np.float32], person: Person, gallery: Gallery, personal: PersonalRecogniser
) -> tuple[str, float, Operating]:
    """Return a person's best score under the personal model, and the threshold that is theirs."""
    own = personal.stored.thresholds[person.id]
    score = float((personal.references(gallery, person) @ probe_D).max())
    return person.name, score, Operating(own.value, None, own)


def _decide(scored: Sequence[tuple[str, float, Operating]]) -> Match | Unknown:
    """Return the person who scores highest above their threshold, or nobody."""
    name, score, at = max(scored, key=lambda each: each[1] - each[2].value)
    return Match(name, score, at) if score >= at.value else Unknown(score, at)


def _look(
    image: ImageSource, pipeline: FacePipeline, pad: PadCheck | None, decide: Callable[[Crop], Match | Unknown]
) -> Outcome:
    try:
        face = pipeline.acquire_source(image)
    except NoFaceError as error:
        return NoFace(error.message)
    except MultipleFacesError as error:
        return MultipleFaces(error.message)
    except LowQualityError as error:
        return LowQuality(tuple(str(reason) for reason in error.reasons), error.message)
    if pad is not None and is_attack(pad, face):
        return PresentationAttack("this does not look like a living face; show the face itself, in good light")
    return decide(face.crop)
