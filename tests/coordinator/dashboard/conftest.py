"""What several tests of the dashboard look at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.coordinator.dashboard.made_up import Fleet, lived_in


@pytest.fixture(scope="package")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A coordinator that has lived; nobody changes it."""
    fleet = lived_in(tmp_path_factory.mktemp("fleet"))
    yield fleet
    fleet.close()
