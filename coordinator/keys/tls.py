"""Certificates of this package's TLS servers: renewed while the server runs, and TLS 1.3 only."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Final, cast

import grpc

from coordinator.keys import pki
from mien.errors import ConfigError

_PROBE_S: Final = 5.0
_GLANCE_S: Final = 5.0


class Answer(Enum):
    """What answers at an address to whoever greets by TLS 1.3, and what that says of a call that failed."""

    NOBODY = (
        "no {server} answers at {address}; start it with mien-{server} serve (a quick start's fleet: mien-coordinator "
        "quickstart), or check the address"
    )
    CLOSED = (
        "{address} takes connections and shuts them before a {server} shows itself, as a load balancer does while no "
        "server behind it is ready; mien-{server} doctor on the server's machine says what it waits for: its database, "
        "say"
    )
    SILENT = (
        "{address} takes connections and says nothing; the {server} there is overloaded, or it is something else: run "
        "again, or check the address"
    )
    STRANGER = "the server at {address} is not the {server} of this ca.pem; check the address and the clock"
    SERVER = (
        "the {server} at {address} is there, and broke this connection off: it was just started or stopped (run "
        "again), or does not accept these credentials (mien-{server} operator makes new ones)"
    )

    def advice(self, server: str, address: object) -> str:
        """Return what whoever called `server` ("coordinator", "registrar") at an address should do."""
        return self.value.format(server=server, address=address)


class ServerLeaf:
    """The TLS server's certificate, kept in memory only and issued anew when it is due (`pki.is_due`)."""

    def __init__(self, authority: pki.Authority, hosts: Sequence[str], clock: Callable[[], datetime]) -> None:
        self._authority = authority
        self._hosts = tuple(hosts)
        self._clock = clock
        self._lock = threading.Lock()
        self._current = pki.issue_server_leaf(authority, self._hosts, clock())

    def credentials(self, *, client_ca: bytes | Callable[[], bytes] | None = None) -> grpc.ServerCredentials:
        """Return credentials that send leaf and authority, and with `client_ca` (PEM) demand a certificate of it.

        What returns PEM is asked at every handshake: who may call can change while the server runs.
        """

        def authorities() -> bytes | None:
            return client_ca() if callable(client_ca) else client_ca

        served, accepted = self._fresh(), authorities()

        def configuration(leaf: pki.Credentials) -> grpc.ServerCertificateConfiguration:
            return grpc.ssl_server_certificate_configuration([(leaf.key_pem, leaf.chain_pem)], accepted)

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            """Return a configuration only if there is a new one: gRPC builds its TLS context anew for each it is
            given, and handshakes that begin meanwhile on other threads can then fail.
            """
            nonlocal served, accepted
            leaf, wanted = self._fresh(), authorities()
            if leaf is served and wanted == accepted:
                return None
            served, accepted = leaf, wanted
            return configuration(leaf)

        return grpc.dynamic_ssl_server_credentials(
            configuration(served),
            cast("Callable[[], grpc.ServerCertificateConfiguration]", renewed),  # the stubs forget that None is allowed
            require_client_authentication=client_ca is not None,
        )

    def _fresh(self) -> pki.Credentials:
        """Return the leaf to send; gRPC asks at every handshake, from its own threads."""
        with self._lock:
            now = self._clock()
            if pki.is_due(self._current.certificate.not_valid_after_utc, self._authority, now):
                self._current = pki.issue_server_leaf(self._authority, self._hosts, now)
            return self._current


def who_answers(address: str, ca_pem: bytes, *, named: str = "") -> Answer:
    """Return who takes connections at `address` (host:port); blocks for `_GLANCE_S` for each step at most.

    `named` is the host that the certificate has to be for, where that is not the address's own.

    gRPC's words tell a refused certificate, and a connection that was shut before any was shown, in one way or another
    as it happens: both end in a socket that closes.
    """
    context = ssl.create_default_context(cadata=ca_pem.decode())
    context.set_alpn_protocols(["h2"])
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    host, _, port = address.rpartition(":")
    name = named or host
    try:
        raw = socket.create_connection((host.strip("[]"), int(port)), timeout=_GLANCE_S)
    except (OSError, ValueError):  # the latter for what no host can be called
        return Answer.NOBODY
    with raw:
        try:
            context.wrap_socket(raw, server_hostname=name.strip("[]")).close()
        except TimeoutError:
            return Answer.SILENT
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return Answer.CLOSED
        except ssl.SSLError:
            return Answer.STRANGER
        except OSError:  # reset
            return Answer.CLOSED
    return Answer.SERVER


def check_tls12_is_refused(address: str, ca_pem: bytes, *, client: tuple[Path, Path] | None = None) -> None:
    """Raise ConfigError when the server at `address` still speaks TLS 1.2; call only once it has answered by TLS 1.3.

    `client` names the files of a certificate chain and its key, for a server that demands one: without it such a
    server would refuse this probe for a reason that says nothing about TLS 1.2.
    """
    context = ssl.create_default_context(cadata=ca_pem.decode())
    if client is not None:
        context.load_cert_chain(*client)
    context.set_alpn_protocols(["h2"])
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_S) as raw:
            context.wrap_socket(raw, server_hostname=host.strip("[]")).close()
    except OSError:
        return
    raise ConfigError(
        f"{address} speaks TLS 1.2; unset GRPC_SSL_CIPHER_SUITES, restart, and look for a proxy before it"
    )
