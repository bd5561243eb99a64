"""The tree of RFC 9162: roots and proofs of the published test tree, every proof of small trees, and forged ones."""

from __future__ import annotations

import random

import pytest

from mien.errors import TransparencyError
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

# The reference tree of google/certificate-transparency, which clients of many languages are tested with.
ENTRIES = [
    bytes.fromhex(text)
    for text in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
]
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


class Tree:
    def __init__(self, entries):
        self.stored, self.size, self.reads = {}, 0, 0
        for entry in entries:
            self.append(entry)

    def append(self, entry):
        for level, index, made in appended(self.node, self.size, leaf_hash(entry)):
            assert (level, index) not in self.stored
            self.stored[level, index] = made
        self.size += 1

    def node(self, level, index):
        self.reads += 1
        return self.stored[level, index]


@pytest.mark.parametrize("size", range(1, 9))
def test_the_published_tree_has_its_published_roots(size):
    assert tree_root(Tree(ENTRIES).node, size).hex() == ROOTS[size - 1]


def test_published_proofs():
    tree = Tree(ENTRIES)

    assert [each.hex()[:8] for each in inclusion_proof(tree.node, 0, 8)] == ["96a296d2", "5f083f0a", "6b47aaf2"]
    assert [each.hex()[:8] for each in inclusion_proof(tree.node, 5, 8)] == ["bc1a0643", "ca854ea1", "d37ee418"]
    assert [each.hex()[:8] for each in inclusion_proof(tree.node, 2, 3)] == ["fac54203"]
    assert [each.hex()[:8] for each in consistency_proof(tree.node, 1, 8)] == ["96a296d2", "5f083f0a", "6b47aaf2"]
    assert [each.hex()[:8] for each in consistency_proof(tree.node, 6, 8)] == ["0ebc5d34", "ca854ea1", "d37ee418"]
    assert [each.hex()[:8] for each in consistency_proof(tree.node, 2, 5)] == ["5f083f0a", "bc1a0643"]


def test_every_proof_of_every_small_tree_holds_and_no_other_one_does():
    tree = Tree(bytes([each]) for each in range(33))
    roots = [tree_root(tree.node, size) for size in range(34)]
    for size in range(1, 34):
        for index in range(size):
            proof = inclusion_proof(tree.node, index, size)
            check_inclusion(leaf_hash(bytes([index])), index, size, proof, roots[size])
            for leaf, at, of, path in (
                (leaf_hash(b"other"), index, size, proof),
                (leaf_hash(bytes([index])), (index + 1) % size if size > 1 else 1, size, proof),
                (leaf_hash(bytes([index])), index, size, [*proof, roots[1]]),
                (leaf_hash(bytes([index])), index, size, proof[:-1] if proof else [roots[0]]),
            ):
                with pytest.raises(TransparencyError, match="does not hold"):
                    check_inclusion(leaf, at, of, path, roots[size])
        for first in range(size + 1):
            proof = consistency_proof(tree.node, first, size)
            check_consistency(first, roots[first], size, roots[size], proof)
            wrong = [(first, leaf_hash(b"other"), proof), (first, roots[first], [*proof, roots[1]])]
            if proof:
                wrong.append((first, roots[first], proof[:-1]))
                wrong.append((first, roots[first], [leaf_hash(b"other"), *proof[1:]]))
            for before, root, path in wrong:
                with pytest.raises(TransparencyError, match="do not begin"):
                    check_consistency(before, root, size, roots[size], path)


def test_the_empty_tree():
    assert tree_root(Tree([]).node, 0) == EMPTY_ROOT
    check_consistency(0, EMPTY_ROOT, 3, leaf_hash(b""), [])
    with pytest.raises(TransparencyError, match="do not begin"):
        check_consistency(0, EMPTY_ROOT, 0, leaf_hash(b""), [])
    with pytest.raises(TransparencyError):
        check_consistency(4, EMPTY_ROOT, 3, leaf_hash(b""), [])
    with pytest.raises(TransparencyError):
        check_inclusion(leaf_hash(b""), 0, 0, [], EMPTY_ROOT)
    with pytest.raises(ValueError, match="only a leaf"):
        inclusion_proof(Tree([]).node, 0, 0)


def test_to_append_and_to_prove_reads_a_logarithm_of_the_tree():
    tree = Tree(index.to_bytes(4, "big") for index in range(5000))
    rng = random.Random(7)
    for _ in range(50):
        size = rng.randrange(2, 5001)
        tree.reads = 0
        inclusion_proof(tree.node, rng.randrange(size), size)
        assert tree.reads <= 3 * 13
        tree.reads = 0
        consistency_proof(tree.node, rng.randrange(1, size), size)
        assert tree.reads <= 3 * 13
    tree.reads = 0
    tree.append(b"one more")
    assert tree.reads <= 13
