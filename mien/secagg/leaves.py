"""Names in leaf certificates: the registrar's authority vouches for them, and nobody else can.

The coordinator and every device check each other device with the same function, so that a coordinator that makes up
devices has to ask the registrar for their certificates.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from mien.errors import CertificateError, CohortError
from mien.protocol.admission import admitted_unix_s, is_attested
from mien.protocol.ids import PopulationId
from mien.secagg.canonical import ID_BYTES
from mien.secagg.keys import VerifiedLeaf, VerifyLeaf

MAX_LEAF_BYTES: Final = 16 * 1024
# Phones' clocks are off by minutes: a certificate's edge does not decide who is in a cohort.
CLOCK_TOLERANCE: Final = timedelta(minutes=10)
_DEVICE: Final = "mien:device:"
_POPULATION: Final = "mien:population:"
_UNREADABLE: Final = (
    ValueError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.UnsupportedGeneralNameType,
)


def leaf_verifier(
    authority: x509.Certificate,
    population: PopulationId,
    now: Callable[[], datetime],
    is_revoked: Callable[[int], bool] = lambda _serial: False,
) -> VerifyLeaf:
    """Return the check of a cohort's leaf certificates: issued by `authority` for a device of `population`, valid now.

    `is_revoked` says of a serial number whether the certificate was revoked: then the check raises CohortError. It
    returns the device's id and identity key, and raises CertificateError for everything else.
    """
    store = Store([authority])

    def verify(der: bytes) -> VerifiedLeaf:
        leaf = _load(der)
        _check_issuer(leaf, authority)
        _check_path(leaf, store, now())
        if is_revoked(leaf.serial_number):
            raise CohortError(
                "the registrar has revoked a phone of this cohort; nothing was sent, this phone waits for another one"
            )
        return _named_device(leaf, population)

    return verify


def _load(der: bytes) -> x509.Certificate:
    try:
        if len(der) > MAX_LEAF_BYTES:
            raise ValueError("too long")
        return x509.load_der_x509_certificate(der)
    except _UNREADABLE as error:
        raise CertificateError("a device's certificate cannot be read; that device has to join again") from error


def _check_issuer(leaf: x509.Certificate, authority: x509.Certificate) -> None:
    try:
        leaf.verify_directly_issued_by(authority)
    except (InvalidSignature, TypeError, *_UNREADABLE) as error:
        raise CertificateError(
            "a device's certificate was not issued by the registrar's authority: somebody made it up; leave this round"
        ) from error


def _check_path(leaf: x509.Certificate, store: Store, now: datetime) -> None:
    """Let the library's path validation decide, at the moment within the tolerance that is best for the leaf."""
    begins, ends = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    moment = min(max(now, begins), ends)
    if abs(moment - now) > CLOCK_TOLERANCE:
        word = "expired" if now > ends else "is not valid yet"
        raise CertificateError(f"a device's certificate {word}; check the clock, or that device has to join again")
    verifier = PolicyBuilder().store(store).time(moment).max_chain_depth(0).build_client_verifier()
    try:
        verifier.verify(leaf, [])
    except VerificationError as error:
        raise CertificateError("a certificate in the cohort is not a device's; leave this round") from error


def _named_device(leaf: x509.Certificate, population: PopulationId) -> VerifiedLeaf:
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        key = leaf.public_key()
    except _UNREADABLE as error:
        raise CertificateError("a certificate in the cohort names no device; leave this round") from error
    ids = [uri.removeprefix(_DEVICE) for uri in uris if uri.startswith(_DEVICE)]
    if sorted(uris) != sorted([f"{_DEVICE}{ids[0]}" if ids else "", f"{_POPULATION}{population}"]):
        raise CertificateError("a certificate in the cohort is not for a device of this population; leave this round")
    if not isinstance(key, ec.EllipticCurvePublicKey | Ed25519PublicKey):
        raise CertificateError("a certificate in the cohort is for an unknown kind of key; that device joins again")
    try:
        device = binascii.unhexlify(ids[0])
    except ValueError as error:
        raise CertificateError("a certificate in the cohort names no device; leave this round") from error
    named = VerifiedLeaf(device, key, admitted_unix_s(leaf), is_attested(leaf))
    if len(device) != ID_BYTES or device != named.key_id:
        raise CertificateError("a certificate in the cohort names another device than its key; leave this round")
    return named
