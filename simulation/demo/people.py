"""The demo's people: on phones, public, and to test on, never the same person twice.

Of the shipped faces phones and test people are of two domains and public people of a third: what is gained on the test
people is then the phones' own, which a control on public people alone shows.
"""

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
from simulation.synthetic import FACES_SOURCE, FACES_TERMS, committed_faces

# Each phone keeps its last images for verification: what it trains on is never what it is tested on.
PROBES: Final = 2
MIN_IMAGES: Final = 6
MIN_USABLE: Final = DEFAULT_MIN_IMAGES + PROBES
MAX_IMAGES: Final = 12
MAX_TEST_PEOPLE: Final = 30
MIN_TEST_PEOPLE: Final = 5
PUBLIC_DOMAIN: Final = "caucasian"
"""The domain of the public people: a slider of the face model (simulation/synthetic/faces/README.md)."""


@dataclass(frozen=True)
class DemoPeople:
    """Disjoint groups of people, name -> image files, and what may be said about where they come from.

    `per_phone` of them share a phone, in the order of `owners`. Public people are of another kind where `shifted`.
    """

    owners: Mapping[str, list[Path]]
    public: Mapping[str, list[Path]]
    test: Mapping[str, list[Path]]
    dataset: str
    terms: str
    per_phone: int
    shifted: bool

    @property
    def public_kind(self) -> str:
        """Return who the public people are, as a sentence about them goes on."""
        return "of another kind than the phones' people" if self.shifted else "of the same kind as the phones' people"

    @property
    def phones(self) -> dict[str, tuple[str, ...]]:
        """The people on each phone, which is named after the first of them."""
        names = list(self.owners)
        groups = [names[i : i + self.per_phone] for i in range(0, len(names), self.per_phone)]
        return {group[0]: tuple(group) for group in groups}

    def pipeline(self, spec: FaceInputSpec) -> FacePipeline:
        """Return the pipeline that evaluation uses: no quality gate, the central face where there are several."""
        return FacePipeline(spec, policy=None, choice=ChoiceRule.CENTRE)

    def enrolled(self, name: str) -> list[Path]:
        """Return the images with which a person enrols, and takes part."""
        return self.owners[name][:-PROBES]

    def probes(self, name: str) -> list[Path]:
        """Return the images with which a person is verified."""
        return self.owners[name][-PROBES:]


def synthetic_people(num_phones: int, per_phone: int) -> DemoPeople:
    """Return the faces that the package ships: rendered, nobody's."""
    everybody = committed_faces("phones") | committed_faces("public")
    # By their numbers, which go round the domains: few phones hold people of both.
    own = sorted((name for name in everybody if not _is_public(name)), key=lambda name: name.split("_")[1])
    if num_phones * per_phone > len(own):
        raise EmptyFolderError(
            f"the synthetic set has {len(own)} people for phones, {per_phone} for each; ask for "
            f"{len(own) // per_phone} phones or fewer, or --faces"
        )
    test = committed_faces("test")
    return DemoPeople(
        {name: everybody[name] for name in own[: num_phones * per_phone]},
        {name: everybody[name] for name in sorted(everybody) if _is_public(name)},
        {name: test[name] for name in sorted(test) if not _is_public(name)},
        dataset=FACES_SOURCE,
        terms=FACES_TERMS,
        per_phone=per_phone,
        shifted=True,
    )


def _is_public(name: str) -> bool:
    return name.startswith(f"{PUBLIC_DOMAIN}_")


def people_from(folder: Path, num_phones: int, per_phone: int, *, seed: int) -> DemoPeople:
    """Return a split of any folder name/*.jpg: people on phones, public people and people to test on, drawn by `seed`.

    On a phone is somebody of whom a phone takes at least `MIN_USABLE` pictures; the others may still be public or test
    people. Raises EmptyFolderError if there are too few of any kind.
    """
    people = {n: files[:MAX_IMAGES] for n, files in find_people(folder, min_images=MIN_IMAGES).items()}
    num_owners = num_phones * per_phone
    num_public = min(2 * num_phones, max(1, (len(people) - num_owners) // 2))
    if len(people) < num_owners + num_public + MIN_TEST_PEOPLE:
        raise EmptyFolderError(
            f"{folder} holds {len(people)} people with at least {MIN_IMAGES} images; the demo needs "
            f"{num_owners + num_public + MIN_TEST_PEOPLE} for {num_phones} phones of {per_phone}: lower --phones or "
            "add people"
        )
    owners = _owners_of(people, num_owners, seed)
    rest = {name: files for name, files in people.items() if name not in owners}
    public, test = split_people(rest, (num_public, -1), seed)
    return DemoPeople(
        owners,
        public,
        {name: test[name] for name in sorted(test)[:MAX_TEST_PEOPLE]},
        dataset=folder.resolve().name,
        terms="your folder: its own terms apply",
        per_phone=per_phone,
        shifted=False,
    )


def _owners_of(people: People, num_owners: int, seed: int) -> dict[str, list[Path]]:
    """Return people who can enrol, drawn by `seed`: name -> images, the last `PROBES` of which a phone takes."""
    names = sorted(people)
    np.random.default_rng(seed).shuffle(names)
    pipeline = FacePipeline(FaceInputSpec())
    owners: dict[str, list[Path]] = {}
    for name in names:
        usable = [path for path in people[name] if _is_usable(path, pipeline)]
        if len(usable) >= MIN_USABLE:
            probes = usable[-PROBES:]
            owners[name] = [path for path in people[name] if path not in probes] + probes
        if len(owners) == num_owners:
            return {name: owners[name] for name in sorted(owners)}
    raise EmptyFolderError(
        f"only {len(owners)} people have {MIN_USABLE} pictures that a phone takes (one sharp face, from the front); "
        f"{num_owners} are needed: lower --phones or add pictures"
    )


def _is_usable(path: Path, pipeline: FacePipeline) -> bool:
    try:
        pipeline.acquire_file(path)
    except InputError:
        return False
    return True
