"""Further witnesses of a log: C2SP's `add-checkpoint` (c2sp.org/tlog-witness), and whose cosignatures a reader demands.

::

    old 37                        size of the checkpoint that the witness signed last
    2XkN...                       the hashes that lead from there to the new one (RFC 9162), base64, one a line
                                  (an empty line)
    mien-log-4f0c... (...)        the new checkpoint, a signed note

The answer is the witness's signature lines. Whatever speaks this can be a witness; `mien-registrar witness` does.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Self
from urllib.parse import urlsplit

from mien.errors import ConfigError, TransparencyError
from mien.log.checkpoints import MAX_NOTE_BYTES, Checkpoint, Note, NoteKey, NoteSigner, Signature
from mien.log.merkle import EMPTY_ROOT, HASH_BYTES, check_consistency

MAX_PROOF: Final = 63
"""Most hashes of a consistency proof."""

MAX_REQUEST_BYTES: Final = MAX_NOTE_BYTES + 64 * (MAX_PROOF + 1)
MAX_WITNESSES: Final = 16
"""Most further witnesses of one log."""

_OLD: Final = re.compile(r"old (0|[1-9][0-9]{0,15})")
_URL: Final = re.compile(r"https?://[^\s]{1,500}")
_NO_REQUEST: Final = "what was sent is no add-checkpoint request (c2sp.org/tlog-witness); upgrade the log's program"


@dataclass(frozen=True)
class AddCheckpoint:
    """A request for a cosignature: the note, and the proof that its log goes on from the first `old_size` entries."""

    old_size: int
    consistency: tuple[bytes, ...] = field(repr=False)
    note: str

    @classmethod
    def parse(cls, body: bytes) -> Self:
        """Return the request in a body; raises TransparencyError for what is none."""
        try:
            head, found, note = body.decode().partition("\n\n")
            first, *rows = head.split("\n")
            hashes = tuple(base64.b64decode(row, validate=True) for row in rows)
        except (UnicodeDecodeError, binascii.Error, ValueError) as error:
            raise TransparencyError(_NO_REQUEST) from error
        old = _OLD.fullmatch(first)
        sizes_fit = len(hashes) <= MAX_PROOF and all(len(each) == HASH_BYTES for each in hashes)
        if old is None or not found or not sizes_fit or len(body) > MAX_REQUEST_BYTES:
            raise TransparencyError(_NO_REQUEST)
        return cls(int(old[1]), hashes, note)

    def to_bytes(self) -> bytes:
        """Return the body."""
        rows = [f"old {self.old_size}", *(base64.b64encode(each).decode() for each in self.consistency)]
        return ("\n".join(rows) + "\n\n" + self.note).encode()


def added(last: Checkpoint | None, asked: AddCheckpoint, key: NoteKey) -> Checkpoint | int:
    """Return the checkpoint that a witness is to keep, then sign: the asked one, if it goes on from the `last`.

    Where the request begins elsewhere it is the last one's size, to ask again from. Raises TransparencyError for a note
    that the log's `key` did not sign, and for one that does not go on from the last.
    """
    note = Note.parse(asked.note)
    new = Checkpoint.parse(note.text)
    note.check(key)
    before = last or Checkpoint(new.origin, 0, EMPTY_ROOT)
    if new.origin != key.name:
        raise TransparencyError("the checkpoint is of another log than its key; ask the log's operator")
    if asked.old_size != before.size:
        return before.size
    check_consistency(before.size, before.root, new.size, new.root, asked.consistency)
    return new


def cosigned(signer: NoteSigner, asked: AddCheckpoint, unix_s: int) -> bytes:
    """Return the answer of a witness that has kept the checkpoint: its signature line."""
    return str(signer.sign(Note.parse(asked.note).text, unix_s)).encode()


@dataclass(frozen=True)
class WitnessAddress:
    """A further witness as a setting names it: its key, and the address below which `add-checkpoint` answers."""

    key: NoteKey
    url: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the witness in `NAME+ID+KEY URL`; raises ConfigError."""
        key, _, url = text.strip().partition(" ")
        if not _URL.fullmatch(url) or not _names_host(url):
            raise ConfigError(f"witness {text[:120]!r} is not NAME+ID+KEY and a URL, with a space between")
        return cls(witness_key(key), url.rstrip("/"))

    def signed(self, answer: bytes, text: str) -> Signature:
        """Return this witness's one signature of a checkpoint's text out of its answer; raises TransparencyError.

        Whatever else it answers stays behind: it would be read as part of the checkpoint by all who are shown that.
        """
        lines = Note.parse(text + "\n" + answer.decode(errors="replace")).unverified_signatures
        first = next((each for each in lines if each.is_of(self.key)), None)
        note = Note(text, () if first is None else (first,))
        note.check(self.key)
        return note.unverified_signatures[0]


def _names_host(url: str) -> bool:
    try:
        at = urlsplit(url)
        return bool(at.hostname and at.hostname.encode("idna")) and (at.port is None or at.port > 0)
    except ValueError:  # of the address, its port, or a host's name
        return False


def witness_key(text: str) -> NoteKey:
    """Return a witness's key in NAME+ID+KEY; raises ConfigError for another kind of key."""
    try:
        key = NoteKey.parse(text)
    except TransparencyError as error:
        raise ConfigError(error.message) from error
    if not key.is_witness:
        raise ConfigError(f"{key.name} is a log's key; name a witness's, which cosigns")
    return key


@dataclass(frozen=True)
class Quorum:
    """Cosignatures that a reader demands besides the registrar's: of `needed` of these witnesses."""

    keys: tuple[NoteKey, ...] = ()
    needed: int = 0

    def __post_init__(self) -> None:
        different = min(len({key.public for key in self.keys}), len({key.name for key in self.keys}))
        if different != len(self.keys) or len(self.keys) > MAX_WITNESSES:
            raise ConfigError(
                f"witnesses are at most {MAX_WITNESSES}, each with a name and a key of its own; correct their list"
            )
        if not 0 <= self.needed <= len(self.keys):
            raise ConfigError(f"{self.needed} of {len(self.keys)} witnesses cannot cosign; name more, or ask for fewer")

    @classmethod
    def of(cls, keys: Sequence[str], needed: int) -> Self:
        """Return the quorum of keys in text; `needed` 0 is all of them. Raises ConfigError."""
        return cls(tuple(witness_key(key) for key in keys), needed or len(keys))

    def besides(self, registrar: NoteKey) -> Self:
        """Return this quorum; raises ConfigError where the registrar's own key is to count once more."""
        if any(key.public == registrar.public for key in self.keys):
            raise ConfigError(f"{registrar.name} is the registrar's own key; name witnesses that others run")
        return self

    def missing(self, note: Note) -> int:
        """Return how many cosignatures a note lacks; raises TransparencyError for one that does not hold.

        A signature by another key of a witness's name, its next one say, is nobody's here, and no lie.
        """
        there = [key for key in self.keys if any(each.is_of(key) for each in note.unverified_signatures)]
        for key in there:
            note.check(key)
        return max(self.needed - len(there), 0)
