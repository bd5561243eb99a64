"""The registrar's folder: a server's (`ServerHome`), with a database of whom it admitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from coordinator.home.folder import ServerHome
from coordinator.home.settings import Settings
from coordinator.registrar.config import SETTINGS, RegistrarConfig

if TYPE_CHECKING:
    from coordinator.registrar.store import Store
    from mien.shell.clock import Clock


@dataclass(frozen=True)
class RegistrarHome(ServerHome[RegistrarConfig, "Store"]):
    """The paths in one registrar's folder."""

    settings: ClassVar[Settings[RegistrarConfig]] = SETTINGS
    other: ClassVar = "coordinator"
    database_setting: ClassVar = "store_url"

    def open_store(self, url: str, clock: Clock) -> Store:
        """Return the store of a database."""
        from coordinator.registrar.store import Store

        return Store.open(url, clock.now)
