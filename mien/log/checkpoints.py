"""Checkpoints of a log: C2SP signed notes (c2sp.org/signed-note, /tlog-checkpoint) and cosignatures of witnesses.

::

    mien-log-4f0c...              origin: names the log's very key
    37                            number of entries
    2XkN...                       root, base64
                                  (an empty line)
    — mien-log-4f0c... Ax7...     the log's signature: Ed25519 over the three lines
    — mien-witness-91aa... jWb... a witness's: Ed25519 over "cosignature/v1", its time and the three lines

An origin of ours is made of the log's public key, so that a cosignature over a checkpoint vouches for that key as well.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass
from typing import Final, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from mien.errors import TransparencyError
from mien.log.merkle import HASH_BYTES, MAX_SIZE

MAX_NOTE_BYTES: Final = 16 * 1024
MAX_SIGNATURES: Final = 32
LOG: Final = "mien-log"
WITNESS: Final = "mien-witness"

_ED25519: Final = 1
_COSIGNATURE: Final = 4
_ID_BYTES: Final = 4
_KEY_BYTES: Final = 32
_SIGNATURE_BYTES: Final = 64
_TIME_BYTES: Final = 8
_DASH: Final = "— "
_NAME: Final = re.compile(r"[^\s+\x00-\x20]{1,200}")
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,15}")
_DAMAGED: Final = "is not a signed checkpoint; tell the operator"


@dataclass(frozen=True)
class NoteKey:
    """A public key that signs notes under a name; `is_witness` tells cosignatures with a time from plain signatures."""

    name: str
    public: bytes
    is_witness: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.public) != _KEY_BYTES:
            raise TransparencyError("a key for checkpoints has a name without spaces and 32 bytes; ask the operator")

    @classmethod
    def named(cls, kind: str, public: bytes) -> Self:
        """Return a key named after its kind (LOG or WITNESS) and its own bytes."""
        return cls(f"{kind}-{hashlib.sha256(public).hexdigest()[:32]}", public, kind == WITNESS)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the key in a line `NAME+ID+KEY` (a "vkey"); raises TransparencyError."""
        name, _, rest = text.strip().partition("+")
        key_id, _, encoded = rest.partition("+")
        raw = _decoded(encoded)
        if len(raw) != 1 + _KEY_BYTES or raw[0] not in (_ED25519, _COSIGNATURE):
            raise TransparencyError(f"{text[:80]!r} is not a key for checkpoints (NAME+ID+KEY, Ed25519)")
        key = cls(name, raw[1:], raw[0] == _COSIGNATURE)
        if key.id.hex() != key_id:
            raise TransparencyError(f"{text[:80]!r} is not a key for checkpoints: its id is another key's")
        return key

    @property
    def id(self) -> bytes:
        """The first 4 bytes of SHA-256 over name, a newline, the kind's byte and the key."""
        return hashlib.sha256(self.name.encode() + b"\n" + self._typed).digest()[:_ID_BYTES]

    @property
    def _typed(self) -> bytes:
        return bytes([_COSIGNATURE if self.is_witness else _ED25519]) + self.public

    def __str__(self) -> str:
        return f"{self.name}+{self.id.hex()}+{base64.b64encode(self._typed).decode()}"


@dataclass(frozen=True)
class Signature:
    """One line under a note: who signed by their own account, and 4 bytes of key id with what follows."""

    name: str
    raw: bytes

    @property
    def unverified_unix_s(self) -> int | None:
        """The time that a cosignature names; None for a signature without one."""
        if len(self.raw) != _ID_BYTES + _TIME_BYTES + _SIGNATURE_BYTES:
            return None
        return int.from_bytes(self.raw[_ID_BYTES : _ID_BYTES + _TIME_BYTES], "big")

    def is_of(self, key: NoteKey) -> bool:
        """Whether it is said to be by this key, by the key's name and id."""
        return self.name == key.name and self.raw[:_ID_BYTES] == key.id

    def __str__(self) -> str:
        return f"{_DASH}{self.name} {base64.b64encode(self.raw).decode()}\n"


@dataclass(frozen=True)
class Note:
    """A text, ending in a newline, with signatures that nobody has checked yet."""

    text: str
    unverified_signatures: tuple[Signature, ...]

    @classmethod
    def parse(cls, note: str) -> Self:
        """Return the parts of a signed note; raises TransparencyError for what is none."""
        text, found, lines = note.rpartition("\n\n")
        if not found or len(note.encode()) > MAX_NOTE_BYTES or not lines.endswith("\n"):
            raise TransparencyError("what was sent " + _DAMAGED)
        text += "\n"
        if any(ord(letter) < 0x20 and letter != "\n" for letter in note):
            raise TransparencyError("what was sent " + _DAMAGED)
        rows = lines[:-1].split("\n")
        if len(rows) > MAX_SIGNATURES:
            raise TransparencyError(f"a checkpoint carries {len(rows)} signatures; at most {MAX_SIGNATURES} are read")
        return cls(text, tuple(_signature(row) for row in rows))

    def __str__(self) -> str:
        return self.text + "\n" + "".join(str(each) for each in self.unverified_signatures)

    def check(self, key: NoteKey) -> int:
        """Return the Unix time of a witness's cosignature (0 of a log's own) that holds; raises TransparencyError."""
        for each in self.unverified_signatures:
            if each.is_of(key):
                return _checked(self.text, each.raw[_ID_BYTES:], key)
        raise TransparencyError(f"the checkpoint is not signed by {key.name}")

    def is_said_to_be_signed_by(self, key: NoteKey) -> bool:
        """Return whether a signature bears a key's name; nobody has checked it."""
        return any(each.name == key.name for each in self.unverified_signatures)

    def with_signatures(self, *more: Signature) -> Self:
        """Return the note with further signatures, each in place of an earlier one of that name and key."""
        new = {(each.name, each.raw[:_ID_BYTES]) for each in more}
        old = [each for each in self.unverified_signatures if (each.name, each.raw[:_ID_BYTES]) not in new]
        return type(self)(self.text, (*old, *more))


@dataclass(frozen=True)
class Checkpoint:
    """What a log was at one time: its origin, how many entries it had, and the root over them."""

    origin: str
    size: int
    root: bytes

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the checkpoint in a note's text; further lines are read by nobody here. Raises TransparencyError."""
        lines = text.split("\n")
        if len(lines) < 4 or not _NAME.fullmatch(lines[0]) or not _NUMBER.fullmatch(lines[1]):
            raise TransparencyError("what was sent " + _DAMAGED)
        size, root = int(lines[1]), _decoded(lines[2])
        if size > MAX_SIZE or len(root) != HASH_BYTES:
            raise TransparencyError("what was sent " + _DAMAGED)
        return cls(lines[0], size, root)

    @property
    def text(self) -> str:
        """The three lines that are signed."""
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"


@dataclass(frozen=True)
class NoteSigner:
    """A private key that signs notes as one `NoteKey`."""

    key: NoteKey
    _private: Ed25519PrivateKey

    def __repr__(self) -> str:
        return f"NoteSigner({self.key.name}, ***)"

    @classmethod
    def of(cls, kind: str, private: Ed25519PrivateKey) -> Self:
        """Return the signer named after its kind (LOG or WITNESS) and its own key."""
        return cls(NoteKey.named(kind, private.public_key().public_bytes_raw()), private)

    def sign(self, text: str, unix_s: int = 0) -> Signature:
        """Return the signature of a text; a witness's holds for the time `unix_s`."""
        signed = self._private.sign(_message(text, unix_s if self.key.is_witness else None))
        time = unix_s.to_bytes(_TIME_BYTES, "big") if self.key.is_witness else b""
        return Signature(self.key.name, self.key.id + time + signed)


def log_key(public: bytes, origin: str) -> NoteKey:
    """Return the key of a log that sends `public`; raises TransparencyError where the origin names another key."""
    key = NoteKey.named(LOG, public)
    if key.name != origin:
        raise TransparencyError("the log's key is not the one that its checkpoint names; tell the operator")
    return key


def _message(text: str, unix_s: int | None) -> bytes:
    return (text if unix_s is None else f"cosignature/v1\ntime {unix_s}\n{text}").encode()


def _checked(text: str, signature: bytes, key: NoteKey) -> int:
    unix_s = int.from_bytes(signature[:_TIME_BYTES], "big") if key.is_witness else 0
    bare = signature[_TIME_BYTES:] if key.is_witness else signature
    try:
        if len(bare) != _SIGNATURE_BYTES:
            raise InvalidSignature
        public = Ed25519PublicKey.from_public_bytes(key.public)
        public.verify(bare, _message(text, unix_s if key.is_witness else None))
    except InvalidSignature as error:
        raise TransparencyError(f"the checkpoint's signature by {key.name} does not hold; tell the operator") from error
    return unix_s


def _signature(line: str) -> Signature:
    name, _, encoded = line.removeprefix(_DASH).partition(" ")
    raw = _decoded(encoded)
    if not line.startswith(_DASH) or not _NAME.fullmatch(name) or len(raw) <= _ID_BYTES:
        raise TransparencyError("what was sent " + _DAMAGED)
    return Signature(name, raw)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise TransparencyError("what was sent " + _DAMAGED) from error
