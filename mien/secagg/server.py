"""The server's side of one attempt: it passes messages on, adds masked vectors up, and opens nothing but the sum.

::

    KEYS --close_keys--> SHARES --close_shares--> UPLOAD --close_upload--> CONSISTENCY --close_consistency--> UNMASK
        --open--> the sum            (the honest-but-curious profile goes from UPLOAD to UNMASK)

`accept_*` takes one device's message and raises without having changed anything if it does not hold; the same bytes
again are welcome, other bytes are a ReplayError, a stage that has passed is a LateError. `close_*` ends a stage and
returns what to tell the devices, or raises CohortError where too few are left: then nothing was or can be opened.

The server holds no secret and draws no chance: the same messages in the same order make the same state, so that after a
crash it is rebuilt from what was stored. Its memory is one vector, whatever the size of the cohort: a masked vector is
added when it is complete and proved, and not kept. Where several machines take vectors in, each adds up those that it
holds (`Elsewhere`), and hands over their sum before the round's is opened (`add_sum`).
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from mien.errors import CohortError, CorruptDataError, LateError, NotFoundError, ReplayError, ViolationError
from mien.secagg import shamir
from mien.secagg.canonical import members_hash, pack_members
from mien.secagg.config import RoundConfig
from mien.secagg.keys import (
    MaskKey,
    VerifyLeaf,
    check_agreement_key,
    commitment_b,
    cover,
    kem_key,
    pair_seed,
    self_seed,
    short,
    verify_signature,
)
from mien.secagg.masks import Words, add_masks
from mien.secagg.quantise import add_packed, packed_size
from mien.secagg.quorum import able_to_share, first_lack, proof_of, secrets_needed
from mien.secagg.roster import Peer, RosterTree, Topology, check_entry
from mien.secagg.vector import OpenedSum, VectorLayout, check_norm, decode
from mien.secagg.wire import (
    Advertise,
    Consistency,
    Delivered,
    Masked,
    Proof,
    Sealed,
    ShareKind,
    Shares,
    Survivors,
    Unmask,
    invite_to_bytes,
    statement_consistency,
    statement_masked,
    statement_shares,
)


class ServerStage(enum.IntEnum):
    """Stage of the server: the messages that it is waiting for."""

    KEYS = 0
    SHARES = 1
    UPLOAD = 2
    CONSISTENCY = 3
    UNMASK = 4


@dataclass(frozen=True)
class Suspect:
    """A share that did not fit: `holder` returned it, `owner` had made it; one of the two is at fault (ids)."""

    holder: bytes
    owner: bytes


@dataclass(frozen=True)
class Elsewhere:
    """A whole masked vector that another machine of the server holds, by the hash that it was checked against there."""

    sha256: bytes
    size_bytes: int


@dataclass(frozen=True)
class Opening:
    """The sum, whose vectors it holds, and which shares did not fit on the way."""

    sum: OpenedSum
    survivors: tuple[bytes, ...]
    suspects: tuple[Suspect, ...]


class ServerRound:
    """The server in one attempt of a round; the module's diagram gives the order of calls. Senders are 16-byte ids."""

    def __init__(self, config: RoundConfig, *, verify: VerifyLeaf, threads: int = 1) -> None:
        self.config = config
        self.stage = ServerStage.KEYS
        self._verify, self._threads = verify, threads
        self._layout = VectorLayout(config.size, config.num_metrics)
        self._accepted: dict[tuple[ServerStage, bytes], bytes] = {}
        self._peers: dict[bytes, Peer] = {}
        self._taken: set[bytes] = set()
        self._fixed_topology: Topology | None = None
        self._sealed: dict[int, tuple[Sealed, ...]] = {}
        self._commitments: dict[int, bytes] = {}
        self._sharers_hash = b""
        self._covers: dict[int, dict[int, bytes]] = {}
        self._total: Words = np.zeros(0, np.uint32)
        self._masked: set[int] = set()
        self._elsewhere: set[int] = set()
        self._consistency_statement = b""
        self._signatures: dict[int, bytes] = {}
        self._released: dict[int, dict[int, bytes]] = {}

    def __repr__(self) -> str:
        return f"ServerRound({self.config.attempt_id}, {self.stage.name})"

    @property
    def invite(self) -> bytes:
        """Message 0, for every device."""
        return invite_to_bytes(self.config)

    @property
    def payload_bytes(self) -> int:
        """The length of a packed masked vector."""
        return packed_size(self._layout.num_words, self.config.numbers.ring_bits)

    @property
    def topology(self) -> Topology:
        """The members and the graph; raises ViolationError while keys are still collected."""
        if self._fixed_topology is None:
            raise ViolationError("this step comes before the roster is closed; wait for the roster")
        return self._fixed_topology

    def reported(self, stage: ServerStage) -> frozenset[bytes]:
        """Return the ids of the devices whose message of `stage` was accepted."""
        return frozenset(sender for at, sender in self._accepted if at is stage)

    # KEYS: messages 1 and 2

    def accept_advertise(self, sender: bytes, message: bytes) -> None:
        """Accept a device's keys.

        Raises ViolationError or an AuthError for keys that are not the sender's, of small order or taken, and LateError
        when the roster is full.
        """
        if not self._is_new(ServerStage.KEYS, sender, message):
            return
        entry = Advertise.from_bytes(message).entry
        if entry.id != sender:
            raise ViolationError(f"device {short(sender)} sent keys of another device; they were not counted")
        if len(self._peers) == self.config.cohort.n_max:
            raise LateError("the round has all the devices it needs; nothing is lost, check in again")
        keys = {entry.mask_key, entry.share_key, entry.kem_key}
        if len(keys) < 3 or keys & self._taken:
            raise ViolationError(f"device {short(sender)} sent a key that is in use; make fresh keys")
        check_agreement_key(entry.mask_key)
        check_agreement_key(entry.share_key)
        kem_key(entry.kem_key)
        self._peers[sender] = check_entry(entry, self.config.sha256, self.config.suite, self._verify)
        self._taken |= keys
        self._accept(ServerStage.KEYS, sender, message)

    def close_keys(self) -> dict[bytes, bytes]:
        """Close the roster; return message 2 for each of its devices."""
        self._require(ServerStage.KEYS)
        if len(self._peers) < self.config.cohort.n_min:
            raise self._too_few("sent keys", len(self._peers))
        tree = RosterTree.of([peer.entry for peer in self._peers.values()])
        self._fixed_topology = topology = tree.topology(self.config)
        self.stage = ServerStage.SHARES
        return tree.messages(topology)

    # SHARES: messages 3 and 4

    def accept_shares(self, sender: bytes, message: bytes) -> None:
        """Accept a device's sealed shares; raises ViolationError unless it is one pair for each neighbour, signed."""
        if not self._is_new(ServerStage.SHARES, sender, message):
            return
        index, shares = self._member(sender), Shares.from_bytes(message)
        if [sealed.x for sealed in shares.sealed] != list(range(1, self.topology.hood.k + 1)):
            raise ViolationError(f"device {short(sender)} did not send one share for each neighbour; not counted")
        statement = statement_shares(self.topology.binding, sender, shares)
        self._verify_signature(sender, statement, shares.signature, "the shares")
        self._sealed[index], self._commitments[index] = shares.sealed, shares.commitment_b
        self._accept(ServerStage.SHARES, sender, message)

    def close_shares(self) -> dict[bytes, bytes]:
        """Close the set of sharers U2; return message 4 for each of them."""
        self._require(ServerStage.SHARES)
        topology, sharers = self.topology, frozenset(self._sealed)
        able = able_to_share(topology.graph, topology.hood, sharers)
        if len(able) < self.config.cohort.n_min:
            raise self._too_few("shared their keys with enough neighbours", len(able))
        bits = pack_members(sharers, topology.n)
        messages = {topology.ids[i]: Delivered(bits, tuple(self._sealed_for(i))).to_bytes() for i in sharers}
        self._sealed = {}  # delivered: the shells keep the messages, the server needs only the commitments
        self._sharers_hash = members_hash(sharers, topology.n)
        self._total = np.zeros(self._layout.num_words, np.uint32)
        self.stage = ServerStage.UPLOAD
        return messages

    def _sealed_for(self, holder: int) -> Iterator[Sealed]:
        graph = self.topology.graph
        for owner in graph.neighbours(holder):
            if owner in self._sealed:
                yield self._sealed[owner][graph.share_index(owner, holder) - 1]

    # UPLOAD: messages 5 and 6

    def accept_masked(self, sender: bytes, message: bytes, payload: bytes | memoryview | Elsewhere) -> None:
        """Add a complete masked vector to the sum; one that is held elsewhere counts, and is added by `add_sum`.

        Raises CorruptDataError for other bytes than the message's hash says or another length, ViolationError for a
        signature that does not hold or covers another list of sharers; the sum is then as it was.
        """
        if not self._is_new(ServerStage.UPLOAD, sender, message):
            return
        index, masked = self._member(sender), Masked.from_bytes(message)
        if index not in self._commitments:
            raise ViolationError(f"device {short(sender)} sent a vector without having shared its keys; not counted")
        found = payload if isinstance(payload, Elsewhere) else Elsewhere(hashlib.sha256(payload).digest(), len(payload))
        if found != Elsewhere(masked.payload_sha256, self.payload_bytes):
            raise CorruptDataError(f"the vector of device {short(sender)} is not complete; send it again")
        covered = self._covered(index)
        if len(masked.covers) != len(covered):
            raise ViolationError(f"device {short(sender)} did not send one cover for each neighbour; not counted")
        statement = statement_masked(self.topology.binding, self._sharers_hash, masked.payload_sha256, masked.covers)
        self._verify_signature(sender, statement, masked.signature, "the masked vector")
        if isinstance(payload, Elsewhere):
            self._elsewhere.add(index)
        else:
            add_packed(self._total, payload, self.config.numbers.ring_bits)
        self._masked.add(index)
        self._covers[index] = dict(zip(covered, masked.covers, strict=True))
        self._accept(ServerStage.UPLOAD, sender, message)

    def _covered(self, index: int) -> list[int]:
        """Return the neighbours that shared and have higher ids: those for which a device's parts are covered."""
        return [peer for peer in self.topology.graph.neighbours(index) if peer > index and peer in self._commitments]

    @property
    def elsewhere(self) -> frozenset[bytes]:
        """The ids of the devices whose vectors count and are not in the sum yet."""
        return frozenset(self.topology.ids[index] for index in self._elsewhere)

    def add_sum(self, senders: Collection[bytes], words: Words) -> None:
        """Add the sum (mod 2^32) of vectors that are held elsewhere; each of them once.

        Raises ViolationError for a device that is not waited for, CorruptDataError for another length.
        """
        if not self.elsewhere.issuperset(senders) or len(set(senders)) != len(senders):
            raise ViolationError("a sum holds vectors that are not waited for, or one of them twice; it was not added")
        if words.shape != self._total.shape or words.dtype != np.uint32:
            raise CorruptDataError("a sum of masked vectors is not of the round's length; ask for it again")
        np.add(self._total, words, out=self._total)
        self._elsewhere -= {self.topology.index_of[sender] for sender in senders}

    def close_upload(self) -> bytes:
        """Close the set of survivors U3; return message 6, for each of them."""
        self._require(ServerStage.UPLOAD)
        survivors = frozenset(self._masked)
        if len(survivors) < self.config.cohort.n_min:
            raise self._too_few("sent their vectors", len(survivors))
        self._require_holders(survivors)
        survivors_hash = members_hash(survivors, self.topology.n)
        self._consistency_statement = statement_consistency(self.topology.binding, self._sharers_hash, survivors_hash)
        has_consistency = self.config.cohort.profile.has_consistency_round
        self.stage = ServerStage.CONSISTENCY if has_consistency else ServerStage.UNMASK
        return Survivors(pack_members(survivors, self.topology.n)).to_bytes()

    # CONSISTENCY: messages 7 and 8

    def accept_consistency(self, sender: bytes, message: bytes) -> None:
        """Accept a survivor's signature; raises ViolationError unless it covers these very sharers and survivors."""
        if not self._is_new(ServerStage.CONSISTENCY, sender, message):
            return
        index, signature = self._survivor(sender), Consistency.from_bytes(message).signature
        self._verify_signature(sender, self._consistency_statement, signature, "the list of survivors")
        self._signatures[index] = signature
        self._accept(ServerStage.CONSISTENCY, sender, message)

    def close_consistency(self) -> dict[bytes, bytes]:
        """Return message 8 for each survivor that signed and has t neighbours that did."""
        self._require(ServerStage.CONSISTENCY)
        topology, proofs = self.topology, {}
        for index in sorted(self._signatures):
            signers = proof_of(topology.graph, topology.hood, index, self._signatures)
            if signers is not None:
                pairs = tuple((topology.ids[i], self._signatures[i]) for i in signers)
                proofs[topology.ids[index]] = Proof(pairs).to_bytes()
        self._require_holders(frozenset(topology.index_of[device] for device in proofs))
        self.stage = ServerStage.UNMASK
        return proofs

    # UNMASK: message 9 and the sum

    def accept_unmask(self, sender: bytes, message: bytes) -> None:
        """Accept the shares that a survivor releases; raises ViolationError for other kinds than were asked for."""
        if not self._is_new(ServerStage.UNMASK, sender, message):
            return
        index, released = self._survivor(sender), Unmask.from_bytes(message)
        owners = [i for i in self.topology.graph.neighbours(index) if i in self._commitments]
        asked = [ShareKind.SELF_MASK if owner in self._masked else ShareKind.PAIR_KEY for owner in owners]
        given = [kind for kind, _ in released.shares]
        if len(given) != len(asked) or any(g not in (a, ShareKind.NONE) for g, a in zip(given, asked, strict=True)):
            raise ViolationError(f"device {short(sender)} released other shares than were asked for; not counted")
        pairs = zip(owners, released.shares, strict=True)
        self._released[index] = {owner: share for owner, (kind, share) in pairs if kind is not ShareKind.NONE}
        self._accept(ServerStage.UNMASK, sender, message)

    @property
    def can_open(self) -> bool:
        """True if enough shares of every secret are there."""
        if self.stage is not ServerStage.UNMASK:
            return False
        return all(len(self._shares_of(owner)) >= self.topology.hood.t for owner in self._secrets_needed())

    def open(self, noise_allowance: float = 0.0) -> Opening:
        """Return the sum over the survivors; may be called again, with the same result.

        `noise_allowance` is how far devices' own noise may take the sum's norm beyond what clipped updates reach.
        Raises CohortError while a secret has fewer than t shares, CorruptDataError where so many shares are wrong that
        no t of those tried fit, or where the sum fails its checks.
        """
        self._require(ServerStage.UNMASK)
        if self._elsewhere:
            raise ViolationError(f"{len(self._elsewhere)} vectors are not in the sum yet; add them, then open it")
        plus, minus, suspects = self._mask_seeds()
        total = self._total.copy()
        add_masks(total, plus, minus, threads=self._threads)
        numbers = self.config.numbers
        opened = decode(total, self._layout, numbers, self.topology.binding, len(self._masked))
        check_norm(opened, numbers, noise_allowance)
        return Opening(opened, tuple(self.topology.ids[i] for i in sorted(self._masked)), tuple(suspects))

    def _mask_seeds(self) -> tuple[list[bytes], list[bytes], list[Suspect]]:
        """Return the seeds of masks to add and to subtract, and the shares that did not fit."""
        topology, plus, minus, suspects = self.topology, list[bytes](), list[bytes](), list[Suspect]()
        for owner in self._secrets_needed():
            secret, owner_id = self._recover(owner, suspects), topology.ids[owner]
            if owner in self._masked:
                minus.append(self_seed(secret, topology.binding, owner_id))
                continue
            key = MaskKey(secret)
            for index in topology.graph.neighbours(owner):
                if index in self._masked:
                    peer_id = topology.ids[index]
                    peer_key = self._peers[peer_id].entry.mask_key
                    part = key.part(topology.binding, owner_id, peer_id)
                    if peer_id < owner_id:
                        part = cover(self._covers[index][owner], part, topology.binding, peer_id, owner_id)
                    seed = pair_seed(key, peer_key, part, topology.binding, owner_id, peer_id)
                    # A survivor with the lower id had added this mask, one with the higher id subtracted it.
                    (minus if peer_id < owner_id else plus).append(seed)
        return plus, minus, suspects

    def _recover(self, owner: int, suspects: list[Suspect]) -> bytes:
        """Return a survivor's b or a lost device's mask key; shares of holders that failed before come last."""
        topology, owner_id = self.topology, self.topology.ids[owner]
        failed = {suspect.holder for suspect in suspects}
        shares = self._shares_of(owner)
        holders = sorted(shares, key=lambda holder: topology.ids[holder] in failed)
        by_x = {topology.graph.share_index(owner, holder): shares[holder] for holder in holders}
        if len(by_x) < topology.hood.t:
            raise CohortError(
                f"{len(by_x)} shares of device {short(owner_id)} are there, {topology.hood.t} are needed; "
                "nothing was opened, the round is repeated"
            )
        recovered = shamir.recover(by_x, topology.hood.t, lambda secret: self._fits(owner, secret))
        if recovered is None:
            raise CorruptDataError(
                f"too many shares of device {short(owner_id)} are wrong; nothing was opened, the round is repeated"
            )
        neighbours = topology.graph.neighbours(owner)
        suspects += [Suspect(topology.ids[neighbours[x - 1]], owner_id) for x in sorted(recovered.wrong)]
        return recovered.secret

    def _fits(self, owner: int, secret: bytes) -> bool:
        """Return whether a combined secret is the one that its owner had announced."""
        owner_id = self.topology.ids[owner]
        if owner in self._masked:
            return commitment_b(secret, self.topology.binding, owner_id) == self._commitments[owner]
        return MaskKey(secret).public == self._peers[owner_id].entry.mask_key

    # Bookkeeping

    def _secrets_needed(self) -> list[int]:
        """Return the members of which one secret is needed: survivors, and sharers that were lost beside a survivor."""
        return secrets_needed(self.topology.graph, self._commitments, self._masked)

    def _shares_of(self, owner: int) -> dict[int, bytes]:
        """Return the usable shares of a member's secret, by holder."""
        holders = [i for i in self.topology.graph.neighbours(owner) if owner in self._released.get(i, ())]
        return {holder: self._released[holder][owner] for holder in holders}

    def _require_holders(self, holders: frozenset[int]) -> None:
        """Raise CohortError unless each secret that will be needed has t holders among `holders`."""
        topology = self.topology
        lack = first_lack(topology.graph, topology.hood, self._secrets_needed(), holders)
        if lack is not None:
            raise CohortError(
                f"{lack.holders} devices are left that hold shares of device {short(topology.ids[lack.owner])}, "
                f"{topology.hood.t} are needed; nothing was opened, the round is repeated"
            )

    def _too_few(self, what: str, number: int) -> CohortError:
        return CohortError(
            f"{number} devices {what}, {self.config.cohort.n_min} are needed; nothing was opened, the round is repeated"
        )

    def _is_new(self, stage: ServerStage, sender: bytes, message: bytes) -> bool:
        """Return False for a message that was accepted before; raise unless a new one is due."""
        accepted = self._accepted.get((stage, sender))
        if accepted == hashlib.sha256(message).digest():
            return False
        if accepted is not None:
            raise ReplayError(f"device {short(sender)} sent this step again with other bytes; the first ones count")
        if self.stage > stage:
            raise LateError("this stage of the round is over; nothing is lost, check in again")
        if self.stage < stage:
            raise ViolationError(f"device {short(sender)} is ahead of the round; wait for the coordinator's message")
        return True

    def _accept(self, stage: ServerStage, sender: bytes, message: bytes) -> None:
        self._accepted[stage, sender] = hashlib.sha256(message).digest()

    def _require(self, stage: ServerStage) -> None:
        if self.stage is not stage:
            raise ViolationError(f"the round is at {self.stage.name.lower()}, not at {stage.name.lower()}")

    def _member(self, sender: bytes) -> int:
        index = self.topology.index_of.get(sender)
        if index is None:
            raise NotFoundError(f"device {short(sender)} is not in this round; nothing is lost, check in again")
        return index

    def _survivor(self, sender: bytes) -> int:
        index = self._member(sender)
        if index not in self._masked:
            raise LateError("the sum was closed without this device's vector; nothing is lost, check in again")
        return index

    def _verify_signature(self, sender: bytes, statement: bytes, signature: bytes, what: str) -> None:
        key = self._peers[sender].public_key
        verify_signature(self.config.suite, key, statement, signature, what=f"{what} of device {short(sender)}")
