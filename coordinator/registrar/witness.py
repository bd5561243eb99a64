"""The registrar as a witness of the coordinator's log: it signs one history, each checkpoint beginning with the last.

What it signs is on disk before it is signed. A checkpoint that does not begin with the last is refused whatever the
coordinator says, and stands in the audit log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cryptography import x509

from coordinator.keys import pki
from coordinator.keys.note_keys import check_vouched, witness_signer
from coordinator.registrar.store import Store, Transaction, WitnessedRecord
from coordinator.store import audit
from mien.errors import TransparencyError
from mien.log.checkpoints import Checkpoint, Note, NoteKey, log_key
from mien.log.entries import certificate_sha256
from mien.log.merkle import EMPTY_ROOT, check_consistency

MAX_TOLD: Final = 500
"""Most certificates that one answer tells of."""


@dataclass(frozen=True)
class Cosigned:
    """The answer to a coordinator: the cosigned note (empty where it has to begin at `size`), and what was issued."""

    note: str
    size: int
    certificates: tuple[str, ...] = ()
    certificates_after: int = 0


class Witness:
    """Cosigns the checkpoints of the trusted coordinator's log; not for use by two threads at once."""

    def __init__(
        self,
        store: Store,
        authority: pki.Authority,
        coordinator_ca: Callable[[], x509.Certificate],
        clock: Callable[[], datetime],
    ) -> None:
        self._store, self._coordinator_ca, self._clock = store, coordinator_ca, clock
        self._signer = witness_signer(authority)

    @property
    def key(self) -> NoteKey:
        """The key that phones pin when they join."""
        return self._signer.key

    def cosign(
        self,
        unverified_note: str,
        public_key: bytes,
        key_signature: bytes,
        old_size: int,
        consistency: Sequence[bytes],
        after: int,
    ) -> Cosigned:
        """Return the note with this witness's signature, and the certificates issued behind `after` in the audit log.

        Where `old_size` is not what it signed last the note is empty and the size said, for the coordinator to ask
        again. Raises CertificateError for another coordinator's log, TransparencyError for one that does not begin with
        what was signed before.
        """
        ca = self._coordinator_ca()
        check_vouched(ca, public_key, key_signature)
        note = Note.parse(unverified_note)
        checkpoint = Checkpoint.parse(note.text)
        note.check(log_key(public_key, checkpoint.origin))
        now, whose = int(self._clock().timestamp()), pki.fingerprint(ca)
        new = WitnessedRecord(whose, checkpoint.origin, checkpoint.size, checkpoint.root, str(note), now)
        with self._store.begin() as transaction:
            last = transaction.witnessed(whose) or WitnessedRecord(whose, new.origin, 0, EMPTY_ROOT, "", now)
            if last.origin == new.origin and old_size != last.size:
                return Cosigned("", last.size)
            refusal = _refusal(last, new, consistency)
            if refusal is None:
                _keep(transaction, last, new)
                told, reached = transaction.issued_after(after, MAX_TOLD)
            else:
                detail = {"signed": last.size, "shown": new.size, "root": new.root.hex()}
                transaction.log(now, audit.REGISTRAR, "log.refuse", new.origin, detail)
        if refusal is not None:
            raise refusal
        cosigned = note.with_signatures(self._signer.sign(note.text, now))
        return Cosigned(str(cosigned), new.size, tuple(certificate_sha256(der) for der in told), reached)


def _keep(transaction: Transaction, last: WitnessedRecord, new: WitnessedRecord) -> None:
    if not last.note:
        transaction.log(new.at_unix_s, audit.REGISTRAR, "log.witness", new.origin, {"size": new.size})
    if not last.note or last.size != new.size:
        transaction.put_witnessed(new)


def _refusal(last: WitnessedRecord, new: WitnessedRecord, consistency: Sequence[bytes]) -> TransparencyError | None:
    """Return why a checkpoint does not go on from the last that was signed; None where it does."""
    if last.origin != new.origin:
        return TransparencyError(
            "this registrar cosigns another log of this coordinator, which cannot begin anew; restore the newest backup"
        )
    try:
        check_consistency(last.size, last.root, new.size, new.root, consistency)
    except TransparencyError:
        return TransparencyError(
            f"the log's {new.size} entries do not begin with the {last.size} that this registrar has cosigned; the "
            "coordinator shows two histories, or was set back to an older state"
        )
    return None
