"""Joining under a policy: what the registrar asks of a phone's hardware, and whom it refuses."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from coordinator.commands.registrar_doctor import RegistrarChecks
from coordinator.keys import pki
from coordinator.registrar.config import RegistrarConfig
from mien.errors import CertificateError, ConfigError, UnreachableError
from mien.protocol.admission import is_attested
from mien.protocol.attestation import attestation_challenge
from mien.protocol.v1 import registrar_pb2
from tests.coordinator.registrar.attestation.phones import APP, Maker, description, issue
from tests.coordinator.registrar.running import CONFIG, LocalRegistrar, csr_der, local_registrar

MAKER = Maker.new()
ROOTS = ("roots.pem",)
Make = Callable[..., LocalRegistrar]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """What runs a registrar with a policy, trusting the made-up root."""
    with ExitStack() as stack:

        def run(**settings: Any) -> LocalRegistrar:
            (tmp_path / "R").mkdir(mode=0o700)
            (tmp_path / "R" / "roots.pem").write_bytes(MAKER.root.certificate.public_bytes(Encoding.PEM))
            config = dataclasses.replace(CONFIG, **{"attestation": "require", "attestation_roots": ROOTS, **settings})
            return stack.enter_context(local_registrar(tmp_path / "R", config))

        yield run


def asked(
    registrar: LocalRegistrar,
    *,
    key: ec.EllipticCurvePrivateKey | None = None,
    attested: ec.EllipticCurvePrivateKey | None = None,
    other_invite: bool = False,
    chain: list[bytes] | None = None,
    **lies: object,
) -> registrar_pb2.JoinReply:
    """Return the answer to a phone that joins with an attested key."""
    token, key = registrar.invite().token, key or ec.generate_private_key(ec.SECP256R1())
    named = registrar.invite().token if other_invite else token
    challenge = attestation_challenge(named, pki.fingerprint(registrar.home.ca()))
    sent = MAKER.chain(attested or key, challenge, **lies) if chain is None else chain
    request = registrar_pb2.JoinRequest(token=token, csr_der=csr_der(key), attestation_chain_der=sent)
    with registrar.devices() as stub:
        return stub.Join(request, timeout=60)


def listed(registrar: LocalRegistrar) -> dict[str, str]:
    with registrar.operators(registrar.operator.chain_pem, registrar.operator.key_pem) as stub:
        devices = stub.ListDevices(registrar_pb2.ListDevicesRequest(), timeout=60).devices
    return {device.device_id: device.attestation for device in devices}


def test_what_holds_and_what_does_not(make: Make) -> None:
    registrar = make(attestation_patch_level=202301, attestation_apps=(APP.hex(),), max_join_failures=1000)
    good = asked(registrar)
    strong = asked(registrar, level=2)
    assert listed(registrar) == {
        good.device_id: "tee, verified boot, patches of 202302",
        strong.device_id: "strongbox, verified boot, patches of 202302",
    }
    lies: list[tuple[dict[str, Any], str]] = [
        ({"chain": []}, "hardware attests their key; this one did not"),
        ({"attested": ec.generate_private_key(ec.SECP256R1())}, "of another key"),
        ({"other_invite": True}, "for another invite"),
        ({"level": 0}, "lives in SOFTWARE, and TEE is needed"),
        ({"kept": 0}, "lives in SOFTWARE, and TEE is needed"),
        ({"origin": 2}, "not made in the phone's hardware"),
        ({"origin": None}, "not made in the phone's hardware"),
        ({"locked": False}, "verified and locked"),
        ({"state": 1}, "verified and locked"),
        ({"state": None}, "verified and locked"),
        ({"patch": 202212}, "patches are of 202212, and those of 202301 are needed"),
        ({"patch": 0}, "of an unknown month"),
        ({"app": bytes(32)}, "another app"),
        ({"chain": [b"x" * 100, b"y" * 100]}, "damaged"),
    ]
    for lie, words in lies:
        with pytest.raises(CertificateError, match=words):
            asked(registrar, **lie)
    assert len(listed(registrar)) == 2


def test_a_chain_that_is_over_and_one_of_another_maker(make: Make) -> None:
    registrar, key = make(), ec.generate_private_key(ec.SECP256R1())
    old = issue("old", MAKER.root, days=(-30, -1))
    leaf = issue("leaf", old, key=key, said=description(b"c"), authority=False)
    with pytest.raises(CertificateError, match="valid from"):
        asked(registrar, key=key, chain=[leaf.der, old.der, MAKER.root.der])
    with pytest.raises(CertificateError, match="root that the registrar trusts"):
        asked(registrar, key=key, chain=Maker.new().chain(key, b"c"))


def test_a_refused_attestation_leaves_the_invite_as_it_was(make: Make) -> None:
    registrar, key = make(), ec.generate_private_key(ec.SECP256R1())
    token = registrar.invite().token
    with pytest.raises(CertificateError):
        registrar.join(token, csr_der(key))
    challenge = attestation_challenge(token, pki.fingerprint(registrar.home.ca()))
    sent = registrar_pb2.JoinRequest(
        token=token, csr_der=csr_der(key), attestation_chain_der=MAKER.chain(key, challenge)
    )
    with registrar.devices() as stub:
        first = stub.Join(sent, timeout=60)
        assert stub.Join(sent, timeout=60).certificate_der == first.certificate_der  # a lost answer
    assert first.device_id == pki.device_id(key.public_key())


def test_a_renewal_cannot_bring_a_key_that_nothing_attests(make: Make) -> None:
    from tests.coordinator.registrar.running import Phone

    registrar, key = make(), ec.generate_private_key(ec.SECP256R1())
    phone = Phone(key, pki.load_certificate(asked(registrar, key=key).certificate_der))
    unix_ms = int(datetime.now(UTC).timestamp() * 1000)
    with pytest.raises(CertificateError, match="attested keys only"):
        registrar.renew(phone.renewal(unix_ms, ec.generate_private_key(ec.SECP256R1())))
    assert registrar.renew(phone.renewal(unix_ms)).device_id == phone.device_id


def test_what_is_only_written_down_refuses_nobody(make: Make) -> None:
    registrar = make(attestation="record")
    good, soft, none = asked(registrar), asked(registrar, level=0), asked(registrar, chain=[])
    assert listed(registrar) == {
        good.device_id: "tee, verified boot, patches of 202302",
        soft.device_id: "not attested: the key lives in SOFTWARE, and TEE is needed to join here",
        none.device_id: "",
    }
    said = [is_attested(x509.load_der_x509_certificate(each.certificate_der)) for each in (good, soft, none)]
    assert said == [True, False, False]


def test_a_key_on_the_list_of_revoked_ones(make: Make, tmp_path: Path) -> None:
    registrar = make(attestation_status="status.json")
    status = tmp_path / "R" / "status.json"
    with pytest.raises(UnreachableError, match="tell the operator"):
        asked(registrar)
    status.write_text(json.dumps({"entries": {}}))
    asked(registrar)
    for number, serial in enumerate(
        (f"{MAKER.environment.certificate.serial_number:x}", str(MAKER.root.certificate.serial_number))
    ):
        status.write_text(json.dumps({"entries": {serial: {"status": ("REVOKED", "SUSPENDED")[number]}}}))
        os.utime(status, (number + 1, number + 1))
        with pytest.raises(CertificateError, match="revoked by its maker"):
            asked(registrar)
    status.write_bytes(b"[")
    with pytest.raises(UnreachableError):
        asked(registrar)


def test_doctor(make: Make, tmp_path: Path) -> None:
    registrar = make(attestation_status="status.json")

    def told() -> tuple[bool, str]:
        findings = asyncio.run(RegistrarChecks(registrar.home, registrar.clock).examine())
        (found,) = [finding for finding in findings if finding.name == "attestation"]
        return found.error is None, found.detail

    assert told()[0] is False
    status = tmp_path / "R" / "status.json"
    status.write_text(json.dumps({"entries": {}}))
    assert told() == (True, "require, tee or better, 1 root; 0 revoked keys, 0 days old")
    os.utime(status, (1, 1))
    assert "fetch it again" in told()[1]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"attestation": "yes"}, "known: off, record, require"),
        ({"attestation": "require"}, "attestation_roots"),
        ({"attestation_level": "software"}, "known: tee, strongbox"),
        ({"attestation_apps": ("abc",)}, "64 hex digits"),
        ({"attestation_patch_level": -1}, "attestation_patch_level"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RegistrarConfig("a:1", "b:2", **settings)


def test_roots_that_are_none_end_the_start(make: Make, tmp_path: Path) -> None:
    from coordinator.registrar.attestation.policy import Policy

    (tmp_path / "no.pem").write_text("nothing")
    for name in ("no.pem", "missing.pem"):
        config = dataclasses.replace(CONFIG, attestation="record", attestation_roots=(name,))
        with pytest.raises(ConfigError, match="holds no certificates"):
            Policy.of(config, tmp_path)


def test_the_challenge_is_of_one_invite_and_one_registrar() -> None:
    one = attestation_challenge("token", "a" * 64)
    assert len(one) == 32
    assert len({one, attestation_challenge("token2", "a" * 64), attestation_challenge("token", "b" * 64)}) == 3
    # printf '\x17mien/v1/key-attestation\x40%s\x05token' aaaa… | sha256sum
    import hashlib

    assert one == hashlib.sha256(b"\x17mien/v1/key-attestation\x40" + b"a" * 64 + b"\x05token").digest()
