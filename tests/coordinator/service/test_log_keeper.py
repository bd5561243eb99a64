"""The coordinator's side of the log: cosigned by a real witness, proved to phones, also while the witness is away."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from coordinator.keys import pki
from coordinator.registrar.store import Store as RegistrarStore
from coordinator.registrar.witness import Witness
from coordinator.service.log_keeper import EntryProof, LogKeeper
from coordinator.store import round_log
from coordinator.store.store import Store
from coordinator.store.thread import StoreThread
from mien.errors import NotFoundError, TransparencyError, UnreachableError
from mien.log.checkpoints import Checkpoint, Note, log_key
from mien.log.entries import LogEntry, certificate_entry, round_entry
from mien.log.merkle import EMPTY_ROOT, check_consistency, check_inclusion, leaf_hash
from mien.protocol.v1 import registrar_pb2
from mien.shell.clock import Clock

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
COORDINATOR = pki.create_authority("coordinator", NOW)
REGISTRAR = pki.create_authority("registrar", NOW)
HASHES = dict.fromkeys(("task_sha256", "model_sha256", "layout_sha256", "statement_sha256"), "1" * 64)


def numbered(number: int) -> LogEntry:
    return round_entry("ab" * 16, number, 1, **HASHES)


@dataclass
class Bench:
    """A log in a real database, and a real witness without a network between them."""

    store: Store
    thread: StoreThread
    witness: Witness
    is_away: bool = False
    calls: int = 0

    async def ask(self, request: registrar_pb2.CosignRequest) -> registrar_pb2.CosignReply:
        self.calls += 1
        if self.is_away:
            raise UnreachableError("no registrar answers")
        asked = (request.checkpoint, request.log_key, request.log_key_signature, request.old_size)
        cosigned = self.witness.cosign(*asked, list(request.consistency), request.certificates_after)
        return registrar_pb2.CosignReply(cosigned=cosigned.note, size=cosigned.size)

    def keeper(self) -> LogKeeper:
        return LogKeeper(self.store, self.thread, COORDINATOR, Clock(), self.ask)

    def append(self, *entries: LogEntry) -> None:
        self.store.round_log(lambda db: round_log.append(db, 1, entries))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    store = Store.open(f"sqlite:///{tmp_path / 'coordinator.db'}", Clock())
    registrar = RegistrarStore.open(f"sqlite:///{tmp_path / 'registrar.db'}")
    thread = StoreThread()
    yield Bench(store, thread, Witness(registrar, REGISTRAR, lambda: COORDINATOR.certificate, lambda: NOW))
    thread.close()
    store.close()
    registrar.close()


def checked(keeper: LogKeeper, proof: EntryProof, entry: LogEntry, first: int, first_root: bytes) -> Checkpoint:
    """Return the checkpoint of a proof that holds."""
    note = Note.parse(proof.checkpoint)
    checkpoint = Checkpoint.parse(note.text)
    note.check(log_key(keeper.public_key, checkpoint.origin))
    check_inclusion(leaf_hash(entry.data), proof.position, checkpoint.size, proof.inclusion, checkpoint.root)
    check_consistency(first, first_root, checkpoint.size, checkpoint.root, proof.consistency)
    return checkpoint


def test_a_phone_that_asks_has_the_statement_cosigned(bench: Bench) -> None:
    async def story() -> None:
        keeper = bench.keeper()
        running = asyncio.create_task(keeper.run(60.0))
        seen = 0, EMPTY_ROOT
        for number in range(1, 5):
            entry = numbered(number)
            bench.append(entry, certificate_entry(f"{number:064x}"))
            proof = await keeper.prove(entry.subject, seen[0], 30.0)
            checkpoint = checked(keeper, proof, entry, *seen)
            assert Note.parse(proof.checkpoint).check(bench.witness.key) == int(NOW.timestamp())
            seen = checkpoint.size, checkpoint.root
        assert seen[0] == 8
        running.cancel()

    asyncio.run(story())


def test_while_the_witness_is_away_the_log_alone_has_signed(bench: Bench) -> None:
    async def story() -> None:
        keeper, entry = bench.keeper(), numbered(1)
        bench.append(entry)
        bench.is_away = True
        proof = await keeper.prove(entry.subject, 0, 0.0)
        checked(keeper, proof, entry, 0, EMPTY_ROOT)
        with pytest.raises(TransparencyError, match="not signed by mien-witness"):
            Note.parse(proof.checkpoint).check(bench.witness.key)
        bench.is_away = False
        while await keeper.cosign(bench.ask):
            pass
        proof = await keeper.prove(entry.subject, 1, 0.0)
        assert Note.parse(proof.checkpoint).check(bench.witness.key)

    asyncio.run(story())


def test_a_restart_or_another_replica_goes_on_where_the_witness_is(bench: Bench) -> None:
    async def story() -> None:
        one, other = bench.keeper(), bench.keeper()
        for number, keeper in enumerate((one, other, bench.keeper(), one, other), 1):
            bench.append(numbered(number))
            while await keeper.cosign(bench.ask):
                pass
        assert bench.store.round_log(round_log.read_head).cosigned_size == 5

    asyncio.run(story())


def test_an_older_copy_of_the_database_is_named(bench: Bench, tmp_path: Path) -> None:
    async def story() -> None:
        bench.append(numbered(1), numbered(2))
        assert not await bench.keeper().cosign(bench.ask)
        old = Store.open(f"sqlite:///{tmp_path / 'older.db'}", Clock())
        old.round_log(lambda db: round_log.append(db, 1, [numbered(1)]))
        keeper = LogKeeper(old, bench.thread, COORDINATOR, Clock(), bench.ask)
        assert await keeper.cosign(bench.ask)  # it is told where the witness is
        with pytest.raises(TransparencyError, match="older copy of the database"):
            await keeper.cosign(bench.ask)
        old.close()

    asyncio.run(story())


def test_what_the_log_does_not_hold_is_not_proved(bench: Bench) -> None:
    async def story() -> None:
        with pytest.raises(NotFoundError, match="no statement of this round"):
            await bench.keeper().prove("ab/1/1", 0, 0.0)

    asyncio.run(story())
