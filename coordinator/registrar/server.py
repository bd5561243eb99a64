"""Running the registrar: two TLS ports, a server certificate that renews itself, and a stop that drops no answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import grpc
import structlog

from coordinator.home.settings import settings_sha256
from coordinator.keys import pki
from coordinator.keys.tls import ServerLeaf
from coordinator.registrar.attestation.policy import Policy
from coordinator.registrar.config import RegistrarConfig
from coordinator.registrar.home import RegistrarHome
from coordinator.registrar.issuing import Registry
from coordinator.registrar.service import (
    MAX_JOIN_MESSAGE_BYTES,
    RegistrarAdminService,
    RegistrarService,
    Worker,
)
from coordinator.registrar.store import Store
from coordinator.registrar.witness import Witness
from coordinator.service.connections import ConnectionShares
from coordinator.service.limits import FailureLimiter, OpenCalls, network_of
from coordinator.service.rpc import (
    ErrorInterceptor,
    FirstMessages,
    ReadableInterceptor,
    connection_limits,
    listen,
    peer_host,
    wrapping,
)
from coordinator.store import audit
from coordinator.store.database import sole_server
from mien.errors import ConfigError, StorageError, UnreachableError
from mien.log.witnesses import Quorum
from mien.protocol import MAX_MESSAGE_BYTES
from mien.protocol.v1 import registrar_pb2_grpc
from mien.shell.clock import WallClock
from mien.shell.lock import exclusive
from mien.shell.serving import serve_until_signalled
from mien.shell.version import software

_LOG: Final = structlog.get_logger()
_MAX_CALLS: Final = 256
_PHONE_CALLS: Final = 1
"""Calls that a phone's connection may have open: it has one at a time, and anybody may be a phone that joins."""

_OPERATOR_CALLS: Final = 4
"""Those of an operator's, whose certificate the handshake asked for."""

_WAITING: Final = 16
"""Calls of one address whose message is waited for."""

_SILENT_S: Final = 20.0
"""After how long a connection without any call is shut: a phone calls as soon as it is connected."""

_HANDSHAKE_MS: Final = 10_000
_IDLE_MS: Final = 300_000
_CHANGE: Final = "; free the port, or set {} in registrar.toml: where it listens, whatever the address is"


@dataclass(frozen=True)
class Ports:
    """Ports that a running registrar listens on."""

    join: int
    admin: int


def serve(home: RegistrarHome, config: RegistrarConfig, announce: Callable[[Ports], None]) -> None:
    """Serve until SIGTERM or SIGINT; `announce` is told once both ports accept calls."""
    os.umask(0o077)
    program = "mien-registrar"
    with exclusive(home.lock_path, program=program), sole_server(home.database_url(config), program=program):
        asyncio.run(serve_until_signalled(running(home, config, WallClock().now_utc), announce, drain_s=config.drain_s))


@contextlib.asynccontextmanager
async def running(home: RegistrarHome, config: RegistrarConfig, clock: Callable[[], datetime]) -> AsyncIterator[Ports]:
    """Run both servers while the block runs; at its end calls in progress get `drain_s` to finish."""
    authority = home.authority()
    store = Store.open(home.database_url(config), lambda: clock().timestamp())
    worker = Worker()
    try:
        _enter(store, "server.start", config)
        policy = Policy.of(config, home.folder)
        witness = Witness(store, authority, home.trusted_ca, clock)
        registry = Registry(store, authority, config, home.trusted_ca, clock, policy=policy)
        limiter = FailureLimiter(config.max_join_failures, config.join_failure_window_s, time.monotonic)
        leaf = ServerLeaf(authority, config.server_names, clock)
        ca = authority.certificate

        join, join_shares = _server(MAX_JOIN_MESSAGE_BYTES, _PHONE_CALLS, config)
        service = RegistrarService(
            *(registry, ca, config.coordinator_address, limiter, worker, clock),
            witness=witness,
            further=Quorum.of(config.witnesses, config.witnesses_needed).besides(witness.key),
            release_key=config.release_key,
        )
        services = wrapping(join, ErrorInterceptor(), _FairInterceptor(config, join_shares))
        registrar_pb2_grpc.add_RegistrarServicer_to_server(service, services)
        admin, admin_shares = _server(MAX_MESSAGE_BYTES, _OPERATOR_CALLS, config)
        operators_ca = home.operators(clock()).certificate
        operators = RegistrarAdminService(registry, operators_ca, home.trusted_ca, worker, clock)
        callers = _Callers(home, pki.to_pem(operators_ca))
        services = wrapping(admin, ErrorInterceptor(), _FairInterceptor(config, admin_shares))
        registrar_pb2_grpc.add_RegistrarAdminServicer_to_server(operators, services)
        ports = Ports(
            listen(join, config.join_listen, leaf.credentials(), change=_CHANGE.format("listen")),
            listen(
                *(admin, config.operators_listen, leaf.credentials(client_ca=callers.pem)),
                change=_CHANGE.format("admin_listen"),
            ),
        )
        await join.start()
        await admin.start()
        try:
            async with join_shares.kept(ports.join), admin_shares.kept(ports.admin):
                yield ports
        finally:
            await asyncio.gather(join.stop(config.drain_s), admin.stop(config.drain_s))
            await worker.run(lambda: _enter(store, "server.stop", config))
    finally:
        worker.close()
        store.close()


def _enter(store: Store, action: str, config: RegistrarConfig) -> None:
    """Enter a start or stop, and print the log's head: an anchor that is kept elsewhere for free."""
    detail = {"software": software("mien-registrar"), "settings_sha256": settings_sha256(config)}
    try:
        head = store.log(audit.REGISTRAR, action, config.address, detail)
    except (StorageError, UnreachableError) as error:
        if action == "server.start":
            raise
        _LOG.warning("the stop is not in the audit log", reason=error.message)
    else:
        _LOG.info("audit log", head=str(head))


class _Callers:
    """Who may call the operators' port: operators, and the trusted coordinator for revocations."""

    def __init__(self, home: RegistrarHome, operators_pem: bytes) -> None:
        self._home, self._operators = home, operators_pem
        self._read: tuple[tuple[int, ...], bytes] = (), operators_pem

    def pem(self) -> bytes:
        """Return their authorities. Every stranger's handshake asks, so the file is read when it has changed."""
        try:
            found = self._home.trusted_ca_path.stat()
        except FileNotFoundError:
            return self._operators
        stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
        if self._read[0] != stamp:
            with contextlib.suppress(ConfigError):
                self._read = stamp, self._operators + pki.to_pem(self._home.trusted_ca())
        return self._read[1]


class _FairInterceptor(ReadableInterceptor):
    """Gives each address its share of calls: to be begun, and to be answered. Goes behind `ErrorInterceptor`."""

    def __init__(self, config: RegistrarConfig, shares: ConnectionShares) -> None:
        self._first = FirstMessages(config.first_message_s, min(config.calls_per_address, _WAITING))
        self._open, self._shares = OpenCalls(config.calls_per_address), shares

    def wrapped(self, call: Any, form: str, method: str) -> Any:
        """Return a method that is given messages only."""

        async def fair(requests: AsyncIterator[Any], context: Any) -> Any:
            address = network_of(peer_host(context.peer()))
            self._shares.heard(context.peer())
            request = await self._first.read(requests, address)
            with self._open.call(address):
                return await call(request, context)

        return fair


def _server(max_message_bytes: int, calls: int, config: RegistrarConfig) -> tuple[grpc.aio.Server, ConnectionShares]:
    """Return a server that shares its port with nobody and takes messages up to a limit, and its connections.

    Each of them has so many `calls` open; who makes more at once waits, in the calling program, for those before.
    """
    options = (
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", pki.MAX_CRL_BYTES),
        *connection_limits(calls=calls, handshake_ms=_HANDSHAKE_MS),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
    )
    shares = ConnectionShares(config.connections_per_address, silent_s=_SILENT_S)
    return grpc.aio.server(options=options, maximum_concurrent_rpcs=_MAX_CALLS), shares
