"""Common part of calls to both servers: a verified channel, deadlines, repetition, the handshake of versions."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc
from cryptography import x509

from device_sdk.server.certificates import to_pem
from device_sdk.server.identity import Identity
from device_sdk.server.retry import Retries, RetryPolicy
from mien.errors import MienError, StorageError, UnavailableError, UnreachableError, VersionError
from mien.protocol import MAX_MESSAGE_BYTES, PROTOCOL_VERSIONS
from mien.protocol.status import from_rpc_error, is_ours
from mien.protocol.v1 import common_pb2
from mien.protocol.words import plain_words
from mien.shell.clock import Clock
from mien.shell.version import software

UNARY_S: Final = 20.0
"""Deadline of a call that is answered at once."""

CLOCK_TOLERANCE_S: Final = 300.0
"""Largest difference between a device's clock and a server's: what the registrar accepts in a renewal."""

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A connection that a phone's network dropped silently is noticed within a minute and a half.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Our own repetition decides; the library's would hide how long a server has been gone.
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 250),
    ("grpc.min_reconnect_backoff_ms", 250),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)

T = TypeVar("T")


@dataclass(frozen=True)
class Hello:
    """Handshake of a server: the version to speak, its program, and how far its clock is ahead of ours."""

    protocol_version: int
    software: str
    skew_s: float


def open_channel(
    address: str, authority: x509.Certificate, identity: Identity | None = None, *, named: str = ""
) -> grpc.Channel:
    """Return a channel that trusts one authority only; with `identity`, mutual. TLS 1.3: see `device_sdk`.

    `named` is the host that the server's certificate has to be for, where that is not the address's own.
    """
    credentials = grpc.ssl_channel_credentials(
        root_certificates=to_pem(authority),
        private_key=identity.key_pem if identity else None,
        certificate_chain=identity.chain_pem if identity else None,
    )
    name = (("grpc.ssl_target_name_override", named.strip("[]")),) if named else ()
    return grpc.secure_channel(address, credentials, options=(*_OPTIONS, *name))


def call(
    attempt: Callable[[], T],
    peer: str,
    policy: RetryPolicy,
    *,
    clock: Clock,
    rng: random.Random,
    final: tuple[type[UnavailableError], ...] = (),
    on_failure: Callable[[UnavailableError], object] = lambda _error: None,
) -> T:
    """Return the answer of a call that may be repeated, repeating it while its error says that this can help.

    Errors in `final` are an answer to the caller, not a reason to repeat; of others `on_failure` is told.
    """
    retries = Retries(policy, clock, rng, on_failure)
    while True:
        try:
            return attempt()
        except grpc.RpcError as error:
            known = told_by(error, peer)
            if not isinstance(known, UnavailableError) or isinstance(known, final):
                raise known from error
            retries.wait(known)


def told_by(error: grpc.RpcError, peer: str) -> MienError:
    """Return a failed call's error for a device: a server whose own disk or database fails is one that is away."""
    known = from_rpc_error(error, peer=peer)
    if isinstance(known, StorageError):
        return UnreachableError(f"{peer} cannot store anything now ({known.message}); this is for its operator to mend")
    if isinstance(known, UnreachableError) and is_ours(error):  # whose database or replica it is that is away
        return UnreachableError(f"{peer} says: {known.message}", retry_after_s=known.retry_after_s)
    return known


def say_hello(
    method: Callable[..., Any],
    peer: str,
    policy: RetryPolicy,
    *,
    clock: Clock,
    rng: random.Random,
    timeout_s: float = UNARY_S,
) -> Hello:
    """Return the server's greeting; raises VersionError when the two programs have no protocol version in common."""
    request = common_pb2.HelloRequest(protocol_versions=PROTOCOL_VERSIONS, software=software("mien-device"))
    times: list[float] = []

    def attempt() -> common_pb2.HelloReply:
        times[:] = [clock.now()]
        reply: common_pb2.HelloReply = method(request, timeout=timeout_s)
        times.append(clock.now())
        return reply

    reply = call(attempt, peer, policy, clock=clock, rng=rng)
    if reply.protocol_version not in PROTOCOL_VERSIONS:
        raise VersionError(
            f"{peer} speaks protocol version {reply.protocol_version}, this program {list(PROTOCOL_VERSIONS)}; "
            "upgrade the older one"
        )
    # The server read its clock about half-way between sending and receiving.
    return Hello(reply.protocol_version, plain_words(reply.software), reply.unix_ms / 1000 - (times[0] + times[-1]) / 2)
