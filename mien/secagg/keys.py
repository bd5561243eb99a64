"""Keys of the protocol: who signs, which secrets two devices share, how shares travel sealed.

Identity keys are long-lived and certified by the registrar (ECDSA P-256, or Ed25519 as the second suite); they sign and
nothing else. Each attempt of a round has two fresh X25519 pairs a device: one for masks, one for sealing shares. Every
derivation is salted with R, the hash of roster and configuration (`roster.Topology.binding`): devices that were told
different things derive different keys.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from mien.errors import CertificateError, KeyStoreError, ViolationError
from mien.secagg.canonical import ID_BYTES, tagged_hash

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
SHARE_BYTES: Final = 32
SEALED_BYTES: Final = 2 * SHARE_BYTES + 16

RandomBytes = Callable[[int], bytes]
"""Returns that many unpredictable bytes: `secrets.token_bytes`; vectors give known ones. The only source of chance."""

PublicKey = ec.EllipticCurvePublicKey | Ed25519PublicKey

_P256_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_NONCE: Final = bytes(12)  # every sealing key is used once


class Suite(enum.IntEnum):
    """Signature scheme of identities; one byte of the configuration."""

    ECDSA_P256 = 1
    ED25519 = 2


# Identities


@dataclass(frozen=True)
class VerifiedLeaf:
    """The device that a certificate names, once the certificate is proved: id (16 bytes) and identity key."""

    id: bytes
    public_key: PublicKey


VerifyLeaf = Callable[[bytes], VerifiedLeaf]
"""Returns who a leaf certificate (DER) names; raises an AuthError unless the registrar's authority vouches for it."""


class Signer(Protocol):
    """A device's identity key; it may live in hardware."""

    @property
    def suite(self) -> Suite:
        """Suite of its signatures."""
        ...

    def sign(self, message: bytes) -> bytes:
        """Return the signature in 64 bytes: r ‖ s with s in the lower half (ECDSA), or Ed25519's own form."""
        ...


@dataclass(frozen=True)
class EcdsaSigner:
    """Signs with a P-256 key: `sign_der` returns an ASN.1 signature over SHA-256, as every key store gives it out."""

    sign_der: Callable[[bytes], bytes] = field(repr=False)
    suite: Suite = field(default=Suite.ECDSA_P256, init=False)

    @classmethod
    def of(cls, key: ec.EllipticCurvePrivateKey, *, deterministic: bool = False) -> EcdsaSigner:
        """Return the signer of a key in memory; `deterministic` is RFC 6979, for vectors."""
        algorithm = ec.ECDSA(hashes.SHA256(), deterministic_signing=deterministic)
        return cls(lambda message: key.sign(message, algorithm))

    def sign(self, message: bytes) -> bytes:
        """Return r ‖ s, big-endian, with the lower of the two values of s that verify."""
        try:
            r, s = decode_dss_signature(self.sign_der(message))
        except ValueError as error:
            raise KeyStoreError("the key store returned a damaged signature; wipe it and join again") from error
        return r.to_bytes(32, "big") + min(s, _P256_ORDER - s).to_bytes(32, "big")


@dataclass(frozen=True)
class Ed25519Signer:
    """Signs with an Ed25519 key."""

    key: Ed25519PrivateKey = field(repr=False)
    suite: Suite = field(default=Suite.ED25519, init=False)

    def sign(self, message: bytes) -> bytes:
        """Return R ‖ S as RFC 8032 has it."""
        return self.key.sign(message)


@dataclass(frozen=True)
class Identity:
    """Identity of a device: its id, its leaf certificate (DER) and the key that the certificate vouches for."""

    id: bytes
    certificate: bytes = field(repr=False)
    signer: Signer = field(repr=False)


def identity_id(public_key: PublicKey) -> bytes:
    """Return the id of an identity key: the first 16 bytes of SHA-256 over its SubjectPublicKeyInfo."""
    spki = public_key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(spki).digest()[:ID_BYTES]


def check_identity(leaf: VerifiedLeaf, claimed_id: bytes, suite: Suite) -> None:
    """Raise CertificateError unless the leaf is the claimed device's, with a usable key of the round's suite."""
    key = leaf.public_key
    fits = (
        isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
        if suite is Suite.ECDSA_P256
        else isinstance(key, Ed25519PublicKey) and key.public_bytes_raw() not in SMALL_ORDER_ED25519
    )
    if not fits or not leaf.id == claimed_id == identity_id(key):
        raise CertificateError(
            f"certificate of device {short(claimed_id)} is not for that device and a key of this round's kind; "
            "that device has to join again"
        )


def verify_signature(suite: Suite, public_key: PublicKey, message: bytes, signature: bytes, *, what: str) -> None:
    """Raise ViolationError unless `signature` over `message` is the key's, in its one permitted form.

    ECDSA is refused with s in the upper half, Ed25519 with S >= L (the library does that) or a key of small order
    (`check_identity` does that): libraries disagree on all three, and a second form would be a second signature.
    """
    try:
        if suite is Suite.ECDSA_P256 and isinstance(public_key, ec.EllipticCurvePublicKey):
            public_key.verify(_to_der(signature), message, ec.ECDSA(hashes.SHA256()))
        elif suite is Suite.ED25519 and isinstance(public_key, Ed25519PublicKey):
            public_key.verify(signature, message)
        else:
            raise InvalidSignature
    except InvalidSignature as error:
        raise ViolationError(
            f"{what} is not signed by the device it names, or for another round; it was not counted"
        ) from error


def _to_der(signature: bytes) -> bytes:
    r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
    if len(signature) != SIGNATURE_BYTES or not (0 < r < _P256_ORDER and 0 < s <= _P256_ORDER // 2):
        raise InvalidSignature
    return encode_dss_signature(r, s)


# The eight points of order 1, 2, 4 and 8, and the encodings of them that RFC 8032 forbids but some libraries read.
SMALL_ORDER_ED25519: Final = frozenset(
    bytes.fromhex(text)
    for text in (
        "0100000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000080",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0000000000000000000000000000000000000000000000000000000000000080",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    )
)


# Keys of one attempt


class AgreementKey:
    """A fresh X25519 key of one attempt."""

    def __init__(self, private: bytes) -> None:
        self._key = X25519PrivateKey.from_private_bytes(private)
        self.public = self._key.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return "AgreementKey(***)"

    def private_bytes(self) -> bytes:
        """Return the 32 secret bytes, to be split into shares and for nothing else."""
        return self._key.private_bytes_raw()

    def agree(self, peer_public: bytes) -> bytes:
        """Return the X25519 secret with a peer; raises ViolationError for a peer key of small order."""
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(peer_public))
        except ValueError as error:
            raise ViolationError("a device announced a key that no key pair has; it was not counted") from error


_PROBE: Final = AgreementKey(bytes(range(32)))


def check_agreement_key(public: bytes) -> None:
    """Raise ViolationError for an X25519 key of small order, with which every secret would be zero."""
    _PROBE.agree(public)


def derive(ikm: bytes | bytearray, binding: bytes, label: str, *ids: bytes) -> bytes:
    """Return HKDF-SHA256(ikm, salt = R, info = "MSA1/" label ‖ ids), 32 bytes."""
    info = b"MSA1/" + label.encode("ascii") + b"".join(ids)
    return HKDF(hashes.SHA256(), KEY_BYTES, binding, info).derive(ikm)


def pair_seed(own: AgreementKey, peer_public: bytes, binding: bytes, id_u: bytes, id_v: bytes) -> bytes:
    """Return the seed of the mask that two devices share; the same on both sides."""
    return derive(own.agree(peer_public), binding, "pair", min(id_u, id_v), max(id_u, id_v))


def self_seed(secret_b: bytes | bytearray, binding: bytes, device: bytes) -> bytes:
    """Return the seed of a device's own mask."""
    return derive(secret_b, binding, "self", device)


def commitment_b(secret_b: bytes | bytearray, binding: bytes, device: bytes) -> bytes:
    """Return com_b, by which the server recognises the b that shares add up to. b has 256 bits: nothing leaks."""
    return tagged_hash("b", binding, device, secret_b)


def seal_shares(
    own: AgreementKey, peer_public: bytes, binding: bytes, sender: bytes, receiver: bytes, shares: bytes
) -> bytes:
    """Return share_b ‖ share_m sealed by AES-256-GCM for one receiver: 80 bytes."""
    key = derive(own.agree(peer_public), binding, "enc", sender, receiver)
    return AESGCM(key).encrypt(_NONCE, shares, binding + sender + receiver)


def open_shares(
    own: AgreementKey, peer_public: bytes, binding: bytes, sender: bytes, receiver: bytes, sealed: bytes
) -> bytes:
    """Return share_b ‖ share_m (64 bytes); raises ViolationError unless that sender sealed them for this receiver."""
    key = derive(own.agree(peer_public), binding, "enc", sender, receiver)
    try:
        return AESGCM(key).decrypt(_NONCE, sealed, binding + sender + receiver)
    except InvalidTag as error:
        raise ViolationError(f"shares of device {short(sender)} do not open") from error


def short(device: bytes) -> str:
    """Return the beginning of a device's id, for messages."""
    return device.hex()[:8]
