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
from mien.records import parse_toml
from simulation.faces.datasets import people_of
from simulation.faces.workbench import domain_of


@dataclass(frozen=True)
class TestSet:
    """People of some domains whom nobody trains on."""

    label: str
    domains: Sequence[str]
    num_people: int

    __test__ = False


@dataclass(frozen=True)
class Population:
    """Division of a folder's people, and the rounds that they train.

    `tests` has `test`, the phones' side or what is hard there, and `old`, the side that may lose.
    """

    title: str
    note: str
    public: Sequence[str]
    num_public: int
    phones: Sequence[str]
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


POPULATIONS: Final = {
    name: Population(**{**data, "tests": {key: TestSet(**test) for key, test in data["tests"].items()}})
    for name, data in parse_toml(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"), "populations").items()
}


def population_of(faces: Path | None, *, quick: bool) -> Population:
    """Return the division that a folder's domains allow; raises EmptyFolderError for a folder that allows none."""
    if quick:
        return POPULATIONS["quick"]
    found = {domain_of(name) for name in people_of(faces)}
    for population in (POPULATIONS["synthetic"], POPULATIONS["real"]):
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
        chosen = [name for name in left if domain_of(name) in domains][:count]
        if len(chosen) < count:
            raise EmptyFolderError(f"the folder has too few people of {', '.join(domains)}: {count} are needed")
        left[:] = [name for name in left if name not in set(chosen)]
        return tuple(sorted(chosen))

    # Tests first: a domain that phones or public people share with a test keeps its test people whatever their number.
    tests = {name: take(*test) for name, test in settings["tests"].items()}
    return Division(take(*settings["public"]), take(*settings["phones"]), tests)
