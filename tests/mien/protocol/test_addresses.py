"""Addresses, and where a server may send who knows it."""

from __future__ import annotations

import pytest

from mien.protocol.addresses import host_of, is_address, may_lead_to


def test_an_address_is_a_host_and_a_port() -> None:
    assert all(map(is_address, ("c.example:7443", "10.0.0.1:1", "[::1]:65535")))
    assert not any(
        map(is_address, ("c.example", "c.example:0", "c.example:65536", ":1", "c example:1", "::1:7443", ""))
    )
    assert is_address("c.example:0", lowest_port=0)
    assert host_of("[::1]:7443") == "[::1]"


@pytest.mark.parametrize(
    ("known", "hint"),
    [
        ("c.example:7443", "c.example:7444"),
        ("c.example:7443", "C.Example:7443"),
        ("c.example:7443", "replica-1.c.example:7443"),
        ("c.example:7443", "a.b.c.example:443"),
        ("10.0.0.1:7443", "10.0.0.1:7444"),
        ("[::1]:7443", "[::1]:7444"),
    ],
)
def test_a_phone_may_be_sent_to_a_port_of_the_host_and_to_names_below_it(known: str, hint: str) -> None:
    assert may_lead_to(known, hint)


@pytest.mark.parametrize(
    ("known", "hint"),
    [
        ("c.example:7443", ""),
        ("c.example:7443", "c.example"),
        ("c.example:7443", "c.example:0"),
        ("c.example:7443", "d.example:7443"),
        ("c.example:7443", "example:7443"),
        ("c.example:7443", "evilc.example:7443"),
        ("c.example:7443", "c.example.evil:7443"),
        ("c.example:7443", ".c.example:7443"),
        ("c.example:7443", "a..c.example:7443"),
        ("c.example:7443", "192.168.0.1:80"),
        ("c.example:7443", "[::1]:7443"),
        ("c.example:7443", "c.example:7443\n"),
        ("c.example:7443", "user@c.example:7443"),
        ("c.example:7443", "dns://c.example:7443"),
        ("c.example:7443", f"{'a.' * 130}c.example:7443"),
        ("10.0.0.1:7443", "10.0.0.2:7443"),
        ("10.0.0.1:7443", "1.10.0.0.1:7443"),
        ("[::1]:7443", "[::2]:7443"),
        ("nowhere", "a.nowhere:7443"),
    ],
)
def test_and_nowhere_else(known: str, hint: str) -> None:
    assert not may_lead_to(known, hint)
