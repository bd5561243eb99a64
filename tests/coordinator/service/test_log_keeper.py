"""The coordinator's side of the log: cosigned by a real witness, proved to phones, also while the witness is away."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.keys import pki
from coordinator.keys.note_keys import log_signer
from coordinator.registrar.store import Store as RegistrarStore
from coordinator.registrar.witness import Witness
from coordinator.service.log_keeper import EntryProof, LogKeeper
from coordinator.store import round_log
from coordinator.store.store import Store
from coordinator.store.thread import StoreThread
from mien.errors import NotFoundError, TransparencyError, UnreachableError
from mien.log.checkpoints import WITNESS, Checkpoint, Note, NoteSigner, Signature, log_key
from mien.log.entries import LogEntry, certificate_entry, round_entry
from mien.log.merkle import EMPTY_ROOT, check_consistency, check_inclusion, leaf_hash
from mien.log.witnesses import AddCheckpoint, WitnessAddress, added, cosigned
from mien.protocol.v1 import registrar_pb2
from mien.shell.clock import Clock

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
COORDINATOR = pki.create_authority("coordinator", NOW)
REGISTRAR = pki.create_authority("registrar", NOW)
HASHES = dict.fromkeys(("task_sha256", "model_sha256", "layout_sha256", "statement_sha256"), "1" * 64)


def numbered(number: int) -> LogEntry:
    return round_entry("ab" * 16, number, 1, **HASHES)


@dataclass
class FurtherWitness:
    """A further witness without a network before it: what `public_witness` decides by, and signs."""

    signer: NoteSigner
    last: Checkpoint | None = None
    is_away: bool = False
    says_nothing: asyncio.Event | None = None
    asked: int = 0

    def answer(self, request: AddCheckpoint) -> bytes | int:
        self.asked += 1
        if self.is_away:
            raise UnreachableError("the witness does not answer")
        new = added(self.last, request, log_signer(COORDINATOR).key)
        if isinstance(new, int):
            return new
        self.last = new
        return cosigned(self.signer, request, int(NOW.timestamp()))


class SetClock(Clock):
    """A clock that is put on by hand."""

    monotonic = 0.0

    def monotonic_s(self) -> float:
        return self.monotonic


@dataclass
class Bench:
    """A log in a real database, and a real witness without a network between them."""

    store: Store
    thread: StoreThread
    witness: Witness
    is_away: bool = False
    calls: int = 0
    clock: SetClock = field(default_factory=lambda: SetClock())
    further: dict[str, FurtherWitness] = field(default_factory=dict)

    async def ask(self, request: registrar_pb2.CosignRequest) -> registrar_pb2.CosignReply:
        self.calls += 1
        if self.is_away:
            raise UnreachableError("no registrar answers")
        asked = (request.checkpoint, request.log_key, request.log_key_signature, request.old_size)
        cosigned = self.witness.cosign(*asked, list(request.consistency), request.certificates_after)
        return registrar_pb2.CosignReply(cosigned=cosigned.note, size=cosigned.size)

    def keeper(self, *, is_cosigned: bool = True) -> LogKeeper:
        async def ask(witness: WitnessAddress, asked: AddCheckpoint) -> bytes | int:
            further = self.further[witness.key.name]
            if further.says_nothing is not None:
                await further.says_nothing.wait()
            return further.answer(asked)

        addresses = [WitnessAddress(each.signer.key, "https://x") for each in self.further.values()]
        cosigner = self.ask if is_cosigned else None
        return LogKeeper(self.store, self.thread, COORDINATOR, self.clock, cosigner, addresses, ask)

    def cosigners(self) -> set[str]:
        """Return the further witnesses that signed the newest checkpoint that was kept."""
        return signers_of(self.store.round_log(round_log.read_head).cosigned)

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


def test_phones_that_ask_together_share_what_is_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round's phones all ask for its statement: two transactions, for the first one and for the rest."""
    reads = list[object]()

    async def story() -> None:
        keeper = bench.keeper(is_cosigned=False)
        bench.append(numbered(1), numbered(2))
        read = bench.store.round_log
        monkeypatch.setattr(bench.store, "round_log", lambda call: [reads.append(call), read(call)][1])
        asked = [(numbered(1 + number % 2), number % 3) for number in range(40)]
        proofs = await asyncio.gather(*(keeper.prove(entry.subject, first, 30.0) for entry, first in asked))
        for proof, (entry, first) in zip(proofs, asked, strict=True):
            checked(keeper, proof, entry, first, read(lambda db, first=first: round_log.root(db, first)))
        assert len(reads) <= 2

    asyncio.run(story())


def test_one_who_asks_for_what_is_not_there_costs_the_others_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A phone may name any model: its error must not have the questions of all others be asked again, one by one."""
    reads = list[object]()

    async def story() -> None:
        keeper = bench.keeper(is_cosigned=False)
        bench.append(numbered(1))
        read = bench.store.round_log
        monkeypatch.setattr(bench.store, "round_log", lambda call: [reads.append(call), read(call)][1])
        asked = [keeper.prove(numbered(1).subject, 0, 30.0) for _ in range(20)]
        lost = [keeper.prove(numbered(3).subject, 0, 30.0), keeper.prove_release("m" * 64, None, 0, 30.0)]
        answers = await asyncio.gather(*asked[:10], *lost, *asked[10:], return_exceptions=True)
        assert [type(each) for each in answers] == [EntryProof] * 10 + [NotFoundError] * 2 + [EntryProof] * 10
        assert [str(each) for each in answers[10:12]] != [str(answers[10])] * 2, "each is told of what it asked for"
        assert len(reads) <= 2

    asyncio.run(story())


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


def test_a_phone_that_saw_a_longer_log_is_answered_and_the_registrar_left_alone(bench: Bench) -> None:
    """A database that was set back, or a lie: waiting for that many entries asked the registrar without a pause."""

    async def story() -> None:
        keeper = bench.keeper()
        running = asyncio.create_task(keeper.run(60.0))
        bench.append(numbered(1), numbered(2))
        asked = asyncio.create_task(keeper.prove(numbered(2).subject, 10**9, 30.0))
        while not asked.done() and bench.calls < 20:
            await asyncio.sleep(0.001)
        assert asked.done(), "it is held, and each answer of the registrar has it asked again"
        proof = asked.result()
        assert (Checkpoint.parse(Note.parse(proof.checkpoint).text).size, proof.position, proof.consistency) == (
            2,
            1,
            [],
        )
        assert len(Note.parse(proof.checkpoint).unverified_signatures) == 2, "what the registrar cosigned shows it"
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


def two_witnesses() -> dict[str, FurtherWitness]:
    signers = [NoteSigner.of(WITNESS, Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32)) for n in (7, 8)]
    return {signer.key.name: FurtherWitness(signer) for signer in signers}


def signers_of(note: str) -> set[str]:
    """Return the further witnesses whose cosignature a kept checkpoint has."""
    return {each.name for each in Note.parse(note).unverified_signatures} & set(two_witnesses())


def test_further_witnesses_cosign_what_the_registrar_did(bench: Bench) -> None:
    async def story() -> None:
        bench.further = two_witnesses()
        one, other = bench.keeper(), bench.keeper()
        for number, keeper in enumerate((one, one, other, bench.keeper(), one), 1):
            bench.append(numbered(number))
            while await keeper.cosign(bench.ask):
                pass
            proof = await keeper.prove(numbered(number).subject, 0, 0.0)
            note = Note.parse(proof.checkpoint)
            for key in (bench.witness.key, *(each.signer.key for each in bench.further.values())):
                assert note.check(key) == int(NOW.timestamp())
        # Asked twice where a keeper did not know what a witness signed last: once after `other`'s, at each new keeper.
        assert {each.asked for each in bench.further.values()} == {5 + 3}

    asyncio.run(story())


def test_a_witness_that_is_away_is_waited_for_once_and_its_cosignature_follows(bench: Bench) -> None:
    async def story() -> None:
        bench.further = two_witnesses()
        away, there = bench.further.values()
        away.is_away = True
        bench.append(numbered(1))
        keeper = bench.keeper()
        assert not await keeper.cosign(bench.ask)
        assert bench.cosigners() == {there.signer.key.name}
        away.says_nothing = asyncio.Event()  # from now on whoever waits for it waits for good
        for number in range(2, 6):
            bench.append(numbered(number))
            bench.clock.monotonic += 20.0
            assert not await keeper.cosign(bench.ask)
            assert bench.cosigners() == {there.signer.key.name}
        assert away.asked == 1, "one call at a time, which still runs"
        away.is_away = False
        count = keeper._wanted.count
        away.says_nothing.set()
        await keeper._wanted.after(count, 60.0)
        assert not await keeper.cosign(bench.ask)
        assert bench.cosigners() == set(bench.further)

    asyncio.run(story())


def test_a_witness_that_stays_away_is_asked_less_and_less_often(bench: Bench) -> None:
    async def story() -> None:
        bench.further = two_witnesses()
        away, there = bench.further.values()
        away.is_away = True
        keeper = bench.keeper()
        for number in range(60):
            bench.append(numbered(number))
            bench.clock.monotonic += 1.0
            assert not await keeper.cosign(bench.ask)
            await asyncio.sleep(0)  # the call beside ends
        assert 60 / 15 <= away.asked <= 12
        assert there.asked >= 60
        away.is_away = False
        while len(bench.cosigners()) < 2:
            bench.clock.monotonic += 15.0
            count = keeper._wanted.count
            assert not await keeper.cosign(bench.ask)
            await keeper._wanted.after(count, 0.05)

    asyncio.run(story())


def test_a_call_beside_ends_with_the_keeper(bench: Bench) -> None:
    async def story() -> None:
        bench.further = two_witnesses()
        away, _ = bench.further.values()
        away.is_away = True
        bench.append(numbered(1))
        keeper = bench.keeper()
        assert not await keeper.cosign(bench.ask)
        away.says_nothing = asyncio.Event()
        bench.clock.monotonic += 20.0
        running = asyncio.create_task(keeper.run(60.0))
        while keeper._silent[away.signer.key.name].call is None:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait({running})
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(story())


def test_a_witness_that_saw_more_or_signs_something_else_is_not_counted(bench: Bench) -> None:
    async def story() -> None:
        bench.further = two_witnesses()
        ahead, wrong = bench.further.values()
        ahead.last = Checkpoint(log_signer(COORDINATOR).key.name, 40, bytes(32))
        wrong.signer = ahead.signer
        bench.append(numbered(1))
        assert not await bench.keeper().cosign(bench.ask)
        kept = bench.store.round_log(round_log.read_head).cosigned
        assert signers_of(kept) == set()
        assert Note.parse(kept).check(bench.witness.key)

    asyncio.run(story())


def test_a_witness_that_says_more_than_it_was_asked_leaves_the_checkpoint_readable(bench: Bench) -> None:
    @dataclass
    class Talkative(FurtherWitness):
        def answer(self, request: AddCheckpoint) -> bytes | int:
            answer = super().answer(request)
            more = "".join(str(Signature(self.signer.key.name, bytes([number]) * 76)) for number in range(40))
            return answer if isinstance(answer, int) else answer + more.encode()

    async def story() -> None:
        talks, plain = two_witnesses().values()
        bench.further = {talks.signer.key.name: Talkative(talks.signer), plain.signer.key.name: plain}
        keeper = bench.keeper()
        for number in (1, 2):
            bench.append(numbered(number))
            while await keeper.cosign(bench.ask):
                pass
            kept = Note.parse(bench.store.round_log(round_log.read_head).cosigned)
            assert kept.check(plain.signer.key)

    asyncio.run(story())
