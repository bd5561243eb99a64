"""The registrar's list of revoked certificates, as phones read it: which of their peers they have nothing to do with.

A coordinator hands the list on, and cannot make one. It could hand on an old one, so that a phone takes none that the
registrar signed more than `MAX_AGE_S` ago: for that long a coordinator can keep a revocation from phones, no longer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec

from mien.errors import CertificateError, CohortError

MAX_AGE_S: Final = 25 * 3600.0
"""A coordinator serves phones for a day after the registrar last confirmed its list (`crl_max_age_s`)."""

MAX_BYTES: Final = 16 * 1024 * 1024
"""Room for some 400 000 certificates that were revoked before they had ended."""

_UNREADABLE: Final = (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion, InvalidSignature)


@dataclass(frozen=True)
class RevocationList:
    """A list that the registrar signed at `signed_unix_s`."""

    signed_unix_s: float
    _revoked: frozenset[int] = field(repr=False)

    @classmethod
    def parse(cls, der: bytes, authority: x509.Certificate) -> Self:
        """Return the list in an X.509 CRL (DER); raises CertificateError unless the registrar's authority signed it."""
        key = authority.public_key()
        try:
            if len(der) > MAX_BYTES or not isinstance(key, ec.EllipticCurvePublicKey):
                raise ValueError("too long")
            crl = x509.load_der_x509_crl(der)
            is_signed = crl.issuer == authority.subject and crl.is_signature_valid(key)
            signed_unix_s = crl.last_update_utc.timestamp()
            # Once for all peers of a cohort: a list searches itself from its beginning for each.
            revoked = frozenset(each.serial_number for each in crl) if is_signed else frozenset()
        except _UNREADABLE as error:
            raise CertificateError(
                "the coordinator shows a damaged list of revoked phones; leave this round, and tell the operator"
            ) from error
        if not is_signed:
            raise CertificateError(
                "the coordinator shows a list of revoked phones that the registrar did not sign; leave this round"
            )
        return cls(signed_unix_s, revoked)

    def names(self, serial: int) -> bool:
        """Return whether the certificate of that serial number was revoked."""
        return serial in self._revoked

    def check_age(self, now_unix_s: float) -> None:
        """Raise CohortError for a list that is too old to tell who was revoked, or will not be for too long.

        One of the future, which a registrar with a wrong clock signed, could be handed on until its time has come.
        """
        if self.signed_unix_s - now_unix_s > MAX_AGE_S:
            hours = (self.signed_unix_s - now_unix_s) / 3600
            raise CohortError(
                f"the list of revoked phones is dated {hours:.0f} hours ahead of this phone's clock; "
                "nothing was sent. Check the clock, and tell the operator to check the registrar's"
            )
        if now_unix_s - self.signed_unix_s > MAX_AGE_S:
            hours = (now_unix_s - self.signed_unix_s) / 3600
            raise CohortError(
                f"the coordinator's list of revoked phones is {hours:.0f} hours old, and {MAX_AGE_S / 3600:.0f} are "
                "the most; nothing was sent, the operator looks after the registrar"
            )
