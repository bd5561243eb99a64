"""The protocol with the registrar's real certificates, checked as devices and coordinator check them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.keys import pki
from mien.errors import CertificateError
from mien.secagg import EcdsaSigner, Identity, ServerRound
from mien.secagg.keys import VerifyLeaf, identity_id
from mien.secagg.leaves import leaf_verifier
from tests.mien.secagg.cohort import Cohort, make_addends, make_config, make_device
from tests.mien.secagg.test_rounds import assert_exact

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def verifier(authority: pki.Authority, now: datetime = NOW) -> VerifyLeaf:
    return leaf_verifier(authority.certificate, "default", lambda: now)


def identity(authority: pki.Authority) -> Identity:
    key = ec.generate_private_key(ec.SECP256R1())
    leaf = pki.issue_device_leaf(authority, key.public_key(), "default", NOW)
    assert pki.device_id(key.public_key()) == identity_id(key.public_key()).hex()
    return Identity(identity_id(key.public_key()), pki.to_der(leaf), EcdsaSigner.of(key))


def test_a_round_with_real_certificates() -> None:
    registrar = pki.create_authority("registrar", NOW)
    devices = [identity(registrar) for _ in range(6)]
    verify = verifier(registrar)
    config = make_config(6)
    cohort = Cohort(
        config=config,
        devices={d.id: make_device(config, d, verify=verify) for d in devices},
        server=ServerRound(config, verify=verify),
        addends={d.id: make_addends(config, number) for number, d in enumerate(devices)},
    )
    assert_exact(cohort, cohort.run())
    entry_bytes = 16 + 32 + 32 + 1184 + 32 + 64 + 2
    assert len(cohort.wire[1, devices[0].id]) == 2 + entry_bytes + len(devices[0].certificate)


def test_another_authoritys_device_and_an_expired_one_stay_outside() -> None:
    """The coordinator's own authority cannot make devices: that would be a crowd of its own around a victim."""
    registrar, coordinator = (pki.create_authority(name, NOW) for name in ("registrar", "coordinator"))
    config = make_config(6)
    sybil, honest = identity(coordinator), identity(registrar)
    server = ServerRound(config, verify=verifier(registrar))
    with pytest.raises(CertificateError, match="authority"):
        server.accept_advertise(sybil.id, make_device(config, sybil).advertise())
    server.accept_advertise(honest.id, make_device(config, honest).advertise())
    later = ServerRound(config, verify=verifier(registrar, NOW + pki.DEVICE_LIFETIME + timedelta(minutes=11)))
    with pytest.raises(CertificateError, match="expired"):
        later.accept_advertise(honest.id, make_device(config, honest).advertise())


def test_what_is_not_a_devices_leaf_of_this_population_is_refused() -> None:
    registrar = pki.create_authority("registrar", NOW)
    verify = verifier(registrar)
    key = ec.generate_private_key(ec.SECP256R1())
    good = pki.to_der(pki.issue_device_leaf(registrar, key.public_key(), "default", NOW))
    assert verify(good).id == identity_id(key.public_key())
    elsewhere = pki.to_der(pki.issue_device_leaf(registrar, key.public_key(), "elsewhere", NOW))
    flipped = bytearray(good)
    flipped[-1] ^= 1
    operator = pki.to_der(pki.issue_operator_leaf(registrar, "ann", NOW).certificate)
    authority = pki.to_der(registrar.certificate)
    for leaf in (elsewhere, bytes(flipped), operator, authority, good[:-1], b"", b"x" * 20_000):
        with pytest.raises(CertificateError):
            verify(leaf)


def test_a_clock_that_is_minutes_off_does_not_decide() -> None:
    registrar = pki.create_authority("registrar", NOW)
    leaf = identity(registrar).certificate
    begins = x509.load_der_x509_certificate(leaf).not_valid_before_utc
    assert verifier(registrar, begins - timedelta(minutes=9))(leaf)
    with pytest.raises(CertificateError, match="clock"):
        verifier(registrar, begins - timedelta(minutes=11))(leaf)
