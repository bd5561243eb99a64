"""Signed notes, checkpoints and cosignatures: published vectors, a whole path, and what is refused."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mien.errors import TransparencyError
from mien.log.checkpoints import LOG, WITNESS, Checkpoint, Note, NoteKey, NoteSigner, log_key
from mien.log.merkle import leaf_hash

# golang.org/x/mod/sumdb/note, whose format signed-note took over.
NEUMANN = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
QUOTE = (
    "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n\n"
    "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)


@pytest.fixture
def log():
    return NoteSigner.of(LOG, Ed25519PrivateKey.from_private_bytes(bytes(range(32))))


@pytest.fixture
def witness():
    return NoteSigner.of(WITNESS, Ed25519PrivateKey.from_private_bytes(bytes(range(32, 64))))


def signed(log):
    text = Checkpoint(log.key.name, 3, leaf_hash(b"")).text
    return Note(text, (log.sign(text),))


def test_the_published_note_holds_and_no_other_text():
    key = NoteKey.parse(NEUMANN)

    assert str(key) == NEUMANN
    assert Note.parse(QUOTE).check(key) == 0
    assert str(Note.parse(QUOTE)) == QUOTE
    with pytest.raises(TransparencyError, match="does not hold"):
        Note.parse(QUOTE.replace("answer", "reason")).check(key)


def test_a_checkpoint_carries_the_signatures_of_log_and_witness(log, witness):
    note = signed(log)
    both = Note.parse(str(note.with_signatures(witness.sign(note.text, 1_700_000_000))))

    assert Checkpoint.parse(both.text) == Checkpoint(log.key.name, 3, leaf_hash(b""))
    assert both.check(log.key) == 0
    assert both.check(witness.key) == 1_700_000_000
    assert log_key(log.key.public, log.key.name) == log.key
    assert NoteKey.parse(str(witness.key)) == witness.key


def test_a_witness_signs_the_words_of_tlog_cosignature(witness):
    text = "example.com/log\n1\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n"
    raw = witness.sign(text, 1679315147).raw
    public = Ed25519PrivateKey.from_private_bytes(bytes(range(32, 64))).public_key()

    assert raw[:4] == witness.key.id
    assert int.from_bytes(raw[4:12], "big") == 1679315147
    public.verify(raw[12:], b"cosignature/v1\ntime 1679315147\n" + text.encode())


def test_a_later_signature_of_a_key_takes_the_place_of_the_earlier(log, witness):
    note = signed(log)
    once = note.with_signatures(witness.sign(note.text, 1))
    twice = once.with_signatures(witness.sign(note.text, 2))

    assert len(twice.unverified_signatures) == 2
    assert twice.check(witness.key) == 2


def test_who_has_not_signed_is_named(log, witness):
    with pytest.raises(TransparencyError, match=f"not signed by {witness.key.name}"):
        signed(log).check(witness.key)


def test_a_signature_of_another_time_or_key_is_refused(log, witness):
    note = signed(log)
    late = witness.sign(note.text, 5)
    forged = type(late)(late.name, late.raw[:4] + (6).to_bytes(8, "big") + late.raw[12:])
    with pytest.raises(TransparencyError, match="does not hold"):
        note.with_signatures(forged).check(witness.key)
    with pytest.raises(TransparencyError, match="not the one that its checkpoint names"):
        log_key(witness.key.public, log.key.name)


@pytest.mark.parametrize(
    "note",
    [
        "",
        "text without signatures\n",
        "text\n\nno dash AAAAAAAA\n",
        "text\n\n— name !!!\n",
        "text\n\n— name AAAA\n",
        "text\n\n— name AAAAAAAA",
        "te\x00xt\n\n— name AAAAAAAA\n",
        "x" * 20_000 + "\n\n— name AAAAAAAA\n",
        "text\n\n" + "— name AAAAAAAA\n" * 33,
    ],
    ids=["empty", "unsigned", "dash", "base64", "short", "newline", "control", "long", "many"],
)
def test_what_is_no_signed_note_is_refused(note):
    with pytest.raises(TransparencyError):
        Note.parse(note)


@pytest.mark.parametrize(
    "text",
    [
        "a\n1\n",
        "a b\n1\nAAAA\n",
        "a\n01\nAAAA\n",
        "a\n-1\nAAAA\n",
        "a\n1\nAAAA\n",
        "a\n9007199254740993\n" + "A" * 43 + "=\n",
    ],
    ids=["lines", "origin", "zero", "negative", "root", "size"],
)
def test_what_is_no_checkpoint_is_refused(text):
    with pytest.raises(TransparencyError):
        Checkpoint.parse(text)


@pytest.mark.parametrize("text", ["", "a+b", "a+00000000+AAAA", NEUMANN.replace("c74f", "c74e")])
def test_what_is_no_key_is_refused(text):
    with pytest.raises(TransparencyError):
        NoteKey.parse(text)


def test_a_signer_does_not_show_its_key(log):
    assert "***" in repr(log)
