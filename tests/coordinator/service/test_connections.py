"""Connections of one port: who opens many keeps a share, and those silent longest go first."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from coordinator.service.connections import ConnectionShares


class Port:
    """A listening socket, connections to it, and a clock that stands still."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.number = self.listener.getsockname()[1]
        self.ends: list[socket.socket] = []  # both ends
        self.now = 100.0

    def open(self, count: int) -> list[socket.socket]:
        """Return new connections to the port, a second apart."""
        opened = []
        for _ in range(count):
            opened.append(socket.create_connection(("127.0.0.1", self.number), timeout=10))
            self.ends += (opened[-1], self.listener.accept()[0])
        return opened

    def shares(self, per_address: int, per_owner: int = 0, silent_s: float = 0.0) -> ConnectionShares:
        return ConnectionShares(per_address, per_owner, silent_s, lambda: self.now)

    def close(self) -> None:
        for each in (self.listener, *self.ends):
            each.close()


def name(connection: socket.socket) -> str:
    return f"ipv4:127.0.0.1:{connection.getsockname()[1]}"


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True


@pytest.fixture
def port() -> Iterator[Port]:
    with contextlib.closing(Port()) as made:
        yield made


def test_of_one_address_those_silent_longest_are_shut(port: Port) -> None:
    shares = port.shares(per_address=3)
    old = port.open(3)
    shares.look(port.number)
    port.now += 1
    shares.heard(name(old[0]))
    port.now += 1
    new = port.open(2)
    shares.look(port.number)
    assert [is_open(each) for each in (*old, *new)] == [True, False, False, True, True]
    assert shares.num_shut == 2


def test_a_call_before_the_first_look_counts(port: Port) -> None:
    shares = port.shares(per_address=1, per_owner=1, silent_s=5)
    (phone,) = port.open(1)
    shares.heard(name(phone), "device:a")
    strangers = port.open(2)
    shares.look(port.number)
    assert all(map(is_open, (phone, *strangers))), "they have just come"
    port.now += 1
    shares.look(port.number)
    assert is_open(phone)
    assert sum(map(is_open, strangers)) == 1
    port.now += 6
    shares.look(port.number)
    assert is_open(phone)
    assert not any(map(is_open, strangers))


def test_who_proved_who_they_are_has_a_share_of_their_own(port: Port) -> None:
    shares = port.shares(per_address=1, per_owner=2)
    phones = port.open(5)
    shares.look(port.number)
    for number, each in enumerate(phones):
        port.now += 1
        shares.heard(name(each), "device:a" if number < 3 else "device:b")
    port.now += 1
    shares.look(port.number)
    assert sum(map(is_open, phones[:3])) == 2
    assert all(map(is_open, phones[3:]))


def test_other_sockets_of_the_process_are_left_alone(port: Port) -> None:
    with contextlib.closing(Port()) as other:
        theirs = other.open(4)
        port.shares(per_address=1).look(port.number)
        assert all(map(is_open, theirs))


def test_sockets_are_found_where_no_more_files_can_be_opened(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(24, "Too many open files")

    opened, shares = port.open(4), port.shares(per_address=1)
    monkeypatch.setattr("coordinator.service.connections.os.listdir", refused)
    monkeypatch.setattr("coordinator.service.connections.os.dup", refused)
    shares.look(port.number)
    port.now += 1
    shares.look(port.number)
    assert sum(map(is_open, opened)) == 1


def test_a_crowd_is_shut_at_once(port: Port) -> None:
    opened = port.open(20)
    port.shares(per_address=2).look(port.number)
    assert sum(map(is_open, opened)) == 8
