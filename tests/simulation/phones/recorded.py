"""Emulated phones that keep what they send, and whose chance is the simulator's: `python -m ....recorded FOLDER`.

A process reads `plan.json` of its folder and leaves `sent.bin` and `notes.json` there. All crops are noise.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.people.trained import Pending, TrainingFaces
from mien.contribution import Arrays
from mien.errors import MienError
from mien.methods.base import Crops
from mien.protocol.tensors import pack_tensors, unpack_tensors
from mien.records import from_mapping, to_mapping
from mien.shell.files import write_atomically
from simulation.phones.fleet import Chance, EmulatedPhone, FleetOptions, PhoneFleet
from simulation.phones.holdings import MemoryGallery
from simulation.phones.notes import ProcessNotes
from tests.device_sdk.made_up_people import noise_crops
from tests.integration.seeded_phone import SimulatedChance

IMAGES = 3


class SeededChance(Chance, SimulatedChance):
    """The simulator's chance, for everything that can be seen in a sum."""

    def __init__(self) -> None:
        SimulatedChance.__init__(self)
        self.local_seed = super(Chance, self).local_seed
        self.random_bytes = super(Chance, self).random_bytes


@dataclass(frozen=True)
class Sent:
    """What a phone trained on and made of it in one attempt: its crops' number, its private state, its contribution."""

    crops: int
    private: Arrays = field(repr=False)
    contribution: bytes = field(repr=False)


class RecordingGallery(MemoryGallery):
    """A gallery that remembers what was made in each attempt, by (round, attempt)."""

    def __init__(self, number: int) -> None:
        super().__init__(crops_of(number))
        self.number = number
        self.sent: dict[tuple[int, int], Sent] = {}
        self._private: Arrays = {}

    def training_faces(self, people: Sequence[int], task_id: str, per_identity: Sequence[str] = ()) -> TrainingFaces:
        found = super().training_faces(people, task_id, per_identity)
        self._private = found.private
        return found

    def keep_pending(self, pending: Pending, source_crops: Crops | None = None) -> None:
        super().keep_pending(pending, source_crops)
        self.sent[pending.round, pending.attempt] = Sent(self.number, self._private, pending.contribution)


def crops_of(number: int) -> Crops:
    """Return the crops of phone `number` (IMAGES, 112, 112, 3)."""
    return noise_crops(1000 + number, IMAGES)


@dataclass(frozen=True)
class Plan:
    """What a process does; its phones are numbered from `first`."""

    invites: tuple[str, ...]
    first: int
    options: FleetOptions


@dataclass(frozen=True)
class Done:
    """What a process's phones saw, what each sent by device id and attempt, and why phones gave up."""

    notes: ProcessNotes
    sent: Mapping[tuple[str, int, int], Sent]
    errors: Sequence[MienError] = ()


def joined(folder: Path, plan: Plan) -> PhoneFleet:
    """Return the phones of a plan, joined."""
    fleet = PhoneFleet(folder / "models", plan.options)
    fleet.join(plan.invites, [crops_of(0)] * len(plan.invites), first=plan.first)
    for phone in fleet.phones:
        phone.gallery, phone.chance = RecordingGallery(phone.number), SeededChance()
    return fleet


def ran(fleet: PhoneFleet) -> Done:
    """Run joined phones to their end."""
    fleet.start()
    for _ in fleet.wait():
        pass
    fleet.stop()
    return Done(fleet.notes(), dict(pair for phone in fleet.phones for pair in _sent(phone)), fleet.errors())


def _sent(phone: EmulatedPhone) -> list[tuple[tuple[str, int, int], Sent]]:
    assert isinstance(phone.gallery, RecordingGallery)
    return [((phone.identity.device_id, *attempt), sent) for attempt, sent in phone.gallery.sent.items()]


def read(folder: Path) -> Done:
    """Return what a process left in its folder."""
    sent: dict[tuple[str, int, int], Sent] = {}
    for name, values in unpack_tensors((folder / "sent.bin").read_bytes(), what="what was sent").items():
        device, number, attempt, crops, lane = json.loads(name)
        known = sent.setdefault((device, number, attempt), Sent(crops, {}, b""))
        sent[device, number, attempt] = (
            replace(known, private={**known.private, lane: values})
            if lane
            else replace(known, contribution=values.tobytes())
        )
    return Done(from_mapping(ProcessNotes, json.loads((folder / "notes.json").read_text())), sent)


def write(folder: Path, done: Done) -> None:
    """Leave it there."""
    arrays: dict[str, NDArray[Any]] = {}
    for key, sent in done.sent.items():
        arrays[json.dumps([*key, sent.crops, ""])] = np.frombuffer(sent.contribution, np.uint8)
        arrays |= {json.dumps([*key, sent.crops, lane]): values for lane, values in sent.private.items()}
    (folder / "sent.bin").write_bytes(pack_tensors(arrays))
    # The other process waits for this name, so whatever has it is whole.
    write_atomically(folder / "notes.json", json.dumps(to_mapping(done.notes)).encode())


def main(folder: Path) -> None:
    """Do what the plan in a folder says; `ready` appears when the phones have joined."""
    plan = from_mapping(Plan, json.loads((folder / "plan.json").read_text()))
    with joined(folder, plan) as fleet:
        (folder / "ready").touch()
        write(folder, ran(fleet))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
