"""The coordinator's folder: what lies in it, how it is made, and which registrar it trusts.

::

    ca.key                       the authority's key (0600): signs the server's and operators' certificates
    ca.pem                       the authority's certificate, public: the registrar and invites name it
    store.key                    seals what is stored of contributions and revealed data (0600)
    operator.key/.pem            credentials with which this folder's owner runs tasks (key 0600)
    registrar-ca.pem             the trusted registrar's certificate, public
    registrar-operator.key/.csr  request for operator credentials at the registrar (key 0600)
    registrar-operator.pem       what the registrar made of it, for `device invite`
    registrar.crl                the registrar's newest revocation list
    registrar.revoked            whom earlier lists revoked and that one does not name
    coordinator.toml             settings
    coordinator.db  models/  states/  spool/  staging/
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.home.config import SETTINGS, CoordinatorConfig
from coordinator.home.settings import Resolved
from coordinator.keys.credentials import OperatorCredentials
from mien.errors import AlreadyExistsError, ConfigError, KeyStoreError
from mien.shell.files import create_private, read_limited, read_private, storage_errors, write_atomically
from mien.shell.keys import p256_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cryptography import x509

    from coordinator.keys import pki
    from coordinator.store.blobs import BlobStore

_OWN_OPERATOR = "coordinator"


@dataclass(frozen=True)
class CoordinatorHome:
    """The paths in one coordinator's folder."""

    folder: Path

    @property
    def config_path(self) -> Path:
        """The settings."""
        return self.folder / "coordinator.toml"

    @property
    def ca_path(self) -> Path:
        """The public certificate to hand to the registrar."""
        return self.folder / "ca.pem"

    @property
    def ca_key_path(self) -> Path:
        """The key that signs."""
        return self.folder / "ca.key"

    @property
    def store_key_path(self) -> Path:
        """The key that seals stored contributions and revealed data."""
        return self.folder / "store.key"

    @property
    def operator_path(self) -> Path:
        """The folder owner's operator certificate, with the authority's behind it."""
        return self.folder / "operator.pem"

    @property
    def operator_key_path(self) -> Path:
        """The key of the folder owner's operator certificate."""
        return self.folder / "operator.key"

    @property
    def registrar_ca_path(self) -> Path:
        """The public certificate of the trusted registrar."""
        return self.folder / "registrar-ca.pem"

    @property
    def registrar_operator_key_path(self) -> Path:
        """The key for operator credentials at the registrar."""
        return self.folder / "registrar-operator.key"

    @property
    def registrar_operator_csr_path(self) -> Path:
        """The request for operator credentials at the registrar."""
        return self.folder / "registrar-operator.csr"

    @property
    def registrar_operator_path(self) -> Path:
        """The operator certificate that the registrar made."""
        return self.folder / "registrar-operator.pem"

    @property
    def crl_path(self) -> Path:
        """The newest revocation list."""
        return self.folder / "registrar.crl"

    @property
    def lock_path(self) -> Path:
        """Held by the process that serves."""
        return self.folder / "coordinator.lock"

    def resolve(self, flags: Mapping[str, object] | None = None) -> Resolved[CoordinatorConfig]:
        """Return the resolved settings."""
        return SETTINGS.load(self.config_path, flags)

    def database_url(self, config: CoordinatorConfig) -> str:
        """Return the database's URL: an SQLite file in this folder unless the settings name another."""
        return config.database_url or f"sqlite:///{self.folder / 'coordinator.db'}"

    def blobs_url(self, config: CoordinatorConfig, kind: str) -> str:
        """Return where blobs of a kind (models, states) lie: in this folder unless the settings name a URL."""
        return f"{config.blobs_url.rstrip('/')}/{kind}" if config.blobs_url else str(self.folder / kind)

    def blobs(self, config: CoordinatorConfig, kind: str) -> BlobStore:
        """Return the blobs of a kind (models, states); raises what an object store refuses."""
        from coordinator.store.blobs import BlobStore

        url = self.blobs_url(config, kind)
        return BlobStore(url, endpoint=config.blobs_endpoint, staging=self.folder / "staging")

    def spool_folder(self, config: CoordinatorConfig) -> Path:
        """Return where contributions lie until their round has closed."""
        return Path(config.spool_folder) if config.spool_folder else self.folder / "spool"

    def authority(self) -> pki.Authority:
        """Return the authority with its key."""
        from coordinator.keys import pki

        key = read_private(self.ca_key_path, what="the authority's key")
        return pki.load_authority(self.public(self.ca_path), key)

    def registrar_ca(self) -> x509.Certificate:
        """Return the trusted registrar's certificate; raises ConfigError while there is none."""
        from coordinator.keys import pki

        if not self.registrar_ca_path.is_file():
            raise ConfigError(
                "this coordinator trusts no registrar yet; run mien-coordinator trust-registrar with its ca.pem"
            )
        return pki.load_authority_certificate(self.public(self.registrar_ca_path))

    def operator_credentials(self) -> OperatorCredentials:
        """Return what proves this folder's owner to the running coordinator."""
        key = read_private(self.operator_key_path, what="the operator's key")
        return OperatorCredentials(self.public(self.ca_path), self.public(self.operator_path), key)

    def registrar_credentials(self) -> OperatorCredentials:
        """Return what proves this coordinator to the registrar as an operator."""
        if not self.registrar_operator_path.is_file():
            raise KeyStoreError(
                "the registrar has not made this coordinator an operator yet; run mien-registrar trust-coordinator "
                f"with --csr {self.registrar_operator_csr_path.name} --out {self.registrar_operator_path.name}"
            )
        key = read_private(self.registrar_operator_key_path, what="the key for the registrar")
        return OperatorCredentials(self.public(self.registrar_ca_path), self.public(self.registrar_operator_path), key)

    def public(self, path: Path) -> bytes:
        """Return a certificate file's bytes."""
        from coordinator.keys import pki

        return read_limited(path, 4 * pki.MAX_CERTIFICATE_BYTES, what=path.name)


def create_home(folder: Path, config: CoordinatorConfig, now: datetime) -> CoordinatorHome:
    """Return a new coordinator's folder. The authority's key is written last: with it the folder is complete."""

    from coordinator.keys import pki
    from coordinator.store.sealing import MasterKey

    home = CoordinatorHome(folder)
    if home.ca_key_path.exists():
        raise AlreadyExistsError(f"there is a coordinator in {folder} already; nothing was changed")
    with storage_errors(str(folder)):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority = pki.create_authority("coordinator", now)
    SETTINGS.write(home.config_path, config)
    write_atomically(home.ca_path, authority.certificate_pem)
    write_operator(home, authority, now)
    if not home.store_key_path.exists():
        MasterKey.create(home.store_key_path)
    key = p256_key()
    write_atomically(home.registrar_operator_key_path, pki.key_to_pem(key), private=True)
    write_atomically(home.registrar_operator_csr_path, pki.create_csr(key))
    create_private(home.ca_key_path, authority.key_pem)
    return home


def write_operator(home: CoordinatorHome, authority: pki.Authority, now: datetime) -> x509.Certificate:
    """Give the folder's owner operator credentials, replacing earlier ones, and return their certificate."""
    from coordinator.keys import pki

    operator = pki.issue_operator_leaf(authority, _OWN_OPERATOR, now)
    write_atomically(home.operator_key_path, operator.key_pem, private=True)
    write_atomically(home.operator_path, operator.chain_pem)
    return operator.certificate


def trust_registrar(home: CoordinatorHome, ca_pem: bytes, *, replace: bool) -> str:
    """Trust a registrar by its public certificate and return its fingerprint.

    Replacing one shuts out the devices that joined under it, so that has to be asked for.
    """
    from coordinator.keys import pki

    certificate = pki.load_authority_certificate(ca_pem)
    if pki.to_pem(certificate) == home.public(home.ca_path):
        raise ConfigError("this is the coordinator's own ca.pem; give the one in the registrar's folder")
    if home.registrar_ca_path.is_file() and home.registrar_ca() != certificate and not replace:
        raise AlreadyExistsError(
            "this coordinator trusts another registrar already; --replace changes that, and devices must join anew"
        )
    write_atomically(home.registrar_ca_path, pki.to_pem(certificate))
    return pki.fingerprint(certificate)
