"""Write docs/gates.md: what the quality gate does with faces of every size, turned by every angle, in hard conditions.

Reads LFW (MIEN_DATA; research, non-commercial use); of each person one picture that passes as it is. A picture is drawn
anew from it at the wanted size and angle, the face in the middle, and given to the gate as a camera would. A face that
passes counts as taken wrongly where its landmarks lean otherwise than the face by more than 45 degrees.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import cv2
import numpy as np

from benchmarks._common import data_root, progress
from device_sdk.faces import ChoiceRule, FacePipeline, align_face, choose_face, decode_image, load_detector
from device_sdk.faces.align import roll_deg, similarity
from device_sdk.faces.crops import MASTER
from device_sdk.faces.images import Pixels
from mien.errors import LowQualityError, MienError
from simulation.faces import conditions

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "gates.md"
SIZES: Final = (40, 60, 100, 200, 400, 800, 2000)
ROTATIONS: Final = (15, 30, 45, 90, 135, 180, 270)
NUM_FACES: Final = 12
_ROOM: Final = 2.6
_SELFIE_ROOM: Final = 1.5
_SEED: Final = 3
# A crop whose landmarks lean otherwise than the face by more than this is not upright.
_SAME_DEG: Final = 45.0


@dataclass(frozen=True, eq=False)
class Subject:
    """A picture that passes as it is, the middle and width of its face in it, its landmarks (5, 2) and its crop."""

    image: Pixels
    centre: tuple[float, float]
    width: float
    landmarks: np.ndarray[tuple[int, int], np.dtype[np.float64]]
    crop: Pixels


def subjects(pipeline: FacePipeline, files: Sequence[Path], count: int) -> list[Subject]:
    """Return the first `count` of these pictures that pass."""
    found: list[Subject] = []
    detector = load_detector()
    for file in files:
        image = decode_image(file)
        try:
            pipeline.acquire(image)
        except MienError:
            continue
        face = choose_face(detector.detect(image), image.shape, ChoiceRule.CENTRE)
        crop = align_face(image, face.landmarks, MASTER)
        found.append(Subject(image, face.centre, face.box[2], face.landmarks, crop))
        if len(found) == count:
            return found
    return found


def masked(subject: Subject, rng: np.random.Generator) -> Pixels:
    """Return the picture with a mask of one colour over nose, mouth and chin."""
    matrix = similarity(subject.landmarks, MASTER.template)
    covered = conditions.masked(subject.crop, rng)
    size = subject.image.shape[1::-1]
    where = cv2.warpAffine(
        (covered != subject.crop).any(2).astype(np.float32), matrix, size, flags=cv2.WARP_INVERSE_MAP
    )
    cloth = cv2.warpAffine(covered, matrix, size, flags=cv2.WARP_INVERSE_MAP)
    return np.where(where[..., None] > 0.5, cloth, subject.image).astype(np.uint8)


CONDITIONS: Final[Mapping[str, Callable[[Subject, np.random.Generator], Pixels]]] = {
    "plain": lambda subject, _rng: subject.image,
    "selfie": lambda subject, _rng: subject.image,
    "masked": masked,
    "dark": lambda subject, rng: conditions.dark(subject.image, rng),
}
"""By name; a selfie is the plain picture cut so that the face fills two thirds of its width."""


def picture(image: Pixels, subject: Subject, size: int, degrees: float, room: float) -> Pixels:
    """Return the face `size` pixels wide and turned clockwise, in the middle of a square `room` times as wide."""
    side = round(size * room)
    scale = size / subject.width
    if scale < 0.5:  # or bilinear reading would skip pixels
        image = cv2.GaussianBlur(image, (0, 0), 0.4 / scale).astype(np.uint8)
    matrix = cv2.getRotationMatrix2D(subject.centre, -degrees, scale)
    matrix[:, 2] += (side - 1) / 2 - np.array(subject.centre)
    flags = cv2.INTER_CUBIC if scale > 1 else cv2.INTER_LINEAR
    return np.asarray(cv2.warpAffine(image, matrix, (side, side), flags=flags, borderMode=cv2.BORDER_REFLECT), np.uint8)


def outcome(pipeline: FacePipeline, image: Pixels, roll: float) -> str:
    """Return "passed", "wrong" for a face that is taken for leaning otherwise than by `roll`, or why it is refused."""
    try:
        face = pipeline.acquire(image)
    except LowQualityError as error:
        return str(error.reasons[0])
    except MienError as error:
        return error.code
    assert face.quality.geometry is not None
    off = abs((face.quality.geometry.roll_deg - roll + 180) % 360 - 180)
    return "passed" if off <= _SAME_DEG else "wrong"


def cell(outcomes: Iterable[str]) -> str:
    """Return the counts of a cell: what passed, then the rest, the most frequent first."""
    counts = collections.Counter(outcomes)
    passed = counts.pop("passed", 0)
    return ", ".join([str(passed), *(f"{number} {word}" for word, number in counts.most_common())])


def by_condition(pipeline: FacePipeline, people: Sequence[Subject]) -> Iterator[str]:
    """Return the lines of the table of upright faces, sizes by conditions."""
    yield from _heading("face, pixels", CONDITIONS)
    for size in SIZES:
        cells = []
        for name, condition in CONDITIONS.items():
            room = _SELFIE_ROOM if name == "selfie" else _ROOM
            cells.append(
                cell(
                    outcome(
                        pipeline,
                        picture(condition(subject, np.random.default_rng([_SEED, i])), subject, size, 0, room),
                        roll_deg(subject.landmarks),
                    )
                    for i, subject in enumerate(people)
                )
            )
        yield _row(size, cells)


def by_rotation(pipeline: FacePipeline, people: Sequence[Subject]) -> Iterator[str]:
    """Return the lines of the table of plain pictures, sizes by rotations."""
    yield from _heading("face, pixels", [f"{degrees}°" for degrees in ROTATIONS])
    for size in SIZES[:-1]:
        cells = [cell(_turned(pipeline, people, size, degrees)) for degrees in ROTATIONS]
        yield _row(size, cells)


def _turned(pipeline: FacePipeline, people: Sequence[Subject], size: int, degrees: float) -> list[str]:
    return [
        outcome(pipeline, picture(one.image, one, size, degrees, _ROOM), degrees + roll_deg(one.landmarks))
        for one in people
    ]


def _heading(first: str, others: Iterable[str]) -> list[str]:
    names = [first, *others]
    return ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]


def _row(first: object, cells: Sequence[str]) -> str:
    line = f"| {first} | " + " | ".join(cells) + " |"
    progress(line)
    return line


def page(pipeline: FacePipeline, people: Sequence[Subject]) -> str:
    """Return the page."""
    return "\n".join(
        [
            "# What the quality gate does, measured",
            "",
            f"{len(people)} people of LFW (research, non-commercial use), one picture each that passes as it is, drawn",
            "anew at each size and angle, the face in the middle. A cell counts what passed, then what was refused, by",
            "its first reason; `wrong` is a crop that is not upright. Written by `python -m scripts.write_gate_matrix`",
            "(MIEN_DATA); why it is so: [decision record 0071](decisions/0071-faces-whichever-way-up.md).",
            "",
            "## Size and condition",
            "",
            "A selfie fills two thirds of the width; a mask of one colour covers nose, mouth and chin; dark is",
            "a twentieth to an eighth of the light, with its noise.",
            "",
            *by_condition(pipeline, people),
            "",
            "## Size and rotation",
            "",
            "Clockwise; plain pictures.",
            "",
            *by_rotation(pipeline, people),
            "",
        ]
    )


def main() -> None:
    """Measure and write the page."""
    cv2.setNumThreads(1)
    pipeline = FacePipeline(MASTER, choice=ChoiceRule.CENTRE)
    folders = sorted((data_root() / "lfw" / "images").iterdir())
    drawn = np.random.default_rng(_SEED).permutation(len(folders))
    files = [min(folders[index].iterdir()) for index in drawn[: 4 * NUM_FACES]]
    PAGE.write_text(page(pipeline, subjects(pipeline, files, NUM_FACES)), encoding="utf-8")


if __name__ == "__main__":
    main()
