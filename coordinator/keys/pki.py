"""Authorities, certificates and revocation: who may speak, proved by who signed the certificate.

Two authorities exist. The registrar's signs device certificates and the registrar's own server and operator leaves;
the coordinator's signs the coordinator's server leaf and its operators' leaves. A role follows from WHICH authority
signed a leaf, never from a name inside it. Every key is P-256, every signature ECDSA with SHA-256.

Everything here is a function of bytes, keys and the time that is passed in: no files, no clock. Whatever cannot be
proved raises; nothing returns False.

======================  =================  ==========================================================================
leaf                    extended key use   subject alternative names
======================  =================  ==========================================================================
server                  serverAuth         DNS names and IP addresses
device                  clientAuth         ``mien:device:<device id>`` and ``mien:population:<name>``
operator                clientAuth         ``mien:operator:<name>``
replica                 clientAuth         ``mien:replica:<id>``, of the coordinator's authority
======================  =================  ==========================================================================
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from mien.errors import CertificateError, ConfigError, KeyStoreError, PermissionDeniedError, RevokedError
from mien.protocol.admission import admitted_extension, attested_extension
from mien.protocol.ids import DeviceId, PopulationId
from mien.shell.keys import p256_key

BACKDATING: Final = timedelta(minutes=10)
"""Time before its issue from which a certificate is valid, for verifiers whose clocks are a little slow."""

DEVICE_LIFETIME: Final = timedelta(days=7)
MAX_DEVICE_LIFETIME: Final = timedelta(days=90)
"""No device's certificate lives longer: what was revoked longer ago than this has ended."""
AFTER_REVOCATION: Final = (
    "its key is never admitted again: export the gallery, ask the operator for a new invite, join with it in a new "
    "home (--home) and import the gallery there"
)
"""Advice to the holder of a revoked device."""

SERVER_LIFETIME: Final = timedelta(days=90)
OPERATOR_LIFETIME: Final = timedelta(days=365)
AUTHORITY_LIFETIME: Final = timedelta(days=3650)
CRL_LIFETIME: Final = timedelta(days=7)
"""Lifetime that a revocation list claims; a coordinator fetches a newer one every few seconds."""

MAX_CERTIFICATE_BYTES: Final = 8 * 1024
MAX_CSR_BYTES: Final = 4 * 1024
MAX_CRL_BYTES: Final = 16 * 1024 * 1024
"""Room for some 400 000 revoked certificates that have not expired."""

_DEVICE_PREFIX: Final = "mien:device:"
_POPULATION_PREFIX: Final = "mien:population:"
_OPERATOR_PREFIX: Final = "mien:operator:"
_REPLICA_PREFIX: Final = "mien:replica:"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
UNREADABLE: Final = (
    ValueError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""What the library raises for structures that it cannot read; some of these are not ValueErrors."""

_Extension = TypeVar("_Extension", bound=x509.ExtensionType)


class Role(Enum):
    """A caller's role, by the authority that signed its certificate."""

    DEVICE = "device"
    OPERATOR = "operator"
    REPLICA = "replica"


@dataclass(frozen=True)
class PeerIdentity:
    """The caller at the other end of a connection, proved by its certificate.

    `id` is the device's id (32 hex digits), the operator's name or the replica's id; `population` is a device's only;
    `expires_at` is when the proof ends, which a call that stays open for long has to watch.
    """

    role: Role
    id: str
    population: PopulationId | None
    serial: int
    expires_at: datetime

    @property
    def device_id(self) -> DeviceId:
        """The id of a caller that is a device."""
        return DeviceId(self.id)


@dataclass(frozen=True)
class Authority:
    """A certificate authority: its self-signed certificate and the key that signs."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @property
    def certificate_pem(self) -> bytes:
        """The public half, which may be given to anyone."""
        return to_pem(self.certificate)

    @property
    def key_pem(self) -> bytes:
        """The private half as unencrypted PKCS#8: for a file that only the owner can read."""
        return key_to_pem(self.key)


@dataclass(frozen=True)
class Credentials:
    """A leaf with its key, and the chain (leaf, then authority) as TLS sends it."""

    certificate: x509.Certificate
    chain_pem: bytes = field(repr=False)
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @property
    def key_pem(self) -> bytes:
        """The private half as unencrypted PKCS#8: for a file that only the owner can read."""
        return key_to_pem(self.key)


@dataclass(frozen=True)
class Revocation:
    """One certificate that is no longer good, and since when."""

    serial: int
    revoked_at: datetime


# Authorities


def create_authority(name: str, now: datetime, lifetime: timedelta = AUTHORITY_LIFETIME) -> Authority:
    """Return a new self-signed authority that may sign leaves and nothing below them.

    A random suffix keeps the names of two authorities apart: TLS libraries look issuers up by name.
    """
    key = p256_key()
    public_key = key.public_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{check_name(name)} {_key_digest(public_key)[:8]}")])
    certificate = (
        _builder(subject, public_key, now, now + lifetime)
        .issuer_name(subject)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(authority=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate, key)


def load_authority(certificate_pem: bytes, key_pem: bytes) -> Authority:
    """Return the authority in two PEM files; raises KeyStoreError when they do not belong together."""
    certificate, key = load_authority_certificate(certificate_pem), load_key(key_pem)
    if certificate.public_key() != key.public_key():
        raise KeyStoreError("the authority's key and certificate do not belong together; restore both from one backup")
    return Authority(certificate, key)


def load_authority_certificate(data: bytes) -> x509.Certificate:
    """Return an authority's public certificate (PEM or DER); raises CertificateError unless it can be one of ours."""
    certificate = load_certificate(data)
    constraints = _extension(certificate, x509.BasicConstraints)
    if constraints is None or not constraints.ca:
        raise CertificateError("this certificate is not an authority's; give the file ca.pem of the other program")
    _check_p256(certificate.public_key(), what="the authority's certificate")
    _check_signed_by(certificate, certificate, what="authority certificate")
    return certificate


def check_validity(certificate: x509.Certificate, now: datetime, *, what: str, warn_days: int) -> None:
    """Raise CertificateError when a certificate is not valid now or ends within `warn_days`."""
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begins:
        raise CertificateError(f"{what} is not valid before {begins:%Y-%m-%d}; check the clock")
    if (ends - now).days < warn_days:
        raise CertificateError(f"{what} ends on {ends:%Y-%m-%d}; renew it")


def fingerprint(certificate: x509.Certificate) -> str:
    """Return SHA-256 over a certificate's DER in lower-case hex, as invites carry it."""
    return certificate.fingerprint(hashes.SHA256()).hex()


# Leaves


def issue_server_leaf(
    authority: Authority, hosts: Sequence[str], now: datetime, lifetime: timedelta = SERVER_LIFETIME
) -> Credentials:
    """Return credentials for a TLS server that is reached by `hosts` (DNS names and IP addresses)."""
    if not hosts:
        raise ConfigError("a server certificate needs at least one host name or IP address")
    names = x509.SubjectAlternativeName([_general_name(host) for host in dict.fromkeys(hosts)])
    return _issue_with_key(authority, names, ExtendedKeyUsageOID.SERVER_AUTH, now, lifetime)


def is_due(ends: datetime, authority: Authority, now: datetime) -> bool:
    """Return whether a server's or replica's leaf that ends then is to be issued anew: a third of its life is left.

    One that ends with its authority is kept until then, since no other would live longer.
    """
    could_live_longer = ends < authority.certificate.not_valid_after_utc
    return ends <= now or (could_live_longer and ends - now < SERVER_LIFETIME / 3)


def issue_operator_leaf(
    authority: Authority, name: str, now: datetime, lifetime: timedelta = OPERATOR_LIFETIME
) -> Credentials:
    """Return credentials for an operator of the program that owns `authority`."""
    names = _uri_names(_OPERATOR_PREFIX + check_name(name))
    return _issue_with_key(authority, names, ExtendedKeyUsageOID.CLIENT_AUTH, now, lifetime)


def issue_replica_leaf(authority: Authority, replica_id: str, now: datetime) -> Credentials:
    """Return the credentials of one replica of a coordinator for the others; they open no service but theirs."""
    names = _uri_names(_REPLICA_PREFIX + check_name(replica_id))
    return _issue_with_key(authority, names, ExtendedKeyUsageOID.CLIENT_AUTH, now, SERVER_LIFETIME)


def issue_operator_leaf_for_csr(authority: Authority, csr: bytes, name: str, now: datetime) -> x509.Certificate:
    """Return an operator's certificate for a key that stays where it was made; `csr` is PEM or DER."""
    names = _uri_names(_OPERATOR_PREFIX + check_name(name))
    return _issue_leaf(authority, csr_public_key(csr), names, ExtendedKeyUsageOID.CLIENT_AUTH, now, OPERATOR_LIFETIME)


def issue_device_leaf(
    authority: Authority,
    proved_key: ec.EllipticCurvePublicKey,
    population: PopulationId,
    now: datetime,
    lifetime: timedelta = DEVICE_LIFETIME,
    *,
    admitted_unix_s: int | None = None,
    is_attested: bool = False,
) -> x509.Certificate:
    """Return a device's certificate for a key that `csr_public_key` has found proved.

    None of the names that a request asks for is used. `admitted_unix_s`: when the phone joined, None for now.
    `is_attested`: whether its hardware attested the key then.
    """
    names = _uri_names(_DEVICE_PREFIX + device_id(proved_key), _POPULATION_PREFIX + check_name(population))
    admitted = admitted_extension(int(now.timestamp()) if admitted_unix_s is None else admitted_unix_s)
    more = (admitted, attested_extension()) if is_attested else (admitted,)
    return _issue_leaf(authority, proved_key, names, ExtendedKeyUsageOID.CLIENT_AUTH, now, lifetime, *more)


def create_csr(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a PKCS#10 request (PEM) that proves the key and asks for no name."""
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def csr_public_key(csr: bytes) -> ec.EllipticCurvePublicKey:
    """Return the P-256 key that a PKCS#10 request (PEM or DER) proves; raises CertificateError otherwise."""
    if len(csr) > MAX_CSR_BYTES:
        raise CertificateError(f"certificate request has {len(csr)} bytes; the limit is {MAX_CSR_BYTES}")
    try:
        is_pem = csr.startswith(b"-----BEGIN")
        request = x509.load_pem_x509_csr(csr) if is_pem else x509.load_der_x509_csr(csr)
        public_key = _check_p256(request.public_key(), what="the certificate request")
        proved = isinstance(request.signature_hash_algorithm, hashes.SHA256) and request.is_signature_valid
    except UNREADABLE as error:
        raise CertificateError("certificate request is damaged or of an unknown kind; make a new one") from error
    if not proved:
        raise CertificateError("certificate request is not signed (ECDSA, SHA-256) by its own key; make a new one")
    return public_key


def device_id(public_key: ec.EllipticCurvePublicKey) -> DeviceId:
    """Return a device's id: the first 16 bytes of SHA-256 over its SubjectPublicKeyInfo, as 32 hex digits."""
    return DeviceId(_key_digest(public_key)[:32])


# Who is calling


def peer_identity(
    leaf_pem: bytes, device_ca: x509.Certificate, operator_ca: x509.Certificate, now: datetime
) -> PeerIdentity:
    """Return a coordinator's peer: a device if `device_ca` signed its leaf, an operator if `operator_ca` did.

    Raises CertificateError when neither did or the leaf is not valid at `now`, and PermissionDeniedError when the leaf
    is good but claims a role that its authority cannot give.
    """
    leaf = load_certificate(leaf_pem)
    if _is_signed_by(leaf, device_ca):
        return _device_identity(leaf, device_ca, now)
    return operator_identity(leaf, operator_ca, now)


def device_identity(leaf: x509.Certificate, device_ca: x509.Certificate, now: datetime) -> PeerIdentity:
    """Return the device that a leaf of `device_ca` names; its id must be the digest of the leaf's own key."""
    _check_signed_by(leaf, device_ca, what="certificate")
    return _device_identity(leaf, device_ca, now)


def _device_identity(leaf: x509.Certificate, device_ca: x509.Certificate, now: datetime) -> PeerIdentity:
    """Return the device that a leaf names which is known to bear the signature of `device_ca`."""
    _check_signed_leaf(leaf, device_ca, now)
    public_key = _check_p256(leaf.public_key(), what="the device certificate")
    names = _uris(leaf)
    ids = [name.removeprefix(_DEVICE_PREFIX) for name in names if name.startswith(_DEVICE_PREFIX)]
    populations = [name.removeprefix(_POPULATION_PREFIX) for name in names if name.startswith(_POPULATION_PREFIX)]
    if len(names) != 2 or ids != [device_id(public_key)] or len(populations) != 1:
        raise PermissionDeniedError("this certificate does not name one device and its population; join again")
    return PeerIdentity(Role.DEVICE, ids[0], PopulationId(populations[0]), leaf.serial_number, leaf.not_valid_after_utc)


def operator_identity(leaf: x509.Certificate, operator_ca: x509.Certificate, now: datetime) -> PeerIdentity:
    """Return the operator that a leaf of `operator_ca` names."""
    return _named_identity(leaf, operator_ca, now, Role.OPERATOR, _OPERATOR_PREFIX)


def replica_identity(leaf: x509.Certificate, coordinator_ca: x509.Certificate, now: datetime) -> PeerIdentity:
    """Return the replica that a leaf of the coordinator's authority names."""
    return _named_identity(leaf, coordinator_ca, now, Role.REPLICA, _REPLICA_PREFIX)


def _named_identity(
    leaf: x509.Certificate, ca: x509.Certificate, now: datetime, role: Role, prefix: str
) -> PeerIdentity:
    _check_leaf(leaf, ca, now)
    names = _uris(leaf)
    if len(names) != 1 or not names[0].startswith(prefix):
        what = "an operator" if role is Role.OPERATOR else "a replica"
        raise PermissionDeniedError(f"this certificate is not {what}'s; use {what}'s certificate and key")
    return PeerIdentity(role, names[0].removeprefix(prefix), None, leaf.serial_number, leaf.not_valid_after_utc)


# Revocation


def build_crl(authority: Authority, revocations: Iterable[Revocation], number: int, now: datetime) -> bytes:
    """Return a signed X.509 revocation list (DER); `number` has to grow from list to list."""
    # Given as one list: adding entries one by one copies the list each time.
    entries = [
        x509.RevokedCertificateBuilder(revocation.serial, _whole_seconds(revocation.revoked_at)).build()
        for revocation in revocations
    ]
    builder = (
        x509.CertificateRevocationListBuilder(revoked_certificates=entries)
        .issuer_name(authority.certificate.subject)
        .last_update(_whole_seconds(now))
        .next_update(_whole_seconds(now + CRL_LIFETIME))
        .add_extension(x509.CRLNumber(number), critical=False)
        .add_extension(_authority_key_identifier(authority.certificate), critical=False)
    )
    return builder.sign(authority.key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def load_crl(crl_der: bytes, ca: x509.Certificate) -> x509.CertificateRevocationList:
    """Return the revocation list in `crl_der`; raises CertificateError unless `ca` signed it."""
    if len(crl_der) > MAX_CRL_BYTES:
        raise CertificateError(f"revocation list has {len(crl_der)} bytes; the limit is {MAX_CRL_BYTES}")
    try:
        crl = x509.load_der_x509_crl(crl_der)
        signed = crl.issuer == ca.subject and crl.is_signature_valid(
            _check_p256(ca.public_key(), what="the authority's certificate")
        )
    except UNREADABLE as error:
        raise CertificateError("revocation list is damaged; fetch it again from the registrar") from error
    if not signed:
        raise CertificateError("revocation list was not signed by this registrar; check the registrar's address")
    return crl


def crl_number(crl: x509.CertificateRevocationList) -> int:
    """Return a list's number; a list with a smaller one than the last must not replace it."""
    try:
        return crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    except (x509.ExtensionNotFound, *UNREADABLE) as error:
        raise CertificateError("revocation list carries no number; upgrade the registrar") from error


def revoked() -> RevokedError:
    """Return the error that a device with a revoked certificate is told."""
    return RevokedError(f"this device's certificate was revoked; {AFTER_REVOCATION}")


# Encodings


def to_pem(certificate: x509.Certificate) -> bytes:
    """Return a certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def to_der(certificate: x509.Certificate) -> bytes:
    """Return a certificate as DER."""
    return certificate.public_bytes(serialization.Encoding.DER)


def key_to_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as unencrypted PKCS#8 PEM."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def load_key(key_pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Return a P-256 private key from PEM; raises KeyStoreError, which never shows its content."""
    try:
        key = serialization.load_pem_private_key(key_pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise KeyStoreError("this is not an unencrypted P-256 key in PEM; restore the key file from a backup")
    return key


def load_certificate(data: bytes) -> x509.Certificate:
    """Return a certificate from PEM (the first of a chain) or DER; raises CertificateError."""
    if len(data) > MAX_CERTIFICATE_BYTES:
        raise CertificateError(f"certificate has {len(data)} bytes; the limit is {MAX_CERTIFICATE_BYTES}")
    try:
        is_pem = data.lstrip().startswith(b"-----BEGIN")
        certificate = x509.load_pem_x509_certificate(data) if is_pem else x509.load_der_x509_certificate(data)
        certificate.public_key()  # read only when it is asked for, and of a kind that the library may not know
    except UNREADABLE as error:
        raise CertificateError("certificate is damaged or of an unknown kind; fetch or create it again") from error
    return certificate


# Checks


def _check_leaf(leaf: x509.Certificate, ca: x509.Certificate, now: datetime) -> None:
    """Raise CertificateError unless `ca` issued `leaf` to a client and it is valid at `now`.

    Issuer and period come first, for messages a person can act on; the library's own path validation decides.
    """
    _check_signed_by(leaf, ca, what="certificate")
    _check_signed_leaf(leaf, ca, now)


def _check_signed_leaf(leaf: x509.Certificate, ca: x509.Certificate, now: datetime) -> None:
    """Raise CertificateError as `_check_leaf` does, of a leaf whose signature was looked at."""
    if now < leaf.not_valid_before_utc:
        ahead_s = (leaf.not_valid_before_utc - now).total_seconds()
        raise CertificateError(f"certificate is not valid for another {ahead_s:.0f} s; check the clocks of both sides")
    if now > leaf.not_valid_after_utc:
        late_s = (now - leaf.not_valid_after_utc).total_seconds()
        raise CertificateError(f"certificate expired {late_s:.0f} s ago; check the clock, then renew or join again")
    verifier = PolicyBuilder().store(Store([ca])).time(now).max_chain_depth(0).build_client_verifier()
    try:
        verifier.verify(leaf, [])
    except VerificationError as error:
        raise CertificateError("certificate is not one for a client of this program; join again") from error


def _check_signed_by(certificate: x509.Certificate, ca: x509.Certificate, *, what: str) -> None:
    try:
        certificate.verify_directly_issued_by(ca)
    except (InvalidSignature, TypeError, *UNREADABLE) as error:
        raise CertificateError(
            f"{what} was not issued by the expected authority; join again or ask the operator"
        ) from error


def _is_signed_by(certificate: x509.Certificate, ca: x509.Certificate) -> bool:
    try:
        _check_signed_by(certificate, ca, what="certificate")
    except CertificateError:
        return False
    return True


def _check_p256(public_key: object, *, what: str) -> ec.EllipticCurvePublicKey:
    if not isinstance(public_key, ec.EllipticCurvePublicKey) or not isinstance(public_key.curve, ec.SECP256R1):
        raise CertificateError(f"{what} is not for a P-256 key; make a P-256 key and ask again")
    return public_key


def check_name(name: str) -> str:
    """Return `name` when it can be a population's, an operator's or an authority's; raises ConfigError otherwise."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name[:80]!r} cannot be a name: use 1 to 64 letters, digits, dots, dashes or underscores")
    return name


# Building


def _issue_with_key(
    authority: Authority,
    names: x509.SubjectAlternativeName,
    usage: x509.ObjectIdentifier,
    now: datetime,
    lifetime: timedelta,
) -> Credentials:
    """Return a leaf for a new key, with that key."""
    key = p256_key()
    certificate = _issue_leaf(authority, key.public_key(), names, usage, now, lifetime)
    return Credentials(certificate, to_pem(certificate) + authority.certificate_pem, key)


def _uri_names(*uris: str) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri) for uri in uris])


def _issue_leaf(
    authority: Authority,
    public_key: ec.EllipticCurvePublicKey,
    names: x509.SubjectAlternativeName,
    usage: x509.ObjectIdentifier,
    now: datetime,
    lifetime: timedelta,
    *more: x509.UnrecognizedExtension,
) -> x509.Certificate:
    """Return a leaf that ends no later than its authority; its subject is empty, so its names are critical."""
    not_after = min(now + lifetime, authority.certificate.not_valid_after_utc)
    if not_after <= now:
        raise CertificateError("this authority's certificate has expired; create a new authority and invite anew")
    builder = (
        _builder(x509.Name([]), public_key, now, not_after)
        .issuer_name(authority.certificate.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(names, critical=True)
        .add_extension(_authority_key_identifier(authority.certificate), critical=False)
    )
    for extension in more:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(authority.key, hashes.SHA256())


def _builder(
    subject: x509.Name, public_key: ec.EllipticCurvePublicKey, now: datetime, not_after: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_whole_seconds(now - BACKDATING))
        .not_valid_after(_whole_seconds(not_after))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _authority_key_identifier(ca: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    identifier = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)


def _general_name(host: str) -> x509.GeneralName:
    bare = host.removeprefix("[").removesuffix("]")
    try:
        return x509.IPAddress(ipaddress.ip_address(bare))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise ConfigError(f"{host[:80]!r} is neither a DNS name nor an IP address; correct it") from error


def _uris(leaf: x509.Certificate) -> list[str]:
    """Return all subject alternative names of a leaf, of which none may be anything but a URI of ours."""
    names = _extension(leaf, x509.SubjectAlternativeName) or ()
    uris = [str(name.value) for name in names if isinstance(name, x509.UniformResourceIdentifier)]
    if len(uris) != len(list(names)):
        raise PermissionDeniedError("this certificate carries names that no device or operator has; join again")
    return uris


def _extension(certificate: x509.Certificate, kind: type[_Extension]) -> _Extension | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None
    except UNREADABLE as error:
        raise CertificateError("certificate carries damaged extensions; fetch or create it again") from error


def _key_digest(public_key: ec.EllipticCurvePublicKey) -> str:
    der = public_key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def _whole_seconds(moment: datetime) -> datetime:
    """Return a moment as X.509 can write it; raises TypeError for one without a time zone."""
    if moment.tzinfo is None:
        raise TypeError("certificate times need a time zone")
    return moment.astimezone(UTC).replace(microsecond=0)
