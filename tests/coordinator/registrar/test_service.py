"""Both services over real gRPC and TLS on loopback."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.keys import pki
from coordinator.keys.credentials import OperatorCredentials
from coordinator.keys.tls import ServerLeaf
from coordinator.operator import registrar_client
from coordinator.registrar.home import RegistrarHome
from coordinator.registrar.server import _Callers
from mien.errors import (
    CertificateError,
    ConfigError,
    NotFoundError,
    RateLimitedError,
    RevokedError,
    UnreachableError,
    VersionError,
)
from mien.protocol.v1 import common_pb2, registrar_pb2
from tests.coordinator.registrar.running import CONFIG, LocalRegistrar, as_mien_errors, csr_der, local_registrar


def test_hello_agrees_on_a_version_and_tells_the_time(registrar: LocalRegistrar) -> None:
    with registrar.devices() as stub:
        reply = stub.Hello(common_pb2.HelloRequest(protocol_versions=[2, 1]), timeout=60)
    assert reply.protocol_version == 1
    assert reply.software.startswith("mien-registrar")
    assert abs(reply.unix_ms - time.time() * 1000) < 60_000
    with pytest.raises(VersionError, match="upgrade"), registrar.devices() as stub:
        stub.Hello(common_pb2.HelloRequest(protocol_versions=[2]), timeout=60)


def test_join_tells_a_device_all_it_needs(registrar: LocalRegistrar) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    reply = registrar.join(registrar.invite("blue", note="Alice").token, csr_der(key))
    assert reply.registrar_ca_der == pki.to_der(registrar.home.ca())
    assert reply.coordinator_ca_der == pki.to_der(registrar.coordinator.certificate)
    assert reply.coordinator_address == "127.0.0.1:7443"
    leaf = pki.load_certificate(reply.certificate_der)
    identity = pki.device_identity(leaf, registrar.home.ca(), registrar.clock())
    assert (reply.device_id, reply.population) == (identity.id, identity.population) == (identity.id, "blue")


def test_renewal_and_revocation_over_the_wire(registrar: LocalRegistrar) -> None:
    phone = registrar.admitted()
    renewed = registrar.renew(phone.renewal(int(time.time() * 1000)))
    assert renewed.device_id == phone.device_id

    async def revoke() -> None:
        async with registrar_client.connect_admin(registrar.admin_address, registrar.operator, timeout_s=60) as admin:
            await admin.revoke_device(phone.device_id, reason="lost")

    asyncio.run(revoke())
    crl = asyncio.run(registrar_client.fetch_revocations(registrar.join_address, registrar.home.ca(), timeout_s=60))
    assert [entry.serial_number for entry in crl] == [phone.certificate.serial_number]
    with pytest.raises(RevokedError):
        registrar.renew(phone.renewal(int(time.time() * 1000)))


def test_operators_see_every_device_page_by_page(registrar: LocalRegistrar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrar_client, "_PAGE", 2)
    joined = {registrar.admitted("paged").device_id for _ in range(3)}

    async def listed() -> list[registrar_client.Device]:
        async with registrar_client.connect_admin(registrar.admin_address, registrar.operator, timeout_s=60) as admin:
            return [device async for device in admin.list_devices()]

    devices = asyncio.run(listed())
    assert {device.device_id for device in devices if device.population == "paged"} == joined
    assert [device.device_id for device in devices] == sorted({device.device_id for device in devices})


def test_operators_errors_arrive_as_what_they_are(registrar: LocalRegistrar) -> None:
    async def ask() -> None:
        async with registrar_client.connect_admin(registrar.admin_address, registrar.operator, timeout_s=60) as admin:
            with pytest.raises(NotFoundError):
                await admin.revoke_device("0" * 32)
            with pytest.raises(ConfigError, match="cannot be a name"):
                await admin.create_invite("a b")

    asyncio.run(ask())


def test_who_finds_no_registrar_is_told_which_setting_says_where(registrar: LocalRegistrar) -> None:
    async def ask(address: str) -> None:
        admin_only = registrar.operator
        async with registrar_client.connect_admin(
            address, admin_only, setting="registrar_admin_address", timeout_s=60
        ) as admin:
            await admin.create_invite("default")

    # Nobody listens at port 1.
    with pytest.raises(UnreachableError, match=r"no registrar answers at 127\.0\.0\.1:1 \(registrar_admin_address\)"):
        asyncio.run(ask("127.0.0.1:1"))


def test_an_operator_elsewhere_works_with_a_key_of_its_own(registrar: LocalRegistrar) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    authority = registrar.home.operators(registrar.clock())
    leaf = pki.issue_operator_leaf_for_csr(authority, pki.create_csr(key), "coordinator", registrar.clock())
    with registrar.operators(pki.to_pem(leaf), pki.key_to_pem(key)) as stub:
        reply = stub.CreateInvite(registrar_pb2.CreateInviteRequest(population="default"), timeout=60)
    assert reply.url.startswith("mien://join?")


def test_a_device_is_no_operator(registrar: LocalRegistrar) -> None:
    """Device certificates come from an authority that the port does not know: no handler is asked."""
    phone = registrar.admitted()
    with (
        pytest.raises(UnreachableError),
        registrar.operators(pki.to_pem(phone.certificate), pki.key_to_pem(phone.key)) as stub,
    ):
        stub.ListDevices(registrar_pb2.ListDevicesRequest(), timeout=60)


def test_strangers_do_not_reach_the_operators_port(registrar: LocalRegistrar) -> None:
    stranger = pki.issue_operator_leaf(pki.create_authority("x", registrar.clock()), "alice", registrar.clock())
    foreign = dataclasses.replace(registrar.operator, chain_pem=stranger.chain_pem, key_pem=stranger.key_pem)
    with pytest.raises(UnreachableError, match="does not accept these credentials"):
        asyncio.run(_list(registrar.admin_address, foreign))
    tls = grpc.ssl_channel_credentials(pki.to_pem(registrar.home.ca()))
    with grpc.secure_channel(registrar.admin_address, tls) as channel, pytest.raises(grpc.RpcError) as refused:
        _call_raw(channel, "/mien.v1.RegistrarAdmin/ListDevices")
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_the_coordinators_own_certificate_gets_revocations_there_and_nothing_else(registrar: LocalRegistrar) -> None:
    own = pki.issue_operator_leaf(registrar.coordinator, "coordinator", registrar.clock())
    asked = registrar_client.fetch_revocations(registrar.admin_address, registrar.home.ca(), credentials=own)
    assert pki.crl_number(asyncio.run(asked)) > 0
    with pytest.raises(CertificateError), registrar.operators(own.chain_pem, own.key_pem) as stub:
        stub.ListDevices(registrar_pb2.ListDevicesRequest(), timeout=60)
    with pytest.raises(CertificateError), registrar.operators(own.chain_pem, own.key_pem) as stub:
        stub.CreateInvite(registrar_pb2.CreateInviteRequest(population="default"), timeout=60)


def test_each_port_offers_its_own_service_only(registrar: LocalRegistrar) -> None:
    tls = grpc.ssl_channel_credentials(pki.to_pem(registrar.home.ca()))
    with grpc.secure_channel(registrar.join_address, tls) as channel, pytest.raises(grpc.RpcError) as refused:
        _call_raw(channel, "/mien.v1.RegistrarAdmin/CreateInvite")
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_registrar_that_is_down_is_said_to_be_down(registrar: LocalRegistrar) -> None:
    began = time.monotonic()
    with pytest.raises(UnreachableError, match="start it with mien-registrar serve"):
        asyncio.run(_list("127.0.0.1:1", registrar.operator))
    assert time.monotonic() - began < 200  # and not for ever


def test_a_registrar_that_refuses_the_credentials_is_told_from_nobody_there(registrar: LocalRegistrar) -> None:
    now = datetime.now(UTC)
    stranger = pki.issue_operator_leaf(pki.create_authority("operators", now), "mallory", now)
    refused = dataclasses.replace(registrar.operator, chain_pem=stranger.chain_pem, key_pem=stranger.key_pem)
    with pytest.raises(UnreachableError, match="does not accept these credentials"):
        asyncio.run(_list(registrar.admin_address, refused))


def test_a_registrar_of_another_authority_is_not_believed(registrar: LocalRegistrar) -> None:
    with pytest.raises(UnreachableError, match="not the registrar of this"):
        asyncio.run(
            registrar_client.fetch_revocations(registrar.join_address, registrar.coordinator.certificate, timeout_s=60)
        )


def test_messages_beyond_the_limit_are_refused_before_they_are_read(registrar: LocalRegistrar) -> None:
    with pytest.raises(RateLimitedError), registrar.devices() as stub:
        stub.Join(registrar_pb2.JoinRequest(token="A" * 43, csr_der=bytes(40_000)), timeout=60)


def test_an_operator_whose_certificate_ends_is_refused_on_an_open_connection(registrar: LocalRegistrar) -> None:
    operator = registrar.operator
    with registrar.operators(operator.chain_pem, operator.key_pem) as stub:
        stub.ListDevices(registrar_pb2.ListDevicesRequest(), timeout=60)
        registrar.clock.ahead = timedelta(days=366)
        try:
            with pytest.raises(CertificateError, match="expired"), as_mien_errors():
                stub.ListDevices(registrar_pb2.ListDevicesRequest(), timeout=60)
        finally:
            registrar.clock.ahead = timedelta(0)


def test_the_server_renews_its_own_certificate(registrar: LocalRegistrar) -> None:
    clock = registrar.clock
    leaf = ServerLeaf(registrar.home.authority(), ["localhost"], clock)
    first = leaf._fresh()
    assert leaf._fresh() is first
    clock.ahead = pki.SERVER_LIFETIME * 2 / 3 + timedelta(minutes=1)
    try:
        assert leaf._fresh().certificate.not_valid_after_utc > first.certificate.not_valid_after_utc
    finally:
        clock.ahead = timedelta(0)


def test_no_certificate_is_renewed_that_could_live_no_longer(registrar: LocalRegistrar) -> None:
    """Every handshake asks for it: in an authority's last month, each made another of the same end."""
    clock = registrar.clock
    clock.ahead = pki.AUTHORITY_LIFETIME - timedelta(days=20)
    try:
        leaf = ServerLeaf(registrar.home.authority(), ["localhost"], clock)
        first = leaf._fresh()
        assert leaf._fresh() is first
        clock.ahead = pki.AUTHORITY_LIFETIME + timedelta(days=1)
        with pytest.raises(CertificateError, match="authority's certificate has expired"):
            leaf._fresh()
    finally:
        clock.ahead = timedelta(0)


def test_who_may_call_operators_is_read_again_only_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every stranger's handshake asks."""
    now = datetime(2026, 3, 1, tzinfo=UTC)
    home = RegistrarHome.create(tmp_path / "R", CONFIG, now)
    own, first, second = (pki.to_pem(pki.create_authority(name, now).certificate) for name in ("own", "one", "two"))
    callers = _Callers(home, own)
    assert callers.pem() == own
    for trusted in (first, second):
        home.trust(trusted, replace=True)
        assert callers.pem() == own + trusted
    monkeypatch.setattr(RegistrarHome, "trusted_ca", None)
    assert callers.pem() == own + second
    home.trusted_ca_path.unlink()
    assert callers.pem() == own


def test_a_call_in_progress_is_answered_when_the_registrar_stops(tmp_path: Path) -> None:
    with local_registrar(tmp_path / "R", dataclasses.replace(CONFIG, drain_s=60)) as registrar:
        entered, release = threading.Event(), threading.Event()
        token, key = registrar.invite().token, ec.generate_private_key(ec.SECP256R1())

        def wait_in_the_registry() -> None:
            if threading.current_thread().name.startswith("registry"):
                entered.set()
                release.wait(60)

        registrar.clock.before = wait_in_the_registry
        replies: list[registrar_pb2.JoinReply] = []
        caller = threading.Thread(target=lambda: replies.append(registrar.join(token, csr_der(key))))
        caller.start()
        assert entered.wait(60)
        registrar.stop.set()
        time.sleep(0.2)
        release.set()
        caller.join(60)
    assert [reply.device_id for reply in replies] == [pki.device_id(key.public_key())]


async def _list(address: str, credentials: OperatorCredentials) -> list[registrar_client.Device]:
    async with registrar_client.connect_admin(address, credentials, timeout_s=60) as admin:
        return [device async for device in admin.list_devices()]


def _call_raw(channel: grpc.Channel, method: str) -> None:
    call: Any = channel.unary_unary(method)
    call(b"", timeout=60)
