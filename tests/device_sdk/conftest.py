"""What the device's tests share: a home folder with a file key store, and an open gallery."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from device_sdk.people.gallery import Gallery
from device_sdk.rounds.attempts import Attempts
from device_sdk.storage.keystore import FileKeyStore


@pytest.fixture
def key_store(tmp_path: Path) -> FileKeyStore:
    return FileKeyStore(tmp_path / "home" / "keys")


@pytest.fixture
def gallery(tmp_path: Path, key_store: FileKeyStore) -> Iterator[Gallery]:
    opened = Gallery.open(tmp_path / "home" / "device.db", key_store)
    yield opened
    opened.close()


@pytest.fixture
def patient_glances(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a look at the round take as long as a busy machine needs to open a connection."""
    monkeypatch.setattr("device_sdk.server.client.GLANCE_S", 60.0)


@pytest.fixture
def attempts(tmp_path: Path, key_store: FileKeyStore) -> Iterator[Attempts]:
    opened = Attempts.open(tmp_path / "home" / "attempts.db", key_store, "default")
    yield opened
    opened.close()
