"""The phone's look at the log of rounds: what it takes, what it refuses, and what it keeps for its owner."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from device_sdk.rounds.round_log import GRACE_S, MAX_EVIDENCE, LogFiles, RoundLog
from device_sdk.server.client import LogProof
from device_sdk.server.identity import KEY_LABEL
from device_sdk.storage.keystore import FileKeyStore
from mien.errors import CorruptDataError, NotFoundError, TransparencyError, VersionError
from mien.log.checkpoints import LOG, WITNESS, Checkpoint, Note, NoteSigner
from mien.log.entries import LogEntry, round_entry
from mien.log.merkle import consistency_proof, inclusion_proof, tree_root
from mien.log.witnesses import Quorum
from mien.protocol.ids import AttemptNumber, ModelId, PopulationId, RoundNumber, TaskId
from mien.protocol.rounds import RoundRef, Wait
from mien.shell.clock import Clock
from tests.mien.log.test_merkle import Tree

REF = RoundRef(TaskId("task"), RoundNumber(1), AttemptNumber(1))
SIGNER = NoteSigner.of(LOG, Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
REGISTRAR = NoteSigner.of(WITNESS, Ed25519PrivateKey.from_private_bytes(bytes(range(32, 64))))
HASHES = dict.fromkeys(("task_sha256", "model_sha256", "layout_sha256"), "1" * 64)


def statement(number: int, told: str = "a") -> LogEntry:
    return round_entry("ab" * 16, number, 1, **HASHES, statement_sha256=told * 64)


class SetClock(Clock):
    """A clock that stands where the test puts it."""

    unix_s = 1_800_000_000.0

    def now(self) -> float:
        return self.unix_s


@dataclass
class Coordinator:
    """A log in memory, which proves what it is asked for; `cosigned_at` is None while the registrar is away."""

    clock: SetClock
    tree: Tree = field(default_factory=lambda: Tree([]))
    entries: list[LogEntry] = field(default_factory=list)
    signer: NoteSigner = SIGNER
    is_cosigned: bool = True
    further: tuple[NoteSigner, ...] = ()
    asked: int = 0

    def append(self, *entries: LogEntry) -> Coordinator:
        for entry in entries:
            self.tree.append(entry.data)
            self.entries.append(entry)
        return self

    def prove_round(self, ref: RoundRef, first_size: int) -> LogProof:
        size, position, self.asked = self.tree.size, len(self.entries) - 1, first_size
        text = Checkpoint(self.signer.key.name, size, tree_root(self.tree.node, size)).text
        note = Note(text, (self.signer.sign(text),))
        if self.is_cosigned:
            note = note.with_signatures(REGISTRAR.sign(text, int(self.clock.now())))
        note = note.with_signatures(*(each.sign(text, int(self.clock.now())) for each in self.further))
        consistency = consistency_proof(self.tree.node, first_size, size) if first_size <= size else []
        inclusion = inclusion_proof(self.tree.node, position, size)
        return LogProof(str(note), self.signer.key.public, position, tuple(inclusion), tuple(consistency))


@dataclass
class Phone:
    files: LogFiles
    clock: SetClock
    registrar_is_there: bool = True
    further: Quorum = field(default_factory=Quorum)

    def check(self, coordinator: object, entry: LogEntry) -> str | Wait:
        log = RoundLog(REGISTRAR.key, self.files, lambda: self.registrar_is_there, self.clock, self.further)
        return log.check(coordinator, REF, entry)  # type: ignore[arg-type]


@pytest.fixture
def phone(tmp_path: Path) -> Phone:
    key_store = FileKeyStore(tmp_path / "keys")
    key_store.create(KEY_LABEL)
    return Phone(LogFiles(tmp_path / "round-log.sealed", tmp_path / "log-evidence.json", key_store), SetClock())


@pytest.fixture
def coordinator(phone: Phone) -> Coordinator:
    return Coordinator(phone.clock).append(statement(1), statement(2))


def test_rounds_that_the_log_holds_are_taken_one_after_another(phone: Phone, coordinator: Coordinator) -> None:
    for number in range(3, 8):
        before = coordinator.tree.size
        assert phone.check(coordinator.append(statement(number)), statement(number)) == ""
        assert coordinator.asked == (before if number > 3 else 0)
    assert phone.files.evidence() == []
    last = phone.files.last()
    assert last is not None
    assert last.checkpoint.size == 7


def test_what_the_phone_saw_lies_sealed_in_its_home(phone: Phone, coordinator: Coordinator) -> None:
    phone.check(coordinator, statement(2))
    sealed = phone.files.path.read_bytes()
    assert SIGNER.key.name.encode() not in sealed
    phone.files.path.write_bytes(sealed[:-1] + bytes([sealed[-1] ^ 1]))
    with pytest.raises(CorruptDataError, match="log of rounds"):
        phone.check(coordinator, statement(2))


def test_another_statement_than_the_phone_was_told_is_refused(phone: Phone, coordinator: Coordinator) -> None:
    with pytest.raises(TransparencyError, match=r"nothing was trained, and the evidence is kept in .*evidence.json"):
        phone.check(coordinator, statement(2, told="b"))
    assert phone.files.last() is None


def test_a_fork_is_refused_for_good_and_its_first_evidence_stays(phone: Phone, coordinator: Coordinator) -> None:
    phone.check(coordinator, statement(2))
    forked = Coordinator(phone.clock).append(statement(9), statement(2), statement(3))
    for _ in range(2):
        with pytest.raises(TransparencyError, match="do not begin with the 2"):
            phone.check(forked, statement(3))
    (told,) = phone.files.evidence()
    with pytest.raises(TransparencyError):
        phone.check(forked.append(statement(4)), statement(4))
    assert json.loads(phone.files.evidence_path.read_text())[0] == told
    assert len(phone.files.evidence()) == 2
    for note in (told["seen"]["note"], told["shown"]["note"]):
        assert Note.parse(note).check(SIGNER.key) == 0  # the coordinator signed both histories
    assert told["statement"] == statement(3).data.decode()
    assert phone.check(coordinator.append(statement(3)), statement(3)) == ""


def test_a_log_that_shrank_or_is_another_is_refused(phone: Phone, coordinator: Coordinator) -> None:
    phone.check(coordinator, statement(2))
    shrunk = Coordinator(phone.clock).append(statement(1))
    with pytest.raises(TransparencyError, match="do not begin with the 2"):
        phone.check(shrunk, statement(1))
    other = NoteSigner.of(LOG, Ed25519PrivateKey.from_private_bytes(bytes(range(64, 96))))
    with pytest.raises(TransparencyError, match="another log than before"):
        phone.check(replace(coordinator, signer=other), statement(2))


def test_forged_signatures_are_refused(phone: Phone, coordinator: Coordinator) -> None:
    class Forging(Coordinator):
        def prove_round(self, ref: RoundRef, first_size: int) -> LogProof:
            proof = super().prove_round(ref, first_size)
            note = Note.parse(proof.checkpoint)
            forged = SIGNER.sign(note.text + "x", 5)
            named = type(forged)(REGISTRAR.key.name, REGISTRAR.key.id + bytes(72))
            return replace(proof, checkpoint=str(Note(note.text, (note.unverified_signatures[0], named))))

    with pytest.raises(TransparencyError, match=f"signature by {REGISTRAR.key.name} does not hold"):
        phone.check(Forging(phone.clock).append(statement(2)), statement(2))


def test_without_a_cosignature_the_phone_waits_while_the_registrar_can_be_reached(
    phone: Phone, coordinator: Coordinator
) -> None:
    coordinator.is_cosigned = False
    found = phone.check(coordinator, statement(2))
    assert isinstance(found, Wait)
    assert "registrar" in found.reason
    phone.registrar_is_there = False  # nor on the first day, when nothing was ever cosigned
    assert isinstance(phone.check(coordinator, statement(2)), Wait)
    assert phone.files.last() is None


def test_while_the_registrar_is_away_the_phone_goes_on_for_an_hour(phone: Phone, coordinator: Coordinator) -> None:
    phone.check(coordinator, statement(2))
    coordinator.is_cosigned = False
    assert isinstance(phone.check(coordinator.append(statement(3)), statement(3)), Wait)
    phone.registrar_is_there = False
    phone.clock.unix_s += 600
    assert "for 10 min" in str(phone.check(coordinator, statement(3)))
    phone.clock.unix_s += GRACE_S
    assert isinstance(phone.check(coordinator.append(statement(4)), statement(4)), Wait)


@pytest.mark.parametrize(("ahead_s", "goes_on"), [(GRACE_S, True), (GRACE_S + 1, False), (10 * 86400, False)])
def test_a_clock_that_is_set_back_adds_no_time_without_the_registrar(
    phone: Phone, coordinator: Coordinator, ahead_s: float, goes_on: bool
) -> None:
    phone.check(coordinator, statement(2))
    coordinator.is_cosigned = phone.registrar_is_there = False
    phone.clock.unix_s -= ahead_s
    assert isinstance(phone.check(coordinator.append(statement(3)), statement(3)), str) is goes_on


def test_what_was_taken_without_a_cosignature_binds_the_coordinator(phone: Phone, coordinator: Coordinator) -> None:
    phone.check(coordinator, statement(2))
    phone.registrar_is_there = False
    fork = Coordinator(phone.clock, is_cosigned=False).append(statement(1), statement(2), statement(3, told="f"))
    assert "registrar is away" in str(phone.check(fork, statement(3, told="f")))
    with pytest.raises(TransparencyError, match="do not begin with the 3"):
        phone.check(coordinator.append(statement(3), statement(4)), statement(4))


def test_what_another_program_of_the_home_saw_meanwhile_is_gone_on_from(phone: Phone, coordinator: Coordinator) -> None:
    """An older checkpoint in its place would let the coordinator tell another story of what came between them."""
    first_sizes = []

    class Overtaken:
        def prove_round(self, ref: RoundRef, first_size: int) -> LogProof:
            first_sizes.append(first_size)
            proof, tree = coordinator.prove_round(ref, first_size), coordinator.tree
            if tree.size == 2:
                assert phone.check(coordinator.append(statement(3)), statement(3)) == ""
                return proof
            return replace(proof, position=1, inclusion=tuple(inclusion_proof(tree.node, 1, tree.size)))

    assert phone.check(Overtaken(), statement(2)) == ""
    assert first_sizes == [0, 3]
    last = phone.files.last()
    assert last is not None
    assert last.checkpoint.size == 3
    assert phone.files.evidence() == []


def test_a_phone_asks_for_as_many_further_witnesses_as_it_was_told(phone: Phone, coordinator: Coordinator) -> None:
    signers = [NoteSigner.of(WITNESS, Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32)) for n in (7, 8, 9)]
    phone.further = Quorum(tuple(each.key for each in signers), 2)
    phone.registrar_is_there = False  # no excuse: of further witnesses none is done without
    for some in ((), tuple(signers[:1])):
        coordinator.further = some
        found = phone.check(coordinator, statement(2))
        assert isinstance(found, Wait)
        assert f"{2 - len(some)} of the 2 further witnesses" in found.reason
        assert phone.files.last() is None
    coordinator.further = (signers[0], signers[2])
    assert phone.check(coordinator, statement(2)) == ""


def test_a_further_witness_s_forged_signature_is_refused_with_evidence(phone: Phone, coordinator: Coordinator) -> None:
    signer = NoteSigner.of(WITNESS, Ed25519PrivateKey.from_private_bytes(bytes([7]) * 32))
    forger = NoteSigner(signer.key, Ed25519PrivateKey.from_private_bytes(bytes([8]) * 32))
    phone.further, coordinator.further = Quorum((signer.key,), 1), (forger,)
    with pytest.raises(TransparencyError, match=f"signature by {signer.key.name} does not hold"):
        phone.check(coordinator, statement(2))
    assert phone.files.evidence()[0]["further_witnesses"] == [str(signer.key)]


@pytest.mark.parametrize("error", [NotFoundError("no statement"), VersionError("upgrade")])
def test_a_coordinator_that_proves_nothing_is_refused(phone: Phone, error: Exception) -> None:
    class Silent:
        def prove_round(self, ref: RoundRef, first_size: int) -> LogProof:
            raise error

    with pytest.raises(TransparencyError, match="does not show that the log of rounds holds this round"):
        phone.check(Silent(), statement(1))


def test_a_coordinator_that_is_too_old_to_show_releases_is_no_liar(phone: Phone) -> None:
    class Older:
        def prove_release(self, model_id: ModelId, first_size: int) -> LogProof:
            raise VersionError("it does not know ProveRelease")

    log = RoundLog(REGISTRAR.key, phone.files, lambda: True, phone.clock)
    with pytest.raises(VersionError, match="the model that is here stays in use, and the operator upgrades the coord"):
        log.check_release(Older(), ModelId("b" * 64), PopulationId("mine"))  # type: ignore[arg-type]
    assert phone.files.evidence() == []


def test_an_owner_can_begin_anew_and_keeps_the_evidence(phone: Phone, coordinator: Coordinator) -> None:
    phone.check(coordinator, statement(2))
    other = Coordinator(phone.clock).append(statement(5))
    with pytest.raises(TransparencyError):
        phone.check(other, statement(5))
    aside = phone.files.begin_anew()
    assert aside is not None
    assert aside.is_file()
    assert phone.check(other, statement(5)) == ""
    assert phone.files.begin_anew() is None


def test_a_liar_cannot_push_the_first_evidence_out(phone: Phone, coordinator: Coordinator) -> None:
    for number in range(MAX_EVIDENCE + 5):
        with pytest.raises(TransparencyError):
            phone.check(coordinator, statement(number + 10))
    kept = phone.files.evidence()
    assert len(kept) == MAX_EVIDENCE
    assert kept[0]["statement"] == statement(10).data.decode()


def test_empty_answers_leave_room_for_what_a_liar_signed(phone: Phone, coordinator: Coordinator) -> None:
    class Silent:
        words = 0

        def prove_round(self, ref: RoundRef, first_size: int) -> LogProof:
            self.words += 1
            raise NotFoundError(f"there is none, for the {self.words}th time")

    silent = Silent()
    for number in [10] * 3 + list(range(10, 10 + MAX_EVIDENCE)):
        with pytest.raises(TransparencyError):
            phone.check(silent, statement(number))
    kept = [each["statement"] for each in phone.files.evidence()]
    assert kept == [statement(number).data.decode() for number in range(10, 10 + MAX_EVIDENCE // 2)]
    with pytest.raises(TransparencyError):
        phone.check(coordinator, statement(10))
    assert phone.files.evidence()[-1]["shown"] is not None


def test_unsigned_notes_leave_room_for_what_a_liar_signed(phone: Phone, coordinator: Coordinator) -> None:
    forged = replace(coordinator, signer=NoteSigner(SIGNER.key, Ed25519PrivateKey.generate()))
    for number in range(2 * MAX_EVIDENCE):
        with pytest.raises(TransparencyError):
            phone.check(forged, statement(number, "b"))
    assert len(phone.files.evidence()) == MAX_EVIDENCE // 2
    with pytest.raises(TransparencyError):
        phone.check(coordinator, statement(2, "c"))
    assert phone.files.evidence()[-1]["statement"] == statement(2, "c").data.decode()


def test_a_lie_of_any_length_is_kept_and_read_again(phone: Phone, coordinator: Coordinator) -> None:
    class Verbose:
        def prove_round(self, ref: RoundRef, first_size: int) -> LogProof:
            proof = coordinator.prove_round(ref, first_size)
            return dataclasses.replace(proof, inclusion=proof.inclusion * 20_000)

    for number in range(10, 13):
        with pytest.raises(TransparencyError):
            phone.check(Verbose(), statement(number))
    assert [each["shown"] for each in phone.files.evidence()] == [None] * 3
