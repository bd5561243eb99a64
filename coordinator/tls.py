"""What this package's TLS servers present: a certificate that renews itself while the server runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import cast

import grpc

from coordinator import pki


class ServerLeaf:
    """The TLS server's certificate, kept in memory only and issued anew when a third of its life is left."""

    def __init__(self, authority: pki.Authority, hosts: Sequence[str], clock: Callable[[], datetime]) -> None:
        self._authority = authority
        self._hosts = tuple(hosts)
        self._clock = clock
        self._lock = threading.Lock()
        self._current = pki.issue_server_leaf(authority, self._hosts, clock())

    def credentials(self, *, client_ca: bytes | None = None) -> grpc.ServerCredentials:
        """Return credentials that send leaf and authority, and with `client_ca` (PEM) demand a certificate of it."""

        served = self._fresh()

        def configuration(leaf: pki.Credentials) -> grpc.ServerCertificateConfiguration:
            return grpc.ssl_server_certificate_configuration([(leaf.key_pem, leaf.chain_pem)], client_ca)

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            """Return a configuration only if there is a new one: gRPC builds its TLS context anew for each it is
            given, and handshakes that begin meanwhile on other threads can then fail.
            """
            nonlocal served
            leaf = self._fresh()
            if leaf is served:
                return None
            served = leaf
            return configuration(leaf)

        return grpc.dynamic_ssl_server_credentials(
            configuration(served),
            cast("Callable[[], grpc.ServerCertificateConfiguration]", renewed),  # the stubs forget that None is allowed
            require_client_authentication=client_ca is not None,
        )

    def _fresh(self) -> pki.Credentials:
        """Return the leaf to send; gRPC asks at every handshake, from its own threads."""
        with self._lock:
            now, ends = self._clock(), self._current.certificate.not_valid_after_utc
            if ends - now < pki.SERVER_LIFETIME / 3:
                self._current = pki.issue_server_leaf(self._authority, self._hosts, now)
            return self._current
