"""Canonical bytes for hashes and signatures: tagged hashes, Merkle trees over a roster, sets of members as bits.

Only fixed layouts are ever hashed or signed, never a serialiser's output. Integers are big-endian.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

from mien.errors import CorruptDataError

HASH_BYTES: Final = 32
ID_BYTES: Final = 16
PREFIX: Final = "MSA2/"
"""Every tag begins with the protocol's name and version, so that no hash means anything in another protocol."""


def tagged_hash(tag: str, *parts: bytes | bytearray) -> bytes:
    """Return H(tag, parts): SHA-256 over u16 length ‖ "MSA2/" tag, then u64 length ‖ part for each part.

    Lengths make the encoding injective: no two different lists of parts have the same bytes.
    """
    name = (PREFIX + tag).encode("ascii")
    pieces: list[bytes | bytearray] = [len(name).to_bytes(2, "big"), name]
    for part in parts:
        pieces += (len(part).to_bytes(8, "big"), part)
    return hashlib.sha256(b"".join(pieces)).digest()


# Merkle trees: a roster of thousands, of which a device needs only its neighbours.

_EMPTY_LEAF: Final = tagged_hash("leaf")


def leaf_hash(index: int, entry: bytes) -> bytes:
    """Return the hash of the entry at `index` (0-based, in the order of ids)."""
    return tagged_hash("leaf", index.to_bytes(4, "big"), entry)


def tree_depth(num_leaves: int) -> int:
    """Return the length of every path: the tree is filled up to a power of two with H("leaf") of no parts."""
    return (num_leaves - 1).bit_length()


def merkle_tree(leaves: Sequence[bytes]) -> tuple[tuple[bytes, ...], ...]:
    """Return the levels of the tree over leaf hashes, leaves first; the last level is (root,)."""
    level = [*leaves, *[_EMPTY_LEAF] * ((1 << tree_depth(len(leaves))) - len(leaves))]
    levels = [tuple(level)]
    while len(level) > 1:
        level = [tagged_hash("node", level[i], level[i + 1]) for i in range(0, len(level), 2)]
        levels.append(tuple(level))
    return tuple(levels)


def merkle_path(levels: Sequence[Sequence[bytes]], index: int) -> tuple[bytes, ...]:
    """Return the siblings of leaf `index` from the bottom up."""
    return tuple(level[(index >> depth) ^ 1] for depth, level in enumerate(levels[:-1]))


def root_of_path(leaf: bytes, index: int, path: Sequence[bytes]) -> bytes:
    """Return the root that a leaf hash at `index` and its path lead to."""
    node = leaf
    for depth, sibling in enumerate(path):
        pair = (sibling, node) if index >> depth & 1 else (node, sibling)
        node = tagged_hash("node", *pair)
    return node


# Sets of members, by their index in the roster.


def bitmap_size(num_members: int) -> int:
    """Return the bytes of a set over `num_members`."""
    return (num_members + 7) // 8


def pack_members(members: Iterable[int], num_members: int) -> bytes:
    """Return a set of indices as bits: member i is bit i mod 8 (lowest first) of byte i div 8."""
    bits = bytearray(bitmap_size(num_members))
    for index in members:
        bits[index // 8] |= 1 << index % 8
    return bytes(bits)


def unpack_members(bits: bytes, num_members: int) -> frozenset[int]:
    """Return the set in `bits`; raises CorruptDataError for a wrong length or bits beyond the last member."""
    if len(bits) != bitmap_size(num_members) or int.from_bytes(bits, "little") >> num_members:
        raise CorruptDataError(f"a list of {num_members} members is damaged; leave this round, check in again")
    return frozenset(i for i in range(num_members) if bits[i // 8] >> i % 8 & 1)


def members_hash(members: Iterable[int], num_members: int) -> bytes:
    """Return the hash of a set of indices, as signatures cover it."""
    return tagged_hash("members", num_members.to_bytes(4, "big"), pack_members(members, num_members))
