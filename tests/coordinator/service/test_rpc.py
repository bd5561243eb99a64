"""Errors and identities over a real mutual TLS connection, for both kinds of answers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from structlog.testing import capture_logs

from coordinator.keys import pki
from coordinator.service.rpc import ErrorInterceptor, connection_limits, peer_host, peer_leaf_pem, wrapping
from mien.errors import CertificateError, LateError, MienError, PermissionDeniedError, RateLimitedError
from mien.protocol.status import from_rpc_error

OnEnd: TypeAlias = Callable[[str, str], None]

NOW = datetime.now(UTC)
REGISTRAR = pki.create_authority("registrar", NOW)
COORDINATOR = pki.create_authority("coordinator", NOW)


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:192.0.2.1:4711", "192.0.2.1"),
        ("ipv6:%5B2001:db8::1%5D:4711", "2001:db8::1"),
        ("unix:/run/mien.sock", "unix:/run/mien.sock"),
    ],
)
def test_peer_hosts(peer: str, host: str) -> None:
    assert peer_host(peer) == host


async def _who(request: bytes, context: Any) -> bytes:
    identity = pki.peer_identity(peer_leaf_pem(context), REGISTRAR.certificate, COORDINATOR.certificate, NOW)
    return f"{identity.role.value} {identity.id} {identity.population}".encode()


async def _limited(request: bytes, context: Any) -> bytes:
    raise RateLimitedError("wait", retry_after_s=1.5)


async def _early(request: bytes, context: Any) -> bytes:
    raise RateLimitedError("wait", retry_after_s=1.5, is_expected=True)


async def _stream(request: bytes, context: Any) -> AsyncIterator[bytes]:
    yield b"first"
    raise LateError("over")


HANDLERS: dict[str, Any] = {
    "Who": grpc.unary_unary_rpc_method_handler(_who),
    "Limited": grpc.unary_unary_rpc_method_handler(_limited),
    "Early": grpc.unary_unary_rpc_method_handler(_early),
    "Stream": grpc.unary_stream_rpc_method_handler(_stream),
}


@contextlib.asynccontextmanager
async def serving(
    on_end: OnEnd = lambda _method, _reason: None, options: Sequence[tuple[str, int]] = ()
) -> AsyncIterator[int]:
    """Run a server as the coordinator does (both authorities trusted, a certificate demanded) and yield its port."""
    leaf = pki.issue_server_leaf(COORDINATOR, ["127.0.0.1"], NOW)
    server = grpc.aio.server(options=options)
    wrapping(server, ErrorInterceptor(on_end)).add_registered_method_handlers("test", HANDLERS)
    roots = REGISTRAR.certificate_pem + COORDINATOR.certificate_pem
    tls = grpc.ssl_server_credentials([(leaf.key_pem, leaf.chain_pem)], roots, require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", tls)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


@contextlib.asynccontextmanager
async def connected(
    chain_pem: bytes | None, key_pem: bytes | None, on_end: OnEnd = lambda _method, _reason: None
) -> AsyncIterator[grpc.aio.Channel]:
    """Run such a server and connect to it."""
    client_tls = grpc.ssl_channel_credentials(COORDINATOR.certificate_pem, key_pem, chain_pem)
    async with serving(on_end) as port, grpc.aio.secure_channel(f"127.0.0.1:{port}", client_tls) as channel:
        yield channel


def asked(
    method: str, chain_pem: bytes | None, key_pem: bytes | None, on_end: OnEnd = lambda _method, _reason: None
) -> bytes:
    """Return the answer of a method; errors come as MienError."""

    async def ask() -> bytes:
        async with connected(chain_pem, key_pem, on_end) as channel:
            call: Callable[..., Awaitable[bytes]] = channel.unary_unary(f"/test/{method}")
            return await call(b"", timeout=60)

    try:
        return asyncio.run(ask())
    except grpc.RpcError as error:
        known: MienError = from_rpc_error(error, peer="the server")
        raise known from error


OPERATOR = pki.issue_operator_leaf(COORDINATOR, "alice", NOW)


def test_devices_and_operators_are_told_apart_by_their_authority() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    leaf = pki.issue_device_leaf(REGISTRAR, key.public_key(), "blue", NOW)
    device = asked("Who", pki.to_pem(leaf), pki.key_to_pem(key))
    assert device == f"device {pki.device_id(key.public_key())} blue".encode()
    assert asked("Who", OPERATOR.chain_pem, OPERATOR.key_pem) == b"operator alice None"


def test_a_device_that_the_coordinators_authority_made_is_refused() -> None:
    """It passes the handshake, since that authority is trusted for operators; the role is refused."""
    key = ec.generate_private_key(ec.SECP256R1())
    leaf = pki.issue_device_leaf(COORDINATOR, key.public_key(), "blue", NOW)
    with pytest.raises(PermissionDeniedError):
        asked("Who", pki.to_pem(leaf), pki.key_to_pem(key))


def test_strangers_do_not_pass_the_handshake() -> None:
    own = pki.create_authority("registrar", NOW)
    key = ec.generate_private_key(ec.SECP256R1())
    leaf = pki.issue_device_leaf(own, key.public_key(), "blue", NOW)
    for chain_pem, key_pem in (
        (pki.to_pem(leaf) + own.certificate_pem, pki.key_to_pem(key)),
        (own.certificate_pem, own.key_pem),
        (None, None),
    ):
        with pytest.raises(MienError) as error:
            asked("Who", chain_pem, key_pem)
        assert error.value.code == "unreachable"


def test_errors_keep_their_kind_and_their_pause() -> None:
    with pytest.raises(RateLimitedError, match="wait") as error:
        asked("Limited", OPERATOR.chain_pem, OPERATOR.key_pem)
    assert error.value.retry_after_s == 1.5


@pytest.mark.parametrize(("method", "reason"), [("Limited", "rate_limited"), ("Early", "")])
def test_what_comes_too_early_is_neither_logged_nor_counted_as_a_refusal(method: str, reason: str) -> None:
    ended = list[tuple[str, str]]()
    with capture_logs() as logs, pytest.raises(RateLimitedError, match="wait"):
        asked(method, OPERATOR.chain_pem, OPERATOR.key_pem, lambda *told: ended.append(told))
    assert ended == [(f"/test/{method}", reason)]
    assert [entry["event"] for entry in logs] == ["refused"] * bool(reason)


def test_a_stream_may_fail_after_its_first_answer() -> None:
    async def ask() -> tuple[list[bytes], MienError | None]:
        answers: list[bytes] = []
        async with connected(OPERATOR.chain_pem, OPERATOR.key_pem) as channel:
            stream: Callable[..., Any] = channel.unary_stream("/test/Stream")
            try:
                async for answer in stream(b"", timeout=60):
                    answers.append(answer)
            except grpc.RpcError as error:
                return answers, from_rpc_error(error, peer="the server")
        return answers, None

    answers, error = asyncio.run(ask())
    assert answers == [b"first"]
    assert isinstance(error, LateError)


def test_who_begins_a_handshake_and_does_not_go_on_is_dropped() -> None:
    """Long before gRPC's own two minutes; that the programs do as well is told by tests/integration/test_drain.py."""

    async def story() -> None:
        async with serving(options=connection_limits(calls=1, handshake_ms=300)) as port:
            await asyncio.to_thread(wait_until_dropped, port)

    def wait_until_dropped(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=60.0) as silent:
            silent.sendall(b"\x16")
            with contextlib.suppress(ConnectionResetError):
                while silent.recv(1024):
                    pass

    asyncio.run(story())


def test_no_certificate_is_told_where_the_port_did_not_demand_one() -> None:
    class Anonymous:
        def auth_context(self) -> dict[str, list[bytes]]:
            return {}

    with pytest.raises(CertificateError, match="client certificate"):
        peer_leaf_pem(Anonymous())
