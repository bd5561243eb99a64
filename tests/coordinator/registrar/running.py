"""A real registrar on loopback: TLS, both ports, its own folder, a clock that tests can move."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.keys import pki
from coordinator.keys.credentials import OperatorCredentials
from coordinator.registrar.config import RegistrarConfig
from coordinator.registrar.home import RegistrarHome
from coordinator.registrar.server import Ports, running
from mien.errors import MienError
from mien.protocol.invite import Invite
from mien.protocol.renewal import renewal_message
from mien.protocol.status import from_rpc_error
from mien.protocol.v1 import registrar_pb2, registrar_pb2_grpc

CONFIG = RegistrarConfig(
    address="127.0.0.1:7440",
    coordinator_address="127.0.0.1:7443",
    listen="127.0.0.1:0",
    admin_listen="127.0.0.1:0",
    drain_s=5,
)


class MovableClock:
    """The real time plus what a test adds: TLS libraries read the real one, so tests stay near it."""

    def __init__(self) -> None:
        self.ahead = timedelta(0)
        self.before: Callable[[], None] = lambda: None

    def __call__(self) -> datetime:
        self.before()
        return datetime.now(UTC) + self.ahead


@dataclass(frozen=True)
class LocalRegistrar:
    """A running registrar, and the coordinator's authority that it trusts."""

    home: RegistrarHome
    clock: MovableClock
    coordinator: pki.Authority
    ports: Ports
    stop: threading.Event = field(repr=False)

    @property
    def join_address(self) -> str:
        return f"127.0.0.1:{self.ports.join}"

    @property
    def admin_address(self) -> str:
        return f"127.0.0.1:{self.ports.admin}"

    @property
    def operator(self) -> OperatorCredentials:
        return self.home.operator_credentials()

    @contextlib.contextmanager
    def devices(self, root_pem: bytes | None = None) -> Iterator[registrar_pb2_grpc.RegistrarStub]:
        """Open a channel as a device does, trusting the registrar's CA or `root_pem`; errors come as MienError."""
        tls = grpc.ssl_channel_credentials(root_pem or pki.to_pem(self.home.ca()))
        with grpc.secure_channel(self.join_address, tls) as channel, as_mien_errors():
            yield registrar_pb2_grpc.RegistrarStub(channel)

    @contextlib.contextmanager
    def operators(self, chain_pem: bytes, key_pem: bytes) -> Iterator[registrar_pb2_grpc.RegistrarAdminStub]:
        """Open a mutual TLS channel to the operators' port; errors come as MienError."""
        tls = grpc.ssl_channel_credentials(pki.to_pem(self.home.ca()), key_pem, chain_pem)
        with grpc.secure_channel(self.admin_address, tls) as channel, as_mien_errors():
            yield registrar_pb2_grpc.RegistrarAdminStub(channel)

    def invite(self, population: str = "default", valid_s: int = 0, note: str = "") -> Invite:
        """Return a new invite, asked for as an operator does."""
        request = registrar_pb2.CreateInviteRequest(population=population, valid_s=valid_s, note=note)
        with self.operators(self.operator.chain_pem, self.operator.key_pem) as stub:
            return Invite.from_url(stub.CreateInvite(request, timeout=60).url)

    def join(self, token: str, csr: bytes) -> registrar_pb2.JoinReply:
        """Return the answer to a join; errors come as MienError."""
        with self.devices() as stub:
            return stub.Join(registrar_pb2.JoinRequest(token=token, csr_der=csr), timeout=60)

    def renew(self, request: registrar_pb2.RenewRequest) -> registrar_pb2.JoinReply:
        """Return the answer to a renewal; errors come as MienError."""
        with self.devices() as stub:
            return stub.Renew(request, timeout=60)

    def admitted(self, population: str = "default") -> Phone:
        """Return a device that has joined."""
        key = ec.generate_private_key(ec.SECP256R1())
        reply = self.join(self.invite(population).token, csr_der(key))
        return Phone(key, x509.load_der_x509_certificate(reply.certificate_der))


@dataclass(frozen=True)
class Phone:
    """A device's key and certificate."""

    key: ec.EllipticCurvePrivateKey = field(repr=False)
    certificate: x509.Certificate

    @property
    def device_id(self) -> str:
        return pki.device_id(self.key.public_key())

    def renewal(self, unix_ms: int, new_key: ec.EllipticCurvePrivateKey | None = None) -> registrar_pb2.RenewRequest:
        """Return a signed renewal."""
        csr = csr_der(new_key or self.key)
        return registrar_pb2.RenewRequest(
            certificate_der=pki.to_der(self.certificate),
            csr_der=csr,
            signature=self.key.sign(renewal_message(csr, unix_ms), ec.ECDSA(hashes.SHA256())),
            unix_ms=unix_ms,
        )


def csr_der(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a certificate request for a key, DER."""
    return x509.load_pem_x509_csr(pki.create_csr(key)).public_bytes(serialization.Encoding.DER)


@contextlib.contextmanager
def as_mien_errors() -> Iterator[None]:
    """Turn a failed call into the MienError that it stands for, as both clients do."""
    try:
        yield
    except grpc.RpcError as error:
        found: MienError = from_rpc_error(error, peer="the registrar")
        raise found from error


@contextlib.contextmanager
def local_registrar(folder: Path, config: RegistrarConfig = CONFIG) -> Iterator[LocalRegistrar]:
    """Run a registrar in a thread of its own while the block runs."""
    clock = MovableClock()
    home = RegistrarHome.create(folder, config, clock())
    coordinator = pki.create_authority("coordinator", clock())
    home.trust(coordinator.certificate_pem, replace=False)
    stop, ready, ports = threading.Event(), threading.Event(), list[Ports]()

    async def run() -> None:
        async with running(home, config, clock) as listening:
            ports.append(listening)
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert ready.wait(60), "the registrar did not start"
        yield LocalRegistrar(home, clock, coordinator, ports[0], stop)
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()
