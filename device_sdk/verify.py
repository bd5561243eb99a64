"""Verification (1:1) and identification (1:N, open set): typed outcomes, accept iff score >= threshold.

A score is a cosine in [-1, 1], never a percentage or a probability. In identification over N people the false positive
rate is up to N times the threshold's false match rate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from device_sdk.faces import FacePipeline, ImageSource
from device_sdk.gallery import Gallery
from device_sdk.recogniser import Operating, Recogniser
from mien.errors import LowQualityError, MultipleFacesError, NoFaceError, NotEnrolledError

Probe = NDArray[np.float32]


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


Outcome = Match | Unknown | NoFace | MultipleFaces | LowQuality


def verify(
    name: str, image: ImageSource, gallery: Gallery, recogniser: Recogniser, pipeline: FacePipeline, at: Operating
) -> Outcome:
    """Return whether the face in an image is the enrolled person's of that name.

    Raises NotEnrolledError for a name that is not enrolled, ModelMismatchError when the gallery's templates are
    another model's.
    """
    person = gallery.person(name)

    def best(probe_D: Probe) -> tuple[str, float]:
        return person.name, float(gallery.scores(person.name, recogniser.model_id, probe_D).max())

    return _compare(image, best, recogniser, pipeline, at)


def identify(
    image: ImageSource, gallery: Gallery, recogniser: Recogniser, pipeline: FacePipeline, at: Operating
) -> Outcome:
    """Return who of all enrolled people the face in an image is, or Unknown; errors as `verify`."""
    references = gallery.references(recogniser.model_id)
    if not references.names:
        raise NotEnrolledError("nobody is enrolled yet; run `mien-device enroll` first")

    def best(probe_D: Probe) -> tuple[str, float]:
        scores_N = references.embeddings @ probe_D
        row = int(np.argmax(scores_N))
        return references.names[row], float(scores_N[row])

    return _compare(image, best, recogniser, pipeline, at)


def _compare(
    image: ImageSource,
    best: Callable[[Probe], tuple[str, float]],
    recogniser: Recogniser,
    pipeline: FacePipeline,
    at: Operating,
) -> Outcome:
    """Return the outcome for a picture; `best` says whose template is nearest to an embedding (D,), and its cosine."""
    try:
        crop = pipeline.acquire_source(image).crop
    except NoFaceError as error:
        return NoFace(error.message)
    except MultipleFacesError as error:
        return MultipleFaces(error.message)
    except LowQualityError as error:
        return LowQuality(tuple(str(reason) for reason in error.reasons), error.message)
    probe_D = recogniser.embed(crop[np.newaxis])[0]
    name, score = best(probe_D)
    return Match(name, score, at) if score >= at.value else Unknown(score, at)
