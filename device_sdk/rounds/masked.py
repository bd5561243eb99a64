"""A device's part in one attempt under secure aggregation: what it answers at each stage, made once.

The protocol is `mien.secagg.DeviceRound`; here it meets what the device holds (task, model, contribution), what its
owner agreed to, and a coordinator that may repeat itself. Keys live in memory only: a device whose process ends after
it began has left the attempt.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from typing import Final

from cryptography.hazmat.primitives.serialization import Encoding

from device_sdk.people.round_terms import SumTerms
from device_sdk.rounds.attempts import DAY_S
from device_sdk.server.identity import Identity
from mien.errors import LateError, ViolationError
from mien.protocol.rounds import RoundRef, Stage
from mien.secagg import (
    AttemptLog,
    ContributionMap,
    DeviceRound,
    EcdsaSigner,
)
from mien.secagg import Identity as SumIdentity
from mien.secagg.device import Left
from mien.secagg.keys import RandomBytes
from mien.secagg.leaves import leaf_verifier
from mien.secagg.noise import check_terms
from mien.secagg.wire import invite_from_bytes
from mien.shell.clock import Clock

STAGES: Final = (Stage.KEYS, Stage.SHARES, Stage.UPLOAD, Stage.CONSISTENCY, Stage.UNMASK)
"""Stages at which a device sends, in order; without the consistency round CONSISTENCY is left out."""

GRACE_S: Final = 60.0
"""Grace after the end of all stages in which a device still answers: servers' and phones' clocks differ."""


@dataclass(frozen=True)
class Upload:
    """Upload of a device: its (masked) vector and, behind that, what the task reveals; `message` is message 5."""

    message: bytes
    data: bytes = field(repr=False)


class PlainPart:
    """A device in a round with plain sums: it has something to say at UPLOAD alone."""

    peers = ""

    def __init__(self, contribution: bytes) -> None:
        self._contribution = contribution

    def answer(self, stage: Stage, _unverified_message: bytes) -> bytes | Upload | None:
        """Return the contribution at UPLOAD, else None."""
        return Upload(b"", self._contribution) if stage is Stage.UPLOAD else None

    def forget(self) -> None:
        """Do nothing: there are no secrets."""


@dataclass(eq=False)
class MaskedPart:
    """One device in one attempt, from message 0 on; call `forget` at its end, whichever that is.

    Each stage is answered once; told the same again, it answers with the same bytes, and told something else it leaves.
    After an error, or the round's deadlines, it answers nothing more. `log`, `min_cohort` and `min_peer_age_s` are the
    owner's: sums so far, the fewest devices of one, and how long ago those that count were admitted; with
    `counts_attested`, younger ones count whose hardware attested their key. `is_revoked` says of a peer's certificate,
    by its serial number, whether the registrar has revoked it.
    """

    identity: Identity = field(repr=False)
    log: AttemptLog = field(repr=False)
    min_cohort: int
    clock: Clock
    random_bytes: RandomBytes = field(repr=False)
    terms: SumTerms = field(repr=False)
    ref: RoundRef
    contribution: bytes = field(repr=False)
    min_peer_age_s: float = 0.0
    counts_attested: bool = False
    is_revoked: Callable[[int], bool] = lambda _serial: False
    _round: DeviceRound | None = field(default=None, init=False)
    _ends_s: float = field(default=math.inf, init=False)
    _answers: dict[Stage, tuple[bytes, bytes | Upload]] = field(default_factory=dict, init=False, repr=False)

    @property
    def peers(self) -> str:
        """By which rule peers counted, as a sentence; empty where the owner asks for no age, and before a roster."""
        found = None if self._round is None else self._round.peers
        if found is None or not self.min_peer_age_s:
            return ""
        days, shared = self.min_peer_age_s / DAY_S, f"Of {found.total} phones that this one shared keys with"
        by_age = f"{shared}, {found.old} counted by {days:.0f} days of age"
        return (
            f"{by_age}, and {found.attested} younger ones by an attested key." if self.counts_attested else f"{by_age}."
        )

    @property
    def is_under_way(self) -> bool:
        """Whether keys went out, or are about to, that only this object can answer for."""
        return self._round is not None and self._round.stage != Left.__name__

    def forget(self) -> None:
        """Destroy the secrets and the answers: this device sends nothing more in this attempt."""
        self._answers.clear()
        if self._round is not None:
            self._round.forget()

    def answer(self, stage: Stage, unverified_message: bytes) -> bytes | Upload | None:
        """Return this device's message of a stage, for UPLOAD with the vector that goes with it; None without a part.

        Raises what `mien.secagg.DeviceRound` raises, ViolationError where the coordinator tells another story than
        before, LateError after the deadlines; the secrets are gone then.
        """
        if not unverified_message or stage not in STAGES:
            return None
        with contextlib.ExitStack() as on_error:
            on_error.callback(self.forget)
            self._check_time()
            digest = hashlib.sha256(unverified_message).digest()
            if stage not in self._answers:
                self._answers[stage] = digest, self._step(stage, unverified_message)
            heard, answer = self._answers[stage]
            if heard != digest:
                raise ViolationError(
                    f"the coordinator told this phone two stories at stage {stage.name.lower()}; leave this round"
                )
            on_error.pop_all()
        return answer

    def _check_time(self) -> None:
        if self.clock.monotonic_s() > self._ends_s:
            raise LateError("the round's deadlines have passed; nothing is lost, check in again")

    def _step(self, stage: Stage, unverified_message: bytes) -> bytes | Upload:
        attempt = self._round
        if attempt is None:
            return self._advertise(stage, unverified_message)
        match stage:
            case Stage.SHARES:
                return attempt.share(unverified_message)
            case Stage.UPLOAD:
                return self._mask(attempt, unverified_message)
            case Stage.UNMASK if attempt.config.cohort.profile.has_consistency_round:
                return attempt.unmask(unverified_message)
            case _:
                return attempt.agree(unverified_message)

    def _advertise(self, stage: Stage, unverified_invite: bytes) -> bytes:
        if stage is not Stage.KEYS:
            raise ViolationError("the coordinator began a private sum without its terms; leave this round")
        self._round = self._begin(unverified_invite)
        self._ends_s = self.clock.monotonic_s() + sum(astuple(self._round.config.deadlines)) + GRACE_S
        return self._round.advertise()

    def _begin(self, unverified_invite: bytes) -> DeviceRound:
        """Return the attempt that message 0 begins, once it was checked; errors as `mien.secagg.DeviceRound`."""
        privacy, identity = self.terms.task.privacy, self.identity
        unverified_config = invite_from_bytes(unverified_invite)
        check_terms(unverified_config, privacy.dp, privacy.l2_clip)
        self.terms.check_numbers(unverified_config, self.ref)
        verify = leaf_verifier(identity.registrar_ca, identity.population, self.clock.now_utc, self.is_revoked)
        return DeviceRound(
            unverified_invite,
            identity=sum_identity(identity),
            assignment=self.terms.assignment(self.ref),
            policy=self.terms.policy(self.min_cohort, self._admitted_by_unix_s(), counts_attested=self.counts_attested),
            verify=verify,
            log=self.log,
            random_bytes=self.random_bytes,
        )

    def _admitted_by_unix_s(self) -> float:
        return self.clock.now() - self.min_peer_age_s if self.min_peer_age_s else math.inf

    def _mask(self, attempt: DeviceRound, unverified_message: bytes) -> Upload:
        layout = self.terms.layout
        addends = ContributionMap(layout).addends(layout.parse(self.contribution))
        masked = attempt.mask(unverified_message, addends, self.terms.task.privacy.dp)
        return Upload(masked.message, masked.payload + self.contribution[4 * layout.summed_size :])


@dataclass
class WaitingKeys:
    """The part in an attempt in whose midst the coordinator went out of reach, in memory alone, for the next call."""

    _part: MaskedPart | None = field(default=None, init=False, repr=False)

    def hold(self, part: MaskedPart) -> None:
        """Hold a part, in place of another one."""
        self.let_go()
        self._part = part

    def take(self, ref: RoundRef) -> MaskedPart | None:
        """Hand over the part in an attempt; None where none waits."""
        if self._part is None or self._part.ref != ref:
            return None
        found, self._part = self._part, None
        return found

    def let_go(self) -> None:
        """Destroy the keys that wait, with what was to be sent under them."""
        if self._part is not None:
            self._part.forget()
        self._part = None


def sum_identity(identity: Identity) -> SumIdentity:
    """Return the device's identity in a private sum: id, leaf certificate and the key that signs."""
    leaf = identity.certificate.public_bytes(Encoding.DER)
    return SumIdentity(bytes.fromhex(identity.device_id), leaf, EcdsaSigner.of(identity.key))
