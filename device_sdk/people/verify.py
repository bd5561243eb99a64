"""Verification (1:1) and identification (1:N, open set): typed outcomes, accept iff score >= threshold.

A score is a cosine in [-1, 1], never a percentage or a probability. In identification over N people the false positive
rate is up to N times the threshold's false match rate, so the threshold follows from N.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from device_sdk.faces import AcquiredFace, FacePipeline, ImageSource
from device_sdk.faces.images import name_of
from device_sdk.people.enrolled import Person
from device_sdk.people.gallery import Gallery
from device_sdk.people.liveness import PadCheck, is_attack
from device_sdk.people.recogniser import Operating, Recogniser
from mien.errors import LowQualityError, MultipleFacesError, NoFaceError, NotEnrolledError

if TYPE_CHECKING:
    from device_sdk.people.personal import PersonalRecogniser

Crop = NDArray[np.uint8]


@dataclass(frozen=True)
class Match:
    """The face is the claimed (or an enrolled) person's: the best of their templates scored at least the threshold.

    `also` names others who reach it too, the best first: people who look alike, or one person under several names.
    `score` is a cosine in [-1, 1]; `repr` keeps it back, because it ends up in logs.
    """

    name: str
    score: float = field(repr=False)
    operating: Operating
    also: tuple[str, ...] = ()

    def explain(self) -> str:
        """Return the score, the threshold that it was held to and where that is from, in one sentence."""
        return _explained(self)


@dataclass(frozen=True)
class Unknown:
    """A good face, but not the claimed person's; in identification: of nobody enrolled. `score` is the best one."""

    score: float = field(repr=False)
    operating: Operating

    def explain(self) -> str:
        """Return the score, the threshold that it was held to and where that is from, in one sentence."""
        return _explained(self)


def _explained(outcome: Match | Unknown) -> str:
    return f"Score {outcome.score:.3f} (cosine); threshold {outcome.operating}."


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


@dataclass(frozen=True)
class Comparer:
    """Compares faces with the people of a gallery, at the threshold `at`, or by the personal model and each one's own.

    `among` gives the threshold at which somebody is searched for among that many people; without it that is `at`.

    Its outcomes raise ModelMismatchError when the gallery's templates are another model's.
    """

    gallery: Gallery = field(repr=False)
    recogniser: Recogniser = field(repr=False)
    pipeline: FacePipeline = field(repr=False)
    at: Operating
    personal: PersonalRecogniser | None = None
    pad: PadCheck | None = None
    among: Callable[[int], Operating] | None = None

    def verify(self, name: str, image: ImageSource) -> Outcome:
        """Return whether the face in an image is the enrolled person's of that name, by the personal model if it has
        them; raises NotEnrolledError for a name that is not enrolled.
        """
        person = self.gallery.person(name)

        def decide(crop: Crop) -> Match | Unknown:
            if self.personal is not None and self.personal.covers(person):
                return self._by_personal(self.personal, crop, [person])
            (probe_D,) = self.recogniser.embed(crop[np.newaxis])
            scores = self.gallery.scores(person.name, self.recogniser.form_id, probe_D)
            return _decide([(person.name, float(scores.max()), self.at)])

        return self._look(image, decide)

    def identify(self, image: ImageSource) -> Outcome:
        """Return the enrolled person whose face is in an image, or Unknown; raises NotEnrolledError without anybody.

        The personal model decides only where it was made for everybody: scores of two models cannot be compared.
        """
        references, people = self.gallery.references(self.recogniser.form_id), self.gallery.people()
        if not references.names:
            raise nobody_is_enrolled()

        def decide(crop: Crop) -> Match | Unknown:
            if self.personal is not None and all(map(self.personal.covers, people)):
                return self._by_personal(self.personal, crop, people)
            at = self.at if self.among is None else self.among(len(people))
            scores = references.best(self.recogniser.embed(crop[np.newaxis])[0], at.value)
            return _decide([(name, score, at) for name, score in scores.items()])

        return self._look(image, decide)

    def _by_personal(self, personal: PersonalRecogniser, crop: Crop, people: Sequence[Person]) -> Match | Unknown:
        """Return the decision on these people's best scores under the personal model, each at their own threshold."""
        (probe_D,) = personal.embed(crop[np.newaxis])
        scored = []
        for person in people:
            own = personal.stored.thresholds[person.id]
            score = float((personal.references(self.gallery, person) @ probe_D).max())
            scored.append((person.name, score, Operating(own.value, None, own)))
        return _decide(scored)

    def _look(self, image: ImageSource, decide: Callable[[Crop], Match | Unknown]) -> Outcome:
        found = _acquired(image, self.pipeline, self.pad)
        return decide(found.crop) if isinstance(found, AcquiredFace) else found


def nobody_is_enrolled() -> NotEnrolledError:
    """Return what is said where somebody is searched for among nobody."""
    return NotEnrolledError("nobody is enrolled yet; call `Device.enroll()` first")


def compare(
    reference: ImageSource,
    probe: ImageSource,
    recogniser: Recogniser,
    pipeline: FacePipeline,
    at: Operating,
    pad: PadCheck | None = None,
) -> Outcome:
    """Return whether two pictures show one person; a picture without a usable face is the outcome, the first one first.

    A `Match` bears the path of the reference, as it was given. The probe alone is checked for presentation attacks.
    """
    known = _acquired(reference, pipeline, None)
    if not isinstance(known, AcquiredFace):
        return known
    seen = _acquired(probe, pipeline, pad)
    if not isinstance(seen, AcquiredFace):
        return seen
    reference_D, probe_D = recogniser.embed(np.stack([known.crop, seen.crop]))
    return _decide([(name_of(reference) or "the reference", float(reference_D @ probe_D), at)])


def _acquired(
    image: ImageSource, pipeline: FacePipeline, pad: PadCheck | None
) -> AcquiredFace | NoFace | MultipleFaces | LowQuality | PresentationAttack:
    """Return the face in a picture, or why it is of no use."""
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
    return face


def _decide(scored: Sequence[tuple[str, float, Operating]]) -> Match | Unknown:
    """Return the person who scores highest above their threshold, with others who reach theirs, or nobody."""
    ranked = sorted(scored, key=lambda each: each[1] - each[2].value, reverse=True)
    name, score, at = ranked[0]
    also = tuple(other for other, reached, limit in ranked[1:] if reached >= limit.value)
    return Match(name, score, at, also) if score >= at.value else Unknown(score, at)
