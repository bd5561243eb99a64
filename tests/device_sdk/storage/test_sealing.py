"""Sealing: a published vector, the context binding, and keys that never show."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.storage.sealing import SecretKey, bind, seal, unseal
from mien.errors import CorruptDataError, KeyStoreError

KEY = SecretKey(bytes(range(32)))


def test_seal_gives_the_published_ciphertext() -> None:
    # McGrew & Viega, "The Galois/Counter Mode of Operation", test case 16 (AES-256, with associated data).
    key = SecretKey(bytes.fromhex("feffe9928665731c6d6a8f9467308308" * 2))
    nonce = bytes.fromhex("cafebabefacedbaddecaf888")
    plain = bytes.fromhex(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
        "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
    )
    context = bytes.fromhex("feedfacedeadbeeffeedfacedeadbeefabaddad2")
    sealed = seal(key, plain, context, random_bytes=lambda _count: nonce)
    assert sealed[:12] == nonce
    assert sealed[12:] == bytes.fromhex(
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
        "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662"
        "76fc6ece0f4e1768cddf8853bb2d551b"
    )


@given(st.binary(max_size=200), st.lists(st.text(max_size=10), max_size=4))
def test_what_is_sealed_opens_under_its_context(plain: bytes, parts: list[str]) -> None:
    assert unseal(KEY, seal(KEY, plain, bind(*parts)), bind(*parts), what="it") == plain


def test_any_flipped_bit_is_noticed() -> None:
    sealed = seal(KEY, b"face", b"here")
    for position in range(len(sealed)):
        changed = bytearray(sealed)
        changed[position] ^= 1
        with pytest.raises(CorruptDataError):
            unseal(KEY, bytes(changed), b"here", what="it")


@pytest.mark.parametrize("length", [0, 5, 12, 27])
def test_cut_off_bytes_give_the_same_error(length: int) -> None:
    with pytest.raises(CorruptDataError, match="does not open"):
        unseal(KEY, seal(KEY, b"face", b"here")[:length], b"here", what="it")


@given(st.lists(st.text(max_size=4), max_size=4), st.lists(st.text(max_size=4), max_size=4))
def test_different_contexts_never_have_the_same_bytes(one: list[str], other: list[str]) -> None:
    assert (bind(*one) == bind(*other)) == (one == other)


def test_keys_do_not_show_themselves() -> None:
    secret = SecretKey(b"0123456789abcdef0123456789abcdef")
    assert "0123" not in f"{secret} {secret!r} {[secret]}"


def test_a_key_of_another_length_is_refused() -> None:
    with pytest.raises(KeyStoreError, match="31 bytes"):
        SecretKey(bytes(31))
