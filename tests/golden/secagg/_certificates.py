"""Device certificates that are the same each time: fixed keys and serials, RFC 6979 signatures, as the registrar's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def fixed_key(label: str) -> ec.EllipticCurvePrivateKey:
    """Return a P-256 key that follows from its label; not for anything but vectors."""
    return ec.derive_private_key(int.from_bytes(hashlib.sha256(label.encode()).digest(), "big") >> 1, ec.SECP256R1())


def private_hex(key: ec.EllipticCurvePrivateKey) -> str:
    """Return the private scalar, 32 bytes."""
    return key.private_numbers().private_value.to_bytes(32, "big").hex()


def authority() -> x509.Certificate:
    """Return the registrar's authority of the vectors."""
    key = fixed_key("registrar")
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "registrar of vectors")])
    builder = _builder(name, name, key.public_key(), serial=1, lifetime=timedelta(days=3650))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return _sign(builder.add_extension(_usage(is_authority=True), critical=True))


def device_leaf(key: ec.EllipticCurvePrivateKey, serial: int, more: Iterable[x509.UnrecognizedExtension] = ()) -> bytes:
    """Return a device's leaf in DER, with what else its registrar says in extensions that are not critical."""
    public, ca = key.public_key(), authority()
    spki = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    device = hashlib.sha256(spki).hexdigest()[:32]
    uris = [f"mien:device:{device}", "mien:population:default"]
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri) for uri in uris])
    identifier = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = _builder(x509.Name([]), ca.subject, public, serial, timedelta(days=7))
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(is_authority=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), False),
        (names, True),
        (x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), False),
        *((extension, False) for extension in more),
    ):
        builder = builder.add_extension(extension, critical=critical)
    return _sign(builder).public_bytes(serialization.Encoding.DER)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, serial: int, lifetime: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(NOW - timedelta(minutes=10))
        .not_valid_after(NOW + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    flags = dict.fromkeys(
        (
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    return x509.KeyUsage(digital_signature=not is_authority, key_cert_sign=is_authority, crl_sign=is_authority, **flags)


def _sign(builder: x509.CertificateBuilder) -> x509.Certificate:
    return builder.sign(fixed_key("registrar"), hashes.SHA256(), ecdsa_deterministic=True)
