"""The bytes under a renewal's signature, written out by hand."""

from __future__ import annotations

import pytest

from mien.protocol.renewal import renewal_message

# SHA-256 of the three bytes "abc" (FIPS 180-4, example B.1).
SHA256_ABC = bytes.fromhex("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")


def test_renewal_message_is_context_digest_and_time() -> None:
    # 1 700 000 000 000 ms is 0x018bcfe56800.
    assert renewal_message(b"abc", 1_700_000_000_000) == (
        b"mien/v1/renew" + SHA256_ABC + bytes.fromhex("0000018bcfe56800")
    )


def test_times_before_1970_have_bytes_too() -> None:
    assert renewal_message(b"abc", -1)[-8:] == b"\xff" * 8
    with pytest.raises(OverflowError):
        renewal_message(b"abc", 2**63)
