"""Attacks on joining and renewal, over real gRPC and TLS: what a stranger, a thief or a clock can try."""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from coordinator.keys import pki
from coordinator.operator import registrar_client
from coordinator.service.limits import FailureLimiter
from mien.errors import CertificateError, InviteError, MienError, RateLimitedError, RevokedError
from mien.protocol.invite import Invite
from mien.protocol.v1 import common_pb2, registrar_pb2, registrar_pb2_grpc
from tests.coordinator.registrar.running import CONFIG, LocalRegistrar, Phone, csr_der, local_registrar

P256 = ec.SECP256R1()


@pytest.fixture(scope="module")
def registrar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistrar]:
    """A registrar that lets one address fail often enough for this module's attacks."""
    folder: Path = tmp_path_factory.mktemp("attacked") / "R"
    with local_registrar(folder, replace(CONFIG, max_join_failures=1000)) as running:
        yield running


def now_ms() -> int:
    return int(time.time() * 1000)


def utc_now() -> datetime:
    return datetime.now(UTC)


def refused(call: Any, *arguments: Any) -> MienError:
    with pytest.raises(MienError) as error:
        call(*arguments)
    return error.value


# Tokens


def test_a_used_token_admits_nobody_else(registrar: LocalRegistrar) -> None:
    token = registrar.invite().token
    registrar.join(token, csr_der(ec.generate_private_key(P256)))
    error = refused(registrar.join, token, csr_der(ec.generate_private_key(P256)))
    assert isinstance(error, InviteError)
    assert "used by another device" in error.message
    assert token not in error.message


def test_an_expired_token_admits_nobody(registrar: LocalRegistrar) -> None:
    token = registrar.invite(valid_s=60).token
    registrar.clock.ahead = timedelta(seconds=61)
    try:
        error = refused(registrar.join, token, csr_der(ec.generate_private_key(P256)))
    finally:
        registrar.clock.ahead = timedelta(0)
    assert isinstance(error, InviteError)
    assert "expired" in error.message


def test_another_registrars_token_admits_nobody(registrar: LocalRegistrar, tmp_path: Path) -> None:
    with local_registrar(tmp_path / "other") as other:
        foreign = other.invite().token
    assert isinstance(refused(registrar.join, foreign, csr_der(ec.generate_private_key(P256))), InviteError)


@pytest.mark.parametrize("token", ["", "A" * 43, "'; DROP TABLE invites; --", "\x00", "é" * 1000])
def test_no_other_text_is_a_token(registrar: LocalRegistrar, token: str) -> None:
    assert isinstance(refused(registrar.join, token, csr_der(ec.generate_private_key(P256))), InviteError)


def test_of_many_who_race_with_one_token_one_is_admitted(registrar: LocalRegistrar) -> None:
    token = registrar.invite("raced").token
    requests = [csr_der(ec.generate_private_key(P256)) for _ in range(8)]

    def attempt(csr: bytes) -> str:
        try:
            return registrar.join(token, csr).device_id
        except InviteError:
            return ""

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        admitted = [device_id for device_id in pool.map(attempt, requests) if device_id]
    assert len(admitted) == 1


def test_guessing_is_slowed_down_per_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]  # the limiter's clock alone: how long calls take must not count

    def limiter(max_failures: int, window_s: float, _monotonic: object) -> FailureLimiter:
        return FailureLimiter(max_failures, window_s, lambda: now_s[0])

    monkeypatch.setattr("coordinator.registrar.server.FailureLimiter", limiter)
    with local_registrar(tmp_path / "R", replace(CONFIG, max_join_failures=3, join_failure_window_s=8)) as registrar:
        good, csr = registrar.invite().token, csr_der(ec.generate_private_key(P256))
        for _ in range(3):
            assert isinstance(refused(registrar.join, "A" * 43, csr), InviteError)
        now_s[0] = 7.5
        error = refused(registrar.join, good, csr)
        assert isinstance(error, RateLimitedError)
        assert error.retry_after_s == pytest.approx(0.5)
        now_s[0] = 8.1
        registrar.join(good, csr)


# The server in the middle


class Thief(registrar_pb2_grpc.RegistrarServicer):
    """Answers as a registrar would and notes the tokens that it is sent."""

    def __init__(self) -> None:
        self.tokens: list[str] = []

    async def Hello(self, request: common_pb2.HelloRequest, context: Any) -> common_pb2.HelloReply:
        return common_pb2.HelloReply(protocol_version=1, unix_ms=now_ms())

    async def Join(self, request: registrar_pb2.JoinRequest, context: Any) -> registrar_pb2.JoinReply:
        self.tokens.append(request.token)
        return registrar_pb2.JoinReply()

    async def Renew(self, request: registrar_pb2.RenewRequest, context: Any) -> registrar_pb2.JoinReply:
        return registrar_pb2.JoinReply()

    async def GetRevocations(
        self, request: registrar_pb2.GetRevocationsRequest, context: Any
    ) -> registrar_pb2.GetRevocationsReply:
        return registrar_pb2.GetRevocationsReply()


@contextmanager
def man_in_the_middle(thief: Thief, key_pem: bytes, chain_pem: bytes) -> Iterator[str]:
    """Run a thief's server with a key and the chain that it shows; gives its address."""
    ready, stop, ports = threading.Event(), threading.Event(), list[int]()

    async def run() -> None:
        server = grpc.aio.server()
        registrar_pb2_grpc.add_RegistrarServicer_to_server(thief, server)
        ports.append(server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key_pem, chain_pem)])))
        await server.start()
        ready.set()
        await asyncio.to_thread(stop.wait)
        await server.stop(0)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert ready.wait(60)
        yield f"127.0.0.1:{ports[0]}"
    finally:
        stop.set()
        thread.join(60)


def shown_chain(address: str) -> list[x509.Certificate]:
    """Return the chain that a server shows to somebody who trusts nothing."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as raw, context.wrap_socket(raw, server_hostname=host) as tls:
        ders: Any = tls._sslobj.get_unverified_chain()  # type: ignore[attr-defined]
        assert tls.version() == "TLSv1.3"
        return [x509.load_der_x509_certificate(der.public_bytes(2)) for der in ders]


def test_the_registrar_shows_the_authority_that_the_invite_pins(registrar: LocalRegistrar) -> None:
    invite = registrar.invite()
    leaf, authority = shown_chain(registrar.join_address)
    assert pki.fingerprint(authority) == invite.registrar_ca_sha256
    leaf.verify_directly_issued_by(authority)


def send_token(address: str, trusted: x509.Certificate, token: str) -> grpc.StatusCode:
    """Send a token as a device does, over a channel with the pinned authority as its only root; return how it fails."""
    with grpc.secure_channel(address, grpc.ssl_channel_credentials(pki.to_pem(trusted))) as channel:
        stub = registrar_pb2_grpc.RegistrarStub(channel)
        with pytest.raises(grpc.RpcError) as error:
            stub.Join(registrar_pb2.JoinRequest(token=token), timeout=60)
    return error.value.code()


def test_a_server_in_the_middle_never_sees_the_token(registrar: LocalRegistrar) -> None:
    """Same service, same names, another authority: its chain matches no fingerprint, and the pinned root refuses it."""
    invite, thief = registrar.invite(), Thief()
    leaf = pki.issue_server_leaf(pki.create_authority("registrar", utc_now()), ["127.0.0.1"], utc_now())
    with man_in_the_middle(thief, leaf.key_pem, leaf.chain_pem) as address:
        assert invite.registrar_ca_sha256 not in {pki.fingerprint(c) for c in shown_chain(address)}
        assert send_token(address, registrar.home.ca(), invite.token) is grpc.StatusCode.UNAVAILABLE
    assert thief.tokens == []


def test_showing_the_true_authority_does_not_help_the_server_in_the_middle(registrar: LocalRegistrar) -> None:
    """Its own leaf with the true authority behind it: the fingerprint is found, the handshake fails all the same."""
    invite, thief, true_ca = registrar.invite(), Thief(), registrar.home.ca()
    leaf = pki.issue_server_leaf(pki.create_authority("registrar", utc_now()), ["127.0.0.1"], utc_now())
    with man_in_the_middle(thief, leaf.key_pem, pki.to_pem(leaf.certificate) + pki.to_pem(true_ca)) as address:
        assert invite.registrar_ca_sha256 in {pki.fingerprint(c) for c in shown_chain(address)}
        assert send_token(address, true_ca, invite.token) is grpc.StatusCode.UNAVAILABLE
    assert thief.tokens == []


def test_a_device_cannot_pose_as_the_registrar(registrar: LocalRegistrar) -> None:
    """A device's leaf is of the pinned authority, but not for a server."""
    invite, thief, phone = registrar.invite(), Thief(), registrar.admitted()
    chain_pem = pki.to_pem(phone.certificate) + pki.to_pem(registrar.home.ca())
    with man_in_the_middle(thief, pki.key_to_pem(phone.key), chain_pem) as address:
        assert send_token(address, registrar.home.ca(), invite.token) is grpc.StatusCode.UNAVAILABLE
    assert thief.tokens == []


# Certificate requests


def signed_by(key: Any, algorithm: Any = None) -> bytes:
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return request.sign(key, algorithm).public_bytes(serialization.Encoding.DER)


def bad_requests() -> dict[str, bytes]:
    good = csr_der(ec.generate_private_key(P256))
    forged = bytearray(good)
    forged[-1] ^= 1
    padding = x509.SubjectAlternativeName([x509.DNSName("a" * 60 + f"{i}.example") for i in range(70)])
    key = ec.generate_private_key(P256)
    large = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).add_extension(padding, critical=False)
    return {
        "P-384": signed_by(ec.generate_private_key(ec.SECP384R1()), hashes.SHA256()),
        "secp256k1": signed_by(ec.generate_private_key(ec.SECP256K1()), hashes.SHA256()),
        "Ed25519": signed_by(ed25519.Ed25519PrivateKey.generate()),
        "RSA": signed_by(rsa.generate_private_key(65537, 2048), hashes.SHA256()),
        "SHA-512": signed_by(key, hashes.SHA512()),
        "forged signature": bytes(forged),
        "oversized": large.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER),
        "cut off": good[:-5],
        "with a tail": good + b"\x00",
        "empty": b"",
    }


@pytest.mark.parametrize("kind", list(bad_requests()))
def test_a_bad_request_is_refused_and_costs_the_invite_nothing(registrar: LocalRegistrar, kind: str) -> None:
    token = registrar.invite().token
    error = refused(registrar.join, token, bad_requests()[kind])
    assert isinstance(error, CertificateError), kind
    registrar.join(token, csr_der(ec.generate_private_key(P256)))


def test_somebody_elses_request_gives_no_usable_certificate(registrar: LocalRegistrar) -> None:
    """A request that was overheard can be sent, but the certificate is for a key that the thief lacks."""
    owner = ec.generate_private_key(P256)
    reply = registrar.join(registrar.invite().token, csr_der(owner))
    stolen = x509.load_der_x509_certificate(reply.certificate_der)
    thief = Phone(ec.generate_private_key(P256), stolen)
    assert isinstance(refused(registrar.renew, thief.renewal(now_ms())), CertificateError)


# Renewal with certificates that are not good


def test_certificates_that_the_registrar_did_not_issue_renew_nothing(registrar: LocalRegistrar) -> None:
    key, now = ec.generate_private_key(P256), utc_now()
    csr = pki.create_csr(key)
    itself = pki.create_authority("registrar", now)
    forged = {
        "by the coordinator's authority": pki.issue_device_leaf(
            registrar.coordinator, pki.csr_public_key(csr), "default", now
        ),
        "by an authority of one's own": pki.issue_device_leaf(itself, pki.csr_public_key(csr), "default", now),
        "self-signed": itself.certificate,
    }
    for how, leaf in forged.items():
        signer = itself.key if how == "self-signed" else key
        error = refused(registrar.renew, Phone(signer, leaf).renewal(now_ms()))
        assert isinstance(error, CertificateError), how
        assert "expected authority" in error.message


def test_the_registrars_other_leaves_are_no_devices(registrar: LocalRegistrar) -> None:
    authority = registrar.home.authority()
    operator = pki.issue_operator_leaf(authority, "alice", utc_now())
    server = pki.issue_server_leaf(authority, ["127.0.0.1"], utc_now())
    for leaf in (operator, server):
        assert refused(registrar.renew, Phone(leaf.key, leaf.certificate).renewal(now_ms())).code in (
            "permission_denied",
            "certificate",
        )


def test_a_certificate_beyond_its_grace_or_before_its_time_renews_nothing(registrar: LocalRegistrar) -> None:
    authority = registrar.home.authority()
    for shift, message in ((timedelta(days=-60), "expired"), (timedelta(days=1), "not valid for another")):
        key = ec.generate_private_key(P256)
        leaf = pki.issue_device_leaf(authority, key.public_key(), "default", utc_now() + shift)
        error = refused(registrar.renew, Phone(key, leaf).renewal(now_ms()))
        assert isinstance(error, CertificateError)
        assert message in error.message


@pytest.mark.parametrize("off_s", [86_400, -86_400])
def test_a_clock_a_day_off_is_told_so(registrar: LocalRegistrar, off_s: int) -> None:
    error = refused(registrar.renew, registrar.admitted().renewal(now_ms() + off_s * 1000))
    assert isinstance(error, CertificateError)
    word = "ahead of" if off_s > 0 else "behind"
    assert word in error.message
    assert "this device's clock is 86" in error.message


def test_times_beyond_all_reason_are_refused_in_one_sentence(registrar: LocalRegistrar) -> None:
    for unix_ms in (2**63 - 1, -(2**63), 0):
        assert isinstance(refused(registrar.renew, registrar.admitted().renewal(unix_ms)), CertificateError)


def test_a_revoked_device_renews_nothing_and_joins_no_more(registrar: LocalRegistrar) -> None:
    phone = registrar.admitted()

    async def revoke() -> None:
        async with registrar_client.connect_admin(registrar.admin_address, registrar.operator) as admin:
            await admin.revoke_device(phone.device_id, reason="stolen")

    asyncio.run(revoke())
    assert isinstance(refused(registrar.renew, phone.renewal(now_ms())), RevokedError)
    assert isinstance(refused(registrar.join, registrar.invite().token, csr_der(phone.key)), RevokedError)


def test_a_renewal_that_was_overheard_brings_nothing_new(registrar: LocalRegistrar) -> None:
    request = registrar.admitted().renewal(now_ms())
    first = registrar.renew(request)
    assert registrar.renew(request) == first
    request.csr_der = csr_der(ec.generate_private_key(P256))
    assert isinstance(refused(registrar.renew, request), CertificateError)


def test_an_invite_that_was_tampered_with_is_no_invite(registrar: LocalRegistrar) -> None:
    url = registrar.invite().to_url()
    for broken in (url[:-30], url.replace("rf=", "rx="), url.replace("mien://", "https://"), url + "&t=" + "A" * 43):
        with pytest.raises(InviteError):
            Invite.from_url(broken)
