"""Releases that the log of rounds does not hold for everybody to see: a phone takes none of them.

The coordinator's own store and keeper of the log, and the phone's own check; there is no network between them.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.keys import pki
from coordinator.service.log_keeper import LogKeeper
from coordinator.store import round_log
from coordinator.store.store import Store
from coordinator.store.thread import StoreThread
from device_sdk.rounds.round_log import LogFiles, RoundLog
from device_sdk.server.client import CoordinatorClient, LogProof
from device_sdk.server.identity import KEY_LABEL
from device_sdk.storage.keystore import FileKeyStore
from mien.errors import TransparencyError
from mien.log.checkpoints import WITNESS, Checkpoint, Note, NoteSigner, log_key
from mien.log.monitor import examine
from mien.protocol.ids import ModelId, PopulationId
from mien.protocol.rounds import Wait
from mien.protocol.v1 import registrar_pb2
from mien.shell.clock import WallClock
from tests.coordinator.store.test_store import model

COORDINATOR = pki.create_authority("coordinator", datetime(2026, 3, 1, 12, tzinfo=UTC))
REGISTRAR = NoteSigner.of(WITNESS, Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
MINE, OTHERS = PopulationId("mine"), PopulationId("others")


async def sign_anything(request: registrar_pb2.CosignRequest) -> registrar_pb2.CosignReply:
    """Return a registrar's cosignature, of one that looks at nothing: here it is the phone alone that looks."""
    note = Note.parse(request.checkpoint)
    signed = note.with_signatures(REGISTRAR.sign(note.text, int(WallClock().now())))
    return registrar_pb2.CosignReply(cosigned=str(signed), size=Checkpoint.parse(note.text).size)


@dataclass
class Coordinator:
    """A coordinator's log as phones reach it; `told` makes a lie of what it would show."""

    store: Store
    told: Callable[[LogProof], LogProof] = lambda proof: proof
    asks_for: ModelId | None = None

    def prove_release(self, model_id: ModelId, first_size: int) -> LogProof:
        return asyncio.run(self._shown(self.asks_for or model_id, first_size))

    async def _shown(self, model_id: ModelId, first_size: int) -> LogProof:
        thread = StoreThread()
        try:
            keeper = LogKeeper(self.store, thread, COORDINATOR, WallClock(), sign_anything)
            await keeper.cosign(sign_anything)
            proof = await keeper.prove_release(model_id, MINE, first_size, 5.0)
        finally:
            thread.close()
        hashes = tuple(proof.inclusion), tuple(proof.consistency)
        return self.told(LogProof(proof.checkpoint, keeper.public_key, proof.position, *hashes, proof.entry))

    def release(self, name: str, population: PopulationId | None = None, share: float = 1.0) -> ModelId:
        self.store.add_model(model(name), actor="alice")
        self.store.release(model(name).model_id, population=population, actor="alice", share=share)
        return model(name).model_id


@dataclass
class Phone:
    files: LogFiles

    def looks_up(self, coordinator: Coordinator, model_id: ModelId) -> str | Wait:
        log = RoundLog(REGISTRAR.key, self.files, lambda: True, WallClock())
        return log.check_release(cast(CoordinatorClient, coordinator), model_id, MINE)


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    store = Store.open(f"sqlite:///{tmp_path / 'coordinator.db'}", WallClock())
    yield Coordinator(store)
    store.close()


@pytest.fixture
def phone(tmp_path: Path) -> Phone:
    key_store = FileKeyStore(tmp_path / "keys")
    key_store.create(KEY_LABEL)
    return Phone(LogFiles(tmp_path / "round-log.sealed", tmp_path / "log-evidence.json", key_store))


def refused(phone: Phone, coordinator: Coordinator, model_id: ModelId, why: str) -> None:
    """Check that a phone refuses a release, keeps why, and stays with the log that it saw before."""
    before = phone.files.last()
    for _ in range(2):
        with pytest.raises(TransparencyError, match=f"{why}.*the model that is here stays in use"):
            phone.looks_up(coordinator, model_id)
    (kept,) = phone.files.evidence()
    assert (kept["round"], kept["witness_key"]) == (f"release of {model_id}", str(REGISTRAR.key))
    assert phone.files.last() == before


def test_what_was_released_is_taken_one_after_another(phone: Phone, coordinator: Coordinator) -> None:
    for number, (name, population, share) in enumerate((("a", None, 1.0), ("b", MINE, 1.0), ("c", None, 0.25)), 1):
        assert phone.looks_up(coordinator, coordinator.release(name, population, share)) == ""
        last = phone.files.last()
        assert last is not None
        assert last.checkpoint.size == number
    assert phone.looks_up(coordinator, model("a").model_id) == ""  # its share, or a roll-back that went unseen
    assert phone.files.evidence() == []


def test_a_model_that_was_never_released_is_refused(phone: Phone, coordinator: Coordinator) -> None:
    phone.looks_up(coordinator, coordinator.release("a"))
    refused(phone, coordinator, model("f").model_id, "does not show that the log of rounds holds this release")


def test_a_model_that_was_released_to_others_is_refused(phone: Phone, coordinator: Coordinator) -> None:
    phone.looks_up(coordinator, coordinator.release("a"))
    refused(phone, coordinator, coordinator.release("b", OTHERS), "does not show that the log of rounds holds this")


def test_the_proof_of_another_release_is_refused(phone: Phone, coordinator: Coordinator) -> None:
    coordinator.asks_for = coordinator.release("a")
    assert phone.looks_up(coordinator, coordinator.asks_for) == ""
    refused(phone, coordinator, model("f").model_id, "shows the entry of another release")


def test_an_entry_that_was_made_for_the_phone_is_refused(phone: Phone, coordinator: Coordinator) -> None:
    coordinator.asks_for = coordinator.release("a")
    phone.looks_up(coordinator, coordinator.asks_for)
    lie = model("f").model_id
    coordinator.told = lambda proof: replace(proof, entry=proof.entry.replace(b"a" * 64, lie.encode()))
    refused(phone, coordinator, lie, "does not hold at 0 of 1 what it was said to hold there")


def test_a_release_in_another_history_is_refused(phone: Phone, coordinator: Coordinator, tmp_path: Path) -> None:
    """Two databases under the coordinator's own key, one for this phone; a registrar that signs both does not help."""
    phone.looks_up(coordinator, coordinator.release("a"))
    forked = Store.open(f"sqlite:///{tmp_path / 'forked.db'}", WallClock())
    fork = Coordinator(forked)
    fork.release("c")
    refused(phone, fork, fork.release("b"), "entries do not begin with the 1 that it showed before")
    (kept,) = phone.files.evidence()
    coordinator.release("d")
    honest = coordinator.prove_release(model("d").model_id, 0).checkpoint
    note = Note.parse(kept["seen"]["note"])
    key = log_key(bytes.fromhex(kept["seen"]["log_key"]), Checkpoint.parse(note.text).origin)
    entries = [each.entry.data for each in coordinator.store.round_log(lambda db: round_log.read(db, 0))]
    faults = examine(entries, honest, key, kept=[kept]).faults
    assert any("a forked log" in fault for fault in faults)
    assert any("an unlogged release" in fault for fault in faults)
    forked.close()


def test_a_log_that_was_cut_is_refused(phone: Phone, coordinator: Coordinator, tmp_path: Path) -> None:
    first = coordinator.release("a")
    coordinator.store.close()
    shutil.copy(tmp_path / "coordinator.db", tmp_path / "older.db")
    coordinator.store = Store.open(f"sqlite:///{tmp_path / 'coordinator.db'}", WallClock())
    phone.looks_up(coordinator, coordinator.release("b"))
    older = Store.open(f"sqlite:///{tmp_path / 'older.db'}", WallClock())
    refused(phone, Coordinator(older), first, "the log's 1 entries do not begin with the 2 that it showed before")
    older.close()
