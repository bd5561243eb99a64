"""Database and blobs that do not belong together are refused before a start sweeps away what the database lacks."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from coordinator.home.config import CoordinatorConfig
from coordinator.home.home import CoordinatorHome
from coordinator.rounds.closing import Stores
from coordinator.serve import open_stores
from mien.errors import ConfigError
from mien.rounds.records import ModelRecord
from mien.shell.clock import Clock

THETA = b"parameters" * 100


@pytest.fixture(params=["folder", "bucket"])
def config(request: pytest.FixtureRequest) -> CoordinatorConfig:
    config = CoordinatorConfig("localhost:7443")
    if request.param == "folder":
        return config
    server = request.getfixturevalue("s3_server")
    return dataclasses.replace(config, blobs_url=f"s3://{server.new_bucket()}/mien", blobs_endpoint=server.endpoint)


@pytest.fixture
def home(tmp_path: Path, config: CoordinatorConfig) -> CoordinatorHome:
    return CoordinatorHome.create(tmp_path / "C", config, datetime.now(UTC))


@contextlib.contextmanager
def opened(home: CoordinatorHome, config: CoordinatorConfig) -> Iterator[Stores]:
    stores = open_stores(home, config, Clock())
    try:
        yield stores
    finally:
        stores.thread.close()
        stores.store.close()


def on(config: CoordinatorConfig, database: Path) -> CoordinatorConfig:
    return dataclasses.replace(config, database_url=f"sqlite:///{database}")


def give_model(stores: Stores, theta: bytes = THETA, model_id: str = "a" * 64) -> str:
    blob = stores.models.put(theta)
    stores.store.add_model(ModelRecord(model_id, b"{}", "1" * 64, blob, 1), actor="alice")
    return blob.sha256


def forget_ids(home: CoordinatorHome, config: CoordinatorConfig) -> None:
    """Make of a store one of a program that gave no ids."""
    with contextlib.closing(sqlite3.connect(home.folder / "coordinator.db")) as db, db:
        assert db.execute("DELETE FROM settings WHERE name = 'store_id'").rowcount == 1
    forget_owner(home, config)


def forget_owner(home: CoordinatorHome, config: CoordinatorConfig) -> None:
    blobs = home.blobs(config, "models")
    blobs._fs.rm_file(f"{blobs._root}/store-id")


def test_another_empty_database_is_refused_and_nothing_is_erased(
    home: CoordinatorHome, config: CoordinatorConfig, tmp_path: Path
) -> None:
    with opened(home, config) as stores:
        sha256 = give_model(stores)
    for _ in range(2):  # the refused start must not make the empty database look like a known one
        with pytest.raises(ConfigError, match="correct database_url or blobs_url"):
            open_stores(home, on(config, tmp_path / "typo.db"), Clock())
    with opened(home, config) as stores:
        assert stores.models.read(sha256) == THETA


def test_states_alone_are_not_given_to_an_empty_database(
    home: CoordinatorHome, config: CoordinatorConfig, tmp_path: Path
) -> None:
    with opened(home, config):
        home.blobs(config, "states").put(b"momentum")
    with pytest.raises(ConfigError, match="another database"):
        open_stores(home, on(config, tmp_path / "typo.db"), Clock())


def test_another_coordinators_database_is_refused(
    home: CoordinatorHome, config: CoordinatorConfig, tmp_path: Path
) -> None:
    """Though both hold the same imported model, under the same key."""
    with opened(home, config) as stores:
        give_model(stores)
        give_model(stores, b"only here", "b" * 64)
    plain = CoordinatorConfig("localhost:7444")
    other = CoordinatorHome.create(tmp_path / "D", plain, datetime.now(UTC))
    other.store_key_path.write_bytes(home.store_key_path.read_bytes())
    with opened(other, plain) as stores:
        give_model(stores)
    with pytest.raises(ConfigError, match="another database"):
        open_stores(home, on(config, other.folder / "coordinator.db"), Clock())


def test_blobs_elsewhere_are_refused(home: CoordinatorHome, config: CoordinatorConfig, tmp_path: Path) -> None:
    with opened(home, config) as stores:
        sha256 = give_model(stores)
    elsewhere = dataclasses.replace(config, blobs_url=str(tmp_path / "elsewhere"))
    for _ in range(2):
        with pytest.raises(ConfigError, match="does not hold"):
            open_stores(home, elsewhere, Clock())
    with opened(home, config) as stores:
        assert stores.models.exists(sha256)


def test_a_store_from_before_ids_adopts_one(home: CoordinatorHome, config: CoordinatorConfig, tmp_path: Path) -> None:
    with opened(home, config) as stores:
        sha256 = give_model(stores)
    forget_ids(home, config)
    with opened(home, config) as stores:
        assert stores.models.exists(sha256)
        assert stores.store.setting("store_id") == stores.models.owner()
    forget_ids(home, config)
    with pytest.raises(ConfigError, match="another database"):
        open_stores(home, on(config, tmp_path / "typo.db"), Clock())


def test_a_start_that_was_killed_between_the_two_goes_on(home: CoordinatorHome, config: CoordinatorConfig) -> None:
    with opened(home, config) as stores:
        known = stores.store.setting("store_id")
    assert known
    forget_owner(home, config)
    with opened(home, config) as stores:
        assert stores.models.owner() == known == stores.store.setting("store_id")
        give_model(stores)
    forget_owner(home, config)
    with opened(home, config) as stores:
        assert stores.models.owner() == known


def test_a_database_of_its_own_is_set_before_the_first_model(
    home: CoordinatorHome, config: CoordinatorConfig, tmp_path: Path
) -> None:
    """`init` has opened the folder's own database already; nothing can be lost yet."""
    with opened(home, config):
        pass
    with opened(home, on(config, tmp_path / "own.db")) as stores:
        give_model(stores)
    with opened(home, on(config, tmp_path / "own.db")):
        pass
    with pytest.raises(ConfigError, match="another database"):
        open_stores(home, config, Clock())
