"""A device's side of one attempt: each step takes the coordinator's message and returns the device's answer.

::

    Invited --advertise--> Advertised --share--> Shared --mask--> Masked --agree--> Agreed --unmask--> Done
        after any error, or `forget`: Left

A device believes nobody. It checks each message against what it knows itself, releases shares once, and never both
shares of one neighbour. Whatever is wrong raises, ends the attempt and destroys its secrets: to a lying server that is
one more drop-out. Keys live in memory only: a device that is restarted has dropped out. What must outlive a restart
(that an attempt was begun, that a vector went out, that shares went out) is told to an `AttemptLog` before it happens.

Chance is drawn in this order: mask key 32, share key 32, KEM seed 64, nonce 32; b 32, coefficients for b, coefficients
for the mask key ((t - 1) * 32 each); what `pipeline` draws. Encapsulation has OpenSSL's own.

Python cannot promise that a secret's bytes are gone from memory; `forget` overwrites what it can and drops the rest.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol, TypeVar

from mien.errors import (
    CohortError,
    ConfigError,
    LateError,
    LayoutMismatchError,
    ModelMismatchError,
    ReplayError,
    ViolationError,
)
from mien.secagg import shamir
from mien.secagg.canonical import members_hash, unpack_members
from mien.secagg.config import AttemptId, RoundConfig
from mien.secagg.graph import CORRUPT, SIGMA, Profile, check_neighbourhood
from mien.secagg.keys import (
    KEM_SEED_BYTES,
    KEY_BYTES,
    NO_PART,
    SHARE_BYTES,
    Encapsulate,
    Identity,
    MaskKey,
    RandomBytes,
    SealingKey,
    VerifyLeaf,
    commitment_b,
    cover,
    encapsulate,
    open_shares,
    pair_seed,
    seal_shares,
    self_seed,
    short,
    verify_signature,
)
from mien.secagg.pipeline import Step, mask, pipeline, run
from mien.secagg.quantise import pack
from mien.secagg.roster import RosterView, read_roster
from mien.secagg.vector import Addends, VectorLayout
from mien.secagg.wire import (
    NONCE_BYTES,
    Advertise,
    Consistency,
    Delivered,
    Entry,
    Proof,
    Sealed,
    ShareKind,
    Shares,
    Survivors,
    Unmask,
    invite_from_bytes,
    statement_advertise,
    statement_consistency,
    statement_masked,
    statement_shares,
)
from mien.secagg.wire import Masked as MaskedMessage
from mien.specs import DpSpec

NO_DP: Final = DpSpec()


@dataclass(frozen=True)
class Assignment:
    """Device's own view of the round: hashes of the task and files that it holds, and the update's size."""

    task_id: bytes
    task_sha256: bytes
    model_sha256: bytes
    layout_sha256: bytes
    statement_sha256: bytes
    size: int
    num_metrics: int


@dataclass(frozen=True)
class DevicePolicy:
    """Owner's policy: the smallest sum, the lowest threshold, which server may be assumed honest.

    `corrupt` is the share of a cohort that may help the server without learning more than the sum, except with
    probability 2^-sigma. Of the others, those count towards `min_cohort` whom the registrar admitted by
    `admitted_by_unix_s`: a coordinator that has phones made for one sum is not helped by them. With `counts_attested`
    younger ones count as well whose hardware attested their key.
    """

    min_cohort: int = 16
    admitted_by_unix_s: float = math.inf
    counts_attested: bool = False
    min_threshold: int = 2
    profiles: frozenset[Profile] = frozenset({Profile.MALICIOUS_SERVER})
    corrupt: float = CORRUPT
    sigma: float = SIGMA


@dataclass(frozen=True)
class PeerCount:
    """Of a device's `total` neighbours, how many counted as old enough, and how many younger ones as attested."""

    total: int
    old: int
    attested: int


class AttemptLog(Protocol):
    """Device's log of attempts, on stable storage before each method returns."""

    def begin(self, config: RoundConfig) -> None:
        """Remember the attempt; raises ReplayError unless it is later than every other of its task.

        Also where a privacy ledger refuses an attempt that its budget does not cover.
        """
        ...

    def record_masked(self, attempt: AttemptId) -> None:
        """Count one more participation: from here on the server may learn a sum with this device in it."""
        ...

    def record_unmasked(self, attempt: AttemptId) -> None:
        """Remember that shares go out; raises ReplayError if they did before."""
        ...


@dataclass
class MemoryLog:
    """An attempt log that lasts as long as the process: for simulations and tests."""

    begun: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    masked: list[AttemptId] = field(default_factory=list)
    unmasked: set[AttemptId] = field(default_factory=set)

    def begin(self, config: RoundConfig) -> None:
        """Remember the attempt."""
        attempt = config.attempt_id
        if attempt.order <= self.begun.get(attempt.task_id, (-1, -1)):
            raise ReplayError(f"round {attempt.round}, attempt {attempt.attempt} is not new here; check in again")
        self.begun[attempt.task_id] = attempt.order

    def record_masked(self, attempt: AttemptId) -> None:
        """Count one more participation."""
        self.masked.append(attempt)

    def record_unmasked(self, attempt: AttemptId) -> None:
        """Remember that shares go out."""
        if attempt in self.unmasked:
            raise ReplayError("this device has released its shares for this attempt; check in again")
        self.unmasked.add(attempt)


@dataclass(frozen=True)
class MaskedInput:
    """Message 5, and the packed vector that is streamed beside it."""

    message: bytes
    payload: bytes = field(repr=False)


# Where a device can be. Each state holds the secrets that are still needed, and no others.


@dataclass(frozen=True)
class Invited:
    """Message 0 was accepted."""


@dataclass(frozen=True)
class Advertised:
    """Fresh keys were announced."""

    own: Entry = field(repr=False)
    mask_key: MaskKey = field(repr=False)
    share_key: SealingKey = field(repr=False)


@dataclass(frozen=True)
class Shared:
    """The neighbours are known and have shares of this device's b and mask key."""

    roster: RosterView = field(repr=False)
    mask_key: MaskKey = field(repr=False)
    share_key: SealingKey = field(repr=False)
    b: bytearray = field(repr=False)


@dataclass(frozen=True)
class Masked:
    """The masked vector is out; own secrets are gone. `held`: neighbours' share_b ‖ share_m, by index."""

    roster: RosterView = field(repr=False)
    sharers: frozenset[int]
    held: dict[int, bytearray] = field(repr=False)
    survivors: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Agreed(Masked):
    """This device has signed whom it was told of."""


@dataclass(frozen=True)
class Done:
    """Shares went out; nothing is left to do and no secret is left."""


@dataclass(frozen=True)
class Left:
    """The device takes no further part in this attempt; no secret is left."""


State = Invited | Advertised | Shared | Masked | Agreed | Done | Left
_S = TypeVar("_S", Invited, Advertised, Shared, Masked, Agreed)


class DeviceRound:
    """Device's side of one attempt of a round; the module's diagram gives the order of calls."""

    def __init__(
        self,
        invite: bytes,
        *,
        identity: Identity,
        assignment: Assignment,
        policy: DevicePolicy,
        verify: VerifyLeaf,
        log: AttemptLog,
        random_bytes: RandomBytes,
        threads: int = 1,
        encapsulate: Encapsulate = encapsulate,
    ) -> None:
        """Check message 0 and begin the attempt.

        Raises ConfigError for terms that the owner has not agreed to, ModelMismatchError, LayoutMismatchError or
        ViolationError for another model, layout or task than the device holds, ReplayError for an attempt that is not
        new.
        """
        self.config = invite_from_bytes(invite)
        _check_invite(self.config, identity, assignment, policy)
        self._identity, self._policy, self._verify = identity, policy, verify
        self._log, self._random_bytes, self._threads = log, random_bytes, threads
        self._encapsulate = encapsulate
        self._state: State = Invited()
        self.peers: PeerCount | None = None
        log.begin(self.config)

    def __repr__(self) -> str:
        return f"DeviceRound({self.config.attempt_id}, {self.stage})"

    @property
    def stage(self) -> str:
        """The name of the state that this device is in."""
        return type(self._state).__name__

    def forget(self) -> None:
        """Destroy the attempt's secrets: no shares leave this device any more. Call it at the deadline."""
        _erase(self._state)
        if not isinstance(self._state, Done):
            self._state = Left()

    # The steps

    def advertise(self) -> bytes:
        """Return message 1: fresh keys and a nonce, signed together with the configuration."""
        with self._step(Invited):
            draw = self._random_bytes
            mask_key, share_key = MaskKey(draw(KEY_BYTES)), SealingKey(draw(KEY_BYTES), draw(KEM_SEED_BYTES))
            keys = mask_key.public, share_key.public, share_key.kem_public
            identity = self._identity
            unsigned = Entry(identity.id, *keys, draw(NONCE_BYTES), b"", identity.certificate)
            signature = identity.signer.sign(statement_advertise(self.config.sha256, unsigned))
            own = replace(unsigned, signature=signature)
            self._state = Advertised(own, mask_key, share_key)
            return Advertise(own).to_bytes()

    def share(self, roster: bytes) -> bytes:
        """Return message 3: for each neighbour, shares of b and the mask key, and its part, sealed for it alone.

        Raises ViolationError for a roster that does not hold, CohortError for one that is too small, ConfigError for a
        graph or threshold below what the owner agreed to.
        """
        with self._step(Advertised) as state:
            view = read_roster(roster, self.config, state.own, self._verify)
            self._check_hood(view)
            self._check_admissions(view)
            b = bytearray(self._random_bytes(KEY_BYTES))
            shares = self._sign_shares(view, self._seal(view, state, b), commitment_b(b, view.binding, state.own.id))
            self._state = Shared(view, state.mask_key, state.share_key, b)
            return shares.to_bytes()

    def mask(self, delivered: bytes, addends: Addends, dp: DpSpec = NO_DP) -> MaskedInput:
        """Return message 5 and the vector: what the pipeline makes of the addends, under this device's masks.

        `dp` is what the task promises; addends that are protected already need none.
        Raises ViolationError for a list of sharers that does not hold, CohortError for too few neighbours in it,
        NonFiniteError for an update with NaN or infinity.
        """
        with self._step(Shared) as state:
            sharers, held, parts = self._open(state, Delivered.from_bytes(delivered, state.roster.topology.n))
            layout = VectorLayout(self.config.size, self.config.num_metrics)
            hide, covers = self._mask(state, sharers, parts)
            steps = pipeline(self.config, dp, state.roster.binding, self._random_bytes, hide)
            vector = run(steps, addends, layout)
            self._log.record_masked(self.config.attempt_id)
            payload = pack(vector, self.config.numbers.ring_bits)
            digest = hashlib.sha256(payload).digest()
            sharers_hash = members_hash(sharers, state.roster.topology.n)
            statement = statement_masked(state.roster.binding, sharers_hash, digest, covers)
            signature = self._identity.signer.sign(statement)
            _erase(state)
            self._state = Masked(state.roster, sharers, held)
            return MaskedInput(MaskedMessage(digest, covers, signature).to_bytes(), payload)

    def agree(self, survivors: bytes) -> bytes:
        """Return message 7: a signature over who shared and who survived, as this device was told.

        Under the honest-but-curious profile there is no such round: the answer is message 9 at once.
        """
        with self._step(Masked) as state:
            topology = state.roster.topology
            told = unpack_members(Survivors.from_bytes(survivors, topology.n).survivors, topology.n)
            self._check_survivors(state, told)
            agreed = Agreed(state.roster, state.sharers, state.held, told)
            if not self.config.cohort.profile.has_consistency_round:
                return self._release(agreed)
            signature = self._identity.signer.sign(_statement(agreed))
            self._state = agreed
            return Consistency(signature).to_bytes()

    def unmask(self, proof: bytes) -> bytes:
        """Return message 9: one share of each neighbour, once enough of them have signed the same lists.

        Raises ViolationError for fewer than t different neighbours' signatures, ReplayError if shares went out before.
        """
        with self._step(Agreed) as state:
            self._check_proof(state, Proof.from_bytes(proof))
            return self._release(state)

    @contextlib.contextmanager
    def _step(self, kind: type[_S]) -> Iterator[_S]:
        """Hand out the state if it is of `kind`; if the step does not lead on to another one, leave the attempt."""
        state = self._state
        if isinstance(state, Done):
            raise ReplayError("this device has released its shares for this attempt; check in again")
        if isinstance(state, Left):
            raise LateError("this device has left this attempt; nothing is lost, check in again")
        if type(state) is not kind:
            self.forget()
            raise ViolationError(
                f"the coordinator skipped or repeated a step ({type(state).__name__}); leave this round"
            )
        try:
            yield state
        finally:
            if self._state is state:
                self.forget()

    # What the steps are made of

    def _check_hood(self, view: RosterView) -> None:
        hood, policy = view.topology.hood, self._policy
        if hood.t < policy.min_threshold:
            raise ConfigError(
                f"{hood.t} devices together could unmask one; this device agrees to {policy.min_threshold} or more"
            )
        profile = self.config.cohort.profile
        check_neighbourhood(profile, view.topology.n, hood, corrupt=policy.corrupt, sigma=policy.sigma)

    def _check_admissions(self, view: RosterView) -> None:
        """Raise CohortError for fewer neighbours whom the owner counts than the floor needs; note how many count."""
        limit, others = self._policy.admitted_by_unix_s, view.neighbours.values()
        needed = min(self._policy.min_cohort - 1, len(others))
        young = [peer for peer in others if peer.admitted_unix_s > limit]
        attested = sum(peer.is_attested for peer in young) if self._policy.counts_attested else 0
        self.peers = PeerCount(len(others), len(others) - len(young), attested)
        found = self.peers.old + attested
        if found < needed:
            attested_too = " or have an attested key" if self._policy.counts_attested else ""
            raise CohortError(
                f"{found} of the {len(others)} phones that this one shares keys with were admitted long enough ago"
                f"{attested_too}, "
                f"{needed} are needed; nothing was sent, this phone waits for another cohort"
            )

    def _seal(self, view: RosterView, state: Advertised, b: bytearray) -> tuple[Sealed, ...]:
        hood = view.topology.hood
        of_b = shamir.split(b, hood.t, hood.k, self._random_bytes)
        of_key = shamir.split(state.mask_key.secret_bytes(), hood.t, hood.k, self._random_bytes)
        sealed = []
        for place, (index, peer) in enumerate(view.neighbours.items()):
            own_id, peer_id = state.own.id, view.topology.ids[index]
            plain = of_b[place] + of_key[place] + state.mask_key.part(view.binding, own_id, peer_id)
            ciphertext = seal_shares(
                state.share_key,
                peer.entry.share_key,
                view.binding,
                own_id,
                peer_id,
                plain,
                encapsulated=self._encapsulate(peer.entry.kem_key, self._random_bytes),
            )
            sealed.append(Sealed(place + 1, ciphertext))
        return tuple(sealed)

    def _sign_shares(self, view: RosterView, sealed: tuple[Sealed, ...], commitment: bytes) -> Shares:
        unsigned = Shares(sealed, commitment, b"")
        signature = self._identity.signer.sign(statement_shares(view.binding, self._identity.id, unsigned))
        return replace(unsigned, signature=signature)

    def _open(self, state: Shared, message: Delivered) -> tuple[frozenset[int], dict[int, bytearray], dict[int, bytes]]:
        """Return the sharers, and the neighbours' shares and parts that open.

        A neighbour's shares that do not open are left out: one device that seals nonsense must not take its neighbours
        out of the round. The server cannot gain by spoiling them: fewer shares open less.
        """
        view = state.roster
        topology = view.topology
        sharers = unpack_members(message.sharers, topology.n)
        present = [index for index in view.neighbours if index in sharers]
        if view.index not in sharers or len(message.sealed) != len(present):
            raise ViolationError("the list of who shared leaves this device or shares for it out; leave this round")
        if len(sharers) < self.config.cohort.n_min or len(present) < topology.hood.t:
            raise CohortError(f"only {len(sharers)} devices shared their keys; nothing was sent, check in again")
        held, parts = {}, {}
        for index, sealed in zip(present, message.sealed, strict=True):
            if sealed.x != topology.graph.share_index(index, view.index):
                raise ViolationError("the coordinator handed over a share under another's index; leave this round")
            opened = self._try_open(state, index, sealed.ciphertext)
            if opened is not None:
                held[index], parts[index] = bytearray(opened[: 2 * SHARE_BYTES]), opened[2 * SHARE_BYTES :]
        if len(held) < topology.hood.t:
            raise ViolationError(f"only {len(held)} neighbours' shares open; leave this round")
        return sharers, held, parts

    def _try_open(self, state: Shared, sender: int, ciphertext: bytes) -> bytes | None:
        view = state.roster
        sender_id, sender_key = view.topology.ids[sender], view.neighbours[sender].entry.share_key
        try:
            return open_shares(state.share_key, sender_key, view.binding, sender_id, self._identity.id, ciphertext)
        except ViolationError:
            return None

    def _mask(
        self, state: Shared, sharers: frozenset[int], parts: Mapping[int, bytes]
    ) -> tuple[Step, tuple[bytes, ...]]:
        """Return the last step and the covers: the own mask, and one for each neighbour that shared; the lower id adds.

        `parts` are the neighbours' whose shares opened. Where none opened, only X25519 stands between the server and
        that one mask, and the sum comes to nothing: both are of the making of who sealed nonsense, or spoiled it.
        """
        view, own_id = state.roster, self._identity.id
        plus, minus, covers = [self_seed(state.b, view.binding, own_id)], list[bytes](), list[bytes]()
        for index in sorted(sharers & view.neighbours.keys()):
            peer_id, part = view.topology.ids[index], parts.get(index, NO_PART)
            is_lower = own_id < peer_id
            if is_lower:
                own_part = state.mask_key.part(view.binding, own_id, peer_id)
                covers.append(cover(own_part, part, view.binding, own_id, peer_id) if index in parts else NO_PART)
                part = own_part
            peer_key = view.neighbours[index].entry.mask_key
            seed = pair_seed(state.mask_key, peer_key, part, view.binding, own_id, peer_id)
            (plus if is_lower else minus).append(seed)
        return partial(mask, plus=plus, minus=minus, threads=self._threads), tuple(covers)

    def _check_survivors(self, state: Masked, survivors: frozenset[int]) -> None:
        view, hood = state.roster, state.roster.topology.hood
        if not survivors <= state.sharers or view.index not in survivors:
            raise ViolationError("the list of survivors names strangers or leaves this device out; leave this round")
        least = max(self.config.cohort.n_min, hood.t)
        if len(survivors) < least or len(survivors & view.neighbours.keys()) < hood.t:
            raise CohortError(
                f"the sum would hold {len(survivors)} devices, {least} are needed; nothing was released, check in again"
            )

    def _check_proof(self, state: Agreed, proof: Proof) -> None:
        view, topology = state.roster, state.roster.topology
        statement = _statement(state)
        signers = {topology.index_of.get(device, -1) for device, _ in proof.signatures}
        allowed = state.survivors & view.neighbours.keys()
        if len(signers) != len(proof.signatures) or not signers <= allowed or len(signers) < topology.hood.t:
            raise ViolationError(
                f"{len(signers & allowed)} neighbours have signed the list of survivors, {topology.hood.t} are needed; "
                "nothing was released, leave this round"
            )
        for device, signature in proof.signatures:
            peer = view.neighbours[topology.index_of[device]]
            what = f"the list of survivors of device {short(device)}"
            verify_signature(self.config.suite, peer.public_key, statement, signature, what=what)

    def _release(self, state: Agreed) -> bytes:
        self._log.record_unmasked(self.config.attempt_id)
        message = Unmask(tuple(_released(state))).to_bytes()
        _erase(state)
        self._state = Done()
        return message


def _statement(state: Agreed) -> bytes:
    """Return the bytes that this device signs of the sharers and survivors that it was told of."""
    n, binding = state.roster.topology.n, state.roster.binding
    return statement_consistency(binding, members_hash(state.sharers, n), members_hash(state.survivors, n))


def _released(state: Agreed) -> Iterator[tuple[ShareKind, bytes]]:
    """Yield one share of each neighbour that shared: of its b if it survived, of its mask key if not."""
    for index in sorted(state.sharers & state.roster.neighbours.keys()):
        if index not in state.held:
            yield ShareKind.NONE, bytes(SHARE_BYTES)
        elif index in state.survivors:
            yield ShareKind.SELF_MASK, bytes(state.held[index][:SHARE_BYTES])
        else:
            yield ShareKind.PAIR_KEY, bytes(state.held[index][SHARE_BYTES:])


def _erase(state: State) -> None:
    secrets: Iterable[bytearray] = ()
    if isinstance(state, Shared):
        secrets = [state.b]
    elif isinstance(state, Masked):
        secrets = list(state.held.values())
    for secret in secrets:
        secret[:] = bytes(len(secret))
    if isinstance(state, Masked):
        state.held.clear()


def _check_invite(config: RoundConfig, identity: Identity, assignment: Assignment, policy: DevicePolicy) -> None:
    cohort = config.cohort
    if cohort.profile not in policy.profiles:
        raise ConfigError(
            f"this round assumes the profile {cohort.profile.name.lower()}, which this device has not agreed to; "
            "take part in rounds with the malicious-server profile, or agree to the other one"
        )
    if cohort.n_min < policy.min_cohort:
        raise ConfigError(
            f"this round opens sums over {cohort.n_min} devices; this device agrees to {policy.min_cohort} or more"
        )
    if config.suite is not identity.signer.suite:
        raise ConfigError(f"this round signs with {config.suite.name}, this device's key does not; join again")
    if (config.task_id, config.task_sha256) != (assignment.task_id, assignment.task_sha256):
        raise ViolationError("the round's private sum is for another task than this device was given; leave this round")
    if (config.model_sha256, config.statement_sha256) != (assignment.model_sha256, assignment.statement_sha256):
        raise ModelMismatchError(
            "the round is for another model or graph than this device holds; fetch the model again"
        )
    expected = (assignment.layout_sha256, assignment.size, assignment.num_metrics)
    if (config.layout_sha256, config.size, config.num_metrics) != expected:
        raise LayoutMismatchError("the round adds up other lanes than this device makes; use the assigned model")
