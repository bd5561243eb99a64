"""The registrar as a witness: one history of the trusted coordinator's log, kept before it is signed."""

from __future__ import annotations

import pytest

from coordinator.keys import pki
from coordinator.keys.note_keys import log_signer, vouch
from coordinator.registrar.witness import Cosigned, Witness
from mien.errors import CertificateError, TransparencyError
from mien.log.checkpoints import Checkpoint, Note
from mien.log.entries import certificate_sha256
from mien.log.merkle import consistency_proof, tree_root
from tests.coordinator.registrar.test_issuing import COORDINATOR, NOW, REGISTRAR, Desk, desk
from tests.mien.log.test_merkle import Tree

__all__ = ["desk"]
OTHER = pki.create_authority("coordinator", NOW)


class Log:
    """A coordinator's log in memory, as its keeper shows it to the registrar."""

    def __init__(self, desk: Desk, authority: pki.Authority = COORDINATOR, *, trusted: pki.Authority = COORDINATOR):
        self.desk, self.signer, self.authority, self.trusted = desk, log_signer(authority), authority, trusted
        self.tree = Tree([])

    def grow(self, *words: str) -> Log:
        for word in words:
            self.tree.append(word.encode())
        return self

    def note(self, size: int) -> Note:
        text = Checkpoint(self.signer.key.name, size, tree_root(self.tree.node, size)).text
        return Note(text, (self.signer.sign(text),))

    def shown(self, old: int, size: int | None = None, after: int = 0) -> Cosigned:
        """Return the registrar's answer, from a witness that was just started anew."""
        size = self.tree.size if size is None else size
        public = self.signer.key.public
        proof = consistency_proof(self.tree.node, old, size) if old <= size else []
        asked = (str(self.note(size)), public, vouch(self.authority, public), old, proof, after)
        return self.witness.cosign(*asked)

    @property
    def witness(self) -> Witness:
        return Witness(self.desk.store, REGISTRAR, lambda: self.trusted.certificate, self.desk.clock)


def test_each_checkpoint_that_begins_with_the_last_is_cosigned(desk: Desk) -> None:
    log = Log(desk)
    for old, words in ((0, "abc"), (3, ""), (3, "defgh"), (8, "i")):
        cosigned = log.grow(*words).shown(old)
        note = Note.parse(cosigned.note)
        assert cosigned.size == log.tree.size
        assert note.check(log.witness.key) == int(NOW.timestamp())
        assert note.check(log.signer.key) == 0


def test_who_begins_elsewhere_is_told_where_to_begin(desk: Desk) -> None:
    log = Log(desk).grow(*"abc")
    log.shown(0)
    assert log.grow("d").shown(2) == Cosigned("", 3)
    assert log.shown(3).size == 4


def test_a_fork_is_refused_and_stands_in_the_audit_log(desk: Desk) -> None:
    log, forked = Log(desk).grow(*"abc"), Log(desk).grow(*"abX")
    log.shown(0)
    for shown in (forked, forked.grow("d")):
        with pytest.raises(TransparencyError, match="do not begin with the 3"):
            shown.shown(3)
    with pytest.raises(TransparencyError, match="do not begin with the 3"):
        log.shown(3, size=2)
    actions = [entry.action for entry in desk.store.audit(lambda audit, db: audit.read(db))]
    assert actions == ["log.witness", *["log.refuse"] * 3]
    assert log.grow("d").shown(3).size == 4


def test_a_second_log_of_the_same_coordinator_is_refused(desk: Desk) -> None:
    log = Log(desk).grow("a")
    log.shown(0)
    second = Log(desk).grow("a")
    second.signer = log_signer(OTHER)
    with pytest.raises(TransparencyError, match="another log of this coordinator"):
        second.shown(1)


def test_strangers_are_refused_before_anything_is_told(desk: Desk) -> None:
    desk.admitted()
    with pytest.raises(CertificateError, match="not the trusted coordinator's"):
        Log(desk, OTHER).grow("a").shown(0)
    log = Log(desk).grow("a")
    public = log.signer.key.public
    with pytest.raises(TransparencyError, match="does not hold"):
        log.witness.cosign(
            str(Note(log.grow("b").note(2).text, log.note(1).unverified_signatures)),
            *(public, vouch(COORDINATOR, public), 0, [], 0),
        )


def test_issued_certificates_are_told_as_salted_hashes_once(desk: Desk) -> None:
    phones = [desk.admitted() for _ in range(3)]
    log = Log(desk).grow("a")
    first = log.shown(0)
    assert list(first.certificates) == [certificate_sha256(pki.to_der(phone.certificate)) for phone in phones]
    assert log.shown(1, after=first.certificates_after).certificates == ()
    later = desk.admitted()
    told = log.shown(1, after=first.certificates_after)
    assert list(told.certificates) == [certificate_sha256(pki.to_der(later.certificate))]


def test_a_coordinator_that_takes_anothers_place_begins_a_log_of_its_own(desk: Desk) -> None:
    Log(desk).grow(*"abc").shown(0)
    assert Log(desk, OTHER, trusted=OTHER).grow("z").shown(0).size == 1
