"""What replicas cannot share is refused, in words that say what to change."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from coordinator.home.config import CoordinatorConfig
from coordinator.home.home import CoordinatorHome
from coordinator.serve import open_stores
from mien.errors import ConfigError
from mien.shell.clock import Clock

CONFIG = CoordinatorConfig("localhost:7443", replica_address="localhost:7444")


def test_replicas_over_files_are_refused(tmp_path: Path, postgres_url: str) -> None:
    home = CoordinatorHome.create(tmp_path / "home", CONFIG, datetime.now(UTC))
    with pytest.raises(ConfigError, match="replicas can only share PostgreSQL"):
        open_stores(home, CONFIG, Clock())
    with pytest.raises(ConfigError, match="replicas share contributions in a bucket"):
        open_stores(home, replace(CONFIG, database_url=postgres_url), Clock())


def test_addresses_are_checked() -> None:
    with pytest.raises(ConfigError, match="replica_address"):
        replace(CONFIG, replica_address="nowhere")
    with pytest.raises(ConfigError, match="replica_listen"):
        replace(CONFIG, replica_listen="nowhere")


def test_a_public_address_is_one_where_phones_would_go() -> None:
    for told in ("localhost:7445", "replica-1.localhost:7443"):
        assert replace(CONFIG, public_address=told).public_address == told
    with pytest.raises(ConfigError, match=r"where no phone would go; name another port of localhost"):
        replace(CONFIG, public_address="other.example:7443")
    with pytest.raises(ConfigError, match="public_address"):
        replace(CONFIG, public_address="nowhere")
    with pytest.raises(ConfigError, match="set replica_address"):
        replace(CONFIG, public_address="localhost:7445", replica_address="")
