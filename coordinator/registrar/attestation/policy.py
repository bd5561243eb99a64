"""Attestation policy: what a phone must attest to join, by the operator's settings, and which keys are revoked."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.registrar.attestation.chain import key_bytes, verify_chain
from coordinator.registrar.attestation.description import GENERATED, KeyDescription, SecurityLevel
from coordinator.registrar.config import RegistrarConfig
from mien.errors import CertificateError, ConfigError, CorruptDataError, UnreachableError
from mien.shell.files import read_limited

_MAX_ROOTS_BYTES: Final = 256 * 1024
_MAX_LIST_BYTES: Final = 16 * 1024 * 1024
_HELD: Final = ("REVOKED", "SUSPENDED")


_NOT: Final = "not attested"


def holds(record: str) -> bool:
    """Return whether what was kept of a device's attestation (`Policy.judge`) says that it holds."""
    return bool(record) and not record.startswith(_NOT)


@dataclass
class RevokedKeys:
    """Google's list of attestation keys that are not to be trusted any more, as a file; read again when it changes.

    The list is what https://android.googleapis.com/attestation/status answers; the operator fetches it.
    """

    path: Path | None
    _read: tuple[tuple[int, int], frozenset[str]] | None = field(default=None, repr=False)

    def check(self, chain: Sequence[x509.Certificate]) -> None:
        """Raise CertificateError for a chain with a revoked or suspended key."""
        held = self.serials()
        for certificate in chain:
            if {f"{certificate.serial_number:x}", str(certificate.serial_number)} & held:
                raise CertificateError("a key that vouches for this phone was revoked by its maker; it cannot join")

    def serials(self) -> frozenset[str]:
        """Return the serial numbers on the list, as it writes them; raises UnreachableError while it cannot be read."""
        if self.path is None:
            return frozenset()
        try:
            found = self.path.stat()
            stamp = (found.st_mtime_ns, found.st_size)
            if self._read is None or self._read[0] != stamp:
                data = read_limited(self.path, _MAX_LIST_BYTES, what=self.path.name)
                self._read = (stamp, parse_status_list(data))
        except (OSError, CorruptDataError) as error:
            raise UnreachableError(
                "the registrar cannot read its list of revoked attestation keys; tell the operator, and try again later"
            ) from error
        return self._read[1]


def parse_status_list(data: bytes) -> frozenset[str]:
    """Return the serial numbers of keys that are not to be trusted; raises CorruptDataError for anything else."""
    try:
        entries: Any = json.loads(data)["entries"]
        held = {str(serial).lower() for serial, entry in entries.items() if entry["status"] in _HELD}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptDataError("the list of revoked attestation keys is damaged; fetch it again") from error
    return frozenset(held)


def read_roots(paths: Sequence[Path]) -> frozenset[bytes]:
    """Return the public keys of the roots in PEM files; raises ConfigError naming a file that is none."""
    roots = set[bytes]()
    for path in paths:
        try:
            found = x509.load_pem_x509_certificates(read_limited(path, _MAX_ROOTS_BYTES, what=path.name))
            roots |= {key_bytes(certificate) for certificate in found}
        except (ValueError, CorruptDataError) as error:
            raise ConfigError(f"attestation_roots: {path} holds no certificates in PEM; correct it") from error
    return frozenset(roots)


@dataclass(frozen=True)
class Policy:
    """The proof that a phone owes of its key. `is_required` is false where it is only written down."""

    is_required: bool
    roots: Collection[bytes] = field(repr=False)
    revoked: RevokedKeys
    least: SecurityLevel = SecurityLevel.TEE
    needs_verified_boot: bool = True
    least_patch_level: int = 0
    app_digests: frozenset[str] = frozenset()

    @classmethod
    def of(cls, config: RegistrarConfig, folder: Path) -> Policy | None:
        """Return the settings' policy, None where attestation is off; raises ConfigError for roots that are none."""
        if config.attestation == "off":
            return None
        roots = read_roots([folder / path for path in config.attestation_roots])
        if not roots:
            raise ConfigError("attestation needs attestation_roots: PEM files of Google's attestation roots; name them")
        return cls(
            is_required=config.attestation == "require",
            roots=roots,
            revoked=RevokedKeys(folder / config.attestation_status if config.attestation_status else None),
            least=SecurityLevel[config.attestation_level.upper()],
            needs_verified_boot=config.attestation_verified_boot,
            least_patch_level=config.attestation_patch_level,
            app_digests=frozenset(config.attestation_apps),
        )

    def judge(
        self, chain_der: Sequence[bytes], public_key: ec.EllipticCurvePublicKey, challenge: bytes, now: datetime
    ) -> str:
        """Return what to keep of a device that joins with a key: a line for people, empty where nothing was attested.

        Raises CertificateError where it may not join. Where attestation is only written down, nobody is refused, and
        what does not hold is written down as that.
        """
        try:
            return self._verified(chain_der, public_key, challenge, now)
        except CertificateError as error:
            if self.is_required:
                raise
            return f"{_NOT}: {error.message}"[:200] if chain_der else ""

    def check_new_key(self) -> None:
        """Raise CertificateError where a key must be attested: a renewal cannot bring another one."""
        if self.is_required:
            raise CertificateError("this registrar admits attested keys only; join with a new invite to use a new key")

    def _verified(
        self, chain_der: Sequence[bytes], public_key: ec.EllipticCurvePublicKey, challenge: bytes, now: datetime
    ) -> str:
        if not chain_der:
            raise CertificateError("this registrar admits phones whose hardware attests their key; this one did not")
        leaf, chain, described = verify_chain(chain_der, self.roots, now)
        self.revoked.check(chain)
        if leaf.public_key() != public_key:
            raise CertificateError("the key attestation is of another key than the one that asks to join")
        if described[0].challenge != challenge:
            raise CertificateError("the key attestation was made for another invite; make a key for this one")
        for description in described:
            self._check(description)
        return _in_words(described[0])

    def _check(self, description: KeyDescription) -> None:
        if description.level < self.least:
            raise CertificateError(
                f"the key lives in {description.level.name}, and {self.least.name} is needed to join here"
            )
        if description.origin != GENERATED:
            raise CertificateError("the key was not made in the phone's hardware, which is needed to join here")
        if self.needs_verified_boot and not (description.is_locked and description.is_verified):
            raise CertificateError("the phone did not start verified and locked, which is needed to join here")
        if (description.patch_level or 0) < self.least_patch_level:
            raise CertificateError(
                f"the phone's security patches are of {description.patch_level or 'an unknown month'}, and those of "
                f"{self.least_patch_level} are needed to join here; update the phone"
            )
        if self.app_digests and not description.app_digests & self.app_digests:
            raise CertificateError("another app than the operator's asked to join")


def _in_words(description: KeyDescription) -> str:
    boot = "verified boot" if description.is_locked and description.is_verified else "boot not verified"
    return f"{description.level.name.lower()}, {boot}, patches of {description.patch_level or 'unknown'}"
