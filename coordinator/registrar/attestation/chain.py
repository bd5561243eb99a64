"""The chain of an attested key: certificates from the key's own to one of the roots that the operator trusts.

Android's chains are not those of the web, for which the library's path validation is made: the leaf has no name, and
with attest keys (Android 12) a certificate that is no authority's vouches for another. So the path is checked here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from coordinator.keys.pki import UNREADABLE, load_certificate
from coordinator.registrar.attestation.description import ATTEST_KEY, OID, KeyDescription, description_of
from mien.errors import CertificateError

MAX_CERTIFICATES: Final = 10
_KNOWN: Final = (x509.BasicConstraints.oid, x509.KeyUsage.oid, OID)


def verify_chain(
    chain_der: Sequence[bytes], roots: Collection[bytes], now: datetime
) -> tuple[x509.Certificate, Sequence[x509.Certificate], Sequence[KeyDescription]]:
    """Return the leaf, all certificates, and what the hardware says of each key in the chain, the leaf's first.

    `roots` are public keys (`key_bytes`): a root is trusted for its key, whatever certificate it comes in. Raises
    CertificateError for a chain that does not lead to one of them, that is not valid at `now`, in which somebody
    vouches who may not, or whose leaf says nothing of its key.
    """
    if not 2 <= len(chain_der) <= MAX_CERTIFICATES:
        raise CertificateError(f"the key attestation has {len(chain_der)} certificates; 2 to {MAX_CERTIFICATES} can be")
    chain = [load_certificate(each) for each in chain_der]
    if key_bytes(chain[-1]) not in roots:
        raise CertificateError("the key attestation does not lead to a root that the registrar trusts")
    for position, certificate in enumerate(chain[:-1]):
        _check_period(certificate, now)
        _check_signature(certificate, chain[position + 1])
    described = [description_of(certificate) for certificate in chain]
    num_authorities = 0
    for certificate, description in zip(chain[1:], described[1:], strict=True):
        _check_may_vouch(certificate, description, num_authorities)
        num_authorities += description is None
    if described[0] is None:
        raise CertificateError("the key attestation says nothing of this key")
    return chain[0], chain, [each for each in described if each is not None]


def key_bytes(certificate: x509.Certificate) -> bytes:
    """Return a certificate's public key (DER), by which roots are known."""
    return certificate.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _check_period(certificate: x509.Certificate, now: datetime) -> None:
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        raise CertificateError(
            f"a certificate of the key attestation is valid from {certificate.not_valid_before_utc:%Y-%m-%d} to "
            f"{certificate.not_valid_after_utc:%Y-%m-%d} only; make a new key on the phone, and join with that"
        )


def _check_signature(certificate: x509.Certificate, issuer: x509.Certificate) -> None:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, TypeError, *UNREADABLE) as error:
        raise CertificateError("a certificate of the key attestation was not issued by the next one") from error


def _check_may_vouch(certificate: x509.Certificate, description: KeyDescription | None, num_below: int) -> None:
    """Raise CertificateError unless a certificate may vouch for the one before it: an authority's, or an attest key's.

    A key that the hardware describes may sign attestations only if it can do nothing else: else an app could have its
    own hardware key sign a certificate that says whatever it likes. `num_below` authorities are below this one; attest
    keys do not count for the length of a path.
    """
    try:
        unknown = [each for each in certificate.extensions if each.critical and each.oid not in _KNOWN]
        constraints = _value(certificate, x509.BasicConstraints)
        usage = _value(certificate, x509.KeyUsage)
    except (TypeError, *UNREADABLE) as error:
        raise CertificateError("a certificate of the key attestation cannot be read") from error
    if description is not None:
        may_vouch = description.purposes == {ATTEST_KEY}
    else:
        length = None if constraints is None else constraints.path_length
        is_authority = constraints is not None and constraints.ca and (length is None or length >= num_below)
        may_vouch = is_authority and (usage is None or usage.key_cert_sign)
    if unknown or not may_vouch:
        raise CertificateError("a certificate of the key attestation vouches for another one, which it may not")


def _value(certificate: x509.Certificate, kind: type[x509.BasicConstraints] | type[x509.KeyUsage]) -> Any:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None
