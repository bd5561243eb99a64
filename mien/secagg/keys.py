"""Keys of the protocol: who signs, which secrets two devices share, how shares travel sealed.

Identity keys are long-lived and certified by the registrar (ECDSA P-256, or Ed25519 as the second suite); they sign and
nothing else. Each attempt of a round has two fresh X25519 pairs a device, one for masks, one for sealing shares, and a
fresh ML-KEM-768 pair (FIPS 203) beside the latter: who breaks one of the two opens nothing, so that what is recorded
today stays shut where X25519 falls to a quantum computer. A KEM agrees with nobody by public keys alone: the half of a
mask's seed that must outlive X25519 comes from the secret of the device with the lower id (`MaskKey.part`) and reaches
the other one sealed. Every derivation of a pair is salted with R, the hash of roster and configuration
(`roster.Topology.binding`): devices that were told different things derive different keys.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Protocol

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mien.errors import CertificateError, KeyStoreError, ViolationError
from mien.secagg.canonical import ID_BYTES, PREFIX, tagged_hash

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
SHARE_BYTES: Final = 32
PART_BYTES: Final = 32
NO_PART: Final = bytes(PART_BYTES)
"""In the place of a part that did not arrive: its sender alone can bring the sum to nothing by it, as by any vector."""
KEM_SEED_BYTES: Final = 64
KEM_KEY_BYTES: Final = 1184
KEM_CIPHERTEXT_BYTES: Final = 1088
SEALED_BYTES: Final = KEM_CIPHERTEXT_BYTES + 2 * SHARE_BYTES + PART_BYTES + 16

RandomBytes = Callable[[int], bytes]
"""Returns that many unpredictable bytes: `secrets.token_bytes`; vectors give known ones. The only source of chance."""

PublicKey = ec.EllipticCurvePublicKey | Ed25519PublicKey

_P256_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_ECDSA: Final = ec.ECDSA(hashes.SHA256())
_NONCE: Final = bytes(12)  # every sealing key is used once


class Suite(enum.IntEnum):
    """Signature scheme of identities; one byte of the configuration."""

    ECDSA_P256 = 1
    ED25519 = 2


# Identities


@dataclass(frozen=True)
class VerifiedLeaf:
    """The device that a certificate names, once the certificate is proved: id (16 bytes), identity key, its admission.

    `admitted_unix_s` is when the registrar admitted the phone, whatever certificates it has had since; `is_attested`,
    whether it found the phone's hardware to attest the key.
    """

    id: bytes
    public_key: PublicKey
    admitted_unix_s: int
    is_attested: bool = False

    @cached_property
    def key_id(self) -> bytes:
        """The id of the identity key, which `id` has to be."""
        return identity_id(self.public_key)


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
    if not fits or not leaf.id == claimed_id == leaf.key_id:
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
            public_key.verify(_to_der(signature), message, _ECDSA)
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


class MaskKey(AgreementKey):
    """A fresh X25519 key of one attempt that follows from a secret, one way, and the parts of pairs' seeds beside it.

    Whoever finds the key to its public half, as a quantum computer could, has not found the secret.
    """

    def __init__(self, secret: bytes) -> None:
        super().__init__(derive(secret, bytes(KEY_BYTES), "mask"))
        self._secret = secret

    def __repr__(self) -> str:
        return "MaskKey(***)"

    def secret_bytes(self) -> bytes:
        """Return the 32 secret bytes, to be split into shares and for nothing else."""
        return self._secret

    def part(self, binding: bytes, owner: bytes, peer: bytes) -> bytes:
        """Return what the owner tells one neighbour, sealed: the half of their seed that no X25519 stands before."""
        return derive(self._secret, binding, "part", owner, peer)


class SealingKey(AgreementKey):
    """A fresh X25519 key of one attempt with an ML-KEM-768 key beside it: what shares are sealed for."""

    def __init__(self, private: bytes, kem_seed: bytes) -> None:
        super().__init__(private)
        self._agreed: dict[bytes, bytes] = {}
        self._kem = MLKEM768PrivateKey.from_seed_bytes(kem_seed)
        self.kem_public = self._kem.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return "SealingKey(***)"

    def agree(self, peer_public: bytes) -> bytes:
        """Return the X25519 secret with a peer, kept from sealing for it to opening what it sealed."""
        if peer_public not in self._agreed:
            self._agreed[peer_public] = super().agree(peer_public)
        return self._agreed[peer_public]

    def decapsulate(self, ciphertext: bytes) -> bytes:
        """Return the secret in a ciphertext (1088 bytes); another one, and no error, for what nobody encapsulated."""
        return self._kem.decapsulate(ciphertext)


Encapsulate = Callable[[bytes, RandomBytes], tuple[bytes, bytes]]
"""Returns (secret, ciphertext) for an ML-KEM-768 key; vectors do it by known chance, which OpenSSL does not take."""


def encapsulate(kem_public: bytes, _random_bytes: RandomBytes) -> tuple[bytes, bytes]:
    """Return a fresh secret (32 bytes) and its ciphertext (1088) for an ML-KEM-768 key, by OpenSSL's own chance.

    Raises ViolationError for bytes that no key pair has.
    """
    return kem_key(kem_public).encapsulate()


def kem_key(kem_public: bytes) -> MLKEM768PublicKey:
    """Return the ML-KEM-768 key in bytes; raises ViolationError where they encode none (FIPS 203, 7.2)."""
    try:
        return MLKEM768PublicKey.from_public_bytes(kem_public)
    except ValueError as error:
        raise ViolationError("a device announced a key that no key pair has; it was not counted") from error


def derive(ikm: bytes | bytearray, binding: bytes, label: str, *ids: bytes) -> bytes:
    """Return HKDF-SHA256(ikm, salt = R, info = "MSA2/" label ‖ ids), 32 bytes."""
    # One block of RFC 5869 by the standard library: thousands are made a round, and objects cost more than hashes.
    info = (PREFIX + label).encode("ascii") + b"".join(ids)
    return hmac.digest(hmac.digest(binding, ikm, "sha256"), info + b"\x01", "sha256")


def pair_seed(own: AgreementKey, peer_public: bytes, part: bytes, binding: bytes, id_u: bytes, id_v: bytes) -> bytes:
    """Return the seed of the mask that two devices share, the same on both sides: `part` is the lower id's."""
    return derive(own.agree(peer_public) + part, binding, "pair", min(id_u, id_v), max(id_u, id_v))


def cover(part: bytes, peer_part: bytes, binding: bytes, lower: bytes, higher: bytes) -> bytes:
    """Return the lower id's part under the higher id's, or the reverse: the two lie over each other by XOR.

    The server is told it with the masked vector: if the device with the higher id is lost, the lower one's part follows
    from the lost one's secret.
    """
    key = derive(peer_part, binding, "cover", lower, higher)
    return bytes(a ^ b for a, b in zip(part, key, strict=True))


def self_seed(secret_b: bytes | bytearray, binding: bytes, device: bytes) -> bytes:
    """Return the seed of a device's own mask."""
    return derive(secret_b, binding, "self", device)


def commitment_b(secret_b: bytes | bytearray, binding: bytes, device: bytes) -> bytes:
    """Return com_b, by which the server recognises the b that shares add up to. b has 256 bits: nothing leaks."""
    return tagged_hash("b", binding, device, secret_b)


def seal_shares(
    own: AgreementKey,
    peer_public: bytes,
    binding: bytes,
    sender: bytes,
    receiver: bytes,
    plain: bytes,
    *,
    encapsulated: tuple[bytes, bytes],
) -> bytes:
    """Return share_b ‖ share_m ‖ part sealed by AES-256-GCM for one receiver, behind the KEM's ciphertext: 1200 bytes.

    `encapsulated` is a fresh secret for the receiver's KEM key, and its ciphertext. The key is made of both secrets.
    """
    secret, ciphertext = encapsulated
    key = derive(own.agree(peer_public) + secret, binding, "enc", sender, receiver)
    return ciphertext + AESGCM(key).encrypt(_NONCE, plain, binding + sender + receiver + ciphertext)


def open_shares(
    own: SealingKey, peer_public: bytes, binding: bytes, sender: bytes, receiver: bytes, sealed: bytes
) -> bytes:
    """Return share_b ‖ share_m ‖ part (96 bytes); raises ViolationError unless that sender sealed them for this one."""
    ciphertext, rest = sealed[:KEM_CIPHERTEXT_BYTES], sealed[KEM_CIPHERTEXT_BYTES:]
    key = derive(own.agree(peer_public) + own.decapsulate(ciphertext), binding, "enc", sender, receiver)
    try:
        return AESGCM(key).decrypt(_NONCE, rest, binding + sender + receiver + ciphertext)
    except InvalidTag as error:
        raise ViolationError(f"shares of device {short(sender)} do not open") from error


def short(device: bytes) -> str:
    """Return the beginning of a device's id, for messages."""
    return device.hex()[:8]
