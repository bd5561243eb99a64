"""A running fleet whose releases are signed and bring their graphs, as phones without Python need them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.commands.models.folder import read_signed
from coordinator.release.signing import sign_folder
from device_sdk.models.models import Model
from mien.methods.base import Crops
from mien.models.bundles import name_of
from mien.protocol.canonical import model_to_json
from mien.protocol.tensors import PublicShard
from tests.android.jvm import JvmDevice
from tests.graphs import FOLDER
from tests.integration.real_fleet import RealFleet, real_fleet
from tests.tiny import made_up_crops, tiny_cnn

TINY = tiny_cnn()
PATIENCE_S: Final = 240.0


@dataclasses.dataclass
class Story:
    """A running fleet whose releases are signed, and what was signed."""

    fleet: RealFleet
    key: Ed25519PrivateKey
    signed: list[Path] = dataclasses.field(default_factory=list)

    def release(self, model: Model, shard: PublicShard | None = None) -> None:
        """Import, sign and release a model with its graphs and public faces; none before may come back."""
        folder = self.fleet.folder / f"bundle-{len(self.signed) + 1}"
        folder.mkdir()
        (folder / "model.json").write_bytes(model_to_json(model.spec, model.layout))
        (folder / "theta.f32").write_bytes(np.ascontiguousarray(model.theta, "<f4").tobytes())
        listed = json.loads((FOLDER / TINY.layout.sha256 / "graphs.json").read_bytes())
        for name in {"graphs.json", *(graph["file"] for graph in listed["graphs"])}:
            (folder / name).write_bytes((FOLDER / TINY.layout.sha256 / name).read_bytes())
        faces = None if shard is None else folder / "public_shard.safetensors"
        if faces is not None and shard is not None:
            faces.write_bytes(shard.to_bytes())
        sign_folder(folder, self.key, sequence=len(self.signed) + 1, fallbacks=[])
        self.signed.append(folder)

        async def story() -> None:
            async with self.fleet.coordinator.operator() as operator:
                await operator.import_model((folder / "model.json").read_bytes(), folder / "theta.f32", faces)
                await operator.add_graphs(folder, *read_signed(folder))
                await operator.release(model.model_id, signed=read_signed(folder))

        self.fleet.loop.run(story())

    def tamper(self, statement: str, value: str) -> None:
        """Change the coordinator's database, as somebody could who broke into it."""
        path = self.fleet.coordinator.home.folder / "coordinator.db"
        with contextlib.closing(sqlite3.connect(path, timeout=60)) as db, db:
            db.execute(statement, (value,))


@contextlib.contextmanager
def signed_story(folder: Path) -> Iterator[Story]:
    """Run both servers, which release nothing that a new key has not signed."""
    key = Ed25519PrivateKey.generate()
    with real_fleet(folder, release_key=name_of(key)) as fleet:
        yield Story(fleet, key)


def crops_file(folder: Path, name: str, crops: Crops) -> str:
    """Write crops end to end, and return the file's name."""
    path = folder / name
    path.write_bytes(np.ascontiguousarray(crops).tobytes())
    return str(path)


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds; fails, saying what does not, after a few minutes."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.2)


def enrolled(phone: JvmDevice, story: Story, population: str, crops: str) -> None:
    """Have a phone join, and somebody agree to training on it."""
    phone.do("join", invite=story.fleet.invite(population))
    phone.do("update")
    assert phone.do("enrol", name="Owner", crops=crops, agrees=True) == {"person": 1}


@contextlib.contextmanager
def three_phones(story: Story, population: str, folder: Path) -> Iterator[list[JvmDevice]]:
    """Three phones, on each of which its owner agreed to training."""
    running = [JvmDevice(folder / f"home-{number}") for number in range(3)]
    try:
        for number, phone in enumerate(running):
            file = crops_file(folder, f"owner-{number}", made_up_crops(4, seed=number))
            enrolled(phone, story, population, file)
        yield running
    finally:
        for phone in running:
            phone.kill()
