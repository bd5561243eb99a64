"""One process of emulated phones, started by `simulation.phones.run`; it prints what happens as JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from device_sdk.faces import ChoiceRule, FacePipeline
from mien.methods.base import Crops
from mien.protocol.canonical import parse_json
from mien.records import from_mapping, to_mapping
from mien.shell.exits import end_with_parent
from mien.shell.files import read_private
from mien.shell.memory import limit_arenas
from mien.specs import FaceInputSpec
from simulation.faces.datasets import read_people
from simulation.faces.store import CropStore
from simulation.phones.fleet import FleetOptions, PhoneFleet
from simulation.synthetic import committed_faces

SHIPPED_PEOPLE: Final = 8
"""Of the shipped faces so many people are decoded; phones beyond that hold the same ones."""


@dataclass(frozen=True)
class WorkerPlan:
    """Work of one process: a phone an invite, with `images` crops of one identity each.

    `faces` is a folder of crops (`mien-sim data import`), empty for the faces that come with the package; phones take
    its identities from number `first` on, the first ones again when it has no more. They are numbered so, too. `folder`
    is for shared models.
    """

    invites: tuple[str, ...] = field(repr=False)
    folder: str
    options: FleetOptions
    faces: str = ""
    first: int = 0
    images: int = 4


def read_plan(path: Path) -> WorkerPlan:
    """Return the plan in a private file; raises KeyStoreError for one that others may read."""
    return from_mapping(
        WorkerPlan, parse_json(read_private(path, what="the plan of phones"), what="the plan of phones")
    )


def work(plan: WorkerPlan) -> Iterator[Mapping[str, Any]]:
    """Join the phones, run them until the options say that it is over, and yield what happens, the notes at last."""
    with PhoneFleet(Path(plan.folder), plan.options) as fleet:
        fleet.join(plan.invites, crops_for(plan), first=plan.first)
        fleet.warm_up()
        yield {"joined": len(fleet.phones)}
        fleet.start()
        closed = 0
        for _ in fleet.wait():
            if fleet.num_closed > closed:
                closed = fleet.num_closed
                yield {"closed": closed}
        fleet.stop()
        errors = {error.code: error.message for error in fleet.errors()}
        yield {"notes": to_mapping(fleet.notes()), "errors": errors}


def run_worker(path: Path) -> None:
    """Do what a plan says, and print each thing that happens as a line of JSON."""
    end_with_parent()  # also where its guard is killed with the parent
    limit_arenas(2)  # of hundreds of threads few work at a time: a place for each takes a fifth more a phone
    for said in work(read_plan(path)):
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


def crops_for(plan: WorkerPlan) -> list[Crops]:
    """Return each phone's crops, those of a data set as views of its mapped file; raises as `CropStore`."""
    numbers = range(plan.first, plan.first + len(plan.invites))
    if plan.faces:
        store = CropStore(Path(plan.faces))
        return [store.crops_of(number % len(store))[: plan.images] for number in numbers]
    people = _shipped(plan.images)
    return [people[number % len(people)] for number in numbers]


def _shipped(images: int) -> list[Crops]:
    pipeline = FacePipeline(FaceInputSpec(), None, ChoiceRule.CENTRE)
    chosen = {name: files[:images] for name, files in list(committed_faces("phones").items())[:SHIPPED_PEOPLE]}
    found = read_people(chosen, pipeline)
    people = [found.of(name) for name in found.names]
    return [crops for crops in people if len(crops)]
