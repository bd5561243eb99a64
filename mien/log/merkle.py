"""Hashes and proofs of an append-only Merkle tree as RFC 9162, section 2.1, defines them (RFC 6962 has the same).

A tree is kept as the hashes of its complete subtrees: `nodes(level, index)` is that of the 2**level leaves from leaf
index * 2**level on. To append writes one hash and, on average, one more; roots and proofs read O(log n) of them, and
nothing is ever written over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from mien.errors import TransparencyError

HASH_BYTES: Final = 32
MAX_SIZE: Final = 2**53

EMPTY_ROOT: Final = hashlib.sha256().digest()
"""Root of the tree without leaves."""

Nodes: TypeAlias = Callable[[int, int], bytes]
"""Returns the hash of the complete subtree at (level, index)."""


def leaf_hash(entry: bytes) -> bytes:
    """Return the hash of a leaf: SHA-256 of 0x00 and its entry."""
    return hashlib.sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of an inner node: SHA-256 of 0x01 and both children."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def appended(nodes: Nodes, size: int, leaf: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield (level, index, hash) of each subtree that a further leaf hash completes in a tree of `size` leaves."""
    level, index, completed = 0, size, leaf
    yield level, index, completed
    while index % 2:
        completed = node_hash(nodes(level, index - 1), completed)
        level, index = level + 1, index // 2
        yield level, index, completed


def tree_root(nodes: Nodes, size: int) -> bytes:
    """Return the root of the tree of the first `size` leaves."""
    return _subtree(nodes, 0, size) if size else EMPTY_ROOT


def inclusion_proof(nodes: Nodes, index: int, size: int) -> list[bytes]:
    """Return the hashes that lead from leaf `index` to the root of the first `size` leaves (PATH, section 2.1.3.1)."""
    if not 0 <= index < size:
        raise ValueError("only a leaf of the tree has a path in it")
    proof, low, high = [], 0, size
    while high - low > 1:
        middle = low + _split(high - low)
        if index < middle:
            proof.append(_subtree(nodes, middle, high))
            high = middle
        else:
            proof.append(_subtree(nodes, low, middle))
            low = middle
    return proof[::-1]


def consistency_proof(nodes: Nodes, first: int, size: int) -> list[bytes]:
    """Return the hashes that show that the first `first` leaves begin the tree of `size` (section 2.1.4.1)."""
    if not 0 <= first <= size:
        raise ValueError("a tree is consistent with one that is no larger")
    if first in (0, size):
        return []
    proof, low, high, is_root = list[bytes](), 0, size, True
    while first - low != high - low:
        middle = low + _split(high - low)
        if first <= middle:
            proof.append(_subtree(nodes, middle, high))
            high = middle
        else:
            proof.append(_subtree(nodes, low, middle))
            low, is_root = middle, False
    if not is_root:
        proof.append(_subtree(nodes, low, high))
    return proof[::-1]


def check_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> None:
    """Raise TransparencyError unless the proof leads from a leaf hash to the root (section 2.1.3.2)."""
    fits = 0 <= index < size <= MAX_SIZE
    left, last, reached = index, size - 1, leaf
    for sibling in proof:
        fits = fits and last > 0 and len(sibling) == HASH_BYTES
        if not fits:
            break
        if left % 2 or left == last:
            reached = node_hash(sibling, reached)
            while left % 2 == 0 and left:
                left, last = left >> 1, last >> 1
        else:
            reached = node_hash(reached, sibling)
        left, last = left >> 1, last >> 1
    if not fits or last != 0 or reached != root:
        raise TransparencyError(f"the log does not hold at {index} of {size} what it was said to hold there")


def check_consistency(first: int, first_root: bytes, size: int, root: bytes, proof: Sequence[bytes]) -> None:
    """Raise TransparencyError unless the proof shows that one tree begins the other (section 2.1.4.2)."""
    if not _is_consistent(first, first_root, size, root, list(proof)):
        raise TransparencyError(f"the log's {size} entries do not begin with the {first} that it showed before")


def _is_consistent(first: int, first_root: bytes, size: int, root: bytes, proof: list[bytes]) -> bool:
    if not 0 <= first <= size <= MAX_SIZE or any(len(each) != HASH_BYTES for each in proof):
        return False
    if first in (0, size):
        return not proof and first_root == (root if first == size else EMPTY_ROOT)
    if first & (first - 1) == 0:
        proof = [first_root, *proof]
    if not proof:
        return False
    old, last = first - 1, size - 1
    while old % 2:
        old, last = old >> 1, last >> 1
    reached_first = reached = proof[0]
    for sibling in proof[1:]:
        if last == 0:
            return False
        if old % 2 or old == last:
            reached_first, reached = node_hash(sibling, reached_first), node_hash(sibling, reached)
            while old % 2 == 0 and old:
                old, last = old >> 1, last >> 1
        else:
            reached = node_hash(reached, sibling)
        old, last = old >> 1, last >> 1
    return last == 0 and reached_first == first_root and reached == root


def _split(size: int) -> int:
    """Return the largest power of two below `size`, which is at least 2."""
    return 1 << ((size - 1).bit_length() - 1)


def _subtree(nodes: Nodes, low: int, high: int) -> bytes:
    """Return the hash over leaves `low` to `high`, `low` being where a complete subtree of that size would begin."""
    size = high - low
    if size & (size - 1) == 0:
        level = size.bit_length() - 1
        return nodes(level, low >> level)
    middle = low + _split(size)
    return node_hash(_subtree(nodes, low, middle), _subtree(nodes, middle, high))
