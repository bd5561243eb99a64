"""Roles in the FedFR study: clients with several people each, public people, people for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mien.errors import EmptyFolderError
from mien.methods.base import Crops
from simulation.engines.engine import Cohort, PublicFaces
from simulation.faces.workbench import Workbench, open_network
from simulation.papers.light import open_light_workbench

Settings = Mapping[str, Any]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Client:
    """One client: its identities' images for training and enrolment, numbered from 0, and the names of its people."""

    crops: Crops = field(repr=False)
    labels: Labels
    people: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True)
class Split:
    """Roles of people: clients, public people, people for generic tests; and the clients' people's test images.

    `alike` are people of the clients' domain whom nobody trains on; there are some where the settings say how many.

    `test_labels` are indices into the clients' people, one client after another. While options are chosen
    (`settings["tuning"]`), people and images for validation stand in the tests' place, so that no test is looked at.
    Where a setting names their `domains`, clients' people are of one and all others of the other. What is trained is
    the adapter behind SFace, or with `part` "blocks" SFace's own last blocks.
    """

    bench: Workbench = field(repr=False)
    faces: Path | None
    clients: Mapping[str, Client]
    public: PublicFaces
    test_crops: Crops = field(repr=False)
    test_labels: Labels
    generic: tuple[str, ...] = field(repr=False)
    alike: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def draw(cls, faces: Path | None, settings: Settings, seed: int) -> Split:
        """Return the split of a seed. A client with `ids` identities has the first of its `max_ids`."""
        most_images = tuple((domain, most) for domain, most in settings.get("max_images", ())) or None
        opened = open_network if settings.get("part") == "blocks" else open_light_workbench
        bench = opened(faces, settings["max_people"], most_images)
        count, most = settings["clients"], settings["max_ids"]
        local, public, generic, alike = _roles(bench, settings, seed)
        trained, tested = _images(settings)
        if short := sum(not len(bench.crops_of(name)[tested]) for name in local):
            raise EmptyFolderError(
                f"{short} of {len(local)} people of clients have no picture left to be tested with; this study needs "
                f"more than {tested.start} of each: name other faces with --faces, or use --quick"
            )
        order = tuple(np.random.default_rng([seed, 2]).permutation(local))
        clients, tests = {}, []
        for i in range(count):
            people = order[i * most : (i + 1) * most][: settings["ids"]]
            images = [bench.crops_of(name) for name in people]
            tests += [crops[tested] for crops in images]
            own = [crops[trained] for crops in images]
            clients[f"client-{i:02d}"] = Client(np.concatenate(own), _numbered(own), people)
        public_images = [bench.crops_of(name)[: settings["public_images"]] for name in public]
        shared = PublicFaces(np.concatenate(public_images), _numbered(public_images))
        return cls(bench, faces, clients, shared, np.concatenate(tests), _numbered(tests), generic, alike)

    @property
    def cohort(self) -> Cohort:
        """The clients as the engine takes them."""
        crops = {name: client.crops for name, client in self.clients.items()}
        labels = {name: client.labels for name, client in self.clients.items()}
        return Cohort(crops, public=self.public, labels=labels)

    def places(self) -> dict[str, range]:
        """Return the numbers of each client's people among all clients' people."""
        places, start = {}, 0
        for name, client in self.clients.items():
            places[name] = range(start, start + len(client.people))
            start += len(client.people)
        return places


def _roles(bench: Workbench, settings: Settings, seed: int) -> list[tuple[str, ...]]:
    """Return clients' people, public ones, those for generic tests (or validation), and those who are like clients'."""
    num_local, num_alike = settings["clients"] * settings["max_ids"], settings.get("alike", 0)
    others = [settings[name] for name in ("public", "generic", "validation")]
    if "domains" in settings:
        ours, theirs = settings["domains"]
        local, alike = bench.split(seed, num_local, num_alike, domain=ours)
        public, test, validation = bench.split(seed, *others, domain=theirs)
    else:
        local, public, test, validation, alike = bench.split(seed, num_local, *others, num_alike)
    return [local, public, validation if settings["tuning"] else test, alike]


def _images(settings: Settings) -> tuple[slice, slice]:
    """Return which images of a client's person are trained on and which are tested: `test_images`, or all others."""
    num, held_back = settings["train_images"], settings["validation_images"]
    if settings["tuning"]:
        return slice(num - held_back), slice(num - held_back, num)
    return slice(num), slice(*settings.get("test_images", (num, None)))


def _numbered(images: list[Crops]) -> Labels:
    """Return 0 for each of the first person's crops, 1 for the second's, and so on."""
    return np.repeat(np.arange(len(images)), [len(crops) for crops in images])
