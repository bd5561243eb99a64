"""A coordinator that sends phones elsewhere: to strangers, to a home's own network, in circles. It gains nothing."""

from __future__ import annotations

import random
import socket

import pytest

from device_sdk.server.client import CoordinatorClient
from mien.protocol.rounds import RoundRef
from tests.device_sdk.clocks import ShiftedClock
from tests.device_sdk.scripted import Fleet, Script, scripted_coordinator
from tests.device_sdk.server.test_owner_address import SETTINGS, leads_to

REF = RoundRef("task", 2, 1)


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return Fleet.create()


def phone(fleet: Fleet, address: str) -> CoordinatorClient:
    return CoordinatorClient(fleet.identity(address), ShiftedClock(), random.Random(0), SETTINGS)


def test_no_phone_knocks_at_another_host(fleet: Fleet) -> None:
    """Or a coordinator could have phones find out which machines and ports there are in the homes that they are in."""
    first = Script()
    with socket.socket() as listening, scripted_coordinator(fleet, first) as joined_at:
        listening.bind(("127.0.0.2", 0))
        listening.listen()
        listening.setblocking(False)
        port = listening.getsockname()[1]
        with phone(fleet, joined_at) as client:
            for host in ("127.0.0.2", "localhost", "[::ffff:127.0.0.2]", "2130706434", "127.0.0.1.", "0.127.0.0.1"):
                leads_to(first, f"{host}:{port}")
                client.check_in(())
                assert client.address == joined_at
            client.report_trained(REF)
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert first.calls[-1] == "report_trained"


@pytest.mark.parametrize(
    "hint", ["", ":", "x" * 100_000, "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1", "\x1b]0;mine:1"]
)
def test_nonsense_is_passed_over(fleet: Fleet, hint: str) -> None:
    first = Script()
    leads_to(first, hint)
    with scripted_coordinator(fleet, first) as joined_at, phone(fleet, joined_at) as client:
        client.check_in(())
        assert client.address == joined_at
        client.report_trained(REF)
    assert first.calls == ["check_in", "report_trained"]


def test_a_server_of_another_authority_or_for_another_name_is_not_gone_to(fleet: Fleet) -> None:
    stranger, other_name = Script(), Script()
    first = Script()
    with (
        scripted_coordinator(Fleet.create(), stranger) as strange,
        scripted_coordinator(fleet, other_name, named="other.example") as named_otherwise,
        scripted_coordinator(fleet, first) as joined_at,
        phone(fleet, joined_at) as client,
    ):
        for address in (strange, named_otherwise):
            leads_to(first, address)
            client.check_in(())
            assert client.address == joined_at
        client.report_trained(REF)
    assert not stranger.calls
    assert not other_name.calls
    assert first.calls == ["check_in", "check_in", "report_trained"]


def test_servers_that_send_a_phone_to_one_another_move_it_once_for_each_time_that_it_asks(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("device_sdk.server.client.GLANCE_S", 60.0)  # on a busy machine, too
    first, second = Script(), Script()
    with (
        scripted_coordinator(fleet, first) as joined_at,
        scripted_coordinator(fleet, second) as other,
        phone(fleet, joined_at) as client,
    ):
        leads_to(first, other)
        leads_to(second, joined_at)
        for _ in range(4):
            client.check_in(())
        assert client.address == joined_at
        client.report_trained(REF)
    assert first.calls == ["check_in", "hello", "check_in", "hello", "report_trained"]
    assert second.calls == ["hello", "check_in", "hello", "check_in"]


def test_a_port_that_never_says_anything_keeps_nobody(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("device_sdk.server.client.GLANCE_S", 0.5)
    first = Script()
    with socket.socket() as silent, scripted_coordinator(fleet, first) as joined_at:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        leads_to(first, f"127.0.0.1:{silent.getsockname()[1]}")
        with phone(fleet, joined_at) as client:
            client.check_in(())
            client.report_trained(REF)
            assert client.address == joined_at
