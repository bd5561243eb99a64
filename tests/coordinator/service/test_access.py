"""Who is let in: the authority decides the role, the list of the revoked and the clock decide the moment."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from coordinator.keys import pki
from coordinator.service.access import ALLOWED, AccessInterceptor, Gate
from coordinator.service.limits import CallLimiter
from coordinator.service.revocations import Revocations, check_lists
from mien.errors import CertificateError, CorruptDataError, RevokedError, UnreachableError
from mien.protocol.revocations import RevocationList
from mien.protocol.v1 import models_pb2, operator_pb2, rounds_pb2
from mien.shell.clock import Clock


class MovedClock(Clock):
    """A clock that a test moves on."""

    ahead_s = 0.0

    def now(self) -> float:
        return super().now() + self.ahead_s


REGISTRAR = pki.create_authority("registrar", datetime.now(UTC))
LEAVES = [
    pki.to_pem(pki.issue_device_leaf(REGISTRAR, ec.generate_private_key(ec.SECP256R1()).public_key(), "default", at))
    for at in 3 * [datetime.now(UTC)]
]


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
        return pki.to_pem(pki.issue_device_leaf(authority, pki.csr_public_key(csr), "default", datetime.now(UTC)))

    def crl(self, number: int, *revoked: bytes, later_s: float = 0.0) -> x509.CertificateRevocationList:
        serials = [pki.load_certificate(leaf).serial_number for leaf in revoked]
        now = datetime.now(UTC) + timedelta(seconds=later_s)
        entries = [pki.Revocation(serial, now) for serial in serials]
        return pki.load_crl(pki.build_crl(self.registrar, entries, number, now), self.registrar.certificate)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_authority_decides_the_role(world: World) -> None:
    revocations = world.revocations()
    revocations.accept(world.crl(1))
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
    revocations.accept(world.crl(1))
    gate, leaf = world.gate(revocations), world.leaf(world.registrar)
    identity = gate.admit(leaf)
    revocations.accept(world.crl(2, leaf))
    with pytest.raises(RevokedError):
        gate.admit(leaf)
    with pytest.raises(RevokedError):
        gate.check(identity)
    revocations.accept(world.crl(1))  # an older list does not bring it back
    with pytest.raises(RevokedError):
        gate.admit(leaf)
    again = world.gate(world.revocations())  # nor does a restart
    with pytest.raises(RevokedError):
        again.admit(leaf)


def refuses(revocations: Revocations, leaf: bytes) -> bool:
    try:
        revocations.check(pki.load_certificate(leaf).serial_number)
    except RevokedError:
        return True
    return False


@given(data=st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_whom_any_list_named_stays_out_whatever_lists_follow(data: st.DataObject) -> None:
    # Any order of revoking and restoring, each number given once or again, with restarts between.
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), registrar=REGISTRAR)
        revocations, named = world.revocations(), set[bytes]()
        for _ in range(data.draw(st.integers(1, 6))):
            listed = data.draw(st.sets(st.sampled_from(LEAVES)))
            revocations.accept(world.crl(data.draw(st.integers(0, 4)), *listed))
            named |= listed
            if data.draw(st.booleans()):
                revocations = world.revocations()
            assert {leaf for leaf in LEAVES if refuses(revocations, leaf)} == named


def test_a_list_of_the_same_number_must_name_the_same(world: World) -> None:
    revocations, first, second = world.revocations(), LEAVES[0], LEAVES[1]
    assert revocations.accept(world.crl(3)) == "revocations.accept"
    assert revocations.accept(world.crl(4, first)) == "revocations.accept"
    at_hand, confirmed = (world.folder / "r.crl").read_bytes(), world.clock.now()
    world.clock.ahead_s = 900_000.0
    forked = world.crl(4, second)
    with capture_logs() as logs:
        assert revocations.accept(forked) == "revocations.refuse"
        assert revocations.accept(forked) == ""  # the audit log is told once
    assert [entry["log_level"] for entry in logs] == ["error", "error"]
    assert refuses(revocations, first)
    assert refuses(revocations, second)
    assert (world.folder / "r.crl").read_bytes() == at_hand
    assert revocations.age_s >= world.clock.now() - confirmed  # it confirms nothing
    assert world.revocations().is_refused  # after a restart as well
    with pytest.raises(CertificateError, match="contradicts an earlier one"):
        check_lists(world.folder / "r.crl", world.clock)
    assert revocations.accept(world.crl(4, first)) == ""  # signed anew
    assert not revocations.is_refused
    assert revocations.age_s < 900_000.0
    assert refuses(revocations, second)
    assert revocations.accept(world.crl(5, first, second)) == "revocations.accept"
    assert revocations.num_forgotten == 0
    check_lists(world.folder / "r.crl", world.clock)


def test_what_a_restored_registrar_forgot_stays_in_force_until_the_certificate_must_have_ended(world: World) -> None:
    revocations, first, second = world.revocations(), LEAVES[0], LEAVES[1]
    revocations.accept(world.crl(4, first))
    with capture_logs() as logs:
        revocations.accept(world.crl(1_800_000_000, second))
        revocations.accept(world.crl(1_800_000_001, second))
    assert [entry["certificates"] for entry in logs if entry["log_level"] == "error"] == [1]
    assert refuses(revocations, first)
    assert (revocations.num_forgotten, revocations.is_refused) == (1, False)
    with pytest.raises(CertificateError, match=r"forgot that 1 certificates are revoked.*revoke their phones again"):
        check_lists(world.folder / "r.crl", world.clock)
    world.clock.ahead_s = (pki.MAX_DEVICE_LIFETIME + timedelta(seconds=1)).total_seconds()
    check_lists(world.folder / "r.crl", world.clock)
    revocations.accept(world.crl(1_800_000_002))  # nor is it missed that the second one is over
    assert revocations.num_forgotten == 0
    check_lists(world.folder / "r.crl", world.clock)


def test_what_was_kept_of_earlier_lists_is_not_done_without_once_it_is_damaged(world: World) -> None:
    revocations = world.revocations()
    revocations.accept(world.crl(4, LEAVES[0]))
    revocations.accept(world.crl(5))
    for damaged in ("", "[]", "{}", '{"revoked_unix_s": {"xyz": 1}, "refused_list_sha256": ""}'):
        (world.folder / "r.revoked").write_text(damaged)
        with pytest.raises(CorruptDataError, match="restore it from a backup"):
            world.revocations()


def test_an_old_list_stops_devices_but_not_operators(world: World) -> None:
    revocations = world.revocations(max_age_s=1000.0)
    gate, leaf = world.gate(revocations), world.leaf(world.registrar)
    operator = pki.to_pem(pki.issue_operator_leaf(world.coordinator, "alice", datetime.now(UTC)).certificate)
    with pytest.raises(UnreachableError, match="no recent revocation list"):
        gate.admit(leaf)
    revocations.accept(world.crl(1))
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


def test_the_list_that_phones_get_is_the_one_that_was_signed_last(world: World) -> None:
    revocations, leaf = world.revocations(), world.leaf(world.registrar)
    with pytest.raises(UnreachableError, match="no revocation list"):
        _ = revocations.der
    first, again = world.crl(1, leaf), world.crl(1, leaf, later_s=900)
    assert revocations.accept(first) == "revocations.accept"
    assert revocations.accept(again) == ""  # nothing new for the audit log
    shown = RevocationList.parse(revocations.der, world.registrar.certificate)
    assert shown.signed_unix_s == again.last_update_utc.timestamp()
    assert revocations.accept(first) == ""
    assert revocations.der == world.revocations().der == again.public_bytes(Encoding.DER)


def test_a_stream_to_the_server_ends_when_its_device_is_revoked(world: World) -> None:
    class Context:
        """As much of gRPC's context as is asked for."""

        def auth_context(self) -> dict[str, list[bytes]]:
            return {"x509_pem_cert": [leaf]}

        def peer(self) -> str:
            return "ipv4:127.0.0.1:4711"

    async def sent() -> AsyncIterator[int]:
        yield 1
        revocations.accept(world.crl(2, leaf))
        yield 2

    async def take(requests: AsyncIterator[int], _context: object) -> None:
        async for request in requests:
            heard.append(request)

    async def story() -> None:
        access = AccessInterceptor(world.gate(revocations), CallLimiter(60, 4))
        await access._streamed(take, frozenset({pki.Role.DEVICE}))(sent(), Context())

    revocations, heard, leaf = world.revocations(), list[int](), world.leaf(world.registrar)
    revocations.accept(world.crl(1))
    with pytest.raises(RevokedError):
        asyncio.run(story())
    assert heard == [1]
