"""Connections of one port: who opens many keeps a share, and those silent longest go first."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from coordinator.service.connections import ConnectionShares, level

LINUX = pytest.mark.skipif(not hasattr(socket, "TCP_DEFER_ACCEPT"), reason="the system keeps nobody waiting")
"""Linux says what a connection has sent, has more loopback addresses than one, and holds back who says nothing."""


class Port:
    """A listening socket, connections to it, and a clock that stands still."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.number = self.listener.getsockname()[1]
        self.ends: list[socket.socket] = []  # both ends
        self.now = 100.0

    def open(self, count: int, said: bytes = b"", source: str = "127.0.0.1") -> list[socket.socket]:
        """Return new connections to the port from an address, over which so much was sent."""
        opened = []
        for _ in range(count):
            opened.append(socket.create_connection(("127.0.0.1", self.number), 10, (source, 0)))
            opened[-1].sendall(said)
            self.ends += (opened[-1], self.listener.accept()[0])
        return opened

    def shares(
        self, per_address: int, per_owner: int = 0, silent_s: float = 0.0, in_all: int = 1000
    ) -> ConnectionShares:
        return ConnectionShares(per_address, per_owner, silent_s, in_all, lambda: self.now)

    def close(self) -> None:
        for each in (self.listener, *self.ends):
            each.close()


def name(connection: socket.socket) -> str:
    return "ipv4:{}:{}".format(*connection.getsockname())


def num_open(connections: Sequence[socket.socket]) -> int:
    return sum(map(is_open, connections))


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


def test_in_a_crowd_who_has_called_stays_and_who_never_did_goes_first(port: Port) -> None:
    shares = port.shares(per_address=2)
    (caller,) = port.open(1)
    shares.heard(name(caller))
    crowd = port.open(20)
    shares.look(port.number)
    assert is_open(caller)
    assert num_open(crowd) == 7
    port.now += 1
    shares.heard(name(next(filter(is_open, crowd))))
    port.now += 1
    shares.look(port.number)
    assert is_open(caller), "longer ago than the others came, but they have said nothing"
    assert num_open(crowd) == 1


@LINUX
def test_in_a_crowd_a_handshake_that_goes_on_stays_whoever_came_later(port: Port) -> None:
    shares = port.shares(per_address=2)
    (phone,) = port.open(1, said=b"h" * 300)
    attackers = port.open(20, said=b"h" * 8)
    shares.look(port.number)
    assert is_open(phone)
    assert num_open(attackers) == 7


@LINUX
def test_in_a_crowd_that_was_answered_and_says_nothing_a_handshake_that_goes_on_stays(port: Port) -> None:
    shares, idle = port.shares(per_address=2), port.open(20, said=b"h" * 900)
    (goes_on,) = port.open(1, said=b"h" * 300)
    for end in port.ends[1::2]:
        end.sendall(b"answer")
    time.sleep(0.02)
    goes_on.sendall(b"h" * 80)
    (waits,) = port.open(1, said=b"h" * 300)
    shares.look(port.number)
    port.ends[-1].sendall(b"answer")
    assert [each.recv(6) for each in (goes_on, waits)] == [b"answer", b"answer"]
    assert is_open(goes_on), "silent for less time, though it has sent less"
    assert is_open(waits), "for this program, which has not answered"
    assert sum(each.recv(7) == b"answer" and is_open(each) for each in idle) == 6


@LINUX
def test_few_addresses_never_take_the_last_places(port: Port) -> None:
    shares = port.shares(per_address=16, in_all=24)
    (phone,) = port.open(1)
    attackers = [port.open(16, source=f"127.0.0.{number}") for number in (2, 3, 4)]
    shares.look(port.number)
    assert is_open(phone)
    assert [num_open(each) for each in attackers] == [7, 7, 7], "no moment is given where places run out"


@pytest.mark.parametrize(
    ("sizes", "room", "most"),
    [
        ((), 10, 10),
        ((3, 4), 10, 10),
        ((3, 400), 10, 7),
        ((300, 400), 10, 5),
        ((1, 2, 30, 40, 50), 12, 3),
        ((1,) * 20, 10, 0),
    ],
)
def test_of_several_the_largest_give_way(sizes: tuple[int, ...], room: int, most: int) -> None:
    assert level(sizes, room) == most
    assert sum(min(size, most) for size in sizes) <= room


@LINUX
def test_who_says_nothing_is_not_even_accepted(port: Port) -> None:
    async def story() -> None:
        async with port.shares(per_address=2).kept(port.number):
            port.listener.settimeout(0)
            with contextlib.closing(socket.create_connection(("127.0.0.1", port.number), 10)):
                with pytest.raises(BlockingIOError):
                    port.listener.accept()
                port.listener.settimeout(10)
                (talks,) = port.open(1, said=b"h")
                assert port.ends[-1].getpeername() == talks.getsockname()

    asyncio.run(story())


def test_files_that_are_no_sockets_are_left_alone(port: Port, tmp_path: Path) -> None:
    """Closing a copy of a file would end this process's locks on it, SQLite's among them."""
    path = tmp_path / "database"
    path.touch()

    async def story() -> int:
        async with port.shares(per_address=2).kept(port.number):
            await asyncio.sleep(0)
            return sum(map(is_mine, os.listdir("/dev/fd")))  # noqa: PTH208 - numbers, not paths

    def is_mine(descriptor: str) -> bool:
        try:
            found = os.fstat(int(descriptor))
        except OSError:  # another thread's, or that of the list itself
            return False
        return (found.st_dev, found.st_ino) in mine

    with path.open("r+b") as file, contextlib.closing(port.open(1, said=b"h")[0]):
        mine = {
            (each.st_dev, each.st_ino) for each in map(os.fstat, (file.fileno(), *(end.fileno() for end in port.ends)))
        }
        fcntl.lockf(file, fcntl.LOCK_EX)
        assert asyncio.run(story()) == len(mine) == 3
        assert asyncio.run(story()) == 3
        other = f"import fcntl; fcntl.lockf(open({str(path)!r}, 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        taken = subprocess.run([sys.executable, "-c", other], capture_output=True, check=False)
        assert b"BlockingIOError" in taken.stderr
