"""Key descriptions by a phone's hardware: the extension 1.3.6.1.4.1.11129.2.1.17 of a key's certificate.

Source: Android's documentation of key and ID attestation, schema KeyDescription, versions 1 to 400. Only what a policy
asks for is read of the two authorization lists: unknown tags are passed over, the same tag twice is refused.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from cryptography import x509

from coordinator.keys.pki import UNREADABLE
from coordinator.registrar.attestation import der
from coordinator.registrar.attestation.der import ENUMERATED, OCTETS, SEQUENCE, SET, Value
from mien.errors import CertificateError

OID: Final = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.1.17")

ATTEST_KEY: Final = 7
"""The purpose of a key that may sign other keys' attestations, and nothing else."""

GENERATED: Final = 0
"""The origin of a key that was made in the hardware and never was outside of it."""

_PURPOSE, _ORIGIN, _ROOT_OF_TRUST, _PATCH_LEVEL, _APPLICATION = 1, 702, 704, 706, 709
_VERIFIED: Final = 0


class SecurityLevel(enum.IntEnum):
    """The place of a key: software, the processor's trusted environment, or a chip of its own."""

    SOFTWARE = 0
    TEE = 1
    STRONGBOX = 2


@dataclass(frozen=True)
class KeyDescription:
    """The attested facts of a key, and of the phone that it is in.

    `attested` is where the attestation was made, `kept` where the key lives. `purposes`, `origin`, `is_locked` and
    `is_verified` (verified boot) and `patch_level` (YYYYMM) are the hardware's word, None or empty where it gives none.
    `app_digests` are the hex SHA-256 of the certificates that the app is signed with, as the system says.
    """

    version: int
    attested: SecurityLevel
    kept: SecurityLevel
    challenge: bytes
    purposes: frozenset[int]
    origin: int | None
    is_locked: bool | None
    is_verified: bool | None
    patch_level: int | None
    app_digests: frozenset[str]

    @property
    def level(self) -> SecurityLevel:
        """The lower of both levels."""
        return min(self.attested, self.kept)


def description_of(certificate: x509.Certificate) -> KeyDescription | None:
    """Return a certificate's description of its key, None without the extension; raises CertificateError for damage."""
    try:
        extension = certificate.extensions.get_extension_for_oid(OID)
    except x509.ExtensionNotFound:
        return None
    except UNREADABLE as error:
        raise CertificateError("a certificate of the key attestation cannot be read") from error
    return parse_description(extension.value.public_bytes())


def parse_description(data: bytes) -> KeyDescription:
    """Return the key description in an extension's bytes; raises CertificateError for anything else."""
    fields = list(der.values(der.only(data, SEQUENCE)))
    if len(fields) != 8:
        raise CertificateError(f"the key attestation has {len(fields)} parts, not 8")
    system, hardware = _listed(fields[6]), _listed(fields[7])
    boot = _root_of_trust(hardware.get(_ROOT_OF_TRUST))
    return KeyDescription(
        version=der.number(fields[0]),
        attested=_level(fields[1]),
        kept=_level(fields[3]),
        challenge=der.content(fields[4], OCTETS),
        purposes=_purposes(hardware.get(_PURPOSE)),
        origin=_optional_number(hardware.get(_ORIGIN)),
        is_locked=None if boot is None else boot[0],
        is_verified=None if boot is None else boot[1],
        patch_level=_optional_number(hardware.get(_PATCH_LEVEL)),
        app_digests=_app_digests(system.get(_APPLICATION)),
    )


def _level(value: Value) -> SecurityLevel:
    number = der.number(value, ENUMERATED)
    try:
        return SecurityLevel(number)
    except ValueError as error:
        raise CertificateError(f"the key attestation has a security level {number} that is unknown here") from error


def _listed(value: Value) -> dict[int, Value]:
    """Return an authorization list: the one value behind each explicit tag."""
    found = dict[int, Value]()
    for tagged in der.values(der.content(value, SEQUENCE)):
        inner = list(der.values(tagged.content)) if tagged.is_context else []
        if len(inner) != 1 or tagged.number in found:
            raise CertificateError("the key attestation's list is damaged, or says one thing twice")
        found[tagged.number] = inner[0]
    return found


def _optional_number(value: Value | None) -> int | None:
    return None if value is None else der.number(value)


def _purposes(value: Value | None) -> frozenset[int]:
    return frozenset() if value is None else frozenset(der.number(each) for each in der.values(der.content(value, SET)))


def _root_of_trust(value: Value | None) -> tuple[bool, bool] | None:
    """Return whether the phone is locked, and whether what it started was verified."""
    if value is None:
        return None
    parts = list(der.values(der.content(value, SEQUENCE)))
    if len(parts) not in (3, 4):
        raise CertificateError(f"the key attestation's root of trust has {len(parts)} parts")
    return der.boolean(parts[1]), der.number(parts[2], ENUMERATED) == _VERIFIED


def _app_digests(value: Value | None) -> frozenset[str]:
    """Return the digests in AttestationApplicationId, an encoding within an encoding."""
    if value is None:
        return frozenset()
    parts = list(der.values(der.only(der.content(value, OCTETS), SEQUENCE)))
    if len(parts) != 2:
        raise CertificateError("the key attestation names its app in an unknown way")
    return frozenset(der.content(each, OCTETS).hex() for each in der.values(der.content(parts[1], SET)))
