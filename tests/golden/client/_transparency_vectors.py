"""What `transparency.json` holds: proofs, notes and whole looks at the log of rounds, honest and each kind of lie."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from device_sdk.rounds.round_log import LastSeen, RoundLog
from device_sdk.server.client import CoordinatorClient, LogProof
from mien.errors import NotFoundError, TransparencyError, VersionError
from mien.log.checkpoints import LOG, WITNESS, Checkpoint, Note, NoteKey, NoteSigner, Signature
from mien.log.entries import LogEntry, release_entry, release_sought, round_entry
from mien.log.merkle import (
    EMPTY_ROOT,
    appended,
    check_consistency,
    check_inclusion,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    tree_root,
)
from mien.log.witnesses import Quorum
from mien.protocol.ids import AttemptNumber, ModelId, PopulationId, RoundNumber, TaskId
from mien.protocol.rounds import RoundRef, Wait
from mien.records import to_mapping
from mien.secagg.planner import raw_task_id
from mien.shell.clock import Clock

Json = dict[str, Any]

NOW_S = 1_800_000_000
NOBODY = Quorum()
REF = RoundRef(TaskId("task-1"), RoundNumber(3), AttemptNumber(2))


def signer(kind: str, label: str) -> NoteSigner:
    """Return a signer whose key follows from a label."""
    return NoteSigner.of(kind, Ed25519PrivateKey.from_private_bytes(hashlib.sha256(label.encode()).digest()))


COORDINATOR, STRANGER, REGISTRAR = signer(LOG, "log"), signer(LOG, "other log"), signer(WITNESS, "registrar")
OTHER_WITNESS, THIRD_WITNESS = signer(WITNESS, "other witness"), signer(WITNESS, "third witness")


def statement(told: str = "a", number: int = REF.round) -> LogEntry:
    """Return the entry of a round's statement."""
    return round_entry(
        *(raw_task_id(REF.task_id).hex(), number, REF.attempt),
        task_sha256="1" * 64,
        model_sha256="2" * 64,
        layout_sha256="3" * 64,
        statement_sha256=told * 64,
    )


@dataclass
class Tree:
    """A log's tree in memory."""

    entries: list[bytes] = field(default_factory=list)
    stored: dict[tuple[int, int], bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, *entries: bytes) -> Tree:
        tree = cls()
        for entry in entries:
            for level, index, made in appended(tree.node, len(tree.entries), leaf_hash(entry)):
                tree.stored[level, index] = made
            tree.entries.append(entry)
        return tree

    def node(self, level: int, index: int) -> bytes:
        return self.stored[level, index]

    def root(self, size: int) -> bytes:
        return tree_root(self.node, size)


def _hexed(proof: Any) -> list[str]:
    return [each.hex() for each in proof]


def _proofs() -> Json:
    """Return proofs of two trees as they are, and spoiled in each place."""
    included, consistent = [], []
    for size in (1, 2, 3, 7, 8, 13):
        tree = Tree.of(*(bytes([n]) * n for n in range(size)))
        root = tree.root(size)
        for index in range(size):
            good = {
                "leaf": leaf_hash(tree.entries[index]).hex(),
                "index": index,
                "size": size,
                "proof": _hexed(inclusion_proof(tree.node, index, size)),
                "root": root.hex(),
            }
            included += [good, *(_spoiled(good, "leaf", "index", "size", "root") if index == size // 2 else ())]
        for first in range(size + 1):
            good = {
                "first": first,
                "first_root": tree.root(first).hex(),
                "size": size,
                "root": root.hex(),
                "proof": _hexed(consistency_proof(tree.node, first, size)),
            }
            if first in (size // 2, size):
                consistent += _spoiled(good, "first", "first_root", "root")
            consistent.append(good)
    made_up = {"first": 0, "first_root": EMPTY_ROOT.hex(), "size": 0, "root": "11" * 32, "proof": []}
    consistent += [made_up, {**made_up, "root": EMPTY_ROOT.hex()}]
    return {
        "inclusion": [{**each, "holds": is_included(each)} for each in included],
        "consistency": [{**each, "holds": is_consistent(each)} for each in consistent],
    }


def is_included(case: Json) -> bool:
    """Return whether a phone of Python's takes a case's proof; where a path has one shape in two sizes, in both."""
    leaf, root, *proof = map(bytes.fromhex, (case["leaf"], case["root"], *case["proof"]))
    return _holds(lambda: check_inclusion(leaf, case["index"], case["size"], proof, root))


def is_consistent(case: Json) -> bool:
    """Return whether a phone of Python's takes a case's proof; any tree goes on from the empty one."""
    first, root, *proof = map(bytes.fromhex, (case["first_root"], case["root"], *case["proof"]))
    return _holds(lambda: check_consistency(case["first"], first, case["size"], root, proof))


def _holds(check: Callable[[], None]) -> bool:
    try:
        check()
    except TransparencyError:
        return False
    return True


def _spoiled(good: Json, *names: str) -> list[Json]:
    """Return a proof with one thing changed at a time: a number beside it, a hash by a bit, a hash more, less, cut."""
    found = [{**good, "proof": [*good["proof"], "00" * 32]}]
    if good["proof"]:
        cut = [*good["proof"][:-1], good["proof"][-1][:-2]]
        found += [{**good, "proof": good["proof"][:-1]}, {**good, "proof": cut}]
        found.append({**good, "proof": [_flipped(good["proof"][0]), *good["proof"][1:]]})
    for name in names:
        value = good[name]
        found.append({**good, name: _flipped(value) if isinstance(value, str) else value + 1})
    return found


def _flipped(text: str) -> str:
    return bytes([bytes.fromhex(text)[0] ^ 1, *bytes.fromhex(text)[1:]]).hex()


def _note(size: int = 5, *more: Signature, by: NoteSigner = COORDINATOR, beside: str = "") -> Note:
    text = Checkpoint(by.key.name, size, leaf_hash(b"root")).text + beside
    return Note(text, (by.sign(text), *more))


def _notes() -> Json:
    plain = _note()
    cosigned = plain.with_signatures(REGISTRAR.sign(plain.text, NOW_S), OTHER_WITNESS.sign(plain.text, NOW_S - 9))
    beside = _note(beside="what others say\n\nbeside it\n")
    keys: Mapping[str, NoteKey] = {"log": COORDINATOR.key, "registrar": REGISTRAR.key}
    moved = Note(plain.text.replace("\n5\n", "\n6\n"), cosigned.unverified_signatures)
    cases = [("log", plain), ("log", cosigned), ("registrar", cosigned), ("log", beside)]
    bad = [
        ("another size than was signed", "log", moved),
        ("another size than was cosigned", "registrar", moved),
        ("a cosignature that is missing", "registrar", plain),
        ("another's key under the same name", "log", Note(plain.text, (_renamed(STRANGER.sign(plain.text)),))),
        ("a cosignature for another time", "registrar", Note(plain.text, (_later(REGISTRAR.sign(plain.text, NOW_S)),))),
        ("a signature that is cut off", "log", Note(plain.text, (_cut(COORDINATOR.sign(plain.text)),))),
        ("a cosignature as if it were the log's", "registrar", Note(plain.text, (_plain_by(REGISTRAR, plain.text),))),
    ]
    text = str(plain)
    broken = {
        "nothing": "",
        "no signature": plain.text + "\n",
        "no empty line": plain.text + text[len(plain.text) + 1 :],
        "no end": text[:-1],
        "a control character": text.replace("\n5\n", "\n5\r\n"),
        "a size that is none": text.replace("\n5\n", "\n05\n"),
        "a size below zero": text.replace("\n5\n", "\n-5\n"),
        "a size beyond all trees": text.replace("\n5\n", f"\n{2**53 + 1}\n"),
        "a root that is cut off": text.replace(text.split("\n")[2], text.split("\n")[2][:-4]),
        "a root without its padding": text.replace(text.split("\n")[2], text.split("\n")[2].rstrip("=")),
        "an origin with a space": text.replace(COORDINATOR.key.name, "mien log"),
        "another dash": text.replace("— ", "- "),
        "a signature without bytes": plain.text + f"\n— {COORDINATOR.key.name} \n",
        "too long": plain.text + "x" * 17_000 + "\n" + text[len(plain.text) :],
        "too many signatures": text + str(plain.unverified_signatures[0]) * 32,
    }
    vkeys = str(REGISTRAR.key)
    return {
        "keys": {name: str(key) for name, key in keys.items()},
        "good": [{"key": key, "note": str(note), "unix_s": note.check(keys[key])} for key, note in cases],
        "refused": [{"why": why, "key": key, "note": str(note)} for why, key, note in bad],
        "broken": [{"why": why, "note": note} for why, note in broken.items()],
        "broken_keys": {
            "another id": vkeys.replace(REGISTRAR.key.id.hex(), "00000000"),
            "another kind": "name+00000000+" + base64.b64encode(bytes(33)).decode(),
            "cut off": vkeys[:-4],
            "no name": vkeys[len(REGISTRAR.key.name) :],
            "nothing": "",
        },
    }


def _renamed(signature: Signature) -> Signature:
    return Signature(COORDINATOR.key.name, COORDINATOR.key.id + signature.raw[4:])


def _later(signature: Signature) -> Signature:
    return replace(signature, raw=signature.raw[:11] + bytes([signature.raw[11] ^ 1]) + signature.raw[12:])


def _cut(signature: Signature) -> Signature:
    return replace(signature, raw=signature.raw[:-1])


def _plain_by(signer: NoteSigner, text: str) -> Signature:
    plain = NoteSigner(NoteKey(signer.key.name, signer.key.public), signer._private)
    return Signature(signer.key.name, signer.key.id + plain.sign(text).raw[4:])


@dataclass
class _Clock(Clock):
    unix_s: float = NOW_S

    def now(self) -> float:
        return self.unix_s


@dataclass
class _Memory:
    """What a phone keeps, in memory."""

    seen: LastSeen | None = None
    evidence: Json | None = None

    def last(self) -> LastSeen | None:
        return self.seen

    def keep(self, seen: LastSeen, before: LastSeen | None) -> bool:
        assert self.seen == before, "nobody else keeps any"
        self.seen = seen
        return True

    def accuse(self, evidence: dict[str, object]) -> str:
        self.evidence = evidence
        return "a file"


@dataclass
class Shown:
    """A coordinator's log, and its proof of the round at its end; `spoil` makes a lie of an honest proof."""

    tree: Tree
    signer: NoteSigner = COORDINATOR
    cosigned_unix_s: int | None = NOW_S
    spoil: Callable[[LogProof], LogProof] = lambda proof: proof
    error: NotFoundError | VersionError | None = None
    further: tuple[NoteSigner, ...] = ()
    entry: bytes = b""

    def prove_release(self, _model_id: str, first_size: int) -> LogProof:
        """Return the proof as `CoordinatorClient.prove_release` does; `entry` is what is shown as the log's."""
        return replace(self.prove_round(REF, first_size), entry=self.entry)

    def prove_round(self, _ref: RoundRef, first_size: int) -> LogProof:
        """Return the proof as `CoordinatorClient.prove_round` does."""
        if self.error is not None:
            raise self.error
        size = len(self.tree.entries)
        text = Checkpoint(self.signer.key.name, size, self.tree.root(size)).text
        note = Note(text, (self.signer.sign(text),))
        if self.cosigned_unix_s is not None:
            note = note.with_signatures(REGISTRAR.sign(text, self.cosigned_unix_s))
        note = note.with_signatures(*(each.sign(text, NOW_S - 60) for each in self.further))
        consistency = consistency_proof(self.tree.node, first_size, size) if first_size <= size else []
        inclusion = inclusion_proof(self.tree.node, size - 1, size)
        return self.spoil(LogProof(str(note), self.signer.key.public, size - 1, tuple(inclusion), tuple(consistency)))


RELEASED = (ModelId("b" * 64), PopulationId("mine"))
OTHERS = tuple(statement(number=n).data for n in (100, 101, 102))


def _seen(ago_s: int = 600) -> LastSeen:
    """Return what a phone saw before: a log of two entries."""
    memory, tree = _Memory(), Tree.of(*OTHERS[:2])
    log = RoundLog(REGISTRAR.key, memory, lambda: True, _Clock())
    log.check(Shown(tree), REF, statement(number=101))  # type: ignore[arg-type]
    assert memory.seen is not None
    return replace(memory.seen, cosigned_unix_s=NOW_S - ago_s)


def _looks() -> list[Json]:
    """Return whole looks at the log, and what each ends with."""
    mine, fork = statement().data, statement("f").data
    longer, forked = Tree.of(*OTHERS, mine), Tree.of(b"another past", OTHERS[1], OTHERS[2], mine)
    away = Shown(longer, cosigned_unix_s=None)
    further, two = (OTHER_WITNESS, THIRD_WITNESS), (OTHER_WITNESS.key, THIRD_WITNESS.key)
    by_other = Shown(longer, further=(OTHER_WITNESS,))

    def forged(proof: LogProof) -> LogProof:
        note = Note.parse(proof.checkpoint)
        own = note.unverified_signatures[0]
        false = Signature(REGISTRAR.key.name, REGISTRAR.key.id + bytes(72))
        return replace(proof, checkpoint=str(Note(note.text, (own, false))))

    def false(proof: LogProof) -> LogProof:
        signature = Signature(OTHER_WITNESS.key.name, OTHER_WITNESS.key.id + bytes(72))
        return replace(proof, checkpoint=str(Note.parse(proof.checkpoint).with_signatures(signature)))

    def next_key(proof: LogProof) -> LogProof:
        signature = Signature(OTHER_WITNESS.key.name, STRANGER.key.id + bytes(72))
        return replace(proof, checkpoint=str(Note.parse(proof.checkpoint).with_signatures(signature)))

    def moved(proof: LogProof) -> LogProof:
        return replace(proof, position=proof.position - 1)

    def without(proof: LogProof) -> LogProof:
        return replace(proof, consistency=())

    def another_key(proof: LogProof) -> LogProof:
        return replace(proof, log_key=STRANGER.key.public)

    def garbage(proof: LogProof) -> LogProof:
        return replace(proof, checkpoint="no note", log_key=b"", inclusion=(b"x",) * 99)

    return [
        _look("the first round", None, Shown(longer)),
        _look("a log that grew", _seen(), Shown(longer)),
        _look("a log of one entry", None, Shown(Tree.of(mine))),
        _look("no cosignature, the registrar there", _seen(), away),
        _look("no cosignature, the registrar away", _seen(), away, registrar_answers=False),
        _look("no cosignature, the registrar away too long", _seen(3601), away, registrar_answers=False),
        _look("never a cosignature, the registrar away", None, away, registrar_answers=False),
        _look("one of two further witnesses, one needed", _seen(), by_other, further=Quorum(two, 1)),
        _look("one of two further witnesses, both needed", _seen(), by_other, further=Quorum(two, 2)),
        _look("both further witnesses", _seen(), replace(by_other, further=further), further=Quorum(two, 2)),
        _look(
            *("the registrar away, and no further witness", _seen(), away),
            registrar_answers=False,
            further=Quorum(two, 1),
        ),
        _look("a further witness's forged cosignature", _seen(), Shown(longer, spoil=false), further=Quorum(two, 1)),
        _look("a further witness's next key", _seen(), Shown(longer, spoil=next_key), further=Quorum(two, 1)),
        _look("another statement than was logged", _seen(), Shown(Tree.of(*OTHERS, fork))),
        _look("another statement before anything was seen", None, Shown(Tree.of(*OTHERS, fork))),
        _look("a forked log", _seen(), Shown(forked)),
        _look("a forked log while the registrar is away", _seen(), replace(away, tree=forked), registrar_answers=False),
        _look("a log that shrank", _seen(), Shown(Tree.of(mine))),
        _look("another log", _seen(), Shown(longer, STRANGER)),
        _look("a key that the checkpoint does not name", _seen(), Shown(longer, spoil=another_key)),
        _look("a forged cosignature", _seen(), Shown(longer, spoil=forged)),
        _look("another place in the log", _seen(), Shown(longer, spoil=moved)),
        _look("no proof that it goes on", _seen(), Shown(longer, spoil=without)),
        _look("garbage", _seen(), Shown(longer, spoil=garbage)),
        _look("no such round", _seen(), Shown(longer, error=NotFoundError("the log holds no such round"))),
        _look("a coordinator that keeps no log", _seen(), Shown(longer, error=VersionError("it is too old"))),
        *_releases(),
    ]


def _releases() -> list[Json]:
    """Return looks at the log for a release of the phone's model to its population."""
    model_id, population = RELEASED
    mine = release_entry(model_id, population, 0.25).data
    tree, fork = Tree.of(*OTHERS, mine), Tree.of(b"another past", *OTHERS[1:], mine)

    def look(what: str, shown: Shown, seen: LastSeen | None = None) -> Json:
        return _look(f"a release: {what}", seen or _seen(), shown, of="release")

    def logged(entry: bytes) -> Shown:
        return Shown(Tree.of(*OTHERS, entry), entry=entry)

    return [
        look("to this population", Shown(tree, entry=mine)),
        look("to all", logged(release_entry(model_id, None, 1.0).data)),
        look("to another population", logged(release_entry(model_id, "others", 1.0).data)),
        look("of another model", logged(release_entry("c" * 64, population, 1.0).data)),
        look("a round in its place", logged(statement().data)),
        look("that was never logged", Shown(Tree.of(*OTHERS, statement().data), entry=mine)),
        look("whose entry is not shown", Shown(tree)),
        look("whose entry names the model twice", logged(mine[:-1] + b',"model_id":"' + b"c" * 64 + b'"}')),
        look("no cosignature", Shown(tree, entry=mine, cosigned_unix_s=None)),
        look("a forked log", Shown(fork, entry=mine)),
        look("a log that shrank", logged(mine), _seen_nine()),
        look("none is there", Shown(tree, error=NotFoundError("the log holds no such release"))),
        look("a coordinator that shows none", Shown(tree, error=VersionError("it is too old"))),
    ]


def _seen_nine() -> LastSeen:
    """Return what a phone saw of a log of nine entries."""
    memory, tree = _Memory(), Tree.of(*(statement(number=n).data for n in range(9)))
    RoundLog(REGISTRAR.key, memory, lambda: True, _Clock()).check(Shown(tree), REF, statement(number=8))  # type: ignore[arg-type]
    assert memory.seen is not None
    return memory.seen


def _look(
    what: str,
    seen: LastSeen | None,
    shown: Shown,
    *,
    registrar_answers: bool = True,
    further: Quorum = NOBODY,
    of: str = "round",
) -> Json:
    memory = _Memory(seen)
    log = RoundLog(REGISTRAR.key, memory, lambda: registrar_answers, _Clock(), further)
    client = cast(CoordinatorClient, shown)
    ends = "taken"
    try:
        found = log.check(client, REF, statement()) if of == "round" else log.check_release(client, *RELEASED)
        if isinstance(found, Wait):
            ends = "waits"
    except TransparencyError:
        ends = "refused"
    except VersionError:
        ends = "is too old"
    proof = None
    if shown.error is None:
        first = 0 if seen is None else seen.checkpoint.size
        made = shown.prove_round(REF, first) if of == "round" else shown.prove_release(RELEASED[0], first)
        proof = {**to_mapping(made), "log_key": made.log_key.hex(), "entry": made.entry.hex()}
        proof |= {"inclusion": _hexed(made.inclusion), "consistency": _hexed(made.consistency)}
    return {
        "what": what,
        "of": of,
        "seen": seen and to_mapping(seen),
        "proof": proof,
        "error": shown.error and {"code": shown.error.code, "text": shown.error.message},
        "registrar_answers": registrar_answers,
        "further": {"keys": [str(key) for key in further.keys], "needed": further.needed},
        "ends": ends,
        "kept": memory.seen and to_mapping(memory.seen),
        "why": None if memory.evidence is None else memory.evidence["why"],
    }


def transparency() -> Json:
    """Return what a phone has to make of the log of rounds."""
    return {
        "now_unix_s": NOW_S,
        "witness_key": str(REGISTRAR.key),
        "round": {"task_id": REF.task_id, "round": REF.round, "attempt": REF.attempt},
        "entry": {
            "task_sha256": "1" * 64,
            "model_sha256": "2" * 64,
            "layout_sha256": "3" * 64,
            "statement_sha256": "a" * 64,
            "text": statement().data.decode(),
        },
        "release": {
            "model_id": RELEASED[0],
            "population": RELEASED[1],
            "text": release_sought(*RELEASED).data.decode(),
        },
        "proofs": _proofs(),
        "notes": _notes(),
        "looks": _looks(),
    }
