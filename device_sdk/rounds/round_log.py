"""The phone's look at the log of rounds: it trains only on a statement that the log holds for everybody to see.

A round's statement has to be in the coordinator's log, and a model's release before the model comes into use here. Both
are looked up under a checkpoint that goes on from the last one that this
phone saw and that the registrar cosigned. The registrar's key came with joining; the log's key is named by the very
checkpoint that the registrar cosigned. So a coordinator that shows this phone another history than others shows it to
the registrar as well, or does without the cosignature.

An operator can have further witnesses, run by others, whose keys came with joining as well: then a checkpoint needs the
cosignatures of as many of them as the registrar said, and there is no doing without.

Without the registrar's cosignature a checkpoint is taken only while this phone itself finds the registrar away, and
at most an hour after the last cosignature that it saw. What it took then binds the coordinator all the same: it is
remembered, and the next checkpoint has to go on from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from device_sdk.server.client import CoordinatorClient, LogProof
from device_sdk.server.identity import KEY_LABEL
from device_sdk.storage.keystore import KeyStore
from device_sdk.storage.sealing import bind, seal, unseal
from device_sdk.storage.vault import locked_folder
from mien.errors import ConfigError, CorruptDataError, MienError, NotFoundError, TransparencyError, VersionError
from mien.log.checkpoints import Checkpoint, Note, NoteKey, log_key
from mien.log.entries import LogEntry, release_sought
from mien.log.merkle import EMPTY_ROOT, check_consistency, check_inclusion, leaf_hash
from mien.log.witnesses import Quorum
from mien.protocol.canonical import parse_json, to_canonical_json
from mien.protocol.ids import ModelId, PopulationId
from mien.protocol.rounds import RoundRef, Wait
from mien.records import from_mapping, to_mapping
from mien.shell.clock import Clock
from mien.shell.files import read_limited, storage_errors, write_atomically

GRACE_S: Final = 3600
"""How long after the last cosignature a phone goes on while it finds the registrar away."""

MAX_EVIDENCE: Final = 20
"""Most lies of which a phone keeps the evidence."""

_CONTEXT: Final = bind("mien/round-log/1")
_MAX_BYTES: Final = 64 * 1024
_WHAT: Final = "what this phone saw last of the log of rounds"


@dataclass(frozen=True)
class LastSeen:
    """The newest checkpoint that this phone took (a signed note), its log's key, and when the registrar last signed."""

    note: str
    log_key: str
    cosigned_unix_s: int

    @property
    def checkpoint(self) -> Checkpoint:
        """What the note says."""
        return Checkpoint.parse(Note.parse(self.note).text)


@dataclass(frozen=True)
class LogFiles:
    """A home's two files: the last checkpoint, sealed as the device's key is, and evidence, which anybody may read."""

    path: Path
    evidence_path: Path
    key_store: KeyStore

    def last(self) -> LastSeen | None:
        """Return what was kept; raises CorruptDataError where it was changed."""
        if not self.path.exists():
            return None
        sealed = read_limited(self.path, _MAX_BYTES, what=_WHAT)
        stored = parse_json(unseal(self.key_store.read(KEY_LABEL), sealed, _CONTEXT, what=_WHAT), what=_WHAT)
        try:
            return from_mapping(LastSeen, stored if isinstance(stored, dict) else {})
        except ConfigError as error:
            raise CorruptDataError(f"{_WHAT} is damaged; restore the whole home folder from one copy") from error

    def keep(self, seen: LastSeen, before: LastSeen | None) -> bool:
        """Keep a checkpoint that goes on from `before`, on stable storage before this returns.

        False where another program of this home has kept one since: this one need not go on from that.
        """
        plain = to_canonical_json(to_mapping(seen))
        with locked_folder(self.path.parent):
            if self.last() != before:
                return False
            write_atomically(self.path, seal(self.key_store.read(KEY_LABEL), plain, _CONTEXT), private=True)
        return True

    def accuse(self, evidence: dict[str, object]) -> str:
        """Keep evidence behind what there is; the first pieces stay, or a liar could push them out.

        A piece that is larger than any honest one is kept without what the coordinator sent, which says nothing true.
        Where it signed nothing, what it showed and `why` are its own words: other words are no other lie, and half of
        the room is left for what it signed.
        """
        is_bare = not _is_signed(evidence)
        with locked_folder(self.evidence_path.parent):
            found = self.evidence()
            bare = [each for each in found if not _is_signed(each)]
            of_it = [each for each in (bare if is_bare else found) if each["statement"] == evidence["statement"]]
            is_known = any(is_bare or each["why"] == evidence["why"] for each in of_it)
            if not is_known and len(found) < MAX_EVIDENCE and not (is_bare and len(bare) >= MAX_EVIDENCE // 2):
                if len(to_canonical_json(evidence)) > _MAX_BYTES // 2:
                    evidence = {**evidence, "shown": None}
                write_atomically(self.evidence_path, to_canonical_json([*found, evidence]), private=True)
        return str(self.evidence_path)

    def evidence(self) -> list[dict[str, Any]]:
        """Return the evidence that is kept, oldest first; raises CorruptDataError for a file that holds none."""
        if not self.evidence_path.exists():
            return []
        what = "the evidence of lies about the log"
        remedy = f"put {self.evidence_path.name} aside, and hand on what is in it"
        found = parse_json(read_limited(self.evidence_path, 16 * _MAX_BYTES, what=what), what=what, remedy=remedy)
        if not isinstance(found, list) or not all(
            isinstance(each, dict) and {"why", "statement"} <= set(each) for each in found
        ):
            raise CorruptDataError(f"{what} is damaged; {remedy}")
        return found

    def begin_anew(self) -> Path | None:
        """Forget the last checkpoint, and put evidence aside; return where that lies now.

        For an owner to whom the operator explained why the log had to begin anew.
        """
        aside = None
        with storage_errors("the home folder"):
            if self.evidence_path.exists():
                names = (self.evidence_path.with_suffix(f".{number}.json") for number in range(1, 10_000))
                aside = self.evidence_path.rename(next(name for name in names if not name.exists()))
            self.path.unlink(missing_ok=True)
        return aside


def _is_signed(evidence: Mapping[str, Any]) -> bool:
    """True where a log's key signed what was shown, so that somebody else can hold it against its owner."""
    try:
        shown = evidence["shown"]
        note = Note.parse(shown["note"])
        note.check(log_key(bytes.fromhex(shown["log_key"]), Checkpoint.parse(note.text).origin))
    except (MienError, KeyError, TypeError, ValueError):
        return False
    return True


@dataclass(frozen=True)
class RoundLog:
    """The check of rounds against the log, under the registrar's pinned key.

    `registrar_answers` is asked only where its cosignature is missing. `further` is who has to cosign as well.
    """

    witness: NoteKey
    memory: LogFiles
    registrar_answers: Callable[[], bool]
    clock: Clock
    further: Quorum = field(default_factory=Quorum)

    def check(self, client: CoordinatorClient, ref: RoundRef, entry: LogEntry) -> str | Wait:
        """Return what is to be said of a round that the log holds (nothing: all is well), or a pause before it does.

        That is while the registrar's cosignature is missing, or those of too many further witnesses. Raises
        TransparencyError for a fork or a statement that is not there, with the evidence kept.
        """
        sought = _Sought("round", str(ref), entry, "nothing was trained")
        try:
            return self._found(sought, partial(client.prove_round, ref))
        except VersionError as error:
            raise self._unshown(sought, error) from error

    def check_release(self, client: CoordinatorClient, model_id: ModelId, population: PopulationId) -> str | Wait:
        """Return the same of a model's release to a population, or to all, which the coordinator shows.

        Raises VersionError besides, for a coordinator that is too old to show any: it need not lie.
        """
        entry = release_sought(model_id, population)
        sought = _Sought("release", f"release of {model_id}", entry, "the model that is here stays in use")
        try:
            return self._found(sought, partial(client.prove_release, model_id))
        except VersionError as error:
            raise VersionError(
                f"the coordinator does not show that the log of rounds holds this release ({error.message}); "
                f"{sought.kept}, and the operator upgrades the coordinator first"
            ) from error

    def _found(self, sought: _Sought, prove: Callable[[int], LogProof]) -> str | Wait:
        while (said := self._looked(sought, prove, self.memory.last())) is None:
            pass
        return said

    def _looked(self, sought: _Sought, prove: Callable[[int], LogProof], last: LastSeen | None) -> str | Wait | None:
        """Return what one look at the log says; None where another program of this home took a checkpoint meanwhile."""
        try:
            unverified = prove(0 if last is None else last.checkpoint.size)
        except NotFoundError as error:
            raise self._unshown(sought, error) from error
        try:
            seen = self._checked(unverified, sought.logged(unverified), last)
            if missing := self.further.missing(Note.parse(seen.note)):
                return _lacking(missing, self.further, sought.what)
            if not seen.cosigned_unix_s:
                # Either way: a clock that was set back must not lengthen the hour.
                if last is None or abs(self.clock.now() - last.cosigned_unix_s) > GRACE_S or self.registrar_answers():
                    return _uncosigned(sought.what)
                seen = replace(seen, cosigned_unix_s=last.cosigned_unix_s)
        except TransparencyError as error:
            raise self._accused(error.message, unverified, sought, last) from error
        if seen.note != (last and last.note) and not self.memory.keep(seen, last):
            return None
        return self._said_of_age(seen)

    def _checked(self, unverified: LogProof, entry: LogEntry, last: LastSeen | None) -> LastSeen:
        """Return what is to be remembered of a proof that holds; cosigned at 0 where the cosignature is missing."""
        note = Note.parse(unverified.checkpoint)
        checkpoint = Checkpoint.parse(note.text)
        note.check(log_key(unverified.log_key, checkpoint.origin))
        before = Checkpoint(checkpoint.origin, 0, EMPTY_ROOT) if last is None else last.checkpoint
        if before.origin != checkpoint.origin:
            raise TransparencyError("the coordinator shows another log than before")
        check_consistency(before.size, before.root, checkpoint.size, checkpoint.root, unverified.consistency)
        leaf = leaf_hash(entry.data)
        check_inclusion(leaf, unverified.position, checkpoint.size, unverified.inclusion, checkpoint.root)
        seen = LastSeen(str(note), unverified.log_key.hex(), 0)
        if note.is_said_to_be_signed_by(self.witness):
            return replace(seen, cosigned_unix_s=note.check(self.witness))
        return seen

    def _said_of_age(self, seen: LastSeen) -> str:
        if Note.parse(seen.note).is_said_to_be_signed_by(self.witness):
            return ""
        minutes = max(self.clock.now() - seen.cosigned_unix_s, 0) / 60
        return f"The registrar is away: for {minutes:.0f} min the coordinator alone has signed the log of rounds."

    def _unshown(self, sought: _Sought, error: MienError) -> TransparencyError:
        why = f"the coordinator does not show that the log of rounds holds this {sought.what} ({error.message})"
        return self._accused(why, None, sought, self.memory.last())

    def _accused(
        self, why: str, unverified: LogProof | None, sought: _Sought, last: LastSeen | None
    ) -> TransparencyError:
        """Return the error of a lie, once all that somebody else needs to judge it is kept: hashes and signatures."""
        evidence: dict[str, object] = {
            "format": 1,
            "why": why,
            "at_unix_s": int(self.clock.now()),
            "round": sought.name,
            "statement": sought.entry.data.decode(),
            "witness_key": str(self.witness),
            "further_witnesses": [str(key) for key in self.further.keys],
            "seen": None if last is None else to_mapping(last),
            "shown": unverified
            and {
                "note": unverified.checkpoint,
                "log_key": unverified.log_key.hex(),
                "position": unverified.position,
                "inclusion": [each.hex() for each in unverified.inclusion],
                "consistency": [each.hex() for each in unverified.consistency],
                "entry": unverified.entry.hex(),
            },
        }
        where = self.memory.accuse(evidence)
        return TransparencyError(f"{why}; {sought.kept}, and the evidence is kept in {where} for you to hand on")


@dataclass(frozen=True)
class _Sought:
    """What the log has to hold: `entry`, the statement of a round, or a release by its model and population.

    `what` it is and what it is kept as (`name`) stand in sentences and evidence, `kept` says what becomes of a refusal.
    """

    what: Literal["round", "release"]
    name: str
    entry: LogEntry
    kept: str

    def logged(self, unverified: LogProof) -> LogEntry:
        """Return the entry whose inclusion counts: a release's as it is shown, which says for how many it was."""
        if self.what == "round":
            return self.entry
        shown, told = LogEntry.read(unverified.entry), self.entry.told
        if not shown.releases(told["model_id"], told["population"]):
            raise TransparencyError("the coordinator shows the entry of another release")
        return shown


def _uncosigned(what: str) -> Wait:
    return Wait(
        5.0,
        f"the registrar has not cosigned the log of rounds with this {what} yet; the operator sees that the "
        "coordinator has a registrar_address and that the registrar runs",
    )


def _lacking(missing: int, further: Quorum, what: str) -> Wait:
    names = ", ".join(key.name for key in further.keys)
    return Wait(
        5.0,
        f"{missing} of the {further.needed} further witnesses that this phone asks for have not cosigned the log of "
        f"rounds with this {what}; the operator sees that the coordinator asks them ({names}) and that they run",
    )
