"""A phone's admission in its certificates: as long as the phone, in one form only."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.keys import pki
from mien.errors import CertificateError
from mien.protocol.admission import ATTESTED_OID, OID, admitted_extension, admitted_unix_s, is_attested
from mien.secagg.leaves import leaf_verifier

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def certificate(*values: bytes) -> x509.Certificate:
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, NOW, NOW + timedelta(days=1))
    for value in values:
        builder = builder.add_extension(x509.UnrecognizedExtension(OID, value), critical=False)
    return builder.sign(key, hashes.SHA256())


@pytest.mark.parametrize(
    ("unix_s", "der"),
    [(0, "020100"), (127, "02017f"), (128, "02020080"), (1_900_000_000, "0204713fb300"), (2**31, "02050080000000")],
)
def test_seconds_are_a_der_integer(unix_s: int, der: str) -> None:
    assert admitted_extension(unix_s).value == bytes.fromhex(der)
    assert admitted_unix_s(certificate(bytes.fromhex(der))) == unix_s


@pytest.mark.parametrize("data", ["", "02", "0201", "0101ff", "0201ff", "02020001", "020100ff", "0209" + "00" * 9])
def test_any_other_form_is_refused(data: str) -> None:
    with pytest.raises(CertificateError, match="admission"):
        admitted_unix_s(certificate(bytes.fromhex(data)))


def test_a_certificate_of_an_earlier_registrar_tells_its_own_beginning() -> None:
    assert admitted_unix_s(certificate()) == NOW.timestamp()


@pytest.mark.parametrize("said", [True, False])
def test_a_certificate_says_whether_hardware_attested_its_key(*, said: bool) -> None:
    registrar, key = pki.create_authority("registrar", NOW), ec.generate_private_key(ec.SECP256R1()).public_key()
    leaf = pki.issue_device_leaf(registrar, key, "default", NOW, is_attested=said)
    assert is_attested(leaf) is said
    verified = leaf_verifier(registrar.certificate, "default", lambda: NOW)(pki.to_der(leaf))
    assert (verified.is_attested, verified.admitted_unix_s) == (said, NOW.timestamp())
    assert pki.device_identity(leaf, registrar.certificate, NOW).id == pki.device_id(key)


def test_an_attestation_in_another_form_is_refused() -> None:
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, NOW, NOW + timedelta(days=1))
    extension = x509.UnrecognizedExtension(ATTESTED_OID, b"\x01\x01\x00")
    leaf = builder.add_extension(extension, critical=False).sign(key, hashes.SHA256())
    with pytest.raises(CertificateError, match="attestation"):
        is_attested(leaf)


def test_a_certificate_says_when_its_phone_joined_not_when_it_was_made() -> None:
    registrar, key = pki.create_authority("registrar", NOW), ec.generate_private_key(ec.SECP256R1()).public_key()
    assert admitted_unix_s(pki.issue_device_leaf(registrar, key, "default", NOW)) == NOW.timestamp()
    later = pki.issue_device_leaf(registrar, key, "default", NOW + timedelta(days=60), admitted_unix_s=1_890_000_000)
    assert admitted_unix_s(later) == 1_890_000_000
    assert pki.device_identity(later, registrar.certificate, NOW + timedelta(days=61)).id == pki.device_id(key)
