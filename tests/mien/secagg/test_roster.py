"""Rosters: R binds everything, both forms give the same view, and nothing in them is believed unchecked."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import pytest

from mien.errors import AuthError, CohortError, MienError, ViolationError
from mien.secagg import RoundConfig, Suite
from mien.secagg.config import CohortTerms
from mien.secagg.graph import Profile
from mien.secagg.keys import AgreementKey, SealingKey, identity_id
from mien.secagg.roster import RosterTree, check_entry, read_roster
from mien.secagg.wire import Entry, FullRoster, SparseRoster, roster_from_bytes, statement_advertise
from tests.mien.secagg import reference
from tests.mien.secagg.cohort import make_config, person, verify

N = 9
LARGE = 260


@functools.cache
def known_kem_key(number: int) -> bytes:
    return SealingKey(bytes(32), number.to_bytes(32, "big") * 2).kem_public


def entry_of(number: int, config: RoundConfig) -> Entry:
    identity = person(number)
    mask_key, share_key = (
        AgreementKey(bytes([8 * role]) + number.to_bytes(30, "big") + b"@").public for role in (1, 2)
    )
    kem_key = known_kem_key(number)
    unsigned = Entry(identity.id, mask_key, share_key, kem_key, bytes(32), b"", identity.certificate)
    return replace(unsigned, signature=identity.signer.sign(statement_advertise(config.sha256, unsigned)))


CONFIG = make_config(N)
TREE = RosterTree.of([entry_of(number, CONFIG) for number in range(N)])
LARGE_CONFIG = replace(make_config(LARGE), cohort=CohortTerms(Profile.MALICIOUS_SERVER, 3, LARGE, 4, 3))
LARGE_TREE = RosterTree.of([entry_of(number, LARGE_CONFIG) for number in range(LARGE)])


def test_the_binding_written_out() -> None:
    topology = TREE.topology(CONFIG)
    ids = b"".join(sorted(person(number).id for number in range(N)))
    root = reference.merkle_root([entry.to_bytes() for entry in sorted(TREE.entries, key=lambda e: e.id)])
    assert topology.binding == reference.tagged_hash(
        "roster", reference.tagged_hash("cfg", CONFIG.to_bytes()), ids, root
    )
    assert topology.graph.seed == reference.tagged_hash("graph", topology.binding)


@pytest.mark.parametrize(("config", "tree"), [(CONFIG, TREE), (LARGE_CONFIG, LARGE_TREE)], ids=["full", "sparse"])
def test_every_device_sees_its_neighbours(config: RoundConfig, tree: RosterTree) -> None:
    topology = tree.topology(config)
    messages = tree.messages(topology)
    for index in (0, 1, topology.n - 1):
        own = tree.entries[index]
        view = read_roster(messages[own.id], config, own, verify)
        assert (view.index, view.binding) == (index, topology.binding)
        assert tuple(view.neighbours) == topology.graph.neighbours(index)
        assert all(peer.entry == tree.entries[i] for i, peer in view.neighbours.items())


def test_small_rosters_are_one_message_for_all() -> None:
    messages = TREE.messages(TREE.topology(CONFIG))
    assert len(set(messages.values())) == 1
    assert set(messages) == {entry.id for entry in TREE.entries}


def changed(position: int, **changes: bytes) -> Callable[[list[Entry]], list[Entry]]:
    return lambda entries: [replace(e, **changes) if i == position else e for i, e in enumerate(entries)]  # type: ignore[arg-type]


OWN = 4
LIES: dict[str, Callable[[list[Entry]], list[Entry]]] = {
    "left out": lambda entries: [e for i, e in enumerate(entries) if i != OWN],
    "repeated": lambda entries: sorted([*entries[:-1], entries[0]], key=lambda e: e.id),
    "not in order": lambda entries: [entries[1], entries[0], *entries[2:]],
    "own key exchanged": changed(OWN, mask_key=AgreementKey(bytes([7]) * 32).public),
    "own nonce changed": changed(OWN, nonce=b"\x01" * 32),
    "another's mask key exchanged": changed(0, mask_key=AgreementKey(bytes([7]) * 32).public),
    "another's share key exchanged": changed(0, share_key=AgreementKey(bytes([7]) * 32).public),
    "another's KEM key exchanged": changed(0, kem_key=known_kem_key(77)),
    "another's nonce changed": changed(0, nonce=b"\x01" * 32),
    "another's signature changed": changed(0, signature=bytes(64)),
    "another's keys swapped": lambda entries: [
        replace(entries[0], mask_key=entries[0].share_key, share_key=entries[0].mask_key),
        *entries[1:],
    ],
    "another's certificate": changed(0, certificate=person(99).certificate),
    "not a certificate": changed(0, certificate=b"none"),
    "two devices with one key": lambda entries: [replace(entries[0], mask_key=entries[1].mask_key), *entries[1:]],
    "two devices with one KEM key": lambda entries: [replace(entries[0], kem_key=entries[1].kem_key), *entries[1:]],
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_in_the_roster_ends_the_attempt(lie: str) -> None:
    message = FullRoster(tuple(LIES[lie](list(TREE.entries)))).to_bytes()
    with pytest.raises((ViolationError, AuthError)):
        read_roster(message, CONFIG, TREE.entries[OWN], verify)


def sparse_lies(roster: SparseRoster) -> dict[str, SparseRoster]:
    ids, neighbours = list(roster.ids), list(roster.neighbours)
    stranger = next(e for e in LARGE_TREE.entries if e.id not in {entry.id for entry, _ in neighbours})
    return {
        "one neighbour less": replace(roster, neighbours=roster.neighbours[1:]),
        "one neighbour more": replace(roster, neighbours=(*roster.neighbours, roster.neighbours[0])),
        "a stranger as neighbour": replace(roster, neighbours=((stranger, neighbours[0][1]), *neighbours[1:])),
        "neighbours exchanged": replace(roster, neighbours=(neighbours[1], neighbours[0], *neighbours[2:])),
        "own path": replace(roster, own_path=(bytes(32), *roster.own_path[1:])),
        "a neighbour's path": replace(
            roster, neighbours=((neighbours[0][0], (bytes(32), *neighbours[0][1][1:])), *neighbours[1:])
        ),
        "an id twice": replace(roster, ids=(*ids[:-1], ids[-2])),
        "an invented id": replace(roster, ids=(*ids[:-1], b"\xff" * 16)),
    }


def test_lies_in_the_sparse_roster_end_the_attempt() -> None:
    own = LARGE_TREE.entries[OWN]
    message = LARGE_TREE.messages(LARGE_TREE.topology(LARGE_CONFIG))[own.id]
    roster = roster_from_bytes(message)
    assert isinstance(roster, SparseRoster)
    lies = sparse_lies(roster)
    assert len(lies) == 8
    for lie in lies.values():
        with pytest.raises(ViolationError):
            read_roster(lie.to_bytes(), LARGE_CONFIG, own, verify)


def test_the_form_follows_from_the_size() -> None:
    """A small roster in the sparse form would hide entries from most devices."""
    topology = TREE.topology(CONFIG)
    with pytest.raises(ViolationError, match="not what"):
        read_roster(TREE._sparse(topology, OWN).to_bytes(), CONFIG, TREE.entries[OWN], verify)
    with pytest.raises(ViolationError, match="not what"):
        read_roster(FullRoster(LARGE_TREE.entries).to_bytes(), LARGE_CONFIG, LARGE_TREE.entries[OWN], verify)


def test_too_small_and_too_large_rosters_are_refused() -> None:
    own = TREE.entries[0]
    with pytest.raises(CohortError, match="2 devices"):
        read_roster(FullRoster(TREE.entries[:2]).to_bytes(), CONFIG, own, verify)
    smaller = make_config(N - 1)
    with pytest.raises(ViolationError):
        read_roster(FullRoster(TREE.entries).to_bytes(), smaller, own, verify)
    with pytest.raises(MienError):
        read_roster(FullRoster(()).to_bytes(), CONFIG, own, verify)


def test_entries_signed_under_another_configuration_are_refused() -> None:
    """A device that was told of another model signed another hash: nobody accepts its keys."""
    other = replace(CONFIG, model_sha256=b"x" * 32)
    with pytest.raises(ViolationError):
        read_roster(FullRoster(TREE.entries).to_bytes(), other, TREE.entries[OWN], verify)


def test_an_entry_needs_a_certificate_for_its_own_id() -> None:
    entry = entry_of(0, CONFIG)
    assert (
        check_entry(entry, CONFIG.sha256, Suite.ECDSA_P256, verify).public_key == verify(entry.certificate).public_key
    )
    assert entry.id == identity_id(verify(entry.certificate).public_key)
    for wrong in (replace(entry, id=person(1).id), replace(entry, certificate=person(1).certificate)):
        with pytest.raises(AuthError):
            check_entry(wrong, CONFIG.sha256, Suite.ECDSA_P256, verify)
