"""Roles of people: public people to learn an attack from, phones, others who are nowhere; never one twice.

Half of a person's photos are on the phone, the other half are what an attacker has of them: no photo is on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from device_sdk.faces import ChoiceRule, FacePipeline
from device_sdk.models.packaged import sface_path
from device_sdk.runtimes.torch_runtime import TorchRuntime
from mien.backbones.importers import ImportedModel, import_model
from mien.errors import EmptyFolderError
from mien.evaluation import normalise
from mien.methods.base import Crops
from simulation.faces.datasets import find_people, read_people
from simulation.synthetic import committed_faces

CACHE_BYTES: Final = 1 << 30
MIN_PHOTOS: Final = 2
Side = Literal["phone", "gallery"]


@dataclass(frozen=True)
class Sizes:
    """Size of a measurement: people and photos at most, and how many of them take part in the costly attacks."""

    people: int = 624
    photos: int = 6
    update_phones: int = 64
    update_others: int = 100
    update_public: int = 80
    shard_people: int = 20
    redrawn: int = 96
    refined: int = 24
    refine_steps: int = 30
    moment_cohorts: tuple[int, ...] = (16, 64, 192)
    sums: tuple[int, ...] = (4, 16, 64)
    statistics: tuple[int, ...] = (4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144)


FULL: Final = Sizes()
QUICK: Final = Sizes(60, 4, 8, 8, 16, 4, 16, 2, 3, (4, 16), (4, 8), (4, 16, 64))


@dataclass(frozen=True)
class Person:
    """One person's crops, on the phone and in the attacker's gallery."""

    phone: Crops = field(repr=False)
    gallery: Crops = field(repr=False)

    def side(self, name: Side) -> Crops:
        """Return the crops of one side."""
        return self.phone if name == "phone" else self.gallery


People = Sequence[Person]


@dataclass(frozen=True)
class Setting:
    """The people by part, and the released recogniser that everybody has."""

    public: tuple[Person, ...] = field(repr=False)
    phones: tuple[Person, ...] = field(repr=False)
    others: tuple[Person, ...] = field(repr=False)
    num_failed: int
    model: ImportedModel = field(repr=False)
    runtime: TorchRuntime = field(repr=False)

    @property
    def candidates(self) -> tuple[Person, ...]:
        """Everybody of whom the attacker has photos and asks whether they have a phone: the phones' people first."""
        return self.phones + self.others

    def templates(self, people: People, side: Side) -> NDArray[np.float64]:
        """Return the mean embedding of one side of each person at length 1, (N, D): what w_i begins as."""
        return mean_by_person(self.embed([p.side(side) for p in people]), [len(p.side(side)) for p in people])

    def embed(self, crops: Sequence[Crops]) -> NDArray[np.float64]:
        """Return the embeddings of all crops, one after another."""
        return self.runtime.embed(self.model.theta, np.concatenate(crops)).astype(np.float64)


def mean_by_person(embeddings_ND: NDArray[np.float64], counts: Sequence[int]) -> NDArray[np.float64]:
    """Return the mean of each run of `counts[i]` rows, at length 1."""
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
    return normalise(np.add.reduceat(embeddings_ND, starts, axis=0))


def read_setting(faces: Path | None, sizes: Sizes, seed: int, *, raw: bool) -> Setting:
    """Return the people of a folder, drawn and split by `seed`; the faces that the package ships where it is None.

    `raw` images are pictures to find a face in, others aligned crops. Raises EmptyFolderError for too few people.
    """
    model = import_model(sface_path().read_bytes(), sface_path().name)
    pipeline = FacePipeline(model.spec.input, None, ChoiceRule.CENTRE, aligned=faces is not None and not raw)
    found = _committed() if faces is None else find_people(faces, min_images=MIN_PHOTOS)
    names = [sorted(found)[i] for i in np.random.default_rng(seed).permutation(len(found))[: sizes.people]]
    read = read_people({name: list(found[name])[: sizes.photos] for name in names}, pipeline)
    crops = [read.of(name) for name in names]
    people = [Person(some[: len(some) // 2], some[len(some) // 2 :]) for some in crops if len(some) >= MIN_PHOTOS]
    each = len(people) // 3
    if each < max(sizes.sums) or each < 4:
        raise EmptyFolderError(f"{len(people)} people are too few; {3 * max(4, *sizes.sums)} are needed")
    return Setting(
        public=tuple(people[:each]),
        phones=tuple(people[each : 2 * each]),
        others=tuple(people[2 * each : 3 * each]),
        num_failed=len(read.failures),
        model=model,
        runtime=TorchRuntime(model.spec, model.layout, cache_bytes=CACHE_BYTES),
    )


def _committed() -> dict[str, list[Path]]:
    return {**committed_faces("phones"), **committed_faces("public"), **committed_faces("test")}
