"""The demo's people: phones, public people and people to test on, never the same person twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from device_sdk.faces import ChoiceRule, FacePipeline
from device_sdk.people.enroll import DEFAULT_MIN_IMAGES
from mien.errors import EmptyFolderError, InputError
from mien.specs import FaceInputSpec
from simulation.faces.datasets import People, find_people, split_people
from simulation.synthetic import committed_faces

# Each phone keeps its last images for verification: what it trains on is never what it is tested on.
PROBES: Final = 2
MIN_IMAGES: Final = 6
MIN_USABLE: Final = DEFAULT_MIN_IMAGES + PROBES
MAX_IMAGES: Final = 12
MAX_TEST_PEOPLE: Final = 30
MIN_TEST_PEOPLE: Final = 5


@dataclass(frozen=True)
class DemoPeople:
    """Disjoint groups of people, name -> image files, and what may be said about where they come from."""

    phones: Mapping[str, list[Path]]
    public: Mapping[str, list[Path]]
    test: Mapping[str, list[Path]]
    dataset: str
    terms: str

    def pipeline(self, spec: FaceInputSpec) -> FacePipeline:
        """Return the pipeline that evaluation uses: no quality gate, the central face where there are several."""
        return FacePipeline(spec, policy=None, choice=ChoiceRule.CENTRE)

    def enrolled(self, name: str) -> list[Path]:
        """Return the images that a phone enrols and trains on."""
        return self.phones[name][:-PROBES]

    def probes(self, name: str) -> list[Path]:
        """Return the images that a phone verifies with."""
        return self.phones[name][-PROBES:]


def synthetic_people(num_phones: int) -> DemoPeople:
    """Return the faces that the package ships: rendered, nobody's."""
    phones = committed_faces("phones")
    if num_phones > len(phones):
        raise EmptyFolderError(
            f"the synthetic set has {len(phones)} phones; ask for fewer than {num_phones}, or --faces"
        )
    return DemoPeople(
        {name: phones[name] for name in sorted(phones)[:num_phones]},
        committed_faces("public"),
        committed_faces("test"),
        dataset="Mien synthetic faces (shipped)",
        terms="rendered from a parametric model (CC0): nobody's faces",
    )


def people_from(folder: Path, num_phones: int, *, seed: int) -> DemoPeople:
    """Return a split of any folder name/*.jpg: phones, public people and people to test on, drawn by `seed`.

    A phone's owner is somebody of whom a phone takes at least `MIN_USABLE` pictures; the others may still be public or
    test people. Raises EmptyFolderError if there are too few of any kind.
    """
    people = {n: files[:MAX_IMAGES] for n, files in find_people(folder, min_images=MIN_IMAGES).items()}
    num_public = min(2 * num_phones, max(1, (len(people) - num_phones) // 2))
    if len(people) < num_phones + num_public + MIN_TEST_PEOPLE:
        raise EmptyFolderError(
            f"{folder} holds {len(people)} people with at least {MIN_IMAGES} images; the demo needs "
            f"{num_phones + num_public + MIN_TEST_PEOPLE} for {num_phones} phones: lower --phones or add people"
        )
    phones = _phones_of(people, num_phones, seed)
    rest = {name: files for name, files in people.items() if name not in phones}
    public, test = split_people(rest, (num_public, -1), seed)
    return DemoPeople(
        phones,
        public,
        {name: test[name] for name in sorted(test)[:MAX_TEST_PEOPLE]},
        dataset=folder.resolve().name,
        terms="your folder: its own terms apply",
    )


def _phones_of(people: People, num_phones: int, seed: int) -> dict[str, list[Path]]:
    """Return people who can enrol, drawn by `seed`: name -> images, the last `PROBES` of which a phone takes."""
    names = sorted(people)
    np.random.default_rng(seed).shuffle(names)
    pipeline = FacePipeline(FaceInputSpec())
    phones: dict[str, list[Path]] = {}
    for name in names:
        usable = [path for path in people[name] if _is_usable(path, pipeline)]
        if len(usable) >= MIN_USABLE:
            probes = usable[-PROBES:]
            phones[name] = [path for path in people[name] if path not in probes] + probes
        if len(phones) == num_phones:
            return {name: phones[name] for name in sorted(phones)}
    raise EmptyFolderError(
        f"only {len(phones)} people have {MIN_USABLE} pictures that a phone takes (one sharp face, from the front); "
        f"{num_phones} are needed: lower --phones or add pictures"
    )


def _is_usable(path: Path, pipeline: FacePipeline) -> bool:
    try:
        pipeline.acquire_file(path)
    except InputError:
        return False
    return True
