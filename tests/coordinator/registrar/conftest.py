"""A running registrar for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.coordinator.registrar.running import LocalRegistrar, local_registrar


@pytest.fixture(scope="module")
def registrar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistrar]:
    """A registrar on loopback, shared by a module's tests."""
    folder: Path = tmp_path_factory.mktemp("registrar") / "R"
    with local_registrar(folder) as running:
        yield running
