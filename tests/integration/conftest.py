"""Coordinators for the integration tests: one shared by tests that keep to a population of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulation.testing import FakeFleet
from tests.integration.ahead import AheadFleet


@pytest.fixture(scope="module")
def shared_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AheadFleet]:
    """A running coordinator with the tiny model released; every test uses a population of its own."""
    folder = tmp_path_factory.mktemp("fleet")
    fleet = AheadFleet(folder)
    try:
        fleet.start()

        async def prepare() -> None:
            async with fleet.operator() as operator:
                await fleet.release_tiny_model(operator)

        asyncio.run(prepare())
        yield fleet
        assert fleet.stop() == 0
    finally:
        fleet.close()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[FakeFleet]:
    """A coordinator of a test's own, not started yet."""
    fleet = FakeFleet(tmp_path)
    try:
        yield fleet
    finally:
        fleet.close()
