"""The log of rounds while the coordinator runs: the registrar cosigns its checkpoints, and phones get proofs.

Further witnesses, where the operator has any, are asked together once the registrar has signed. One that is away holds
one checkpoint up for the few seconds of a call. From then on it is asked beside, and nobody waits for it: checkpoints
are kept without its cosignature, and the newest is signed anew by all as soon as it answers.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

import sqlalchemy as sa
import structlog

from coordinator.keys import pki
from coordinator.keys.note_keys import log_signer, vouch
from coordinator.operator.witness_client import add_checkpoint
from coordinator.rounds.pulse import Pulse
from coordinator.store import round_log
from coordinator.store.round_log import LoggedEntry, LogHead
from coordinator.store.store import Store
from coordinator.store.thread import Grouped, StoreThread
from mien.errors import MienError, NotFoundError, TransparencyError
from mien.log.checkpoints import Checkpoint, Note, Signature
from mien.log.entries import certificate_entry
from mien.log.witnesses import AddCheckpoint, WitnessAddress
from mien.protocol.v1 import registrar_pb2
from mien.shell.backoff import Backoff
from mien.shell.clock import Clock

Cosigner: TypeAlias = Callable[[registrar_pb2.CosignRequest], Awaitable[registrar_pb2.CosignReply]]
"""Asks the registrar."""

WitnessCall: TypeAlias = Callable[[WitnessAddress, AddCheckpoint], Awaitable[bytes | int]]
"""Asks a further witness: `coordinator.operator.witness_client.add_checkpoint`."""

HOLD_S: Final = 10.0
"""How long a phone's question is held while the registrar has not answered."""

_LOG: Final = structlog.get_logger()
_RETRY_S: Final = 1.0
_WITNESS_RETRY_S: Final = 5.0
_KEPT_PROOFS: Final = 64
_REFRESH_S: Final = 300.0
"""A checkpoint is kept anew at that age, so that phones see that the registrar goes on watching."""


@dataclass(frozen=True)
class EntryProof:
    """The proof that the log holds an entry, which is there for a release alone: see `ProveRoundReply`."""

    checkpoint: str
    position: int
    inclusion: list[bytes] = field(repr=False)
    consistency: list[bytes] = field(repr=False)
    entry: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class _Wanted:
    """A question about the log: how its entry is found, and how many entries the phone saw."""

    find: Callable[..., int | LoggedEntry | None]
    args: tuple[str | None, ...]
    first_size: int


class _NoProof(enum.Enum):
    """Why there is none: no entry, or no cosigned checkpoint that has it yet.

    Answers, not errors: one that a question of a group raised would have every other one of it asked again alone.
    """

    NO_ENTRY = enum.auto()
    NOT_YET = enum.auto()


@dataclass
class _Silent:
    """A witness that did not cosign last time: why, when it is asked again, and the call that runs."""

    pauses: Backoff = field(default_factory=lambda: Backoff(_WITNESS_RETRY_S))
    reason: str = ""
    ask_at_s: float = 0.0
    call: asyncio.Task[None] | None = None


class LogKeeper:
    """Keeps the log's newest checkpoint cosigned; without a `cosigner` it is signed by the log alone.

    `witnesses` are asked as well, by `ask_witness`.
    """

    def __init__(
        self,
        store: Store,
        thread: StoreThread,
        authority: pki.Authority,
        clock: Clock,
        cosigner: Cosigner | None,
        witnesses: Sequence[WitnessAddress] = (),
        ask_witness: WitnessCall = add_checkpoint,
    ) -> None:
        self._witnesses, self._ask_witness = tuple(witnesses), ask_witness
        self._sizes: dict[str, int] = {}
        self._silent: dict[str, _Silent] = {}
        self._store, self._thread, self._clock, self._cosigner = store, thread, clock, cosigner
        self._signer = log_signer(authority)
        self._vouched = vouch(authority, self.public_key)
        self._proofs: dict[tuple[int, ...], tuple[list[bytes], list[bytes]]] = {}
        self._own = -1, ""
        self._ask = Grouped(thread, self._answers)
        self._wanted, self._cosigned = Pulse(), Pulse()
        self._witnessed: int | None = None
        self._kept_at = float("-inf")
        self._failing = ""

    @property
    def public_key(self) -> bytes:
        """The log's Ed25519 key."""
        return self._signer.key.public

    async def run(self, every_s: float) -> None:
        """Have new entries cosigned as soon as a phone asks for them, and look for certificates every so often."""
        if self._cosigner is None:
            return
        try:
            await self._run(self._cosigner, every_s)
        finally:
            for silent in self._silent.values():
                if silent.call is not None:
                    silent.call.cancel()

    async def _run(self, cosigner: Cosigner, every_s: float) -> None:
        while True:
            count = self._wanted.count
            try:
                while await self.cosign(cosigner):
                    pass
            except MienError as error:
                if error.message != self._failing:
                    log = _LOG.error if isinstance(error, TransparencyError) else _LOG.warning
                    log("checkpoint not cosigned; phones wait for it", error=error.code, reason=error.message)
                self._failing = error.message
                await asyncio.sleep(min(_RETRY_S, every_s))
            else:
                self._failing = ""
            await self._wanted.after(count, min(every_s, _WITNESS_RETRY_S) if self._silent else every_s)

    async def cosign(self, cosigner: Cosigner) -> bool:
        """Have the log as it is now cosigned; return whether more is to be done at once."""
        head, note, proof = await self._thread.run(self._store.round_log, self._due)
        request = registrar_pb2.CosignRequest(
            checkpoint=str(note),
            log_key=self.public_key,
            log_key_signature=self._vouched,
            old_size=self._old_size(head),
            consistency=proof,
            certificates_after=head.certificates_after,
        )
        reply = await cosigner(request)
        if not reply.cosigned:
            self._witnessed = reply.size
            return True
        if Note.parse(reply.cosigned).text != note.text:
            raise TransparencyError("the registrar cosigned another checkpoint than it was asked to; look at its log")
        self._witnessed = head.size
        signed = Note.parse(reply.cosigned)
        lines = await asyncio.gather(*(self._further(witness, head.size, note) for witness in self._witnesses))
        return await self._keep(head, signed.with_signatures(*(line for some in lines for line in some)), reply)

    async def _further(self, witness: WitnessAddress, size: int, note: Note) -> tuple[Signature, ...]:
        """Return a further witness's cosignature; none where it gives none, or gave none last time."""
        silent = self._silent.get(witness.key.name)
        if silent is not None:
            if silent.call is None and self._clock.monotonic_s() >= silent.ask_at_s:
                silent.call = asyncio.create_task(self._ask_again(witness, size, note))
            return ()
        try:
            return (await self._signed_by(witness, size, note),)
        except MienError as error:
            self._note_silent(witness, error)
            return ()

    async def _ask_again(self, witness: WitnessAddress, size: int, note: Note) -> None:
        """Ask one that was silent; once it answers, have the newest checkpoint signed by all of them."""
        try:
            await self._signed_by(witness, size, note)
        except MienError as error:
            self._note_silent(witness, error)
        else:
            del self._silent[witness.key.name]
            self._wanted.beat()

    def _note_silent(self, witness: WitnessAddress, error: MienError) -> None:
        """Remember when to ask a witness again; its reason is logged once."""
        silent = self._silent.setdefault(witness.key.name, _Silent())
        if silent.reason != error.message:
            _LOG.warning("a witness did not cosign the checkpoint", error=error.code, reason=error.message)
        silent.reason, silent.call = error.message, None
        silent.ask_at_s = self._clock.monotonic_s() + silent.pauses.next_s()

    async def _signed_by(self, witness: WitnessAddress, size: int, note: Note) -> Signature:
        for _ in range(2):
            old = self._sizes.get(witness.key.name, 0)
            proof = tuple(await self._log(round_log.prove_consistency, old, size))
            answer = await self._ask_witness(witness, AddCheckpoint(old, proof, str(note)))
            if isinstance(answer, bytes):
                signature = witness.signed(answer, note.text)
                self._sizes[witness.key.name] = size
                return signature
            if answer > size:
                raise TransparencyError(
                    f"the witness {witness.key.name} has cosigned {answer} entries of this log, which has {size}; "
                    "where no other replica was faster, restore the newest copy of the database"
                )
            self._sizes[witness.key.name] = answer
        raise TransparencyError(
            f"the witness {witness.key.name} does not say twice what it signed last; ask who runs it"
        )

    async def prove(self, subject: str, first_size: int, limit_s: float) -> EntryProof:
        """Return the proof of a round's statement for a phone that saw `first_size` entries; held until it is cosigned.

        Raises NotFoundError where the log has no statement of the round.
        """
        lacking = "the log holds no statement of this round; it began before there was a log"
        return await self._prove(_Wanted(round_log.position_of, ("round", subject), first_size), limit_s, lacking)

    async def prove_release(self, model_id: str, population: str | None, first_size: int, limit_s: float) -> EntryProof:
        """Return the proof of a model's newest release to a population, or to all, in the same way.

        Raises NotFoundError where the log has no such release.
        """
        lacking = "the log holds no release of this model to this device's population"
        return await self._prove(_Wanted(round_log.release_of, (model_id, population), first_size), limit_s, lacking)

    async def _prove(self, wanted: _Wanted, limit_s: float, lacking: str) -> EntryProof:
        ends = self._clock.monotonic_s() + limit_s
        while True:
            left_s, count = ends - self._clock.monotonic_s(), self._cosigned.count
            is_last = self._cosigner is None or left_s <= 0
            answer = await self._ask((wanted, is_last))
            if answer is _NoProof.NO_ENTRY:
                raise NotFoundError(lacking)
            if isinstance(answer, EntryProof):
                return answer
            self._wanted.beat()
            await self._cosigned.after(count, left_s)

    def _answers(self, asked: Sequence[tuple[_Wanted, bool]]) -> list[EntryProof | _NoProof]:
        """Return the proofs that phones ask for at the same time, most of them one round's, by one transaction."""

        def answers(db: sa.Connection) -> list[EntryProof | _NoProof]:
            head = round_log.read_head(db)
            found = {each: self._answer(db, head, *each) for each in set(asked)}
            return [found[each] for each in asked]

        return self._store.round_log(answers)

    def _answer(self, db: sa.Connection, head: LogHead, wanted: _Wanted, is_last: bool) -> EntryProof | _NoProof:
        """Return a proof, or why there is none; one that `is_last` waits for no witness: the log signs alone."""
        found = wanted.find(db, *wanted.args)
        if found is None:
            return _NoProof.NO_ENTRY
        position, entry = (found, b"") if isinstance(found, int) else (found.position, found.entry.data)
        # One who says that the log was longer waits for nothing that comes: it sees at once that it is not.
        seen = wanted.first_size if wanted.first_size <= head.size else 0
        if head.cosigned_size > max(position, seen - 1):
            note, size = head.cosigned, head.cosigned_size
        elif is_last:
            note, size = self._own_note(db, head.size), head.size
        else:
            return _NoProof.NOT_YET
        return EntryProof(note, position, *self._proof(db, size, position, wanted.first_size), entry)

    def _own_note(self, db: sa.Connection, size: int) -> str:
        """Return the checkpoint that the log signs alone, made once: a log, once so long, never changes."""
        if self._own[0] != size:
            self._own = size, str(self._checkpoint(db, size))
        return self._own[1]

    def _proof(self, db: sa.Connection, *wanted: int) -> tuple[list[bytes], list[bytes]]:
        """Return the proofs for a size, a position and a first size, made once for all phones of a round."""
        if wanted not in self._proofs:
            self._proofs[wanted] = _proofs(db, *wanted)
            if len(self._proofs) > _KEPT_PROOFS:
                del self._proofs[next(iter(self._proofs))]
        return self._proofs[wanted]

    def _due(self, db: sa.Connection) -> tuple[LogHead, Note, list[bytes]]:
        head = round_log.read_head(db)
        old = self._old_size(head)
        if old > head.size:
            raise TransparencyError(
                f"the registrar has cosigned {old} entries of this log, which has {head.size}: this is an older copy "
                "of the database; restore the newest one"
            )
        return head, self._checkpoint(db, head.size), round_log.prove_consistency(db, old, head.size)

    def _old_size(self, head: LogHead) -> int:
        return head.cosigned_size if self._witnessed is None else self._witnessed

    def _checkpoint(self, db: sa.Connection, size: int) -> Note:
        text = Checkpoint(self._signer.key.name, size, round_log.root(db, size)).text
        return Note(text, (self._signer.sign(text),))

    async def _keep(self, head: LogHead, cosigned: Note, reply: registrar_pb2.CosignReply) -> bool:
        """Keep what was signed, and what the registrar told; return whether the log has grown by it."""
        now, kept = self._clock.monotonic_s(), Note.parse(head.cosigned) if head.cosigned else None
        is_new = kept is None or kept.text != cosigned.text
        if kept is not None and not is_new:
            cosigned = kept.with_signatures(*cosigned.unverified_signatures)
            is_new = len(cosigned.unverified_signatures) != len(kept.unverified_signatures)
        if is_new or now - self._kept_at > _REFRESH_S:
            await self._log(round_log.keep_cosigned, str(cosigned), head.size)
            self._kept_at = now
        self._cosigned.beat()
        if not reply.certificates:
            return False
        entries = [certificate_entry(sha256.hex()) for sha256 in reply.certificates]
        behind = partial(round_log.append_certificates, after=head.certificates_after, reached=reply.certificates_after)
        await self._thread.run(self._store.round_log, lambda db: behind(db, self._clock.now_ms(), entries))
        return True

    async def _log(self, call: Callable[..., round_log.T], *args: object) -> round_log.T:
        return await self._thread.run(self._store.round_log, lambda db: call(db, *args))


def _proofs(db: sa.Connection, size: int, position: int, first_size: int) -> tuple[list[bytes], list[bytes]]:
    """Return the proofs of an entry and of a log that a phone saw; there is nothing to prove of one that was larger."""
    consistency = round_log.prove_consistency(db, first_size, size) if first_size <= size else []
    return round_log.prove_inclusion(db, position, size), consistency
