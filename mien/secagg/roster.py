"""Roster of an attempt, and R: the hash that everything else is bound to.

R = H("roster", H("cfg", configuration), all ids, Merkle root over all entries), ids and entries by ascending id. Up to
FULL_ROSTER_MAX devices everybody gets and checks every entry; beyond that a device gets all ids, and the entries of its
neighbours with their paths to the root. A forged entry is then seen by its neighbours only, who leave the round.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from mien.errors import CohortError, ViolationError
from mien.secagg.canonical import leaf_hash, merkle_path, merkle_tree, root_of_path, tagged_hash, tree_depth
from mien.secagg.config import RoundConfig
from mien.secagg.graph import Graph, Neighbourhood, resolve
from mien.secagg.keys import PublicKey, Suite, VerifyLeaf, check_identity, short, verify_signature
from mien.secagg.wire import Entry, FullRoster, SparseRoster, roster_from_bytes, statement_advertise

FULL_ROSTER_MAX: Final = 256


@dataclass(frozen=True)
class Topology:
    """The members of an attempt by index (in the order of their ids), who is whose neighbour, and R (`binding`)."""

    binding: bytes
    ids: tuple[bytes, ...]
    hood: Neighbourhood
    graph: Graph = field(repr=False)

    @classmethod
    def of(cls, config: RoundConfig, ids: tuple[bytes, ...], root: bytes) -> Topology:
        """Return the topology that configuration, ids and Merkle root fix."""
        binding = tagged_hash("roster", config.sha256, b"".join(ids), root)
        hood = resolve(config.cohort.profile, len(ids), config.cohort.k, config.cohort.t)
        return cls(binding, ids, hood, Graph(len(ids), hood.k, tagged_hash("graph", binding)))

    @property
    def n(self) -> int:
        """Number of members."""
        return len(self.ids)

    @cached_property
    def index_of(self) -> Mapping[bytes, int]:
        """Index of each id."""
        return {device: index for index, device in enumerate(self.ids)}


@dataclass(frozen=True)
class Peer:
    """A member whose entry was checked: its entry, identity key, when the registrar admitted it, and if attested."""

    entry: Entry = field(repr=False)
    public_key: PublicKey = field(repr=False)
    admitted_unix_s: int
    is_attested: bool = False


def check_entry(entry: Entry, config_sha256: bytes, suite: Suite, verify: VerifyLeaf) -> Peer:
    """Return the checked peer; raises an AuthError or ViolationError unless certificate, keys and signature hold."""
    leaf = verify(entry.certificate)
    check_identity(leaf, entry.id, suite)
    what = f"the entry of device {short(entry.id)}"
    statement = statement_advertise(config_sha256, entry)
    verify_signature(suite, leaf.public_key, statement, entry.signature, what=what)
    return Peer(entry, leaf.public_key, leaf.admitted_unix_s, leaf.is_attested)


# The server's side: from entries to one message a device


@dataclass(frozen=True)
class RosterTree:
    """All entries by ascending id, with their Merkle tree."""

    entries: tuple[Entry, ...] = field(repr=False)
    levels: tuple[tuple[bytes, ...], ...] = field(repr=False)

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> RosterTree:
        """Return the tree over entries in any order."""
        ordered = tuple(sorted(entries, key=lambda entry: entry.id))
        return cls(ordered, merkle_tree([leaf_hash(i, entry.to_bytes()) for i, entry in enumerate(ordered)]))

    def topology(self, config: RoundConfig) -> Topology:
        """Return the topology that these entries make."""
        return Topology.of(config, tuple(entry.id for entry in self.entries), self.levels[-1][0])

    def messages(self, topology: Topology) -> dict[bytes, bytes]:
        """Return message 2 for every member: one and the same up to FULL_ROSTER_MAX members."""
        if topology.n <= FULL_ROSTER_MAX:
            return dict.fromkeys(topology.ids, FullRoster(self.entries).to_bytes())
        return {device: self._sparse(topology, index).to_bytes() for index, device in enumerate(topology.ids)}

    def _sparse(self, topology: Topology, index: int) -> SparseRoster:
        pairs = tuple(self._proved[i] for i in topology.graph.neighbours(index))
        return SparseRoster(topology.ids, self._proved[index][1], pairs)

    @cached_property
    def _proved(self) -> tuple[tuple[Entry, tuple[bytes, ...]], ...]:
        """All entries with their paths."""
        return tuple((entry, merkle_path(self.levels, index)) for index, entry in enumerate(self.entries))


# The device's side: from a message to checked neighbours


@dataclass(frozen=True)
class RosterView:
    """Device's view of message 2: the topology, its own index, and its neighbours by index."""

    topology: Topology
    index: int
    neighbours: Mapping[int, Peer] = field(repr=False)

    @property
    def binding(self) -> bytes:
        """R of the attempt."""
        return self.topology.binding


def read_roster(message: bytes, config: RoundConfig, own: Entry, verify: VerifyLeaf) -> RosterView:
    """Return the roster in message 2 once everything in it that this device can check holds.

    Raises ViolationError for a roster that is not sorted, repeats a device or key, lacks this device's entry, names
    other neighbours than the graph does, or whose entries are not signed; CohortError for too few devices.
    """
    roster = roster_from_bytes(message)
    is_full = isinstance(roster, FullRoster)
    ids = tuple(entry.id for entry in roster.entries) if isinstance(roster, FullRoster) else roster.ids
    _check_size(len(ids), config, is_full=is_full)
    if any(a >= b for a, b in itertools.pairwise(ids)) or own.id not in ids:
        raise ViolationError("the roster repeats devices, is not in order or leaves this device out; leave this round")
    index = ids.index(own.id)
    if isinstance(roster, FullRoster):
        return _view_full(roster, config, own, index, verify)
    return _view_sparse(roster, config, own, index, verify)


def _check_size(n: int, config: RoundConfig, *, is_full: bool) -> None:
    if n < config.cohort.n_min:
        raise CohortError(f"{n} devices are in the roster, {config.cohort.n_min} are needed; leave, check in again")
    if n > config.cohort.n_max or is_full != (n <= FULL_ROSTER_MAX):
        raise ViolationError(f"a roster of {n} devices is not what this round's configuration allows; leave this round")


def _view_full(roster: FullRoster, config: RoundConfig, own: Entry, index: int, verify: VerifyLeaf) -> RosterView:
    if roster.entries[index] != own:
        raise ViolationError("the roster holds other keys for this device than it announced; leave this round")
    topology = RosterTree.of(roster.entries).topology(config)
    peers = _check_peers({i: e for i, e in enumerate(roster.entries) if i != index}, own, config, verify)
    return RosterView(topology, index, {i: peers[i] for i in topology.graph.neighbours(index)})


def _view_sparse(roster: SparseRoster, config: RoundConfig, own: Entry, index: int, verify: VerifyLeaf) -> RosterView:
    if len(roster.own_path) != tree_depth(len(roster.ids)):
        raise ViolationError("the roster's own path has a wrong length; leave this round")
    root = root_of_path(leaf_hash(index, own.to_bytes()), index, roster.own_path)
    topology = Topology.of(config, roster.ids, root)
    expected = topology.graph.neighbours(index)
    if len(expected) != len(roster.neighbours):
        raise ViolationError("the roster names other neighbours than the graph does; leave this round")
    entries = {}
    for neighbour, (entry, path) in zip(expected, roster.neighbours, strict=True):
        leaf = leaf_hash(neighbour, entry.to_bytes())
        if entry.id != roster.ids[neighbour] or root_of_path(leaf, neighbour, path) != root:
            raise ViolationError("the roster names other neighbours than the graph does; leave this round")
        entries[neighbour] = entry
    return RosterView(topology, index, _check_peers(entries, own, config, verify))


def _check_peers(entries: Mapping[int, Entry], own: Entry, config: RoundConfig, verify: VerifyLeaf) -> dict[int, Peer]:
    keys = [key for entry in (own, *entries.values()) for key in (entry.mask_key, entry.share_key, entry.kem_key)]
    if len(set(keys)) != len(keys):
        raise ViolationError("the roster holds one key twice; leave this round")
    return {i: check_entry(entry, config.sha256, config.suite, verify) for i, entry in entries.items()}
