"""A server's folder: what those of both programs hold, how they are made, and which other server one trusts.

::

    ca.key              the authority's key (0600): signs the certificates of this program's side
    ca.pem              the authority's certificate, public: the other server and invites name it
    operator.key/.pem   credentials with which this folder's owner runs commands (key 0600)
    OTHER-ca.pem        the trusted other server's certificate, public
    NAME.toml           settings
    NAME.db             the database, unless the settings name another
    NAME.lock           held by the process that serves
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

from coordinator.home.settings import Settings
from coordinator.keys.credentials import OperatorCredentials
from mien.errors import AlreadyExistsError, ConfigError, NotFoundError
from mien.shell.clock import Clock
from mien.shell.files import InFolder, create_private, read_limited, read_private, storage_errors, write_atomically
from mien.shell.settings import Resolved

if TYPE_CHECKING:
    import sqlalchemy as sa
    from cryptography import x509

    from coordinator.keys import pki
    from coordinator.store.audit import AuditLog
    from coordinator.store.database import Schema
    from mien.log.audit import Anchor

T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S", bound="LoggedStore")

# `pki` is imported by what needs it: the library below it is much of the commands' start-up time.


class LoggedStore(Protocol):
    """A program's store, as far as its audit log is concerned."""

    def audit(self, call: Callable[[AuditLog, sa.Connection], R]) -> R:
        """Return the result of a call on the log, in one transaction."""
        ...

    def log(self, actor: str, action: str, subject: str, detail: Mapping[str, object] | None = None) -> Anchor:
        """Enter a deed, and return the log's new head."""
        ...

    def close(self) -> None:
        """Close the database."""
        ...


@dataclass(frozen=True)
class ServerHome(ABC, Generic[T, S]):
    """The paths in one server's folder, and what lies there."""

    folder: Path

    settings: ClassVar[Settings[Any]]
    other: ClassVar[str]
    """The other program, `registrar` for a coordinator."""

    database_setting: ClassVar[str]
    """The setting that names a database elsewhere."""

    config_path = InFolder("{0.name}.toml")
    """The settings."""

    ca_path = InFolder("ca.pem")
    """The public certificate to hand to the other server."""

    ca_key_path = InFolder("ca.key")
    """The key that signs."""

    operator_path = InFolder("operator.pem")
    """The folder owner's operator certificate, with the authority's behind it."""

    operator_key_path = InFolder("operator.key")
    """The key of the folder owner's operator certificate."""

    trusted_ca_path = InFolder("{0.other}-ca.pem")
    """The public certificate of the trusted other server."""

    database_path = InFolder("{0.name}.db")
    """The database, unless the settings name another."""

    lock_path = InFolder("{0.name}.lock")
    """Held by the process that serves."""

    @property
    def name(self) -> str:
        """The program whose folder it is, `coordinator` or `registrar`."""
        return self.settings.name

    def resolve(self, flags: Mapping[str, object] | None = None) -> Resolved[T]:
        """Return the resolved settings."""
        return self.settings.load(self.config_path, flags)

    def database_url(self, config: T) -> str:
        """Return the database's URL: an SQLite file in this folder unless the settings name another."""
        return getattr(config, self.database_setting) or f"sqlite:///{self.database_path}"

    @abstractmethod
    def open_store(self, url: str, clock: Clock) -> S:
        """Return this program's store of a database."""

    @abstractmethod
    def schema(self) -> Schema:
        """Return the schema of this program's database."""

    def store(self) -> contextlib.closing[S]:
        """Return this folder's store, open while a block runs."""
        return contextlib.closing(self.open_store(self.database_url(self.resolve().config), Clock()))

    def authority(self) -> pki.Authority:
        """Return the authority with its key."""
        from coordinator.keys import pki

        return pki.load_authority(self.public(self.ca_path), read_private(self.ca_key_path, what="the authority's key"))

    def ca(self) -> x509.Certificate:
        """Return the authority's public certificate."""
        from coordinator.keys import pki

        return pki.load_authority_certificate(self.public(self.ca_path))

    def trusted_ca(self) -> x509.Certificate:
        """Return the trusted other server's certificate; raises ConfigError while there is none."""
        from coordinator.keys import pki

        if not self.trusted_ca_path.is_file():
            raise ConfigError(
                f"this {self.name} trusts no {self.other} yet; run mien-{self.name} trust-{self.other} with its ca.pem"
            )
        return pki.load_authority_certificate(self.public(self.trusted_ca_path))

    def operator_credentials(self) -> OperatorCredentials:
        """Return the credentials of this folder's owner for the running server."""
        key = read_private(self.operator_key_path, what="the operator's key")
        return OperatorCredentials(self.public(self.ca_path), self.public(self.operator_path), key)

    def public(self, path: Path) -> bytes:
        """Return a certificate file's bytes."""
        from coordinator.keys import pki

        return read_limited(path, 4 * pki.MAX_CERTIFICATE_BYTES, what=path.name)

    @classmethod
    def create(cls, folder: Path, config: T, now: datetime) -> Self:
        """Return a new server's folder. The authority's key is written last: with it the folder is complete."""
        from coordinator.keys import pki

        home = cls(folder)
        if home.ca_key_path.exists():
            raise AlreadyExistsError(f"there is a {home.name} in {folder} already; nothing was changed")
        with storage_errors(str(folder)):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = pki.create_authority(home.name, now)
        home.settings.write(home.config_path, config)
        write_atomically(home.ca_path, authority.certificate_pem)
        home.write_operator(home._make_keys(authority, now), now)
        create_private(home.ca_key_path, authority.key_pem)
        return home

    def _make_keys(self, authority: pki.Authority, now: datetime) -> pki.Authority:
        """Make what keys this program has besides, and return the authority that signs for operators."""
        return authority

    def operators(self, now: datetime) -> pki.Authority:
        """Return the authority that signs operators' certificates."""
        return self.authority()

    def write_operator(self, authority: pki.Authority, now: datetime) -> x509.Certificate:
        """Give the folder's owner operator credentials, replacing earlier ones, and return their certificate."""
        from coordinator.keys import pki

        operator = pki.issue_operator_leaf(authority, self.name, now)
        write_atomically(self.operator_key_path, operator.key_pem, private=True)
        write_atomically(self.operator_path, operator.chain_pem)
        return operator.certificate

    def trust(self, ca_pem: bytes, *, replace: bool) -> str:
        """Trust another server by its public certificate and return its fingerprint.

        Replacing one cuts off the devices that joined under it, so that has to be asked for.
        """
        from coordinator.keys import pki

        certificate = pki.load_authority_certificate(ca_pem)
        if certificate == self.ca():
            raise ConfigError(f"this is the {self.name}'s own ca.pem; give the one in the {self.other}'s folder")
        if self.trusted_ca_path.is_file() and self.trusted_ca() != certificate and not replace:
            raise AlreadyExistsError(
                f"this {self.name} trusts another {self.other} already; --replace changes that, and devices must join "
                "anew"
            )
        write_atomically(self.trusted_ca_path, pki.to_pem(certificate))
        return pki.fingerprint(certificate)

    def check_private(self) -> None:
        """Raise unless the folder and its keys are the owner's alone."""
        if not self.folder.is_dir():
            raise NotFoundError(f"there is no folder {self.folder}; run mien-{self.name} init")
        if self.folder.stat().st_mode & 0o077:
            raise ConfigError(f"others may enter {self.folder}; run chmod 700 on it")
        read_private(self.ca_key_path, what="the authority's key")
        read_private(self.operator_key_path, what="the operator's key")
