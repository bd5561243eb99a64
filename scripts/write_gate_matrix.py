"""Write docs/gates.md: what the quality gate does with faces of every size, turned by every degree, in hard conditions.

Reads LFW (MIEN_DATA; research, non-commercial use); of each person one picture that passes as it is. A picture is drawn
anew from it at the wanted size and angle, the face in the middle, and given to the gate as a camera would. A face that
passes counts as taken wrongly where its landmarks lean otherwise than the face by more than 45 degrees. Takes 3 minutes
of processor time.
"""

from __future__ import annotations

import collections
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from benchmarks._common import data_root, progress
from device_sdk.faces import (
    AcquiredFace,
    ChoiceRule,
    Face,
    FaceDetector,
    FacePipeline,
    align_face,
    choose_face,
    decode_image,
    load_detector,
)
from device_sdk.faces.align import roll_deg, similarity
from device_sdk.faces.crops import MASTER
from device_sdk.faces.images import Pixels
from device_sdk.faces.quality import DEFAULT_POLICY
from device_sdk.models.packaged import packaged_model
from device_sdk.people.recogniser import operating_point
from device_sdk.runtimes import Runtime, load_runtime
from mien.errors import LowQualityError, MienError
from mien.layout import Vector
from simulation.faces import conditions

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "gates.md"
SIZES: Final = (40, 60, 100, 200, 400, 800, 2000)
ROTATIONS: Final = (15, 30, 45, 90, 135, 180, 225, 270, 315)
NUM_FACES: Final = 8
NUM_SELFIES: Final = 110
NUM_MASKS: Final = 250
SELFIE_SIDE: Final = 600
# The first faces are turned by every degree, at sizes that most pictures have.
STEPPED_SIZES: Final = (60, 200)
STEPPED_FACES: Final = 2
OCTANT: Final = 45
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


def subjects(pipeline: FacePipeline, files: Iterable[Path]) -> Iterator[Subject]:
    """Return those of these pictures that pass."""
    detector = load_detector()
    for file in files:
        image = decode_image(file)
        if isinstance(_acquired(pipeline, image), str):
            continue
        face = choose_face(detector.detect(image), image.shape, ChoiceRule.CENTRE)
        crop = align_face(image, face.landmarks, MASTER)
        yield Subject(image, face.centre, face.box[2], face.landmarks, crop)


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


def lean(pipeline: FacePipeline, image: Pixels, roll: float) -> float | str:
    """Return by how many degrees the crop of a face that leans by `roll` leans, or why the face is refused."""
    face = _acquired(pipeline, image)
    if isinstance(face, str):
        return face
    assert face.quality.geometry is not None
    return abs((face.quality.geometry.roll_deg - roll + 180) % 360 - 180)


def _acquired(pipeline: FacePipeline, image: Pixels) -> AcquiredFace | str:
    try:
        return pipeline.acquire(image)
    except LowQualityError as error:
        return str(error.reasons[0])
    except MienError as error:
        return error.code


def outcome(found: float | str) -> str:
    """Return "passed", "wrong" for a crop that leans too much to be upright, or why the face is refused."""
    return found if isinstance(found, str) else "passed" if found <= _SAME_DEG else "wrong"


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
                        lean(
                            pipeline,
                            picture(condition(subject, np.random.default_rng([_SEED, i])), subject, size, 0, room),
                            roll_deg(subject.landmarks),
                        )
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


def by_degree(pipeline: FacePipeline, people: Sequence[Subject]) -> Iterator[str]:
    """Return the lines of the table of octants by sizes, of faces turned by every degree."""
    yield from _heading("turned by", [name for size in STEPPED_SIZES for name in (f"{size} pixels", "leans by")])
    for middle in range(0, 360, OCTANT):
        cells = []
        for size in STEPPED_SIZES:
            turns = range(middle - OCTANT // 2, middle + OCTANT // 2 + 1)
            leans = [found for turn in turns for found in _leans(pipeline, people, size, turn)]
            upright = [found for found in leans if not isinstance(found, str)]
            cells += [cell(map(outcome, leans)), f"{np.median(upright):.0f}, {max(upright):.0f}" if upright else ""]
        yield _row(f"{(middle - OCTANT // 2) % 360}–{middle + OCTANT // 2}°", cells)


class CountingDetector(FaceDetector):
    """Counts the searches of a detector."""

    def __init__(self, detector: FaceDetector) -> None:
        self._counted = detector
        self.searches = 0

    def search(self, image: Pixels, times: int = 1) -> tuple[Face, ...]:
        """Return what the detector's search does."""
        self.searches += 1
        return self._counted.search(image, times)


@dataclass(frozen=True, eq=False)
class Recogniser:
    """The packaged recogniser and the threshold with which phones decide."""

    threshold: float
    runtime: Runtime
    theta: Vector

    @classmethod
    def packaged(cls) -> Recogniser:
        """Return it."""
        model = packaged_model()
        return cls(operating_point(model).value, load_runtime(model.spec, model.layout), model.theta)

    def matches(self, crops: Sequence[Pixels], others: Sequence[Pixels]) -> NDArray[np.bool_]:
        """Return which crops (rows) match which others (columns)."""
        first, second = (self._templates(each) for each in (crops, others))
        return np.asarray(first @ second.T >= self.threshold)

    def _templates(self, crops: Sequence[Pixels]) -> NDArray[np.float32]:
        embeddings = self.runtime.embed(self.theta, np.stack(crops))
        return np.asarray(embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True))


def by_mask(pipeline: FacePipeline, recogniser: Recogniser, pairs: Sequence[tuple[Path, Path]]) -> Iterator[str]:
    """Return the lines of the table of faces without a mask and with one, each against a second photograph."""
    firsts = [(subject, second) for first, second in pairs for subject in subjects(pipeline, [first])]
    both = [(first, second) for first, file in firsts for second in subjects(pipeline, [file])]
    yield from _heading("pictures", ["passed", "recognised", "strangers match, both so", "strangers match, one so"])
    spreads: list[list[float]] = []
    for name in ("plain", "masked"):
        taken = [
            _acquired(pipeline, _enlarged(CONDITIONS[name](first, np.random.default_rng([_SEED, i]))))
            for i, (first, _) in enumerate(both)
        ]
        passed = [i for i, found in enumerate(taken) if not isinstance(found, str)]
        crops = [found.crop for found in taken if not isinstance(found, str)]
        spreads.append([_spread_below(crop) for crop in crops])
        alike = recogniser.matches(crops, crops)[np.triu_indices(len(crops), 1)]
        apart = recogniser.matches(crops, [both[i][1].crop for i in passed])
        own = int(apart.diagonal().sum())
        outcomes = (found if isinstance(found, str) else "passed" for found in taken)
        others = f"{int(apart.sum()) - own} of {apart.size - len(crops)}"
        yield _row(
            name, [cell(outcomes), f"{own} of {len(crops)}", f"{int(alike.sum())} of {alike.size} pairs", others]
        )
    plain, covered = map(np.array, spreads)
    limit = np.quantile(plain, 0.01, method="lower")
    found = f"{int((covered <= limit).sum())} of {covered.size}"
    yield ""
    yield "A rule on how much the grey of the lower half varies beside the upper half, set where it refuses"
    yield f"{int((plain <= limit).sum())} of {plain.size} plain pictures, finds {found} of these painted masks."


def _spread_below(crop: Pixels) -> float:
    """Return by how much the grey of a crop varies around the mouth, relative to that around the eyes."""
    grey = cv2.cvtColor(crop, cv2.COLOR_RGB2GRAY).astype(np.float64)
    return float(grey[72:104, 32:80].std() / (grey[36:62, 24:88].std() + 1e-6))


def _enlarged(image: Pixels) -> Pixels:
    return np.asarray(cv2.resize(image, (SELFIE_SIDE, SELFIE_SIDE), interpolation=cv2.INTER_CUBIC), np.uint8)


def by_way_up(recogniser: Recogniser, files: Sequence[Path]) -> Iterator[str]:
    """Return the lines of the table of whole photographs, upright and upside down, of one person each."""
    detector = CountingDetector(load_detector())
    pipelines = [
        FacePipeline(MASTER, policy, ChoiceRule.CENTRE, detector=detector) for policy in (DEFAULT_POLICY, None)
    ]
    yield from _heading("pictures", ["passed", "settled by one look", "strangers match", "processor time"])
    for name, quarters in (("upright", 0), ("upside down", 2)):
        outcomes, crops, taken_s, at_once = [], [], [0.0, 0.0], 0
        for file in files:
            image = np.ascontiguousarray(np.rot90(_enlarged(decode_image(file)), quarters))
            searches = []
            for i, pipeline in enumerate(pipelines):
                before, started = detector.searches, time.process_time()
                found = _acquired(pipeline, image)
                taken_s[i] += time.process_time() - started
                searches.append(detector.searches - before)
                if i == 0:
                    outcomes.append(found if isinstance(found, str) else "passed")
                    crops += [] if isinstance(found, str) else [found.crop]
            at_once += searches[0] == searches[1] + 1
        alike = recogniser.matches(crops, crops)[np.triu_indices(len(crops), 1)]
        matches = f"{int(alike.sum())} of {alike.size} pairs"
        yield _row(name, [cell(outcomes), str(at_once), matches, f"{taken_s[0] / taken_s[1]:.2f}"])


def _turned(pipeline: FacePipeline, people: Sequence[Subject], size: int, degrees: float) -> list[str]:
    return [outcome(found) for found in _leans(pipeline, people, size, degrees)]


def _leans(pipeline: FacePipeline, people: Sequence[Subject], size: int, degrees: float) -> list[float | str]:
    return [
        lean(pipeline, picture(one.image, one, size, degrees, _ROOM), degrees + roll_deg(one.landmarks))
        for one in people
    ]


def _heading(first: str, others: Iterable[str]) -> list[str]:
    names = [first, *others]
    return ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]


def _row(first: object, cells: Sequence[str]) -> str:
    line = f"| {first} | " + " | ".join(cells) + " |"
    progress(line)
    return line


def page(
    pipeline: FacePipeline,
    people: Sequence[Subject],
    photographs: Sequence[Path],
    pairs: Sequence[tuple[Path, Path]],
) -> str:
    """Return the page."""
    recogniser = Recogniser.packaged()
    return "\n".join(
        [
            "# What the quality gate does, measured",
            "",
            f"{len(people)} people of LFW (research, non-commercial use), one picture each that passes as it is, drawn",
            "anew at each size and angle, the face in the middle. A cell counts what passed, then what was refused, by",
            "its first reason; `wrong` is a crop that is not upright. Written by `python -m scripts.write_gate_matrix`",
            "(MIEN_DATA); why it is so: [decision record 0071](decisions/0071-faces-whichever-way-up.md).",
            "",
            "## Whole photographs",
            "",
            f"{len(photographs)} people, one photograph each, drawn to {SELFIE_SIDE} pixels. Strangers match at the",
            "packaged recogniser's threshold for an FMR of 0.1 %. Processor time is against a pipeline that does not",
            "look which way up a face is, on the same pictures.",
            "",
            *by_way_up(recogniser, photographs),
            "",
            "## Size and condition",
            "",
            "A selfie fills two thirds of the width; a mask of one colour covers nose, mouth and chin; dark is",
            "a twentieth to an eighth of the light, with its noise.",
            "",
            *by_condition(pipeline, people),
            "",
            "## Masks",
            "",
            f"{len(pairs)} people with two photographs: the first drawn to {SELFIE_SIDE} pixels, as it is and with a",
            "painted mask, the second as it is; people left out of whom either does not pass. Why no rule looks for",
            "masks: [decision record 0075](decisions/0075-no-rule-for-masks.md).",
            "",
            *by_mask(pipeline, recogniser, pairs),
            "",
            "## Size and rotation",
            "",
            "Clockwise; plain pictures.",
            "",
            *by_rotation(pipeline, people),
            "",
            "## Every degree",
            "",
            f"{STEPPED_FACES} of the people at each degree; `leans by`: the median and the most, in degrees, by which",
            "a crop that was taken leans.",
            "",
            *by_degree(pipeline, people[:STEPPED_FACES]),
            "",
        ]
    )


def main() -> None:
    """Measure and write the page."""
    cv2.setNumThreads(1)
    pipeline = FacePipeline(MASTER, choice=ChoiceRule.CENTRE)
    folders = sorted((data_root() / "lfw" / "images").iterdir())
    drawn = np.random.default_rng(_SEED).permutation(len(folders))
    files = [min(folders[index].iterdir()) for index in drawn[:NUM_SELFIES]]
    people = list(itertools.islice(subjects(pipeline, files), NUM_FACES))
    several = (sorted(folders[index].iterdir())[:2] for index in drawn)
    pairs = [(found[0], found[1]) for found in several if len(found) == 2][:NUM_MASKS]
    PAGE.write_text(page(pipeline, people, files, pairs), encoding="utf-8")


if __name__ == "__main__":
    main()
