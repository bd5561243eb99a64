"""Certificates as a device sees them: which authority it trusts, who it is, and whether a clock is to blame.

An invite names authorities by fingerprint. The chain that a server shows is fetched without trust, only to find the
certificate with that fingerprint; everything secret goes over a channel that was verified with it.
"""

from __future__ import annotations

import hashlib
import select
import socket
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from mien.errors import CertificateError, FingerprintError, UnreachableError
from mien.format import spell_duration
from mien.protocol.ids import DeviceId, PopulationId

MAX_CERTIFICATE_BYTES: Final = 16 * 1024
MAX_CHAIN: Final = 8
HANDSHAKE_S: Final = 10.0
"""Longest silence of a server that is asked to show itself."""
_SILENCES: Final = 2
"""Times that silence, which a handshake on a slow network may take as a whole: as long as gRPC then gives one."""
DEVICE_PREFIX: Final = "mien:device:"
POPULATION_PREFIX: Final = "mien:population:"
# What the library raises for structures that it cannot read; some of these are not ValueErrors.
_UNREADABLE: Final = (
    ValueError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)


def fetch_unverified_chain(address: str, *, timeout_s: float = HANDSHAKE_S) -> tuple[x509.Certificate, ...]:
    """Return the certificates shown by the listener at `address` (host:port), leaf first; nothing is verified.

    Raises UnreachableError when nobody answers or what answers does not speak TLS 1.3 or shows no certificate that can
    be read.
    """
    from OpenSSL import SSL  # only to join: it takes as long as all else that certificates need

    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s) as raw:
            raw.settimeout(timeout_s)
            try:
                return _handshake(raw, host.strip("[]"), timeout_s)
            except (SSL.SysCallError, SSL.ZeroReturnError, ConnectionError) as error:
                raise UnreachableError(
                    f"{address} takes connections and shuts them before a server shows itself: the servers behind it "
                    "are not ready now, which is for their operator to mend; try later"
                ) from error
    except OSError as error:
        raise UnreachableError(
            f"{address} does not answer ({error.strerror or type(error).__name__}); check address and network, retry"
        ) from error
    except SSL.Error as error:
        raise UnreachableError(f"{address} answers, but not with TLS 1.3; check the address, retry") from error
    except _UNREADABLE as error:
        raise UnreachableError(
            f"{address} answers, but without a certificate that can be read; check the address, retry"
        ) from error


def _handshake(raw: socket.socket, host: str, timeout_s: float) -> tuple[x509.Certificate, ...]:
    from OpenSSL import SSL

    context = SSL.Context(SSL.TLS_METHOD)
    context.set_min_proto_version(SSL.TLS1_3_VERSION)
    context.set_verify(SSL.VERIFY_NONE)
    context.set_alpn_protos([b"h2"])
    connection = SSL.Connection(context, raw)
    connection.set_tlsext_host_name(host.encode())
    connection.set_connect_state()
    ends_s = time.monotonic() + _SILENCES * timeout_s  # of the whole: whoever drips would keep a device for ever
    while True:
        try:
            connection.do_handshake()
            break
        except SSL.WantReadError:
            poll = select.poll()  # not `select`, which knows no descriptor above 1,023
            poll.register(raw, select.POLLIN)
            left_s = ends_s - time.monotonic()
            if left_s <= 0 or not poll.poll(min(left_s, timeout_s) * 1000):
                raise TimeoutError("no answer within the handshake") from None
    return tuple((connection.get_peer_cert_chain(as_cryptography=True) or [])[:MAX_CHAIN])


def find_authority(unverified_chain: Sequence[x509.Certificate], sha256: str, *, who: str) -> x509.Certificate:
    """Return the certificate of a chain that has the invite's fingerprint; raises FingerprintError."""
    for certificate in unverified_chain:
        if fingerprint(certificate) == sha256:
            return certificate
    raise FingerprintError(
        f"{who} is not the one that the invite names: none of its certificates has the fingerprint {sha256[:16]}…; "
        "do not join, ask the operator"
    )


def fingerprint(certificate: x509.Certificate) -> str:
    """Return SHA-256 over a certificate's DER, in lower-case hex."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def check_period(certificate: x509.Certificate, now: datetime, *, whose: str) -> None:
    """Raise CertificateError unless a certificate is valid now, saying by how much it is not.

    For certificates whose issuer is proved: then a period that does not fit tells of a wrong clock or an old file.
    """
    if now < certificate.not_valid_before_utc:
        by = spell_duration((certificate.not_valid_before_utc - now).total_seconds())
        raise CertificateError(
            f"{whose} certificate begins {by} after this device's time ({now:%Y-%m-%d %H:%M} UTC): the device's clock "
            "is behind; set it, then run again"
        )
    if now > certificate.not_valid_after_utc:
        by = spell_duration((now - certificate.not_valid_after_utc).total_seconds())
        raise CertificateError(
            f"{whose} certificate ended {by} before this device's time ({now:%Y-%m-%d %H:%M} UTC): set the device's "
            "clock if it is ahead, else the certificate needs renewal; then run again"
        )


def check_clock(skew_s: float, tolerance_s: float, *, server: str) -> None:
    """Raise CertificateError when the device's clock is more than `tolerance_s` off; `skew_s` = server's - device's."""
    if abs(skew_s) > tolerance_s:
        direction = "behind" if skew_s > 0 else "ahead of"
        raise CertificateError(
            f"this device's clock is {spell_duration(skew_s)} {direction} the {server}'s; set the clock, then run again"
        )


def is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Return whether `authority` signed `certificate`; says nothing of its period."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def device_id(public_key: ec.EllipticCurvePublicKey) -> DeviceId:
    """Return a device's id: the first 16 bytes of SHA-256 over its SubjectPublicKeyInfo, as 32 hex digits."""
    der = public_key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return DeviceId(hashlib.sha256(der).hexdigest()[:32])


def check_device_certificate(
    unverified: x509.Certificate, key: ec.EllipticCurvePrivateKey, authority: x509.Certificate
) -> tuple[DeviceId, PopulationId]:
    """Return (device id, population) of our certificate; raises CertificateError unless it is for our key and names us.

    The registrar is trusted with who may join, not with mistakes: a certificate for another key is of no use.
    """
    if not is_issued_by(unverified, authority) or unverified.public_key() != key.public_key():
        raise CertificateError("the registrar gave a certificate that is not ours; join again, or ask the operator")
    uris = _uris(unverified)
    ids = [uri.removeprefix(DEVICE_PREFIX) for uri in uris if uri.startswith(DEVICE_PREFIX)]
    populations = [uri.removeprefix(POPULATION_PREFIX) for uri in uris if uri.startswith(POPULATION_PREFIX)]
    if ids != [device_id(key.public_key())] or len(populations) != 1:
        raise CertificateError("the registrar gave a certificate that names another device; ask the operator")
    return DeviceId(ids[0]), PopulationId(populations[0])


def _uris(certificate: x509.Certificate) -> list[str]:
    """Return the URIs among a certificate's names; none where it has no names or they cannot be read."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (*_UNREADABLE, x509.ExtensionNotFound):
        return []
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def load_certificate(der: bytes, *, whose: str) -> x509.Certificate:
    """Return a certificate from DER; raises CertificateError."""
    try:
        if len(der) > MAX_CERTIFICATE_BYTES:
            raise ValueError("too long")
        certificate = x509.load_der_x509_certificate(der)
        # Parsed lazily: damage in the extensions and a key of an unknown kind show here.
        certificate.extensions.get_extension_for_class(x509.BasicConstraints)
        certificate.public_key()
    except (*_UNREADABLE, x509.ExtensionNotFound) as error:
        raise CertificateError(f"{whose} certificate is damaged or of an unknown kind; join again") from error
    return certificate


def to_pem(certificate: x509.Certificate) -> bytes:
    """Return a certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def to_der(certificate: x509.Certificate) -> bytes:
    """Return a certificate as DER."""
    return certificate.public_bytes(serialization.Encoding.DER)
