"""Made-up phones whose hardware attests their keys, and every lie that an attestation can tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from coordinator.registrar.attestation.description import OID

NOW = datetime.now(UTC)
APP = bytes(range(32))


def tlv(kind: int, content: bytes) -> bytes:
    """Return a DER value of a one-byte kind."""
    if len(content) < 0x80:
        return bytes([kind, len(content)]) + content
    size = (len(content).bit_length() + 7) // 8
    return bytes([kind, 0x80 | size]) + len(content).to_bytes(size) + content


def integer(value: int, kind: int = 2) -> bytes:
    return tlv(kind, value.to_bytes(value.bit_length() // 8 + 1))


def tagged(number: int, content: bytes) -> bytes:
    """Return a value behind an explicit tag of the context."""
    if number < 0x1F:
        return tlv(0xA0 | number, content)
    high = [] if number < 0x80 else [0x80 | number >> 7]
    return bytes([0xBF, *high, number & 0x7F]) + tlv(0, content)[1:]


def description(
    challenge: bytes,
    *,
    level: int = 1,
    kept: int | None = None,
    purposes: tuple[int, ...] = (2,),
    origin: int | None = 0,
    locked: bool = True,
    state: int | None = 0,
    patch: int = 202302,
    app: bytes = APP,
    more: bytes = b"",
) -> bytes:
    """Return a key description as hardware writes it; what is told apart from a good one are the arguments."""
    package = tlv(0x30, tlv(4, b"org.mien") + integer(1))
    app_id = tlv(0x30, tlv(0x31, package) + tlv(0x31, tlv(4, app)))
    boot = tlv(
        0x30, tlv(4, bytes(32)) + tlv(1, b"\xff" if locked else b"\x00") + integer(state or 0, 10) + tlv(4, bytes(32))
    )
    hardware = tagged(1, tlv(0x31, b"".join(integer(each) for each in purposes)))
    hardware += tagged(503, tlv(5, b""))
    hardware += b"" if origin is None else tagged(702, integer(origin))
    hardware += b"" if state is None else tagged(704, boot)
    hardware += tagged(706, integer(patch)) if patch else b""
    parts = integer(200) + integer(level, 10) + integer(200) + integer(level if kept is None else kept, 10)
    lists = tlv(0x30, tagged(709, tlv(4, app_id))) + tlv(0x30, hardware + more)
    return tlv(0x30, parts + tlv(4, challenge) + tlv(4, b"") + lists)


@dataclass(frozen=True)
class Issuer:
    """A key that signs certificates, and its own."""

    key: ec.EllipticCurvePrivateKey = field(repr=False)
    certificate: x509.Certificate

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)


def issue(
    name: str,
    issuer: Issuer | None,
    *,
    key: ec.EllipticCurvePrivateKey | None = None,
    said: bytes | None = None,
    authority: bool = True,
    days: tuple[int, int] = (-1, 30),
    serial: int = 0,
    constraints: Mapping[str, int | None] | None = None,
) -> Issuer:
    """Return a key with its certificate: an authority's, or with `said` one that hardware describes."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    signer = key if issuer is None else issuer.key
    return Issuer(
        key,
        certificate(
            *(name, key.public_key(), issuer, signer),
            said=said,
            authority=authority,
            days=days,
            serial=serial,
            constraints=constraints,
        ),
    )


def certificate(
    name: str,
    key: ec.EllipticCurvePublicKey,
    issuer: Issuer | None,
    signer: ec.EllipticCurvePrivateKey,
    *,
    said: bytes | None = None,
    authority: bool = True,
    days: tuple[int, int] = (-1, 30),
    serial: int = 0,
    constraints: Mapping[str, int | None] | None = None,
) -> x509.Certificate:
    """Return a certificate of a key, as `issue` has it."""
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.certificate.subject)
        .public_key(key)
        .serial_number(serial or x509.random_serial_number())
        .not_valid_before(NOW + timedelta(days=days[0]))
        .not_valid_after(NOW + timedelta(days=days[1]))
    )
    if authority:
        length = (constraints or {}).get("path_length")
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=length), critical=True)
    if said is not None:
        builder = builder.add_extension(x509.UnrecognizedExtension(OID, said), critical=False)
    return builder.sign(signer, hashes.SHA256())


@dataclass(frozen=True)
class Maker:
    """Who vouches for phones: a root, and an authority below it, as a phone's trusted environment has one."""

    root: Issuer
    environment: Issuer

    @classmethod
    def new(cls) -> Maker:
        root = issue("root", None, days=(-3000, 3000))
        return cls(root, issue("environment", root))

    def chain(self, key: ec.EllipticCurvePrivateKey, challenge: bytes, **lies: object) -> list[bytes]:
        """Return the chain of a key's attestation."""
        return self.chain_of(key.public_key(), challenge, **lies)

    def chain_of(self, key: ec.EllipticCurvePublicKey, challenge: bytes, **lies: object) -> list[bytes]:
        """Return the chain for a key that only the phone has."""
        said = description(challenge, **lies)  # type: ignore[arg-type]
        issuer = self.environment
        leaf = certificate("Android Keystore Key", key, issuer, issuer.key, said=said, authority=False)
        return [leaf.public_bytes(Encoding.DER), self.environment.der, self.root.der]
