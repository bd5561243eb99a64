"""Keys that sign checkpoints of the log of rounds, made of the authorities' own.

An authority's key is kept, backed up, shared by replicas and guarded already, and whoever has it can pass for the
program anyway: a second key beside it would be one more file to lose. HKDF keeps the two uses apart.
"""

from __future__ import annotations

from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from coordinator.keys.pki import Authority
from mien.errors import CertificateError
from mien.log.checkpoints import LOG, WITNESS, NoteSigner

_SCALAR_BYTES: Final = 32
_VOUCHED: Final = b"mien/v1/log-key\n"


def log_signer(authority: Authority) -> NoteSigner:
    """Return what signs the checkpoints of a coordinator's log."""
    return _signer(authority, LOG)


def witness_signer(authority: Authority) -> NoteSigner:
    """Return what cosigns them for a registrar."""
    return _signer(authority, WITNESS)


def vouch(authority: Authority, log_key: bytes) -> bytes:
    """Return the authority's word that a log's key is its own (ASN.1 DER)."""
    return authority.key.sign(_VOUCHED + log_key, ec.ECDSA(hashes.SHA256()))


def check_vouched(ca: x509.Certificate, log_key: bytes, signature: bytes) -> None:
    """Raise CertificateError unless the authority vouched for a log's key."""
    public_key = ca.public_key()
    try:
        if not isinstance(public_key, ec.EllipticCurvePublicKey):
            raise InvalidSignature
        public_key.verify(signature, _VOUCHED + log_key, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature as error:
        raise CertificateError("this log is not the trusted coordinator's; check whom this registrar trusts") from error


def _signer(authority: Authority, kind: str) -> NoteSigner:
    scalar = authority.key.private_numbers().private_value.to_bytes(_SCALAR_BYTES, "big")
    seed = HKDF(hashes.SHA256(), 32, None, f"mien/{kind}/1".encode()).derive(scalar)
    return NoteSigner.of(kind, Ed25519PrivateKey.from_private_bytes(seed))
