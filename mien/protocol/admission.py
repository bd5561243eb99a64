"""When the registrar admitted a phone, as each of its certificates says: renewals begin anew, this does not.

Beside it, of a phone whose hardware attested its key when it joined, that the registrar found that to hold.
"""

from __future__ import annotations

from typing import Final

from cryptography import x509

from mien.errors import CertificateError

OID: Final = x509.ObjectIdentifier("2.25.149382064017731940427561829044531102987")
"""A non-critical extension, so that programs that know nothing of it take the certificate (an OID by UUID: X.667)."""

ATTESTED_OID: Final = x509.ObjectIdentifier("2.25.147696108575841789305212359625639135796")
"""The same kind of extension; it is there or not, and its value is a DER NULL."""

_NULL: Final = bytes([5, 0])


def attested_extension() -> x509.UnrecognizedExtension:
    """Return the extension that says that hardware attested a phone's key."""
    return x509.UnrecognizedExtension(ATTESTED_OID, _NULL)


def is_attested(leaf: x509.Certificate) -> bool:
    """Return whether the registrar says that hardware attested the key of a certificate's phone.

    Raises CertificateError where the certificate says it otherwise.
    """
    try:
        value = leaf.extensions.get_extension_for_oid(ATTESTED_OID).value
    except x509.ExtensionNotFound:
        return False
    if not isinstance(value, x509.UnrecognizedExtension) or value.value != _NULL:
        raise CertificateError("a device's certificate has an attestation that cannot be read; that device joins again")
    return True


def admitted_extension(unix_s: int) -> x509.UnrecognizedExtension:
    """Return the extension that says when a phone was admitted: seconds since 1970 as a DER INTEGER."""
    length = unix_s.bit_length() // 8 + 1
    return x509.UnrecognizedExtension(OID, bytes([2, length]) + unix_s.to_bytes(length, "big"))


def admitted_unix_s(leaf: x509.Certificate) -> int:
    """Return when the phone of a certificate was admitted; one of an earlier registrar tells its own beginning only.

    Raises CertificateError where the certificate says it otherwise.
    """
    try:
        value = leaf.extensions.get_extension_for_oid(OID).value
    except x509.ExtensionNotFound:
        return int(leaf.not_valid_before_utc.timestamp())
    data = value.value if isinstance(value, x509.UnrecognizedExtension) else b""
    unix_s = int.from_bytes(data[2:10], "big", signed=True)
    if unix_s < 0 or admitted_extension(unix_s).value != data:
        raise CertificateError("a device's certificate has an admission that cannot be read; that device joins again")
    return unix_s
