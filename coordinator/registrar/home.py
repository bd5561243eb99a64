"""The registrar's folder: what lies in it, how it is made, and which coordinator it trusts.

::

    ca.key              the authority's key (0600); whoever has it can admit devices
    ca.pem              the authority's certificate, public: coordinators and invites name it
    operator.key/.pem   credentials with which this folder's owner runs invite, revoke and list (key 0600)
    coordinator-ca.pem  the trusted coordinator's certificate, public
    registrar.toml      settings
    registrar.db        invites, devices, certificates, revocations (0600)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509

from coordinator.home.settings import Resolved
from coordinator.keys import pki
from coordinator.keys.credentials import OperatorCredentials
from coordinator.registrar.config import SETTINGS, RegistrarConfig
from mien.errors import AlreadyExistsError, CertificateError, ConfigError, NotFoundError
from mien.shell.files import create_private, read_limited, read_private, storage_errors, write_atomically

_OWN_OPERATOR = "registrar"


@dataclass(frozen=True)
class RegistrarHome:
    """The paths in one registrar's folder."""

    folder: Path

    @property
    def config_path(self) -> Path:
        """The settings."""
        return self.folder / "registrar.toml"

    @property
    def ca_path(self) -> Path:
        """The public certificate to hand to the coordinator."""
        return self.folder / "ca.pem"

    @property
    def ca_key_path(self) -> Path:
        """The key that signs."""
        return self.folder / "ca.key"

    @property
    def operator_path(self) -> Path:
        """The folder owner's operator certificate, with the authority's behind it."""
        return self.folder / "operator.pem"

    @property
    def operator_key_path(self) -> Path:
        """The key of the folder owner's operator certificate."""
        return self.folder / "operator.key"

    @property
    def coordinator_ca_path(self) -> Path:
        """The public certificate of the trusted coordinator."""
        return self.folder / "coordinator-ca.pem"

    @property
    def lock_path(self) -> Path:
        """Held by the process that serves."""
        return self.folder / "registrar.lock"

    def config(self, flags: Mapping[str, object] | None = None) -> Resolved[RegistrarConfig]:
        """Return the resolved settings."""
        return SETTINGS.load(self.config_path, flags)

    def authority(self) -> pki.Authority:
        """Return the authority with its key."""
        return pki.load_authority(
            self._public(self.ca_path), read_private(self.ca_key_path, what="the authority's key")
        )

    def ca(self) -> x509.Certificate:
        """Return the authority's public certificate."""
        return pki.load_authority_certificate(self._public(self.ca_path))

    def coordinator_ca(self) -> x509.Certificate:
        """Return the trusted coordinator's certificate; raises ConfigError while there is none."""
        if not self.coordinator_ca_path.is_file():
            raise ConfigError(
                "this registrar trusts no coordinator yet; run mien-registrar trust-coordinator with its ca.pem"
            )
        return pki.load_authority_certificate(self._public(self.coordinator_ca_path))

    def operator_credentials(self) -> OperatorCredentials:
        """Return what proves this folder's owner to the running registrar."""
        key = read_private(self.operator_key_path, what="the operator's key")
        return OperatorCredentials(self._public(self.ca_path), self._public(self.operator_path), key)

    def store_url(self, config: RegistrarConfig) -> str:
        """Return the store's URL: an SQLite file in this folder unless the settings name another."""
        return config.store_url or f"sqlite:///{self.folder / 'registrar.db'}"

    def _public(self, path: Path) -> bytes:
        return read_limited(path, 4 * pki.MAX_CERTIFICATE_BYTES, what=path.name)


def create_home(folder: Path, config: RegistrarConfig, now: datetime) -> RegistrarHome:
    """Return a new registrar's folder. The authority's key is written last: with it the folder is complete."""
    home = RegistrarHome(folder)
    if home.ca_key_path.exists():
        raise AlreadyExistsError(f"there is a registrar in {folder} already; nothing was changed")
    with storage_errors(str(folder)):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority = pki.create_authority("registrar", now)
    SETTINGS.write(home.config_path, config)
    write_atomically(home.ca_path, authority.certificate_pem)
    write_operator(home, authority, now)
    create_private(home.ca_key_path, authority.key_pem)
    return home


def write_operator(home: RegistrarHome, authority: pki.Authority, now: datetime) -> x509.Certificate:
    """Give the folder's owner operator credentials, replacing earlier ones, and return their certificate."""
    operator = pki.issue_operator_leaf(authority, _OWN_OPERATOR, now)
    write_atomically(home.operator_key_path, operator.key_pem, private=True)
    write_atomically(home.operator_path, operator.chain_pem)
    return operator.certificate


def trust_coordinator(home: RegistrarHome, ca_pem: bytes, *, replace: bool) -> str:
    """Trust a coordinator by its public certificate and return its fingerprint.

    Replacing one cuts off the devices that joined under it, so that has to be asked for.
    """
    certificate = pki.load_authority_certificate(ca_pem)
    if certificate == home.ca():
        raise ConfigError("this is the registrar's own ca.pem; give the one in the coordinator's folder")
    if home.coordinator_ca_path.is_file() and home.coordinator_ca() != certificate and not replace:
        raise AlreadyExistsError(
            "this registrar trusts another coordinator already; --replace changes that, and devices must join anew"
        )
    write_atomically(home.coordinator_ca_path, pki.to_pem(certificate))
    return pki.fingerprint(certificate)


def check_private(home: RegistrarHome) -> None:
    """Raise unless the folder and its keys are the owner's alone."""
    if not home.folder.is_dir():
        raise NotFoundError(f"there is no folder {home.folder}; run mien-registrar init")
    if home.folder.stat().st_mode & 0o077:
        raise ConfigError(f"others may enter {home.folder}; run chmod 700 on it")
    read_private(home.ca_key_path, what="the authority's key")
    read_private(home.operator_key_path, what="the operator's key")


def check_validity(certificate: x509.Certificate, clock: Callable[[], datetime], *, what: str, warn_days: int) -> None:
    """Raise CertificateError when a certificate is not valid now or ends within `warn_days`."""
    now, ends = clock(), certificate.not_valid_after_utc
    if now < certificate.not_valid_before_utc:
        raise CertificateError(
            f"{what} is not valid before {certificate.not_valid_before_utc:%Y-%m-%d}; check the clock"
        )
    if (ends - now).days < warn_days:
        raise CertificateError(f"{what} ends on {ends:%Y-%m-%d}; renew it")


def make_new_files_private() -> None:
    """Let every file that this process creates, the store's among them, be the owner's alone."""
    os.umask(0o077)
