"""Who is let in: the authority decides the role, the list of the revoked and the clock decide the moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator import pki
from coordinator.clock import Clock
from coordinator.service.access import ALLOWED, AccessInterceptor, Gate
from coordinator.service.limits import CallLimiter
from coordinator.service.revocations import Revocations
from mien.errors import CertificateError, RevokedError, UnreachableError
from mien.wire.v1 import models_pb2, operator_pb2, rounds_pb2


class MovedClock(Clock):
    """A clock that a test moves on."""

    ahead_s = 0.0

    def now(self) -> float:
        return super().now() + self.ahead_s


@dataclass
class World:
    """Two authorities, a revocation list and a clock."""

    folder: Path
    clock: MovedClock = field(default_factory=MovedClock)
    registrar: pki.Authority = field(default_factory=lambda: pki.create_authority("registrar", datetime.now(UTC)))
    coordinator: pki.Authority = field(default_factory=lambda: pki.create_authority("coordinator", datetime.now(UTC)))

    def revocations(self, max_age_s: float = 1000.0) -> Revocations:
        return Revocations(self.folder / "r.crl", self.registrar.certificate, self.clock, max_age_s=max_age_s)

    def gate(self, revocations: Revocations) -> Gate:
        return Gate(self.registrar.certificate, self.coordinator.certificate, revocations, self.clock)

    def leaf(self, authority: pki.Authority) -> bytes:
        csr = pki.create_csr(ec.generate_private_key(ec.SECP256R1()))
        return pki.to_pem(pki.issue_device_leaf(authority, csr, "default", datetime.now(UTC)))

    def crl(self, number: int, *revoked: bytes) -> object:
        serials = [pki.load_certificate(leaf).serial_number for leaf in revoked]
        now = datetime.now(UTC)
        entries = [pki.Revocation(serial, now) for serial in serials]
        return pki.load_crl(pki.build_crl(self.registrar, entries, number, now), self.registrar.certificate)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_authority_decides_the_role(world: World) -> None:
    revocations = world.revocations()
    revocations.accept(world.crl(1))  # type: ignore[arg-type]
    gate = world.gate(revocations)
    device = gate.admit(world.leaf(world.registrar))
    assert (device.role, device.population) == (pki.Role.DEVICE, "default")
    operator = pki.issue_operator_leaf(world.coordinator, "alice", datetime.now(UTC))
    assert gate.admit(pki.to_pem(operator.certificate)).role is pki.Role.OPERATOR
    with pytest.raises(CertificateError):
        gate.admit(world.leaf(pki.create_authority("registrar", datetime.now(UTC))))
    with pytest.raises(CertificateError):
        gate.admit(b"nonsense")


def test_a_revoked_device_is_refused_at_its_next_call(world: World) -> None:
    revocations = world.revocations()
    revocations.accept(world.crl(1))  # type: ignore[arg-type]
    gate, leaf = world.gate(revocations), world.leaf(world.registrar)
    identity = gate.admit(leaf)
    revocations.accept(world.crl(2, leaf))  # type: ignore[arg-type]
    with pytest.raises(RevokedError):
        gate.admit(leaf)
    with pytest.raises(RevokedError):
        gate.check(identity)
    revocations.accept(world.crl(1))  # type: ignore[arg-type]  # an older list does not bring it back
    with pytest.raises(RevokedError):
        gate.admit(leaf)
    again = world.gate(world.revocations())  # nor does a restart
    with pytest.raises(RevokedError):
        again.admit(leaf)


def test_an_old_list_stops_devices_but_not_operators(world: World) -> None:
    revocations = world.revocations(max_age_s=1000.0)
    gate, leaf = world.gate(revocations), world.leaf(world.registrar)
    operator = pki.to_pem(pki.issue_operator_leaf(world.coordinator, "alice", datetime.now(UTC)).certificate)
    with pytest.raises(UnreachableError, match="no recent revocation list"):
        gate.admit(leaf)
    revocations.accept(world.crl(1))  # type: ignore[arg-type]
    gate.admit(leaf)
    world.clock.ahead_s = 900.0  # the rest is for the machine
    gate.admit(leaf)
    world.clock.ahead_s = 1001.0
    with pytest.raises(UnreachableError):
        gate.admit(leaf)
    gate.admit(operator)
    with pytest.raises(UnreachableError):  # the file remembers when it was confirmed
        world.gate(world.revocations(max_age_s=1000.0)).admit(leaf)


def test_a_certificate_ends_while_a_stream_is_open(world: World) -> None:
    revocations = world.revocations(max_age_s=float("inf"))
    gate = world.gate(revocations)
    identity = gate.admit(world.leaf(world.registrar))
    world.clock.ahead_s = (pki.DEVICE_LIFETIME + timedelta(seconds=1)).total_seconds()
    with pytest.raises(CertificateError, match="expired"):
        gate.check(identity)


def test_every_service_says_who_may_call_it() -> None:
    services = {
        service.full_name
        for module in (rounds_pb2, models_pb2, operator_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
    }
    assert set(ALLOWED) == services


def test_a_stream_to_the_server_ends_when_its_device_is_revoked(world: World) -> None:
    class Context:
        """As much of gRPC's context as is asked for."""

        def auth_context(self) -> dict[str, list[bytes]]:
            return {"x509_pem_cert": [leaf]}

    async def sent() -> AsyncIterator[int]:
        yield 1
        revocations.accept(world.crl(2, leaf))  # type: ignore[arg-type]
        yield 2

    async def take(requests: AsyncIterator[int], _context: object) -> None:
        async for request in requests:
            heard.append(request)

    async def story() -> None:
        access = AccessInterceptor(world.gate(revocations), CallLimiter(60, 4))
        await access._streamed(take, frozenset({pki.Role.DEVICE}))(sent(), Context())

    revocations, heard, leaf = world.revocations(), list[int](), world.leaf(world.registrar)
    revocations.accept(world.crl(1))  # type: ignore[arg-type]
    with pytest.raises(RevokedError):
        asyncio.run(story())
    assert heard == [1]
