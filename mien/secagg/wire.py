"""The ten messages of the protocol as bytes: fixed layouts, nothing optional, nothing left over.

Every message begins with version (u8, 2) and number (u8). Integers are big-endian. `[n]x` is n times x. A set of
members is a bitmap (`canonical.pack_members`). Lists per neighbour are in the ascending order of ids.

==  ===========  ==============  ======================================================================================
no  name         direction       after the two bytes
==  ===========  ==============  ======================================================================================
0   Invite       to devices      canonical configuration (`config.RoundConfig`)
1   Advertise    to server       entry: id 16, m_pk 32, e_pk 32, kem_pk 1184, nonce 32, signature 64, length u16, DER
2   Roster       to devices      form u8, n u16, then
                                 form 0 (all): [n] entry, by ascending id
                                 form 1 (own neighbours): [n] id 16, [depth] hash 32 (path of the own entry),
                                 [k] (entry, [depth] hash 32), depth = ceil(log2 n)
3   Shares       to server       k u8, [k] (x u8, sealed 1200), com_b 32, signature 64
4   Delivered    to one device   U2 bitmap, count u8, [count] (x u8, sealed 1200), by sender
5   Masked       to server       SHA-256 of the packed vector 32, count u8, [count] cover 32 (one for each neighbour in
                                 U2 with a higher id), signature 64; the vector itself is a stream beside it
6   Survivors    to devices      U3 bitmap
7   Consistency  to server       signature 64
8   Proof        to one device   count u16, [count] (id 16, signature 64)
9   Unmask       to server       count u8, [count] (kind u8, share 32), one for each neighbour in U2
==  ===========  ==============  ======================================================================================

Signatures are over a tagged hash (`statement_*` below), never over these bytes. Parsers raise CorruptDataError for a
message that is cut off, too long or of another kind, and VersionError for another version; they check no meaning.
"""

from __future__ import annotations

import enum
import functools
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, Self

from mien.errors import CorruptDataError, VersionError
from mien.secagg.canonical import HASH_BYTES, ID_BYTES, bitmap_size, tagged_hash, tree_depth
from mien.secagg.config import VERSION, RoundConfig
from mien.secagg.graph import MAX_DEVICES, MAX_NEIGHBOURS
from mien.secagg.keys import KEM_KEY_BYTES, KEY_BYTES, PART_BYTES, SEALED_BYTES, SHARE_BYTES, SIGNATURE_BYTES

NONCE_BYTES: Final = 32
MAX_CERTIFICATE_BYTES: Final = 8 * 1024


class Kind(enum.IntEnum):
    """The number of a message."""

    INVITE = 0
    ADVERTISE = 1
    ROSTER = 2
    SHARES = 3
    DELIVERED = 4
    MASKED = 5
    SURVIVORS = 6
    CONSISTENCY = 7
    PROOF = 8
    UNMASK = 9


class ShareKind(enum.IntEnum):
    """Kind of a neighbour's share that a device releases: never both."""

    NONE = 0
    SELF_MASK = 1
    PAIR_KEY = 2


class _Reader:
    """Parser that takes a message apart from the front; `num_members` is the size of its roster."""

    def __init__(self, data: bytes, kind: Kind, num_members: int = 0) -> None:
        self._data, self._at, self._name = data, 2, kind.name.lower()
        self.num_members = num_members
        if data[:1] != bytes([VERSION]):
            raise VersionError(f"a {self._name} message of another version arrived; upgrade the older program")
        if data[1:2] != bytes([kind]):
            raise CorruptDataError(f"a {self._name} message was expected, another came; check in again")

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        piece = self._data[self._at : self._at + size]
        self._at += size
        if len(piece) != size:
            raise CorruptDataError(f"the {self._name} message is cut off; send it again")
        return piece

    def number(self, size: int, *, at_most: int) -> int:
        """Return the next integer of `size` bytes."""
        value = int.from_bytes(self.take(size), "big")
        if value > at_most:
            raise CorruptDataError(
                f"the {self._name} message says {value}, at most {at_most} is possible; send it again"
            )
        return value

    @property
    def left(self) -> int:
        """Number of bytes left."""
        return len(self._data) - self._at

    def end(self) -> None:
        """Raise CorruptDataError if anything is left."""
        if self.left:
            raise CorruptDataError(f"the {self._name} message is too long; send it again")


# How a field travels: the annotation of each field of a record below ends in its form.


@dataclass(frozen=True)
class _Form:
    """A field's bytes, and the field that is read from a message."""

    to_bytes: Callable[[Any], bytes]
    read: Callable[[_Reader], Any]


def _fixed(size: int) -> _Form:
    return _Form(bytes, lambda reader: reader.take(size))


def _number(size: int, *, at_most: int, kind: Callable[[int], int] = int) -> _Form:
    return _Form(lambda value: value.to_bytes(size, "big"), lambda reader: kind(reader.number(size, at_most=at_most)))


def _sized(size: int, *, at_most: int) -> _Form:
    """Return the form of bytes behind their length, itself of `size` bytes."""
    return _Form(
        lambda value: len(value).to_bytes(size, "big") + value,
        lambda reader: reader.take(reader.number(size, at_most=at_most)),
    )


def _pair(*parts: _Form) -> _Form:
    return _Form(
        lambda values: b"".join(part.to_bytes(value) for part, value in zip(parts, values, strict=True)),
        lambda reader: tuple(part.read(reader) for part in parts),
    )


def _listed(size: int, item: _Form) -> _Form:
    """Return the form of a list, one item a neighbour, behind its length of `size` bytes."""

    def read(reader: _Reader) -> tuple[Any, ...]:
        return tuple(item.read(reader) for _ in range(reader.number(size, at_most=MAX_NEIGHBOURS)))

    return _Form(lambda items: len(items).to_bytes(size, "big") + b"".join(map(item.to_bytes, items)), read)


Id = Annotated[bytes, _fixed(ID_BYTES)]
Key = Annotated[bytes, _fixed(KEY_BYTES)]
Hash = Annotated[bytes, _fixed(HASH_BYTES)]
Signature = Annotated[bytes, _fixed(SIGNATURE_BYTES)]
Members = Annotated[bytes, _Form(bytes, lambda reader: reader.take(bitmap_size(reader.num_members)))]
"""A set of the roster's members."""


@functools.cache
def _forms(cls: type) -> tuple[tuple[str, _Form], ...]:
    """Return each field of a record and its form, in order."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple((name, hint.__metadata__[0]) for name, hint in hints.items() if typing.get_origin(hint) is Annotated)


@dataclass(frozen=True)
class _Record:
    """Fields laid end to end."""

    def to_bytes(self) -> bytes:
        """Return the fields' bytes."""
        return b"".join([form.to_bytes(getattr(self, name)) for name, form in _forms(typing.cast("Any", type(self)))])

    @classmethod
    def read(cls, reader: _Reader) -> Self:
        """Return the next such record of a message."""
        return cls(*[form.read(reader) for _, form in _forms(typing.cast("Any", cls))])


@dataclass(frozen=True)
class Message(_Record):
    """A message that is its head and its fields."""

    kind: ClassVar[Kind]

    def to_bytes(self) -> bytes:
        """Return the message."""
        return _head(self.kind) + super().to_bytes()

    @classmethod
    def from_bytes(cls, message: bytes, n: int = 0) -> Self:
        """Return the message in bytes, for a roster of n where it holds a set of members."""
        reader = _Reader(message, cls.kind, n)
        parsed = cls.read(reader)
        reader.end()
        return parsed


def _head(kind: Kind) -> bytes:
    return bytes([VERSION, kind])


def invite_to_bytes(config: RoundConfig) -> bytes:
    """Return message 0."""
    return _head(Kind.INVITE) + config.to_bytes()


def invite_from_bytes(message: bytes) -> RoundConfig:
    """Return the configuration in message 0."""
    reader = _Reader(message, Kind.INVITE)
    return RoundConfig.from_bytes(reader.take(reader.left))


@dataclass(frozen=True)
class Entry(_Record):
    """A device in a roster: id, fresh keys, a nonce, its signature over them, its leaf certificate (DER).

    The keys are an X25519 key for masks, and for what is sealed an X25519 and an ML-KEM-768 key.
    """

    id: Id
    mask_key: Key
    share_key: Key
    kem_key: Annotated[bytes, _fixed(KEM_KEY_BYTES)]
    nonce: Annotated[bytes, _fixed(NONCE_BYTES)]
    signature: Signature = field(repr=False)
    certificate: Annotated[bytes, _sized(2, at_most=MAX_CERTIFICATE_BYTES)] = field(repr=False)

    @functools.cached_property
    def _bytes(self) -> bytes:
        return super().to_bytes()

    def to_bytes(self) -> bytes:
        """Return the fields' bytes, laid out once: a server sends an entry to every neighbour of its device."""
        return self._bytes


@dataclass(frozen=True)
class Advertise(Message):
    """Message 1: a device offers its keys."""

    kind = Kind.ADVERTISE
    entry: Annotated[Entry, _Form(Entry.to_bytes, Entry.read)]


@dataclass(frozen=True)
class FullRoster:
    """Message 2 in full: every entry, by ascending id."""

    entries: tuple[Entry, ...]

    def to_bytes(self) -> bytes:
        """Return the message."""
        body = b"".join(entry.to_bytes() for entry in self.entries)
        return _head(Kind.ROSTER) + b"\0" + len(self.entries).to_bytes(2, "big") + body


Path = tuple[bytes, ...]


@dataclass(frozen=True)
class SparseRoster:
    """Message 2 for large cohorts: all ids, the path of the own entry, and the neighbours' entries with their paths."""

    ids: tuple[bytes, ...]
    own_path: Path
    neighbours: tuple[tuple[Entry, Path], ...]

    def to_bytes(self) -> bytes:
        """Return the message."""
        parts = [_head(Kind.ROSTER), b"\1", len(self.ids).to_bytes(2, "big"), *self.ids, *self.own_path]
        for entry, path in self.neighbours:
            parts += [entry.to_bytes(), *path]
        return b"".join(parts)


def roster_from_bytes(message: bytes) -> FullRoster | SparseRoster:
    """Return message 2 in either form; the number of neighbours is what the message holds."""
    reader = _Reader(message, Kind.ROSTER)
    form, n = reader.number(1, at_most=1), reader.number(2, at_most=MAX_DEVICES)
    if form == 0:
        full = FullRoster(tuple(Entry.read(reader) for _ in range(n)))
        reader.end()
        return full
    ids = tuple(reader.take(ID_BYTES) for _ in range(n))
    depth = tree_depth(max(n, 1))
    own_path = tuple(reader.take(HASH_BYTES) for _ in range(depth))
    neighbours: list[tuple[Entry, Path]] = []
    while reader.left:
        if len(neighbours) == MAX_NEIGHBOURS:
            raise CorruptDataError("the roster message names too many neighbours; check in again")
        neighbours.append((Entry.read(reader), tuple(reader.take(HASH_BYTES) for _ in range(depth))))
    return SparseRoster(ids, own_path, tuple(neighbours))


@dataclass(frozen=True)
class Sealed(_Record):
    """One pair of shares on its way: index x of the shares, ciphertext (1200 bytes)."""

    x: Annotated[int, _number(1, at_most=255)]
    ciphertext: Annotated[bytes, _fixed(SEALED_BYTES)] = field(repr=False)


_SEALED: Final = _listed(1, _Form(Sealed.to_bytes, Sealed.read))
_COVERS: Final = _listed(1, _fixed(PART_BYTES))


@dataclass(frozen=True)
class Shares(Message):
    """Message 3: sealed shares for each neighbour, com_b, signature."""

    kind = Kind.SHARES
    sealed: Annotated[tuple[Sealed, ...], _SEALED]
    commitment_b: Hash
    signature: Signature = field(repr=False)


@dataclass(frozen=True)
class Delivered(Message):
    """Message 4: who shared (U2), and what its neighbours in U2 sealed for one device."""

    kind = Kind.DELIVERED
    sharers: Members
    sealed: Annotated[tuple[Sealed, ...], _SEALED]


@dataclass(frozen=True)
class Masked(Message):
    """Message 5 without the vector: the hash of its packed bytes, covers (`keys.cover`) by id, the signature."""

    kind = Kind.MASKED
    payload_sha256: Hash
    covers: Annotated[tuple[bytes, ...], _COVERS] = field(repr=False)
    signature: Signature = field(repr=False)


@dataclass(frozen=True)
class Survivors(Message):
    """Message 6: whose vectors are in the sum (U3)."""

    kind = Kind.SURVIVORS
    survivors: Members


@dataclass(frozen=True)
class Consistency(Message):
    """Message 7: a survivor signs whom it was told of."""

    kind = Kind.CONSISTENCY
    signature: Signature = field(repr=False)


@dataclass(frozen=True)
class Proof(Message):
    """Message 8: neighbours' signatures of message 7, by id."""

    kind = Kind.PROOF
    signatures: Annotated[
        tuple[tuple[bytes, bytes], ...], _listed(2, _pair(_fixed(ID_BYTES), _fixed(SIGNATURE_BYTES)))
    ] = field(repr=False)


@dataclass(frozen=True)
class Unmask(Message):
    """Message 9: for each neighbour in U2, by id, one share: of its b if it survived, of its mask key if not.

    A device that was given no usable shares by a neighbour says so with ShareKind.NONE and zeros.
    """

    kind = Kind.UNMASK
    shares: Annotated[
        tuple[tuple[ShareKind, bytes], ...],
        _listed(1, _pair(_number(1, at_most=max(ShareKind), kind=ShareKind), _fixed(SHARE_BYTES))),
    ] = field(repr=False)


# What signatures are over. Each is a tagged hash of fixed parts; R binds configuration, roster and so all keys.


def statement_advertise(config_sha256: bytes, entry: Entry) -> bytes:
    """Return the bytes that message 1 signs."""
    keys = entry.mask_key, entry.share_key, entry.kem_key
    return tagged_hash("adv", config_sha256, entry.id, *keys, entry.nonce)


def statement_shares(binding: bytes, sender: bytes, shares: Shares) -> bytes:
    """Return the bytes that message 3 signs: all of it but the signature."""
    return tagged_hash("shares", binding, sender, _SEALED.to_bytes(shares.sealed), shares.commitment_b)


def statement_masked(binding: bytes, sharers_hash: bytes, payload_sha256: bytes, covers: tuple[bytes, ...]) -> bytes:
    """Return the bytes that message 5 signs: roster, sharers (`canonical.members_hash`), vector by its hash, covers."""
    return tagged_hash("masked", binding, sharers_hash, payload_sha256, _COVERS.to_bytes(covers))


def statement_consistency(binding: bytes, sharers_hash: bytes, survivors_hash: bytes) -> bytes:
    """Return the bytes that message 7 signs, alike for all devices with the same roster, U2 and U3."""
    return tagged_hash("consist", binding, sharers_hash, survivors_hash)
