"""Populations: public people, phones and tests, by the domain that begins a person's folder's name.

A folder `african_0003` is of domain `african`. No domain of phones is one of public people, so that the phones' people
differ from the public ones as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from mien.errors import EmptyFolderError
from simulation.faces.datasets import people_of


@dataclass(frozen=True)
class TestSet:
    """People of some domains whom nobody trains on."""

    label: str
    domains: tuple[str, ...]
    num_people: int

    __test__ = False


@dataclass(frozen=True)
class Population:
    """Division of a folder's people, and the rounds that they train.

    `tests` has `test`, the phones' side or what is hard there, and `old`, the side that may lose.
    """

    title: str
    note: str
    public: tuple[str, ...]
    num_public: int
    phones: tuple[str, ...]
    num_phones: int
    tests: Mapping[str, TestSet]
    rounds: int = 16
    cohort: int = 50
    moment_every: int = 4
    max_people: int | None = None

    def settings(self) -> dict[str, Any]:
        """Return the division as plain data for records."""
        return {
            "rounds": self.rounds,
            "cohort": self.cohort,
            "every": self.moment_every,
            "public": [list(self.public), self.num_public],
            "phones": [list(self.phones), self.num_phones],
            "tests": {name: [list(test.domains), test.num_people] for name, test in self.tests.items()},
            "max_people": self.max_people,
            "ids_per_client": 1,
        }


SYNTHETIC: Final = Population(
    "synthetic people",
    "Synthetic people: 60 public ones of one domain, 200 phones of two others; tests are 200 people of the phones' "
    "domains and 100 of the public one's.",
    ("caucasian",),
    60,
    ("african", "asian"),
    200,
    {"test": TestSet("the phones' domains", ("african", "asian"), 200), "old": TestSet("public", ("caucasian",), 100)},
)
REAL: Final = Population(
    "LFW phones with public CelebA people",
    "Real faces (research, non-commercial use): 60 public CelebA people, 150 phones of LFW people with ten or more "
    "pictures; tests are Bollywood, LFW people with fewer pictures, and other CelebA people.",
    ("celeba",),
    60,
    ("lfw",),
    150,
    {
        "test": TestSet("Bollywood", ("bollywood",), 30),
        "old": TestSet("other LFW people", ("lfwrest",), 150),
        "celeba": TestSet("other CelebA people", ("celeba",), 150),
    },
)
QUICK: Final = Population(
    "a handful of synthetic people",
    "Shipped synthetic people: 6 public ones of one domain, 8 phones of another.",
    ("asian",),
    6,
    ("african",),
    8,
    {"test": TestSet("the phones' domain", ("african",), 8), "old": TestSet("public", ("asian",), 6)},
    rounds=2,
    cohort=4,
    moment_every=1,
    max_people=40,
)


def domain(name: str) -> str:
    """Return what a folder's name has before its first underscore."""
    return name.split("_", 1)[0]


def population_of(faces: Path | None, *, quick: bool) -> Population:
    """Return the division that a folder's domains allow; raises EmptyFolderError for a folder that allows none."""
    if quick:
        return QUICK
    found = {domain(name) for name in people_of(faces)}
    for population in (SYNTHETIC, REAL):
        needed = {*population.public, *population.phones, *(d for t in population.tests.values() for d in t.domains)}
        if needed <= found:
            return population
    raise EmptyFolderError(
        "the folder's people are of no known domains: name synthetic112, or a folder made by "
        "python -m simulation.papers.spreadout.mix"
    )


@dataclass(frozen=True)
class Division:
    """One seed's draw: disjoint groups of people by name."""

    public: tuple[str, ...] = field(repr=False)
    phones: tuple[str, ...] = field(repr=False)
    tests: Mapping[str, tuple[str, ...]] = field(repr=False)


def divide(people: Sequence[str], settings: Mapping[str, Any], seed: int) -> Division:
    """Return disjoint public, phone and test people, drawn by `seed`; raises EmptyFolderError for too few."""
    order = np.random.default_rng([seed, 3]).permutation(len(people))
    left = [people[i] for i in order]

    def take(domains: Sequence[str], count: int) -> tuple[str, ...]:
        chosen = [name for name in left if domain(name) in domains][:count]
        if len(chosen) < count:
            raise EmptyFolderError(f"the folder has too few people of {', '.join(domains)}: {count} are needed")
        left[:] = [name for name in left if name not in set(chosen)]
        return tuple(sorted(chosen))

    # Tests first: a domain that phones or public people share with a test keeps its test people whatever their number.
    tests = {name: take(*test) for name, test in settings["tests"].items()}
    return Division(take(*settings["public"]), take(*settings["phones"]), tests)
