"""Coordinators for the integration tests: one shared by tests that keep to a population of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.house import House


@pytest.fixture(scope="module")
def shared_house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A running coordinator with the tiny model released; every test uses a population of its own."""
    folder = tmp_path_factory.mktemp("house")
    house = House(folder)
    try:
        house.start()

        async def prepare() -> None:
            async with house.operator() as operator:
                await house.give_model(operator, folder)

        asyncio.run(prepare())
        yield house
        assert house.stop() == 0
    finally:
        house.close()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """A coordinator of a test's own, not started yet."""
    house = House(tmp_path)
    try:
        yield house
    finally:
        house.close()
