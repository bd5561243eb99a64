"""The connections of one port, shared out: whoever opens many, and says nothing, loses their own and nobody else's.

The servers' libraries accept without asking, and a program may have only so many files open. So this looks at the
process's own sockets a few times a second and shuts what goes beyond a share. Of one address the connections that were
silent longest go first. One that has just come is given a moment to make its call. Where even those are too many, two
sorts give way by turns: of those whom nothing was answered yet who has sent least, since a caller's greeting is more
than a socket's first bytes, and of the others who was silent longest, since a caller goes on at once.
All strangers together have a share of the files that the process may have open. Where that is used up, the addresses
with the most connections lose theirs, and one with few keeps them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import os
import resource
import socket
import stat
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from urllib.parse import unquote

from coordinator.service.limits import network_of

_EVERY_S: Final = 0.1
_GRACE_S: Final = 1.0
_CROWD: Final = 4
"""A connection that has just come is shut only where there are so many times as many as a share has."""

_BUSY_SHARE: Final = 0.02
"""Share of its time that a loop looks at sockets at most, however many there are."""

_STRANGERS: Final = 3
"""Connections that have proved nothing have at most one of so many files that a process may have open, a port."""

_MANY_FILES: Final = 1024 * 1024
"""Open files of a process that has no limit."""

_KNOWN_PEERS: Final = 4096
_DEFER_S: Final = 60
_FOLDER: Final = "/dev/fd"
_TCP_INFO_BYTES: Final = 160
_SILENT_MS: Final = slice(52, 56)
_NUM_BYTES: Final = slice(128, 136)
_NUM_ANSWERS: Final = slice(156, 160)
"""Where Linux's `struct tcp_info` has last_data_recv, bytes_received and data_segs_out (uapi/linux/tcp.h, 4.6)."""

_Peer = tuple[str, int]


@dataclass
class _Connection:
    """A connection that was accepted: `heard_at` is when it last made a call, `owner` who then proved to be calling."""

    descriptor: int
    address: str
    peer: _Peer
    heard_at: float
    has_called: bool = False
    owner: str = ""


_Found = list[tuple[int, _Connection]]


def _strangers() -> int:
    """Return how many connections of strangers a port of this process may have."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max((_MANY_FILES if files == resource.RLIM_INFINITY else files) // _STRANGERS, 1)


@dataclass
class ConnectionShares:
    """What one port's connections may be: see the module.

    `per_address` and `in_all` are for connections whose owner has not proved who it is, `per_owner` for each that has.
    With `silent_s` a connection that has made no call within that time is shut.
    """

    per_address: int
    per_owner: int = 0
    silent_s: float = 0.0
    in_all: int = field(default_factory=_strangers)
    monotonic: Callable[[], float] = time.monotonic
    num_shut: int = field(default=0, init=False)
    _known: dict[int, _Connection] = field(default_factory=dict, init=False, repr=False)
    _others: set[int] = field(default_factory=set, init=False, repr=False)
    _by_peer: dict[_Peer, _Connection] = field(default_factory=dict, init=False, repr=False)
    _early: dict[_Peer, str] = field(default_factory=dict, init=False, repr=False)

    def heard(self, peer: str, owner: str = "") -> None:
        """Note that a call came from a gRPC peer (``ipv4:192.0.2.1:4711``), by a caller who proved to be `owner`."""
        parsed = _parsed(peer)
        if parsed is None:
            return
        connection = self._by_peer.get(parsed)
        if connection is None:
            self._early[parsed] = owner
        else:
            self._note(connection, owner)

    def look(self, port: int) -> None:
        """Shut what goes beyond a share, of the connections to a port of this process."""
        self._find(port)
        now, unproved, proved = self.monotonic(), defaultdict[str, _Found](list), defaultdict[str, _Found](list)
        for inode, connection in list(self._known.items()):
            is_late = self.silent_s and not connection.has_called and now - connection.heard_at > self.silent_s
            if is_late:
                self._shut(inode, connection)
            elif connection.owner:
                proved[connection.owner].append((inode, connection))
            else:
                unproved[connection.address].append((inode, connection))
        left = max(level(map(len, unproved.values()), self.in_all), 1)
        for shares, most, spared in (
            (unproved, min(self.per_address, left), min(_CROWD * self.per_address, left)),
            (proved, self.per_owner, _CROWD * self.per_owner),
        ):
            for found in shares.values() if most else ():
                if len(found) > most:
                    self._thin(found, most, spared, now)

    def _thin(self, found: _Found, most: int, spared: int, now: float) -> None:
        """Shut of one caller's connections those beyond `most`, of which who has just come is `spared` if it can be."""
        new = [each for each in found if now - each[1].heard_at < _GRACE_S and not each[1].has_called]
        places = _places({inode: _said(connection.descriptor) for inode, connection in new})

        def rank(each: tuple[int, _Connection]) -> tuple[int, float]:
            inode, connection = each
            if now - connection.heard_at >= _GRACE_S:
                return (int(connection.has_called), connection.heard_at)
            return (2, places.get(inode, 1))

        found.sort(key=rank)
        for number, (inode, connection) in enumerate(found[: len(found) - most]):
            if len(found) - number > spared or now - connection.heard_at >= _GRACE_S:
                self._shut(inode, connection)

    @contextlib.asynccontextmanager
    async def kept(self, port: int) -> AsyncIterator[None]:
        """Look again and again while a block runs; the system is asked to keep whoever says nothing to itself."""
        for descriptor, _ in _sockets():
            _defer(descriptor, port)
        task = asyncio.create_task(self._keep(port), name="connections")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _keep(self, port: int) -> None:
        while True:
            began = time.thread_time()
            self.look(port)
            await asyncio.sleep(max(_EVERY_S, (time.thread_time() - began) / _BUSY_SHARE))

    def _find(self, port: int) -> None:
        """Bring what is known up to date: connections that have ended are forgotten, new ones added."""
        there: set[int] = set()
        for descriptor, inode in _sockets():
            there.add(inode)
            if (known := self._known.get(inode)) is not None:
                known.descriptor = descriptor
            elif inode in self._others:
                continue
            elif (peer := _accepted(descriptor, port)) is None:
                self._others.add(inode)
            else:
                connection = _Connection(descriptor, network_of(peer[0]), peer, self.monotonic())
                self._known[inode] = self._by_peer[peer] = connection
                if peer in self._early:
                    self._note(connection, self._early.pop(peer))
        self._early.clear()
        self._others &= there
        for inode in self._known.keys() - there:
            self._forget(inode)

    def _note(self, connection: _Connection, owner: str) -> None:
        connection.heard_at, connection.has_called = self.monotonic(), True
        connection.owner = owner or connection.owner

    def _shut(self, inode: int, connection: _Connection) -> None:
        """End a connection as its peer might; the library sees that, and cleans up."""
        with contextlib.suppress(OSError), _borrowed(connection.descriptor) as end:
            if os.fstat(end.fileno()).st_ino == inode:  # the descriptor may be another file's by now
                end.shutdown(socket.SHUT_RDWR)
                self.num_shut += 1
        self._forget(inode)
        self._others.add(inode)

    def _forget(self, inode: int) -> None:
        connection = self._known.pop(inode)
        if self._by_peer.get(connection.peer) is connection:
            del self._by_peer[connection.peer]


def level(sizes: Iterable[int], room: int) -> int:
    """Return the most that each of several may have, so that all together fit into `room`: the largest give way."""
    growing, left = sorted(sizes), room
    for number, size in enumerate(growing):
        share = left // (len(growing) - number)
        if size > share:
            return share
        left -= size
    return room


class _Said(NamedTuple):
    """What the system knows of a connection: whether it was answered, for how long it was silent, bytes it has sent."""

    is_answered: bool = False
    silent_ms: int = 0
    num_bytes: int = 0


def _places(new: Mapping[int, _Said]) -> dict[int, int]:
    """Return the places of connections without a call: 0 for the last that is to be shut, below it who goes before.

    Whom this program has answered nothing yet, because it is busy, and whom it has have places of their own: however
    many an attacker has of one sort, a caller who is of the other is not among them.
    """
    unanswered = sorted((inode for inode in new if not new[inode].is_answered), key=lambda inode: new[inode].num_bytes)
    answered = sorted((inode for inode in new if new[inode].is_answered), key=lambda inode: -new[inode].silent_ms)
    return {inode: number - len(each) for each in (unanswered, answered) for number, inode in enumerate(each, 1)}


def _said(descriptor: int) -> _Said:
    """Return what the other side of a connection has said; nothing where the system does not tell."""
    try:
        with _borrowed(descriptor) as found:
            told = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except (OSError, AttributeError):
        return _Said()
    num_answers, silent_ms, num_bytes = (
        int.from_bytes(told[each], sys.byteorder) for each in (_NUM_ANSWERS, _SILENT_MS, _NUM_BYTES)
    )
    return _Said(num_answers > 0, silent_ms, num_bytes)


def _descriptors() -> Iterator[int]:
    """Yield this process's open files; where not even their list can be opened, every number that one may have."""
    try:
        yield from map(int, os.listdir(_FOLDER))  # noqa: PTH208 - numbers, not paths
    except OSError:
        yield from range(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _sockets() -> Iterator[tuple[int, int]]:
    """Yield this process's sockets: descriptor and inode.

    Nothing else is ever copied: closing a copy of a database's file would end SQLite's locks on it (fcntl(2)).
    """
    for descriptor in _descriptors():
        try:
            status = os.fstat(descriptor)
        except OSError:
            continue
        if stat.S_ISSOCK(status.st_mode):
            yield descriptor, status.st_ino


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Yield a socket of a descriptor that stays open: a copy of it, or itself where no more files can be opened."""
    try:
        copy = os.dup(descriptor)
    except OSError:
        found = socket.socket(fileno=descriptor)
        try:
            yield found
        finally:
            found.detach()
    else:
        with socket.socket(fileno=copy) as found:
            yield found


def _defer(descriptor: int, port: int) -> None:
    """Have connections to a listening socket accepted when their first bytes come, where the system can (Linux).

    Callers speak first in TLS and HTTP. A socket that says nothing then takes no file and no buffers of this process.
    """
    try:
        with _borrowed(descriptor) as found:
            if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and found.getsockname()[1] == port:
                found.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, _DEFER_S)
    except (OSError, AttributeError, IndexError):
        return


def _accepted(descriptor: int, port: int) -> _Peer | None:
    """Return the peer of a connection to a port; None for any other socket."""
    try:
        with _borrowed(descriptor) as found:
            if found.family not in (socket.AF_INET, socket.AF_INET6) or found.getsockname()[1] != port:
                return None
            host, number = found.getpeername()[:2]
    except OSError:
        return None
    return _plain(host), number


def _plain(host: str) -> str:
    """Return an address as it is compared: an IPv4 one that comes by way of IPv6 is an IPv4 one."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


@functools.lru_cache(_KNOWN_PEERS)
def _parsed(peer: str) -> _Peer | None:
    kind, _, rest = unquote(peer).partition(":")
    host, _, number = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not number.isdigit():
        return None
    return _plain(host.strip("[]")), int(number)
