"""Identity of this device: its P-256 key, sealed under a key of the key store, and the certificates of its joining."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from device_sdk.server.certificates import check_device_certificate, load_certificate, to_der, to_pem
from device_sdk.storage.home import Home
from device_sdk.storage.keystore import KeyStore
from device_sdk.storage.sealing import bind, seal, unseal
from device_sdk.storage.vault import locked_folder
from mien.errors import CorruptDataError, InviteError, KeyStoreError
from mien.log.witnesses import Quorum, witness_key
from mien.protocol.canonical import parse_json, to_canonical_json
from mien.protocol.ids import DeviceId, PopulationId
from mien.shell.clock import Clock
from mien.shell.files import create_private, read_limited, read_private, write_atomically
from mien.shell.keys import p256_key

KEY_LABEL: Final = "identity"
FORMAT: Final = 1
RENEW_BELOW: Final = 1 / 3
"""A certificate is renewed when less than this share of its life is left."""
_TEXTS: Final = (
    "device_id",
    "population",
    "registrar_address",
    "coordinator_address",
    "invite_sha256",
    "release_key",
    "witness_key",
)
_CERTIFICATES: Final = ("certificate", "registrar_ca", "coordinator_ca")
_CONTEXT: Final = bind("mien/identity/1")
_MAX_BYTES: Final = 128 * 1024


@dataclass(frozen=True)
class Identity:
    """A device that has joined: its name in the fleet, what it proves that with, and whom it trusts."""

    device_id: DeviceId
    population: PopulationId
    registrar_address: str
    coordinator_address: str
    certificate: x509.Certificate = field(repr=False)
    registrar_ca: x509.Certificate = field(repr=False)
    coordinator_ca: x509.Certificate = field(repr=False)
    key: ec.EllipticCurvePrivateKey = field(repr=False)
    invite_sha256: str = field(default="", repr=False)
    release_key: str = ""
    """The operator's key that has to have signed every release; empty where the fleet has none."""
    witness_key: str = ""
    """The registrar's key (NAME+ID+KEY) that has to have cosigned the log of rounds; empty for a device that joined
    before there was one, until it renews."""
    further_witnesses: tuple[str, ...] = ()
    """Keys of further witnesses, and of how many of them a cosignature is needed as well."""
    witnesses_needed: int = 0

    @property
    def quorum(self) -> Quorum:
        """Whose cosignatures the log of rounds needs besides the registrar's."""
        return Quorum(tuple(map(witness_key, self.further_witnesses)), self.witnesses_needed)

    @property
    def key_pem(self) -> bytes:
        """The private key as unencrypted PKCS#8, for a TLS library; never for a file."""
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    @property
    def chain_pem(self) -> bytes:
        """The device's certificate and its authority's, as TLS sends them."""
        return to_pem(self.certificate) + to_pem(self.registrar_ca)


def renewal_due(identity: Identity, clock: Clock) -> bool:
    """Return whether less than a third of the certificate's life is left."""
    certificate = identity.certificate
    life_s = (certificate.not_valid_after_utc - certificate.not_valid_before_utc).total_seconds()
    left_s = (certificate.not_valid_after_utc - clock.now_utc()).total_seconds()
    return left_s < RENEW_BELOW * life_s


class IdentityKeeper(Protocol):
    """Keeper of the results of joining: `IdentityFiles` on a phone, memory for emulated ones."""

    def key(self) -> ec.EllipticCurvePrivateKey:
        """Return the device's key, made at the first call."""
        ...

    def joined(self) -> bool:
        """Return whether the device has joined a fleet."""
        ...

    def load(self) -> Identity:
        """Return the identity; raises InviteError where there is none."""
        ...

    def save(self, identity: Identity) -> None:
        """Keep the results of joining or renewing."""
        ...


class IdentityFiles:
    """A home's identity on disk: one sealed key, and one file with everything else that is replaced as a whole."""

    def __init__(self, home: Home, key_store: KeyStore) -> None:
        self._home = home
        self._key_store = key_store

    def key(self) -> ec.EllipticCurvePrivateKey:
        """Return the device's key, made at the first call; every later call returns the same one."""
        with locked_folder(self._home.folder):
            if not self._home.identity_key.exists():
                self._make_key()
        sealed = read_private(self._home.identity_key, what="the device's private key")
        try:
            plain = unseal(self._key_store.read(KEY_LABEL), sealed, _CONTEXT, what="the device's private key")
        except CorruptDataError:
            raise KeyStoreError(
                "the device's private key does not open: the key store holds another key, or the file was changed; "
                "restore both from one copy, or join again in an empty folder"
            ) from None
        return _load_key(plain)

    def _make_key(self) -> None:
        key = p256_key()
        plain = key.private_bytes(
            serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        # A wrapping key that a crash left without its file is used.
        exists = self._key_store.exists(KEY_LABEL)
        wrapping = self._key_store.read(KEY_LABEL) if exists else self._key_store.create(KEY_LABEL)
        create_private(self._home.identity_key, seal(wrapping, plain, _CONTEXT))

    def save(self, identity: Identity) -> None:
        """Store what joining or renewing gave: the old file or the new one, whatever happens meanwhile."""
        ders = {name: to_der(getattr(identity, name)) for name in _CERTIFICATES}
        stored: dict[str, object] = {"format": FORMAT, **{name: getattr(identity, name) for name in _TEXTS}}
        stored |= {"further_witnesses": list(identity.further_witnesses), "witnesses_needed": identity.witnesses_needed}
        stored |= {name: base64.b64encode(der).decode() for name, der in ders.items()}
        write_atomically(self._home.identity, to_canonical_json(stored), private=True)

    def joined(self) -> bool:
        """Return whether this home has joined a fleet."""
        return self._home.identity.exists()

    def load(self) -> Identity:
        """Return the stored identity; raises InviteError when this home has not joined, CorruptDataError on damage."""
        if not self.joined():
            raise InviteError(
                "this device has not joined yet; ask the operator for an invite, then call `Device.join()`"
            )
        data = read_limited(self._home.identity, _MAX_BYTES, what="the device's identity")
        remedy = f"restore {self._home.identity} from a copy, or delete it and join again with a new invite"
        stored = parse_json(data, what="the device's identity", remedy=remedy)
        if not isinstance(stored, dict) or stored.get("format") != FORMAT:
            raise CorruptDataError(f"the device's identity is of another format; upgrade mien, or {remedy}")
        stored.setdefault("release_key", "")
        stored.setdefault("witness_key", "")
        try:
            fields: dict[str, Any] = {name: str(stored[name]) for name in _TEXTS}
            for name in _CERTIFICATES:
                der = base64.b64decode(stored[name], validate=True)
                fields[name] = load_certificate(der, whose="the stored")
            fields["further_witnesses"] = tuple(map(str, stored.get("further_witnesses", ())))
            fields["witnesses_needed"] = int(stored.get("witnesses_needed", 0))
            identity = Identity(key=self.key(), **fields)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptDataError(f"the device's identity is damaged; {remedy}") from error
        check_device_certificate(identity.certificate, identity.key, identity.registrar_ca)
        return identity


def create_csr(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a PKCS#10 request (DER) that proves the key and asks for no name: the registrar decides those."""
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.DER)


def _load_key(der: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_der_private_key(der, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise KeyStoreError("the device's private key is not a P-256 key; join again in an empty folder")
    return key
