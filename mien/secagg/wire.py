"""The ten messages of the protocol as bytes: fixed layouts, nothing optional, nothing left over.

Every message begins with version (u8, 1) and number (u8). Integers are big-endian. `[n]x` is n times x. A set of
members is a bitmap (`canonical.pack_members`). Lists per neighbour are in the ascending order of ids.

==  ===========  ==============  ======================================================================================
no  name         direction       after the two bytes
==  ===========  ==============  ======================================================================================
0   Invite       to devices      canonical configuration (`config.RoundConfig`)
1   Advertise    to server       entry: id 16, m_pk 32, e_pk 32, nonce 32, signature 64, certificate length u16, DER
2   Roster       to devices      form u8, n u16, then
                                 form 0 (all): [n] entry, by ascending id
                                 form 1 (own neighbours): [n] id 16, [depth] hash 32 (path of the own entry),
                                 [k] (entry, [depth] hash 32), depth = ceil(log2 n)
3   Shares       to server       k u8, [k] (x u8, sealed 80), com_b 32, signature 64
4   Delivered    to one device   U2 bitmap, count u8, [count] (x u8, sealed 80), by sender
5   Masked       to server       SHA-256 of the packed vector 32, signature 64; the vector itself is a stream beside it
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
from dataclasses import dataclass, field
from typing import Final

from mien.errors import CorruptDataError, VersionError
from mien.secagg.canonical import HASH_BYTES, ID_BYTES, bitmap_size, tagged_hash, tree_depth
from mien.secagg.config import VERSION, RoundConfig
from mien.secagg.graph import MAX_DEVICES, MAX_NEIGHBOURS
from mien.secagg.keys import KEY_BYTES, SEALED_BYTES, SHARE_BYTES, SIGNATURE_BYTES

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
    """Parser that takes a message apart from the front."""

    def __init__(self, data: bytes, kind: Kind) -> None:
        self._data, self._at, self._name = data, 2, kind.name.lower()
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


def _head(kind: Kind) -> bytes:
    return bytes([VERSION, kind])


def kind_of(message: bytes) -> Kind:
    """Return which message this is; raises CorruptDataError for none of them."""
    if len(message) < 2 or message[1] > max(Kind):
        raise CorruptDataError("this is no message of a private sum; check in again")
    return Kind(message[1])


def invite_to_bytes(config: RoundConfig) -> bytes:
    """Return message 0."""
    return _head(Kind.INVITE) + config.to_bytes()


def invite_from_bytes(message: bytes) -> RoundConfig:
    """Return the configuration in message 0."""
    reader = _Reader(message, Kind.INVITE)
    return RoundConfig.from_bytes(reader.take(reader.left))


@dataclass(frozen=True)
class Entry:
    """A device in a roster: id, two fresh X25519 keys, a nonce, its signature over them, its leaf certificate (DER)."""

    id: bytes
    mask_key: bytes
    share_key: bytes
    nonce: bytes
    signature: bytes = field(repr=False)
    certificate: bytes = field(repr=False)

    def to_bytes(self) -> bytes:
        """Return the entry as rosters and their hashes hold it."""
        return b"".join(
            (
                *(self.id, self.mask_key, self.share_key, self.nonce, self.signature),
                *(len(self.certificate).to_bytes(2, "big"), self.certificate),
            )
        )

    @classmethod
    def read(cls, reader: _Reader) -> Entry:
        """Return the next entry of a message."""
        return cls(
            id=reader.take(ID_BYTES),
            mask_key=reader.take(KEY_BYTES),
            share_key=reader.take(KEY_BYTES),
            nonce=reader.take(NONCE_BYTES),
            signature=reader.take(SIGNATURE_BYTES),
            certificate=reader.take(reader.number(2, at_most=MAX_CERTIFICATE_BYTES)),
        )


@dataclass(frozen=True)
class Advertise:
    """Message 1: a device offers its keys."""

    entry: Entry

    def to_bytes(self) -> bytes:
        """Return the message."""
        return _head(Kind.ADVERTISE) + self.entry.to_bytes()

    @classmethod
    def from_bytes(cls, message: bytes) -> Advertise:
        """Return the message in bytes."""
        reader = _Reader(message, Kind.ADVERTISE)
        parsed = cls(Entry.read(reader))
        reader.end()
        return parsed


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
class Sealed:
    """One pair of shares on its way: index x of the shares, ciphertext (80 bytes)."""

    x: int
    ciphertext: bytes = field(repr=False)


def _sealed_to_bytes(sealed: tuple[Sealed, ...]) -> bytes:
    return bytes([len(sealed)]) + b"".join(bytes([s.x]) + s.ciphertext for s in sealed)


def _read_sealed(reader: _Reader) -> tuple[Sealed, ...]:
    count = reader.number(1, at_most=MAX_NEIGHBOURS)
    return tuple(Sealed(reader.number(1, at_most=255), reader.take(SEALED_BYTES)) for _ in range(count))


@dataclass(frozen=True)
class Shares:
    """Message 3: sealed shares for each neighbour, com_b, signature."""

    sealed: tuple[Sealed, ...]
    commitment_b: bytes
    signature: bytes = field(repr=False)

    def to_bytes(self) -> bytes:
        """Return the message."""
        return _head(Kind.SHARES) + _sealed_to_bytes(self.sealed) + self.commitment_b + self.signature

    @classmethod
    def from_bytes(cls, message: bytes) -> Shares:
        """Return the message in bytes."""
        reader = _Reader(message, Kind.SHARES)
        parsed = cls(_read_sealed(reader), reader.take(HASH_BYTES), reader.take(SIGNATURE_BYTES))
        reader.end()
        return parsed


@dataclass(frozen=True)
class Delivered:
    """Message 4: who shared (U2), and what its neighbours in U2 sealed for one device."""

    sharers: bytes
    sealed: tuple[Sealed, ...]

    def to_bytes(self) -> bytes:
        """Return the message."""
        return _head(Kind.DELIVERED) + self.sharers + _sealed_to_bytes(self.sealed)

    @classmethod
    def from_bytes(cls, message: bytes, n: int) -> Delivered:
        """Return the message in bytes, for a roster of n."""
        reader = _Reader(message, Kind.DELIVERED)
        parsed = cls(reader.take(bitmap_size(n)), _read_sealed(reader))
        reader.end()
        return parsed


@dataclass(frozen=True)
class Masked:
    """Message 5 without the vector: the hash of its packed bytes, and the signature."""

    payload_sha256: bytes
    signature: bytes = field(repr=False)

    def to_bytes(self) -> bytes:
        """Return the message."""
        return _head(Kind.MASKED) + self.payload_sha256 + self.signature

    @classmethod
    def from_bytes(cls, message: bytes) -> Masked:
        """Return the message in bytes."""
        reader = _Reader(message, Kind.MASKED)
        parsed = cls(reader.take(HASH_BYTES), reader.take(SIGNATURE_BYTES))
        reader.end()
        return parsed


@dataclass(frozen=True)
class Survivors:
    """Message 6: whose vectors are in the sum (U3)."""

    survivors: bytes

    def to_bytes(self) -> bytes:
        """Return the message."""
        return _head(Kind.SURVIVORS) + self.survivors

    @classmethod
    def from_bytes(cls, message: bytes, n: int) -> Survivors:
        """Return the message in bytes, for a roster of n."""
        reader = _Reader(message, Kind.SURVIVORS)
        parsed = cls(reader.take(bitmap_size(n)))
        reader.end()
        return parsed


@dataclass(frozen=True)
class Consistency:
    """Message 7: a survivor signs whom it was told of."""

    signature: bytes = field(repr=False)

    def to_bytes(self) -> bytes:
        """Return the message."""
        return _head(Kind.CONSISTENCY) + self.signature

    @classmethod
    def from_bytes(cls, message: bytes) -> Consistency:
        """Return the message in bytes."""
        reader = _Reader(message, Kind.CONSISTENCY)
        parsed = cls(reader.take(SIGNATURE_BYTES))
        reader.end()
        return parsed


@dataclass(frozen=True)
class Proof:
    """Message 8: neighbours' signatures of message 7, by id."""

    signatures: tuple[tuple[bytes, bytes], ...] = field(repr=False)

    def to_bytes(self) -> bytes:
        """Return the message."""
        body = b"".join(device + signature for device, signature in self.signatures)
        return _head(Kind.PROOF) + len(self.signatures).to_bytes(2, "big") + body

    @classmethod
    def from_bytes(cls, message: bytes) -> Proof:
        """Return the message in bytes."""
        reader = _Reader(message, Kind.PROOF)
        count = reader.number(2, at_most=MAX_NEIGHBOURS)
        parsed = cls(tuple((reader.take(ID_BYTES), reader.take(SIGNATURE_BYTES)) for _ in range(count)))
        reader.end()
        return parsed


@dataclass(frozen=True)
class Unmask:
    """Message 9: for each neighbour in U2, by id, one share: of its b if it survived, of its mask key if not.

    A device that was given no usable shares by a neighbour says so with ShareKind.NONE and zeros.
    """

    shares: tuple[tuple[ShareKind, bytes], ...] = field(repr=False)

    def to_bytes(self) -> bytes:
        """Return the message."""
        body = b"".join(bytes([kind]) + share for kind, share in self.shares)
        return _head(Kind.UNMASK) + bytes([len(self.shares)]) + body

    @classmethod
    def from_bytes(cls, message: bytes) -> Unmask:
        """Return the message in bytes."""
        reader = _Reader(message, Kind.UNMASK)
        count = reader.number(1, at_most=MAX_NEIGHBOURS)
        pairs = [(ShareKind(reader.number(1, at_most=2)), reader.take(SHARE_BYTES)) for _ in range(count)]
        reader.end()
        return cls(tuple(pairs))


# What signatures are over. Each is a tagged hash of fixed parts; R binds configuration, roster and so all keys.


def statement_advertise(config_sha256: bytes, entry: Entry) -> bytes:
    """Return the bytes that message 1 signs."""
    return tagged_hash("adv", config_sha256, entry.id, entry.mask_key, entry.share_key, entry.nonce)


def statement_shares(binding: bytes, sender: bytes, shares: Shares) -> bytes:
    """Return the bytes that message 3 signs: all of it but the signature."""
    return tagged_hash("shares", binding, sender, _sealed_to_bytes(shares.sealed), shares.commitment_b)


def statement_masked(binding: bytes, sharers_hash: bytes, payload_sha256: bytes) -> bytes:
    """Return the bytes that message 5 signs: roster, sharers (`canonical.members_hash`), and the vector by its hash."""
    return tagged_hash("masked", binding, sharers_hash, payload_sha256)


def statement_consistency(binding: bytes, sharers_hash: bytes, survivors_hash: bytes) -> bytes:
    """Return the bytes that message 7 signs, alike for all devices with the same roster, U2 and U3."""
    return tagged_hash("consist", binding, sharers_hash, survivors_hash)
