"""The coordinator's folder: made whole, private, never overwritten, and tied to one registrar."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from coordinator.home.config import CoordinatorConfig
from coordinator.home.home import CoordinatorHome
from coordinator.keys import pki
from coordinator.serve import open_stores
from coordinator.store.sealing import MasterKey
from mien.errors import AlreadyExistsError, ConfigError, KeyStoreError
from mien.shell.clock import Clock

NOW = datetime.now(UTC)
CONFIG = CoordinatorConfig("localhost:7443")


@pytest.fixture
def home(tmp_path: Path) -> CoordinatorHome:
    return CoordinatorHome.create(tmp_path / "c", CONFIG, NOW)


def test_a_new_folder_holds_what_the_programs_need(home: CoordinatorHome) -> None:
    assert home.folder.stat().st_mode & 0o777 == 0o700
    private = {path.name for path in home.folder.iterdir() if not path.stat().st_mode & 0o077}
    assert private == {"ca.key", "store.key", "operator.key"}
    authority = home.authority()
    leaf = pki.load_certificate(home.operator_path.read_bytes())
    assert pki.operator_identity(leaf, authority.certificate, NOW).id == "coordinator"
    assert home.resolve().config == CONFIG


def test_nothing_is_overwritten(home: CoordinatorHome) -> None:
    before = home.ca_key_path.read_bytes()
    with pytest.raises(AlreadyExistsError, match="nothing was changed"):
        CoordinatorHome.create(home.folder, CONFIG, NOW)
    assert home.ca_key_path.read_bytes() == before


def test_one_registrar_is_trusted(home: CoordinatorHome) -> None:
    with pytest.raises(ConfigError, match="trust-registrar"):
        home.trusted_ca()
    first, second = (pki.create_authority("registrar", NOW) for _ in range(2))
    assert home.trust(first.certificate_pem, replace=False) == pki.fingerprint(first.certificate)
    home.trust(first.certificate_pem, replace=False)
    with pytest.raises(AlreadyExistsError):
        home.trust(second.certificate_pem, replace=False)
    home.trust(second.certificate_pem, replace=True)
    assert home.trusted_ca() == second.certificate
    with pytest.raises(ConfigError, match=r"own ca\.pem"):
        home.trust(home.ca_path.read_bytes(), replace=True)


def test_another_key_does_not_open_the_store(home: CoordinatorHome) -> None:
    stores = open_stores(home, CONFIG, Clock())
    stores.thread.close()
    stores.store.close()
    home.store_key_path.unlink()
    MasterKey.create(home.store_key_path)
    with pytest.raises(KeyStoreError, match="restore both from one backup"):
        open_stores(home, CONFIG, Clock())
