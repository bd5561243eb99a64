"""Who plays which part in the FedFR study: clients with several people each, public people, people for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mien.methods.base import Crops
from simulation.engine import Cohort, PublicFaces
from simulation.workbench import Workbench, open_workbench

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
    """Who plays which part: clients, public people, people for generic tests; and the clients' people's test images.

    `test_labels` are indices into the clients' people, one client after another.
    """

    bench: Workbench = field(repr=False)
    faces: Path | None
    clients: Mapping[str, Client]
    public: PublicFaces
    test_crops: Crops = field(repr=False)
    test_labels: Labels
    generic: tuple[str, ...] = field(repr=False)

    @classmethod
    def draw(cls, faces: Path | None, settings: Settings, seed: int) -> Split:
        """Return the split of a seed. A client with `ids` identities has the first of its `max_ids`."""
        bench = open_workbench(faces, settings["max_people"])
        count, most, num_train = settings["clients"], settings["max_ids"], settings["train_images"]
        local, public, generic = bench.split(seed, count * most, settings["public"], settings["generic"])
        order = tuple(np.random.default_rng([seed, 2]).permutation(local))
        clients, tests = {}, []
        for i in range(count):
            people = order[i * most : (i + 1) * most][: settings["ids"]]
            images = [bench.crops_of(name) for name in people]
            tests += [crops[num_train:] for crops in images]
            clients[f"client-{i:02d}"] = Client(
                np.concatenate([crops[:num_train] for crops in images]), _numbered(images, num_train), people
            )
        public_images = [bench.crops_of(name)[: settings["public_images"]] for name in public]
        shared = PublicFaces(np.concatenate(public_images), _numbered(public_images))
        return cls(bench, faces, clients, shared, np.concatenate(tests), _numbered(tests), generic)

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


def _numbered(images: list[Crops], first: int | None = None) -> Labels:
    """Return 0 for each of the first person's crops, 1 for the second's, and so on."""
    return np.repeat(np.arange(len(images)), [len(crops[:first]) for crops in images])
