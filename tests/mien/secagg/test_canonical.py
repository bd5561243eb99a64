"""Tagged hashes, Merkle trees and member sets, against a second implementation and by hand."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mien.errors import CorruptDataError
from mien.secagg.canonical import (
    leaf_hash,
    members_hash,
    merkle_path,
    merkle_tree,
    pack_members,
    root_of_path,
    tagged_hash,
    tree_depth,
    unpack_members,
)
from tests.mien.secagg import reference


def test_a_tagged_hash_is_lengths_and_parts() -> None:
    written_out = b"\x00\x06MSA2/b" + b"\0\0\0\0\0\0\0\x03abc" + b"\0\0\0\0\0\0\0\0"
    assert tagged_hash("b", b"abc", b"") == hashlib.sha256(written_out).digest()


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_different_parts_never_share_a_hash(a: list[bytes], b: list[bytes]) -> None:
    assert (tagged_hash("x", *a) == tagged_hash("x", *b)) == (a == b)


def test_tags_separate() -> None:
    assert tagged_hash("adv", b"a") != tagged_hash("shares", b"a")


@given(st.integers(1, 40), st.data())
def test_every_path_leads_to_the_root(n: int, data: st.DataObject) -> None:
    entries = [bytes([i]) * i for i in range(n)]
    levels = merkle_tree([leaf_hash(i, entry) for i, entry in enumerate(entries)])
    root = reference.merkle_root(entries)
    assert levels[-1] == (root,)
    index = data.draw(st.integers(0, n - 1))
    path = merkle_path(levels, index)
    assert len(path) == tree_depth(n)
    assert root_of_path(leaf_hash(index, entries[index]), index, path) == root
    if n > 1:
        other = data.draw(st.integers(0, n - 1).filter(lambda i: i != index))
        assert root_of_path(leaf_hash(other, entries[index]), other, path) != root


def test_members_are_bits_lowest_first() -> None:
    assert pack_members({0, 3, 8}, 10) == bytes([0b00001001, 0b00000001])
    assert unpack_members(bytes([0b00001001, 0b00000001]), 10) == {0, 3, 8}


@given(st.integers(1, 70).flatmap(lambda n: st.tuples(st.just(n), st.frozensets(st.integers(0, n - 1)))))
def test_member_sets_round_trip(case: tuple[int, frozenset[int]]) -> None:
    n, members = case
    assert unpack_members(pack_members(members, n), n) == members


@pytest.mark.parametrize("bits", [b"", b"\0", b"\0\0\0", bytes([0, 0b100])])
def test_a_member_set_has_one_form(bits: bytes) -> None:
    with pytest.raises(CorruptDataError):
        unpack_members(bits, 10)


def test_the_same_members_of_a_larger_roster_hash_differently() -> None:
    assert members_hash({1}, 9) != members_hash({1}, 10)
