"""What anybody can find out about a log of rounds: its entries against its checkpoints, and against what phones kept.

A monitor reads all entries and makes O(n) hashes; it trusts nobody but the keys that it was given. It follows the
models: a statement may name the one that its task began with, or one that an earlier round of the task closed with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from mien.errors import TransparencyError
from mien.log.checkpoints import Checkpoint, Note, NoteKey
from mien.log.entries import LogEntry
from mien.log.merkle import EMPTY_ROOT, appended, leaf_hash, node_hash


@dataclass(frozen=True)
class Findings:
    """What a monitor found: the checkpoint that all entries fit, how many there are of each kind, and every fault.

    `remarks` are no faults, and for whoever watches to judge: models that came from elsewhere than this log.
    """

    checkpoint: Checkpoint
    counts: Mapping[str, int]
    cosigned_unix_s: int = 0
    faults: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass
class _Models:
    """Models as the entries name them: where each comes from, and which a task may train.

    `trainable` has the models of every task that the log names: the one that it begins with, and those that its rounds
    made. `older` are tasks whose statements stand before the first entry that names a task.
    """

    known: set[str] = field(default_factory=set)
    trainable: dict[str, set[str]] = field(default_factory=dict)
    older: set[str] = field(default_factory=set)
    remarks: list[str] = field(default_factory=list)

    def heed(self, entry: LogEntry) -> str:
        """Return the fault of an entry behind those that were heeded, in words; nothing where it has none."""
        if entry.kind == "release":
            self.known.add(entry.subject)
            return ""
        task, model = entry.told["task"], entry.told["model_sha256"]
        if entry.kind == "task":
            return self._begin(task, model)
        if entry.kind == "round":
            return self._follow(entry.subject, task, model)
        self.known.add(model)
        self.trainable.get(task, set()).add(model)
        return ""

    def _begin(self, task: str, model: str) -> str:
        if task in self.trainable or task in self.older:
            return f"task {task} begins a second time"
        self.trainable[task] = {model}
        if model not in self.known:
            self.remarks.append(f"task {task} begins with model {model}, which no release or round before it names")
        return ""

    def _follow(self, subject: str, task: str, model: str) -> str:
        if task not in self.trainable:
            if self.trainable and task not in self.older:
                return f"round {subject} is of a task whose first model the log does not name"
            self.older.add(task)
            return ""
        if model in self.trainable[task]:
            return ""
        return f"round {subject} trains model {model}, which is not its task's first and which no round of it made"


@dataclass
class _Reading:
    """Entries as they are read: the roots of the sizes that matter, and what the entries say of each other."""

    wanted: set[int]
    roots: dict[int, bytes] = field(default_factory=lambda: {0: EMPTY_ROOT})
    rounds: set[str] = field(default_factory=set)
    results: set[str] = field(default_factory=set)
    statements: set[bytes] = field(default_factory=set)
    releases: list[LogEntry] = field(default_factory=list)
    models: _Models = field(default_factory=_Models)
    counts: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def read(self, entries: Iterable[bytes]) -> int:
        """Return how many entries there are."""
        peaks: list[bytes] = []  # of the complete subtrees, the largest first
        size = 0
        for data in entries:
            *_, (_, _, completed) = appended(lambda _level, _index: peaks.pop(), size, leaf_hash(data))
            peaks.append(completed)
            size += 1
            if size in self.wanted:
                self.roots[size] = _root(peaks)
            self._heed(size - 1, data)
        self.roots[size] = _root(peaks)
        return size

    def _heed(self, position: int, data: bytes) -> None:
        try:
            entry = LogEntry.read(data)
        except TransparencyError as error:
            self.faults.append(f"entry {position}: {error.message}")
            return
        self.counts[entry.kind] = self.counts.get(entry.kind, 0) + 1
        if entry.kind == "round":
            if entry.subject in self.rounds:
                self.faults.append(f"entry {position}: a second statement of round {entry.subject}")
            self.rounds.add(entry.subject)
            self.statements.add(data)
        if entry.kind == "release":
            self.releases.append(entry)
        if entry.kind == "roster" and entry.subject not in self.rounds:
            self.faults.append(f"entry {position}: an unlogged round, whose roster is there without a statement before")
        if entry.kind == "result":
            if entry.subject not in self.rounds:
                self.faults.append(f"entry {position}: an unlogged round, whose result is there without a statement")
            if entry.subject in self.results:
                self.faults.append(f"entry {position}: a second result of round {entry.subject}")
            self.results.add(entry.subject)
        if entry.kind in ("task", "round", "result", "release") and (fault := self.models.heed(entry)):
            self.faults.append(f"entry {position}: {fault}")

    def lacks(self, piece: Mapping[str, Any]) -> str:
        """Return the fault of what a phone kept where the log lacks what it was told, in words; else nothing."""
        data, of = str(piece.get("statement", "")).encode(), piece.get("round")
        with suppress(TransparencyError):
            entry = LogEntry.read(data)
            if entry.kind == "release":
                whose = entry.subject, entry.told.get("population")
                there = any(each.releases(*whose) for each in self.releases)
                return "" if there else f"an unlogged release: a phone was to use a model by it ({of})"
        there = data in self.statements
        return "" if there else f"an unlogged round: a phone was to train on a statement that is not there ({of})"

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is no fault, and worth a look."""
        if not self.models.older:
            return tuple(self.models.remarks)
        older = f"{len(self.models.older)} tasks began before the log named models; theirs are not followed"
        return older, *self.models.remarks


def compare(entries: Iterable[bytes]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the faults of entries against each other, and remarks; their hashes are somebody else's to check."""
    reading = _Reading(set())
    reading.read(entries)
    return tuple(reading.faults), reading.remarks


def examine(
    entries: Iterable[bytes],
    unverified_note: str,
    key: NoteKey,
    *,
    witness: NoteKey | None = None,
    earlier: Sequence[str] = (),
    kept: Sequence[Mapping[str, Any]] = (),
) -> Findings:
    """Return what is found in a log whose newest checkpoint is a signed note by `key`.

    `earlier` are notes that were seen before, from wherever; `kept` is evidence of phones (`log-evidence.json`). A note
    counts as the log's word only where its signature holds. Raises TransparencyError where the newest note, or one of
    `earlier`, is none.
    """
    note = Note.parse(unverified_note)
    newest = Checkpoint.parse(note.text)
    note.check(key)
    before = [Note.parse(each) for each in earlier]
    signed = [
        checkpoint
        for each in (unverified_note, *map(str, before), *_notes_in(kept))
        if (checkpoint := _signed(each, key)) is not None
    ]
    reading = _Reading({checkpoint.size for checkpoint in signed})
    size = reading.read(entries)
    faults = reading.faults
    if size < newest.size:
        faults.append(f"the log shows {size} entries, and signed {newest.size}")
    for checkpoint in signed:
        root = reading.roots.get(checkpoint.size)
        if root is None:
            faults.append(f"a log of {checkpoint.size} entries was signed, and {size} are shown: it was cut, or forked")
        elif root != checkpoint.root:
            faults.append(f"a forked log: another history of {checkpoint.size} entries was signed than is shown")
    faults += [fault for each in kept if (fault := reading.lacks(each))]
    cosigned = 0
    if witness is not None:
        try:
            cosigned = note.check(witness)
        except TransparencyError as error:
            faults.append(error.message)
    return Findings(newest, reading.counts, cosigned, tuple(dict.fromkeys(faults)), reading.remarks)


def _notes_in(kept: Sequence[Mapping[str, Any]]) -> list[str]:
    told = [each.get(which) for each in kept for which in ("seen", "shown")]
    return [str(each["note"]) for each in told if isinstance(each, Mapping) and "note" in each]


def _signed(unverified_note: str, key: NoteKey) -> Checkpoint | None:
    """Return the log's word in a note; none where it is not its, or no note: a liar's may be anything."""
    try:
        note = Note.parse(unverified_note)
        note.check(key)
        return Checkpoint.parse(note.text)
    except TransparencyError:
        return None


def _root(peaks: Sequence[bytes]) -> bytes:
    """Return the root over complete subtrees, the largest first."""
    if not peaks:
        return EMPTY_ROOT
    *rest, root = peaks
    for peak in reversed(rest):
        root = node_hash(peak, root)
    return root
