"""Certificates and roles: what a leaf says, and that a role follows from who signed it."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given
from hypothesis import strategies as st

from coordinator.keys import pki
from mien.errors import CertificateError, ConfigError, KeyStoreError, PermissionDeniedError

NOW = datetime(2026, 3, 1, 12, 0, 0, 654321, tzinfo=UTC)
REGISTRAR = pki.create_authority("registrar", NOW)
COORDINATOR = pki.create_authority("coordinator", NOW)

# The P-256 key with private value 1 has the curve's base point as public key (SEC 2, section 2.4.2). Its
# SubjectPublicKeyInfo is RFC 5480's fixed prefix for an uncompressed P-256 point, then the point.
BASE_POINT_SPKI = bytes.fromhex(
    "3059301306072a8648ce3d020106082a8648ce3d030107034200"
    "04"
    "6b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296"
    "4fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5"
)


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def device_leaf(authority: pki.Authority = REGISTRAR, population: str = "default") -> x509.Certificate:
    return pki.issue_device_leaf(authority, new_key().public_key(), population, NOW)


def identify(leaf: x509.Certificate, now: datetime = NOW) -> pki.PeerIdentity:
    return pki.peer_identity(pki.to_pem(leaf), REGISTRAR.certificate, COORDINATOR.certificate, now)


def uris(certificate: x509.Certificate) -> list[str]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def test_device_id_is_the_digest_of_the_public_key_info() -> None:
    key = ec.derive_private_key(1, ec.SECP256R1())
    assert pki.device_id(key.public_key()) == hashlib.sha256(BASE_POINT_SPKI).digest()[:16].hex()


def test_a_device_leaf_holds_the_proved_key_and_the_registrars_names() -> None:
    key = new_key()
    leaf = pki.issue_device_leaf(REGISTRAR, key.public_key(), "clinic-7", NOW)
    assert leaf.public_key() == key.public_key()
    assert uris(leaf) == [f"mien:device:{pki.device_id(key.public_key())}", "mien:population:clinic-7"]
    usage = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    # A day in March has 86400 s: 7 days from noon, and 10 minutes back, in whole seconds.
    assert leaf.not_valid_after_utc == datetime(2026, 3, 8, 12, 0, 0, tzinfo=UTC)
    assert leaf.not_valid_before_utc == datetime(2026, 3, 1, 11, 50, 0, tzinfo=UTC)


def test_nothing_that_a_request_asks_for_is_granted() -> None:
    key = new_key()
    asked = x509.SubjectAlternativeName([x509.UniformResourceIdentifier("mien:operator:root"), x509.DNSName("evil")])
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "registrar")]))
        .add_extension(asked, critical=True)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    csr = request.public_bytes(serialization.Encoding.DER)
    leaf = pki.issue_device_leaf(REGISTRAR, pki.csr_public_key(csr), "default", NOW)
    plain = pki.issue_device_leaf(REGISTRAR, key.public_key(), "default", NOW)
    assert leaf.subject == x509.Name([])
    assert [e.value for e in leaf.extensions] == [e.value for e in plain.extensions]


def test_leaves_end_with_their_authority() -> None:
    authority = pki.create_authority("registrar", NOW, timedelta(days=2))
    leaf = pki.issue_device_leaf(authority, new_key().public_key(), "default", NOW)
    assert leaf.not_valid_after_utc == authority.certificate.not_valid_after_utc
    with pytest.raises(CertificateError, match="authority's certificate has expired"):
        pki.issue_device_leaf(authority, new_key().public_key(), "default", NOW + timedelta(days=3))


def test_server_leaf_covers_names_and_addresses_once() -> None:
    leaf = pki.issue_server_leaf(REGISTRAR, ["registrar.example", "127.0.0.1", "[::1]", "127.0.0.1"], NOW)
    names = leaf.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["registrar.example"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    chain = x509.load_pem_x509_certificates(leaf.chain_pem)
    assert chain == [leaf.certificate, REGISTRAR.certificate]
    with pytest.raises(ConfigError, match="at least one"):
        pki.issue_server_leaf(REGISTRAR, [], NOW)


def test_role_and_identity_follow_from_the_signer() -> None:
    leaf = device_leaf(population="clinic-7")
    device = identify(leaf)
    assert (device.role, device.population, device.serial) == (pki.Role.DEVICE, "clinic-7", leaf.serial_number)
    assert uris(leaf)[0] == f"mien:device:{device.id}"
    assert device.expires_at == leaf.not_valid_after_utc

    operator = identify(pki.issue_operator_leaf(COORDINATOR, "alice", NOW).certificate)
    assert (operator.role, operator.id, operator.population) == (pki.Role.OPERATOR, "alice", None)


def test_an_operators_key_may_stay_where_it_was_made() -> None:
    key = new_key()
    certificate = pki.issue_operator_leaf_for_csr(COORDINATOR, pki.create_csr(key), "bob", NOW)
    assert certificate.public_key() == key.public_key()
    assert identify(certificate).id == "bob"


def test_the_registrars_own_operator_is_nobody_to_the_coordinator() -> None:
    with pytest.raises(PermissionDeniedError):
        identify(pki.issue_operator_leaf(REGISTRAR, "registrar", NOW).certificate)


def test_a_device_leaf_from_the_coordinator_is_not_a_device() -> None:
    with pytest.raises(PermissionDeniedError):
        identify(device_leaf(COORDINATOR))


@pytest.mark.parametrize("authority", [REGISTRAR, COORDINATOR])
def test_a_server_leaf_cannot_call(authority: pki.Authority) -> None:
    with pytest.raises(CertificateError, match="not one for a client"):
        identify(pki.issue_server_leaf(authority, ["localhost"], NOW).certificate)


def test_an_authority_cannot_call_as_itself() -> None:
    with pytest.raises(CertificateError, match="not one for a client"):
        identify(REGISTRAR.certificate)


def test_an_authority_of_the_same_name_signs_for_nobody() -> None:
    """A foreign authority may copy the name; only the signature counts."""
    key = new_key()
    foreign = pki.Authority(
        x509.CertificateBuilder()
        .subject_name(REGISTRAR.certificate.subject)
        .issuer_name(REGISTRAR.certificate.subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=9))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256()),
        key,
    )
    with pytest.raises(CertificateError, match="not issued by the expected authority"):
        identify(device_leaf(foreign))


def test_validity_is_judged_by_the_clock_that_is_passed_in() -> None:
    leaf = device_leaf()
    assert identify(leaf, leaf.not_valid_before_utc).role is pki.Role.DEVICE
    assert identify(leaf, leaf.not_valid_after_utc).role is pki.Role.DEVICE
    with pytest.raises(CertificateError, match="not valid for another 85800 s"):
        identify(leaf, NOW.replace(microsecond=0) - timedelta(days=1))
    with pytest.raises(CertificateError, match="expired 86400 s ago"):
        identify(leaf, leaf.not_valid_after_utc + timedelta(days=1))


def test_an_expired_authority_vouches_for_nobody() -> None:
    authority = pki.create_authority("registrar", NOW, timedelta(days=1))
    leaf = device_leaf(authority)
    later = NOW + timedelta(days=2)
    with pytest.raises(CertificateError, match="expired"):
        pki.device_identity(leaf, authority.certificate, later)


def test_times_need_a_zone() -> None:
    with pytest.raises(TypeError, match="time zone"):
        pki.create_authority("registrar", NOW.replace(tzinfo=None))


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a/b", "ä", "-a", "a" * 65, "a\n"])
def test_names_that_could_be_misread_are_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        device_leaf(population=name)
    with pytest.raises(ConfigError):
        pki.issue_operator_leaf(COORDINATOR, name, NOW)


def test_an_authority_survives_its_files_and_notices_a_mixture() -> None:
    again = pki.load_authority(REGISTRAR.certificate_pem, REGISTRAR.key_pem)
    assert again.certificate == REGISTRAR.certificate
    with pytest.raises(KeyStoreError, match="do not belong together"):
        pki.load_authority(REGISTRAR.certificate_pem, COORDINATOR.key_pem)
    with pytest.raises(KeyStoreError, match="not an unencrypted P-256 key"):
        pki.load_authority(REGISTRAR.certificate_pem, b"nonsense")


def test_only_an_authority_loads_as_one() -> None:
    assert pki.load_authority_certificate(pki.to_der(REGISTRAR.certificate)) == REGISTRAR.certificate
    with pytest.raises(CertificateError, match="not an authority's"):
        pki.load_authority_certificate(pki.to_pem(device_leaf()))


def test_fingerprint_is_the_digest_of_the_der() -> None:
    der = pki.to_der(REGISTRAR.certificate)
    assert pki.fingerprint(REGISTRAR.certificate) == hashlib.sha256(der).hexdigest()


def test_keys_never_show() -> None:
    operator = pki.issue_operator_leaf(COORDINATOR, "alice", NOW)
    for shown in (repr(REGISTRAR), repr(operator)):
        assert "key" not in shown.lower()


def test_revocation_list_names_the_revoked_and_only_them() -> None:
    gone = device_leaf()
    der = pki.build_crl(REGISTRAR, [pki.Revocation(gone.serial_number, NOW)], 7, NOW)
    crl = pki.load_crl(der, REGISTRAR.certificate)
    assert [entry.serial_number for entry in crl] == [gone.serial_number]
    assert pki.crl_number(crl) == 7
    assert crl.last_update_utc == NOW.replace(microsecond=0)
    assert crl.next_update_utc == NOW.replace(microsecond=0) + pki.CRL_LIFETIME


def test_a_revocation_list_must_be_the_registrars() -> None:
    der = pki.build_crl(COORDINATOR, [], 1, NOW)
    with pytest.raises(CertificateError, match="not signed by this registrar"):
        pki.load_crl(der, REGISTRAR.certificate)
    own = bytearray(pki.build_crl(REGISTRAR, [], 1, NOW))
    own[-1] ^= 1
    with pytest.raises(CertificateError):
        pki.load_crl(bytes(own), REGISTRAR.certificate)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_with_one_kind_of_error(data: bytes) -> None:
    for read in (pki.csr_public_key, pki.load_certificate, lambda d: pki.load_crl(d, REGISTRAR.certificate)):
        with pytest.raises(CertificateError):
            read(data)


CSR_KEY = new_key()
CSR = x509.load_pem_x509_csr(pki.create_csr(CSR_KEY)).public_bytes(serialization.Encoding.DER)
LEAF = pki.issue_device_leaf(REGISTRAR, pki.csr_public_key(CSR), "default", NOW)
CRL = pki.build_crl(REGISTRAR, [pki.Revocation(LEAF.serial_number, NOW)], 1, NOW)


def changed(data: bytes, position: int, flip: int) -> bytes:
    return data[:position] + bytes([data[position] ^ flip]) + data[position + 1 :]


@pytest.mark.parametrize("flip", [0x01, 0x02, 0x20, 0x80, 0xFF])
def test_any_changed_byte_of_a_request_is_refused_or_changes_nothing(flip: int) -> None:
    """A request that still passes must prove the very same key; only its encoding may differ."""
    for position in range(len(CSR)):
        try:
            proved = pki.csr_public_key(changed(CSR, position, flip))
        except CertificateError:
            continue
        assert proved == CSR_KEY.public_key(), position


@pytest.mark.filterwarnings("ignore:Parsed a serial number which wasn't positive")
@pytest.mark.parametrize("flip", [0x01, 0x02, 0x20, 0x80, 0xFF])
def test_any_changed_byte_of_a_certificate_is_refused_or_changes_nothing(flip: int) -> None:
    """What still passes differs only in the signature's wrapping, which is not signed: it names the same device."""
    der = pki.to_der(LEAF)
    for position in range(len(der)):
        other = changed(der, position, flip)
        try:
            identity = pki.peer_identity(other, REGISTRAR.certificate, COORDINATOR.certificate, NOW)
        except (CertificateError, PermissionDeniedError):
            continue
        assert identity == identify(LEAF), position
        assert pki.load_certificate(other).tbs_certificate_bytes == LEAF.tbs_certificate_bytes, position


@pytest.mark.parametrize("flip", [0x01, 0x02, 0x20, 0x80, 0xFF])
def test_any_changed_byte_of_a_revocation_list_is_refused_or_changes_nothing(flip: int) -> None:
    signed = pki.load_crl(CRL, REGISTRAR.certificate).tbs_certlist_bytes
    for position in range(len(CRL)):
        try:
            crl = pki.load_crl(changed(CRL, position, flip), REGISTRAR.certificate)
        except CertificateError:
            continue
        assert crl.tbs_certlist_bytes == signed, position
