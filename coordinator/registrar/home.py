"""The registrar's folder: a server's (`ServerHome`), with a database of whom it admitted.

::

    operators-ca.key/.pem   the authority that signs operators' certificates (key 0600)

Phones' certificates come from `ca.key`. The operators' port asks for a certificate of the other authority, so that a
phone does not get beyond its TLS handshake.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from coordinator.home.folder import ServerHome
from coordinator.home.settings import Settings
from coordinator.registrar.config import SETTINGS, RegistrarConfig
from mien.errors import AlreadyExistsError, ConfigError
from mien.shell.files import InFolder, read_private, storage_errors, write_atomically

if TYPE_CHECKING:
    from cryptography import x509

    from coordinator.keys import pki
    from coordinator.registrar.store import Store
    from coordinator.store.database import Schema
    from mien.shell.clock import Clock


@dataclass(frozen=True)
class RegistrarHome(ServerHome[RegistrarConfig, "Store"]):
    """The paths in one registrar's folder.

    An operator's folder is the part of it that calls need: `operator.key`, `operator.pem`, `ca.pem`, `registrar.toml`.
    """

    settings: ClassVar[Settings[RegistrarConfig]] = SETTINGS
    other: ClassVar = "coordinator"
    database_setting: ClassVar = "store_url"

    operators_ca_path = InFolder("operators-ca.pem")
    """The public certificate of the authority that signs for operators."""

    operators_ca_key_path = InFolder("operators-ca.key")
    """The key that signs for operators."""

    def open_store(self, url: str, clock: Clock) -> Store:
        """Return the store of a database."""
        from coordinator.registrar.store import Store

        return Store.open(url, clock.now)

    def schema(self) -> Schema:
        """Return the schema of a registrar's database."""
        from coordinator.registrar.store import SCHEMA

        return SCHEMA

    def operators(self, now: datetime) -> pki.Authority:
        """Return the authority that signs operators' certificates.

        A folder of an older program has none: it gets one, and its owner new credentials of it. What the phones'
        authority signed for operators is good no more.
        """
        from coordinator.keys import pki

        if not self.operators_ca_key_path.exists():
            self.authority()  # raises where this is no registrar's folder
            self.write_operator(self._make_operators(now), now)
        key = read_private(self.operators_ca_key_path, what="the operators' authority's key")
        return pki.load_authority(self.public(self.operators_ca_path), key)

    def make_operator_folder(self, folder: Path, name: str, now: datetime) -> x509.Certificate:
        """Make a folder from which an operator can call this registrar, with a key made there; return the certificate.

        Raises AlreadyExistsError for a folder that holds credentials, ConfigError for a server's own folder.
        """
        from coordinator.keys import pki

        made, config = RegistrarHome(folder), self.resolve().config
        if (folder / "coordinator.toml").exists() or made.ca_key_path.exists():
            raise ConfigError(f"{folder} is a server's folder; an operator's credentials need a folder of their own")
        if made.operator_key_path.exists():
            raise AlreadyExistsError(f"there are an operator's credentials in {folder} already; nothing was changed")
        leaf = pki.issue_operator_leaf(self.operators(now), name, now)
        with storage_errors(str(folder)):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        made.settings.write(
            made.config_path,
            RegistrarConfig(config.address, config.coordinator_address, config.admin_address),
        )
        write_atomically(made.ca_path, self.public(self.ca_path))
        write_atomically(made.operator_path, leaf.chain_pem)
        write_atomically(made.operator_key_path, leaf.key_pem, private=True)
        return leaf.certificate

    def _make_keys(self, authority: pki.Authority, now: datetime) -> pki.Authority:
        """Make the operators' authority."""
        return self._make_operators(now)

    def _make_operators(self, now: datetime) -> pki.Authority:
        from coordinator.keys import pki

        operators = pki.create_authority("operators", now)
        write_atomically(self.operators_ca_path, operators.certificate_pem)
        write_atomically(self.operators_ca_key_path, operators.key_pem, private=True)
        return operators
