"""The coordinator's folder: a server's (`ServerHome`), with what the coordinator alone keeps there.

::

    store.key           seals what is stored of contributions and revealed data (0600)
    registrar.crl       the registrar's newest revocation list
    registrar.revoked   whom earlier lists revoked and that one does not name
    models/  states/  spool/  staging/

Nothing here admits phones: an operator's credentials for the registrar lie in a folder of the operator's own.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from coordinator.home.config import SETTINGS, CoordinatorConfig
from coordinator.home.folder import ServerHome
from coordinator.home.settings import Settings
from mien.errors import DiskFullError
from mien.shell.files import InFolder

if TYPE_CHECKING:
    from coordinator.keys import pki
    from coordinator.store.blobs import BlobStore
    from coordinator.store.database import Schema
    from coordinator.store.store import Store
    from mien.shell.clock import Clock

_MIN_FREE_BYTES: Final = 1024**3


@dataclass(frozen=True)
class CoordinatorHome(ServerHome[CoordinatorConfig, "Store"]):
    """The paths in one coordinator's folder."""

    settings: ClassVar[Settings[CoordinatorConfig]] = SETTINGS
    other: ClassVar = "registrar"
    database_setting: ClassVar = "database_url"

    store_key_path = InFolder("store.key")
    """The key that seals stored contributions and revealed data."""

    old_registrar_key_path = InFolder("registrar-operator.key")
    """A key that older programs kept here: the registrar admitted phones at its word."""

    crl_path = InFolder("registrar.crl")
    """The newest revocation list."""

    def open_store(self, url: str, clock: Clock) -> Store:
        """Return the store of a database."""
        from coordinator.store.store import Store

        return Store.open(url, clock)

    def schema(self) -> Schema:
        """Return the schema of a coordinator's database."""
        from coordinator.store.database import Schema
        from coordinator.store.store import MIGRATIONS, SCHEMA
        from coordinator.store.tables import METADATA

        return Schema(METADATA, MIGRATIONS, SCHEMA)

    def blobs_url(self, config: CoordinatorConfig, kind: str) -> str:
        """Return where blobs of a kind (models, states) lie: in this folder unless the settings name a URL."""
        return f"{config.blobs_url.rstrip('/')}/{kind}" if config.blobs_url else str(self.folder / kind)

    def blobs(self, config: CoordinatorConfig, kind: str) -> BlobStore:
        """Return the blobs of a kind (models, states); raises what an object store refuses."""
        from coordinator.store.blobs import BlobStore

        url = self.blobs_url(config, kind)
        return BlobStore(url, endpoint=config.blobs_endpoint, staging=self.folder / "staging")

    def spool_folder(self, config: CoordinatorConfig) -> Path:
        """Return the folder of contributions whose round has not closed."""
        return Path(config.spool_folder) if config.spool_folder else self.folder / "spool"

    def free_space(self) -> str:
        """Return in words how much room is left on the disk; raises DiskFullError for too little for rounds."""
        free = shutil.disk_usage(self.folder).free
        if free < _MIN_FREE_BYTES:
            raise DiskFullError(f"only {free / 1e6:.0f} MB are free; rounds need room for every contribution")
        return f"{free / 1e9:.1f} GB free"

    def registrar_key_advice(self) -> str:
        """Return what to do about a key of older programs that once admitted phones; empty where there is none."""
        if not self.old_registrar_key_path.exists():
            return ""
        return (
            f"{self.folder} holds registrar-operator.key of an older program, which registrars take no more: delete "
            "registrar-operator.key, .csr and .pem, and invite phones from a folder on the operator's machine that "
            "mien-registrar operator folder makes"
        )

    def check_private(self) -> None:
        """Raise unless the folder and its keys are the owner's alone."""
        from coordinator.store.sealing import MasterKey

        super().check_private()
        MasterKey.load(self.store_key_path)

    def _make_keys(self, authority: pki.Authority, now: datetime) -> pki.Authority:
        """Make the store's key; the coordinator's own authority signs for its operators."""
        from coordinator.store.sealing import MasterKey

        if not self.store_key_path.exists():
            MasterKey.create(self.store_key_path)
        return authority
