"""What the servers offer others: a coordinator in this process, and an operator's calls to it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from coordinator import (
    CoordinatorConfig,
    CoordinatorHome,
    RegistrarConfig,
    RegistrarHome,
    connect,
    connect_admin,
    running,
)
from mien.errors import UnreachableError
from mien.shell.clock import Clock
from simulation.testing import free_port


def test_a_coordinator_runs_while_the_block_runs(tmp_path: Path) -> None:
    port = free_port()
    config = CoordinatorConfig(f"localhost:{port}", listen=f"127.0.0.1:{port}", drain_s=0.0)
    home = CoordinatorHome.create(tmp_path / "coordinator", config, datetime.now(UTC))
    registrar = RegistrarHome.create(
        tmp_path / "registrar", RegistrarConfig("r.example:1", config.address, "localhost:1"), datetime.now(UTC)
    )
    home.trust(registrar.public(registrar.ca_path), replace=False)

    async def story() -> None:
        async with connect(config.address, home.operator_credentials()) as operator:
            async with running(home, config, Clock()) as served:
                assert served == port
                assert await operator.tasks() == []
            with pytest.raises(UnreachableError):
                await operator.tasks()
        async with connect_admin(f"localhost:{port}", registrar.operator_credentials()) as admin:
            with pytest.raises(UnreachableError):
                await admin.create_invite("people")

    asyncio.run(story())
