"""C2SP's `add-checkpoint` in bytes, what a witness makes of it, and whose cosignatures a reader demands."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mien.errors import ConfigError, TransparencyError
from mien.log.checkpoints import LOG, WITNESS, Checkpoint, Note, NoteKey, NoteSigner
from mien.log.merkle import consistency_proof, tree_root
from mien.log.witnesses import MAX_PROOF, MAX_WITNESSES, AddCheckpoint, Quorum, WitnessAddress, added, cosigned
from tests.mien.log.test_merkle import Tree


def signer(kind: str, number: int) -> NoteSigner:
    return NoteSigner.of(kind, Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))


LOGS, OTHER_LOG = signer(LOG, 1), signer(LOG, 2)
ONE, TWO, THREE = (signer(WITNESS, number) for number in (3, 4, 5))
TREE = Tree([f"entry {number}".encode() for number in range(9)])


def note_of(size: int, signed_by: NoteSigner = LOGS, tree: Tree = TREE) -> Note:
    text = Checkpoint(signed_by.key.name, size, tree_root(tree.node, size)).text
    return Note(text, (signed_by.sign(text),))


def request(old: int, size: int, tree: Tree = TREE) -> AddCheckpoint:
    proof = consistency_proof(tree.node, old, size)
    return AddCheckpoint(old, tuple(proof), str(note_of(size, tree=tree)))


def checkpoint(size: int) -> Checkpoint:
    return Checkpoint.parse(note_of(size).text)


def test_a_request_is_as_the_specification_has_it() -> None:
    asked = request(5, 9)
    old, *hashes = asked.to_bytes().split(b"\n\n")[0].split(b"\n")
    assert old == b"old 5"
    assert [base64.b64decode(row) for row in hashes] == list(asked.consistency)
    assert asked.to_bytes().partition(b"\n\n")[2].decode() == asked.note
    assert AddCheckpoint.parse(asked.to_bytes()) == asked
    assert AddCheckpoint.parse(request(0, 9).to_bytes()).consistency == ()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"old 5",
        b"old -1\n\nx\n",
        b"old 05\n\nx\n",
        b"new 5\n\nx\n",
        b"old 5\n!!!!\n\nx\n",
        b"old 5\nAAAA\n\nx\n",
        b"\xff\n\n",
        b"old 5\n" + (b"A" * 43 + b"=\n") * (MAX_PROOF + 1) + b"\nx\n",
    ],
    ids=range(9),
)
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(TransparencyError, match="no add-checkpoint request"):
        AddCheckpoint.parse(body)


def test_a_witness_takes_what_goes_on_from_what_it_signed() -> None:
    last = added(None, request(0, 5), LOGS.key)
    assert last == checkpoint(5)
    assert added(checkpoint(5), request(5, 9), LOGS.key) == checkpoint(9)
    assert added(checkpoint(9), request(9, 9), LOGS.key) == checkpoint(9)
    assert added(checkpoint(9), request(5, 9), LOGS.key) == 9  # asked again from there
    assert added(None, request(5, 9), LOGS.key) == 0


def test_a_witness_refuses_another_history_and_another_log() -> None:
    forked = Tree([f"other {number}".encode() for number in range(9)])
    with pytest.raises(TransparencyError, match="do not begin with the 5"):
        added(checkpoint(5), request(5, 9, forked), LOGS.key)
    with pytest.raises(TransparencyError, match="do not begin with the 9"):
        added(checkpoint(9), replace(request(5, 9), old_size=9, note=str(note_of(5))), LOGS.key)
    with pytest.raises(TransparencyError, match="not signed by"):
        added(None, replace(request(0, 5), note=str(note_of(5, OTHER_LOG))), LOGS.key)


def test_an_answer_holds_under_the_witness_s_key_alone() -> None:
    asked = request(0, 5)
    answer = cosigned(ONE, asked, 1_800_000_000)
    address = WitnessAddress.parse(f"{ONE.key} https://witness.example/mien/")
    assert address.url == "https://witness.example/mien"
    assert str(address.signed(answer, note_of(5).text)).encode() == answer
    with pytest.raises(TransparencyError, match="does not hold"):
        address.signed(answer, note_of(6).text)
    with pytest.raises(TransparencyError, match="not signed by"):
        WitnessAddress(TWO.key, "https://x").signed(answer, note_of(5).text)
    with pytest.raises(TransparencyError):
        address.signed(b"<html>\xff", note_of(5).text)


def test_one_signature_is_taken_out_of_an_answer_however_long_it_is() -> None:
    """A witness that says more than it was asked could make a checkpoint longer than anybody reads, or its lie ours."""
    text, address = note_of(5).text, WitnessAddress(ONE.key, "https://x")
    mine = ONE.sign(text, 7)
    more = [replace(mine, raw=bytes([number]) * 76) for number in range(20)]
    assert address.signed("".join(map(str, [*more, mine, mine])).encode(), text) == mine
    longer = f"{text}\nfurther\n"
    with pytest.raises(TransparencyError, match="does not hold"):
        address.signed(f"further\n\n{ONE.sign(longer, 7)}".encode(), text)


NO_HOSTS = ("https://", "https://a..b", "https://x:70000", "https://x:no", "https://[::1", "https://x:0")


@pytest.mark.parametrize(
    "text",
    ["", str(ONE.key), f"{ONE.key} ftp://x", f"{LOGS.key} https://x", "x https://x"]
    + [f"{ONE.key} {url}" for url in NO_HOSTS],
)
def test_a_setting_that_names_no_witness_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not NAME|not a key|log's key"):
        WitnessAddress.parse(text)


def test_a_quorum_counts_cosignatures_that_hold() -> None:
    quorum = Quorum.of([str(each.key) for each in (ONE, TWO, THREE)], 2)
    note = note_of(5)
    assert quorum.missing(note) == 2
    note = note.with_signatures(ONE.sign(note.text, 1))
    assert quorum.missing(note) == 1
    assert quorum.missing(note.with_signatures(THREE.sign(note.text, 2))) == 0
    assert quorum.missing(note.with_signatures(signer(WITNESS, 9).sign(note.text, 2))) == 1
    with pytest.raises(TransparencyError, match="does not hold"):
        quorum.missing(note.with_signatures(TWO.sign("other", 2)))
    assert Quorum.of([str(ONE.key), str(TWO.key)], 0).needed == 2
    assert Quorum().missing(note) == 0


def test_a_signature_by_another_key_of_a_witness_s_name_is_no_lie() -> None:
    old, new = (NoteSigner(NoteKey("w.example", each.key.public, True), each._private) for each in (ONE, TWO))
    text = note_of(5).text
    note = note_of(5).with_signatures(new.sign(text, 1))
    assert Quorum((old.key,), 1).missing(note) == 1
    assert Quorum((old.key,), 1).missing(note.with_signatures(old.sign(text, 1))) == 0
    with pytest.raises(ConfigError, match="a name and a key of its own"):
        Quorum((old.key, new.key), 1)


def test_the_registrar_s_own_key_is_no_further_witness() -> None:
    assert Quorum((ONE.key,), 1).besides(TWO.key).needed == 1
    with pytest.raises(ConfigError, match="the registrar's own key"):
        Quorum((ONE.key, TWO.key), 1).besides(TWO.key)


def test_a_quorum_that_nobody_can_meet_is_refused() -> None:
    with pytest.raises(ConfigError, match="2 of 1 witnesses cannot cosign"):
        Quorum((ONE.key,), 2)
    with pytest.raises(ConfigError, match="a name and a key of its own"):
        Quorum((ONE.key, ONE.key), 1)
    with pytest.raises(ConfigError, match=f"at most {MAX_WITNESSES}"):
        Quorum(tuple(signer(WITNESS, number).key for number in range(MAX_WITNESSES + 1)), 1)
