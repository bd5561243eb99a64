"""Attacks on servers' ports by one program: what strangers and phones can do with sockets, TLS and HTTP/2 frames.

Each is a generator: what is before its first `yield` takes what it can, what follows goes on until nobody wants more.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from mien.protocol.v1 import registrar_pb2, registrar_pb2_grpc

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS: Final = b"\0\0\0\4\0\0\0\0\0"
_HEADERS: Final = 1
_END_HEADERS: Final = 4
_RST_STREAM: Final = 3
_CANCEL: Final = 8


@dataclass(frozen=True)
class Target:
    """A port with its authority's file, and the files of a certificate and key that the attacker has, or none."""

    port: int
    ca: str
    chain: str = ""
    key: str = ""

    def connect(self) -> socket.socket:
        """Return a TCP connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=5)

    def tls(self, alpn: str = "h2") -> ssl.SSLSocket:
        """Return a TLS connection."""
        context = ssl.create_default_context(cafile=self.ca)
        context.check_hostname = False
        context.set_alpn_protocols([alpn])
        if self.chain:
            context.load_cert_chain(self.chain, self.key)
        return context.wrap_socket(self.connect(), server_hostname="localhost")


def headers_frame(stream: int, method: str, extra: bytes = b"") -> bytes:
    """Return the frame that begins a gRPC call and does not end it: HPACK literals without index, not Huffman-coded."""
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"https"),
        (b":path", method.encode()),
        (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )
    block = b"".join(b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in fields) + extra
    return len(block).to_bytes(3, "big") + bytes([_HEADERS, _END_HEADERS]) + struct.pack(">I", stream) + block


def reset_frame(stream: int) -> bytes:
    """Return the frame that takes a call back."""
    return (4).to_bytes(3, "big") + bytes([_RST_STREAM, 0]) + struct.pack(">II", stream, _CANCEL)


def silent_sockets(target: Target, method: str) -> Iterator[None]:
    """Open TCP connections that never begin a TLS handshake."""
    yield from _many(target.connect)


def half_handshakes(target: Target, method: str) -> Iterator[None]:
    """Begin TLS handshakes and send no more than their first bytes."""

    def begin() -> socket.socket:
        opened = target.connect()
        opened.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01")
        return opened

    yield from _many(begin)


def idle_tls(target: Target, method: str) -> Iterator[None]:
    """Finish TLS handshakes and say nothing."""
    yield from _many(lambda: target.tls("h2"))


def idle_http2(target: Target, method: str) -> Iterator[None]:
    """Finish HTTP/2 handshakes and make no call."""

    def begin() -> socket.socket:
        opened = target.tls()
        opened.sendall(PREFACE + SETTINGS)
        return opened

    yield from _many(begin)


def stalled_calls(target: Target, method: str) -> Iterator[None]:
    """Begin calls on one connection, a thousand, and send no message; again whenever it is closed."""
    with contextlib.ExitStack() as held:
        while True:
            with contextlib.suppress(OSError):
                opened = held.enter_context(target.tls())
                opened.sendall(PREFACE + SETTINGS)
                for number in range(1000):
                    opened.sendall(headers_frame(2 * number + 1, method))
            yield
            time.sleep(0.2)


def large_metadata(target: Target, method: str) -> Iterator[None]:
    """Begin calls whose metadata are as large as a frame may be."""
    extra = b"".join(b"\0\x03x-a" + b"\x7f\xa1\x1e" + b"y" * 4000 for _ in range(3))
    while True:
        with contextlib.suppress(OSError), target.tls() as opened:
            opened.sendall(PREFACE + SETTINGS)
            for number in range(50):
                opened.sendall(headers_frame(2 * number + 1, method, extra))
        yield


def brief_calls(target: Target, method: str) -> Iterator[None]:
    """Begin calls on one connection, close it, and come again at once."""
    frames = b"".join(headers_frame(2 * number + 1, method) for number in range(50))
    while True:
        with contextlib.suppress(OSError), target.tls() as opened:
            opened.sendall(PREFACE + SETTINGS + frames)
        yield


def reset_calls(target: Target, method: str) -> Iterator[None]:
    """Begin calls on one connection and take each back at once; again whenever it is closed."""
    while True:
        with contextlib.suppress(OSError), target.tls() as opened:
            opened.sendall(PREFACE + SETTINGS)
            for number in itertools.count():
                stream = 2 * number + 1
                opened.sendall(headers_frame(stream, method) + reset_frame(stream))
                if number % 100 == 0:
                    yield
        yield


def bad_joins(target: Target, method: str) -> Iterator[None]:
    """Try tokens that nobody made, one after the other."""
    yield from _calls(
        target, lambda stub: stub.Join(registrar_pb2.JoinRequest(token="x" * 43, csr_der=b"x"), timeout=5)
    )


def revocation_lists(target: Target, method: str) -> Iterator[None]:
    """Ask for the revocation list, one time after the other."""
    yield from _calls(target, lambda stub: stub.GetRevocations(registrar_pb2.GetRevocationsRequest(), timeout=5))


ATTACKS: Final[dict[str, Callable[[Target, str], Iterator[None]]]] = {
    each.__name__: each
    for each in (
        *(silent_sockets, half_handshakes, idle_tls, idle_http2, stalled_calls),
        *(large_metadata, brief_calls, reset_calls, bad_joins, revocation_lists),
    )
}


def _many(begin: Callable[[], socket.socket], count: int = 450) -> Iterator[None]:
    """Open so many connections, and open more as they are closed."""
    held: list[socket.socket] = []
    for number in itertools.count():
        with contextlib.suppress(OSError):
            held.append(begin())
        if len(held) > count:
            held.pop(0).close()
        if number >= count or number % 50 == 49:
            yield
        if number >= count:
            time.sleep(0.01)


def _calls(target: Target, call: Callable[[registrar_pb2_grpc.RegistrarStub], object]) -> Iterator[None]:
    with grpc.secure_channel(
        f"127.0.0.1:{target.port}", grpc.ssl_channel_credentials(Path(target.ca).read_bytes())
    ) as channel:
        stub = registrar_pb2_grpc.RegistrarStub(channel)
        while True:
            with contextlib.suppress(grpc.RpcError):
                call(stub)
            yield


def main() -> None:
    """Attack until the parent is gone: NAME PORT CA METHOD [CHAIN KEY]."""
    name, port, ca, method, *own = sys.argv[1:]
    parent = os.getppid()
    for number, _ in enumerate(ATTACKS[name](Target(int(port), ca, *own), method)):
        if number == 0:
            print("begun", flush=True)
        if os.getppid() != parent:
            return


if __name__ == "__main__":
    main()
