"""Messages round-trip, have one form, and say what is wrong with every other one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mien.errors import CorruptDataError, MienError, VersionError
from mien.secagg import wire
from mien.secagg.wire import (
    Advertise,
    Consistency,
    Delivered,
    Entry,
    FullRoster,
    Kind,
    Masked,
    Proof,
    Sealed,
    ShareKind,
    Shares,
    SparseRoster,
    Survivors,
    Unmask,
    roster_from_bytes,
    statement_advertise,
    statement_consistency,
    statement_masked,
    statement_shares,
)
from tests.mien.secagg import reference
from tests.mien.secagg.cohort import make_config

N = 9
R, H1, H2 = b"R" * 32, b"1" * 32, b"2" * 32


def entry(number: int) -> Entry:
    return Entry(
        bytes([number]) * 16, b"m" * 32, b"e" * 32, b"k" * 1184, b"n" * 32, b"s" * 64, b"certificate %d" % number
    )


PATH = tuple(bytes([i]) * 32 for i in range(4))
MESSAGES: dict[Kind, tuple[Any, Callable[[bytes], Any]]] = {
    Kind.ADVERTISE: (Advertise(entry(1)), Advertise.from_bytes),
    Kind.ROSTER: (FullRoster(tuple(entry(i) for i in range(3))), roster_from_bytes),
    Kind.SHARES: (Shares((Sealed(1, b"a" * 1200), Sealed(2, b"b" * 1200)), b"c" * 32, b"s" * 64), Shares.from_bytes),
    Kind.DELIVERED: (Delivered(b"\x07\0", (Sealed(3, b"a" * 1200),)), lambda data: Delivered.from_bytes(data, N)),
    Kind.MASKED: (Masked(b"h" * 32, (b"c" * 32, b"d" * 32), b"s" * 64), Masked.from_bytes),
    Kind.SURVIVORS: (Survivors(b"\x07\x01"), lambda data: Survivors.from_bytes(data, N)),
    Kind.CONSISTENCY: (Consistency(b"s" * 64), Consistency.from_bytes),
    Kind.PROOF: (Proof(((b"a" * 16, b"s" * 64), (b"b" * 16, b"t" * 64))), Proof.from_bytes),
    Kind.UNMASK: (
        Unmask(((ShareKind.SELF_MASK, b"a" * 32), (ShareKind.PAIR_KEY, b"b" * 32), (ShareKind.NONE, bytes(32)))),
        Unmask.from_bytes,
    ),
}


@pytest.mark.parametrize("kind", MESSAGES)
def test_messages_round_trip(kind: Kind) -> None:
    message, parse = MESSAGES[kind]
    data = message.to_bytes()
    assert data[:2] == bytes([2, kind])
    assert parse(data) == message


def test_the_sparse_roster_round_trips() -> None:
    ids = tuple(bytes([i]) * 16 for i in range(N))
    roster = SparseRoster(ids, PATH, ((entry(2), PATH), (entry(5), PATH)))
    assert roster_from_bytes(roster.to_bytes()) == roster


def test_the_invite_is_the_configuration() -> None:
    config = make_config(N)
    assert wire.invite_to_bytes(config) == b"\x02\x00" + config.to_bytes()
    assert wire.invite_from_bytes(wire.invite_to_bytes(config)) == config


@pytest.mark.parametrize("kind", MESSAGES)
def test_every_cut_and_every_surplus_is_refused(kind: Kind) -> None:
    message, parse = MESSAGES[kind]
    data = message.to_bytes()
    for end in range(len(data)):
        with pytest.raises((CorruptDataError, VersionError)):
            parse(data[:end])
    with pytest.raises(CorruptDataError):
        parse(data + b"\0")


@pytest.mark.parametrize("kind", MESSAGES)
def test_other_kinds_and_versions_are_refused(kind: Kind) -> None:
    message, parse = MESSAGES[kind]
    data = message.to_bytes()
    with pytest.raises(VersionError):
        parse(b"\x01" + data[1:])
    with pytest.raises(CorruptDataError, match="another came"):
        parse(data[:1] + bytes([(kind + 1) % 10]) + data[2:])


@given(st.binary(max_size=400), st.sampled_from(sorted(MESSAGES)))
def test_noise_is_refused_with_an_error_of_ours_or_parsed_to_the_same_bytes(noise: bytes, kind: Kind) -> None:
    data = bytes([2, kind]) + noise
    try:
        parsed = MESSAGES[kind][1](data)
    except MienError:
        return
    assert parsed.to_bytes() == data


def test_counts_are_limited_before_anything_is_read() -> None:
    with pytest.raises(CorruptDataError, match="at most 5000"):
        roster_from_bytes(b"\x02\x02\x00\xff\xff")
    with pytest.raises(CorruptDataError, match="at most 254"):
        Unmask.from_bytes(b"\x02\x09\xff")
    with pytest.raises(CorruptDataError, match="at most 8192"):
        Advertise.from_bytes(b"\x02\x01" + bytes(16 + 96 + 1184 + 64) + b"\xff\xff")


def test_a_sparse_roster_of_nobody_is_refused_later() -> None:
    assert roster_from_bytes(b"\x02\x02\x01\x00\x00") == SparseRoster((), (), ())


def test_signed_statements_written_out() -> None:
    e = entry(1)
    keys = e.mask_key, e.share_key, e.kem_key
    assert statement_advertise(H1, e) == reference.tagged_hash("adv", H1, e.id, *keys, e.nonce)
    shares = Shares((Sealed(1, b"a" * 1200), Sealed(2, b"b" * 1200)), b"c" * 32, b"")
    body = b"\x02" + b"\x01" + b"a" * 1200 + b"\x02" + b"b" * 1200
    assert statement_shares(R, e.id, shares) == reference.tagged_hash("shares", R, e.id, body, b"c" * 32)
    covers = b"c" * 32, b"d" * 32
    assert statement_masked(R, H1, H2, covers) == reference.tagged_hash("masked", R, H1, H2, b"\x02" + b"".join(covers))
    assert statement_consistency(R, H1, H2) == reference.tagged_hash("consist", R, H1, H2)


def test_secrets_on_the_wire_do_not_show_in_reprs() -> None:
    shown = " ".join(repr(message) for message, _ in MESSAGES.values())
    assert "ssss" not in shown
    assert "aaaa" not in shown
    assert "dddd" not in shown
