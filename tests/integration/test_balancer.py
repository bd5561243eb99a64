"""A coordinator behind HAProxy, as deployed, while its database is away: what its operator and its phones are told."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from coordinator.commands.doctor import CoordinatorChecks
from coordinator.home.config import SETTINGS
from coordinator.keys.tls import Answer, who_answers
from coordinator.operator.client import connect
from device_sdk.server.client import ClientSettings, CoordinatorClient
from device_sdk.server.retry import RetryPolicy
from mien.errors import UnreachableError
from mien.shell.clock import Clock
from mien.shell.doctor import Finding
from simulation.testing import FakeFleet, free_port
from tests.helpers import run
from tests.integration.phones import identity
from tests.servers.haproxy import Server, haproxy, missing
from tests.servers.postgres import PostgresServer

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing() or "HAProxy is here")]

LIMIT_S = 120.0
IMPATIENT = ClientSettings(connect=RetryPolicy(give_up_s=1.0), retry=RetryPolicy(give_up_s=1.0))


@pytest.fixture
def fleet(tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeFleet]:
    """A coordinator that has its database from the environment of its service, and this process does not."""
    fleet = FakeFleet(tmp_path, metrics_port=free_port())
    monkeypatch.setenv("MIEN_COORDINATOR_DATABASE_URL", postgres_url)
    try:
        fleet.start()
        monkeypatch.delenv("MIEN_COORDINATOR_DATABASE_URL")
        yield fleet
    finally:
        fleet.close()


@pytest.fixture
def balancer(fleet: FakeFleet) -> Iterator[str]:
    """HAProxy's address, which is the coordinator's by its settings from now on."""
    with haproxy([Server(f"127.0.0.1:{fleet.port}", fleet.home.resolve().config.metrics_port)]) as address:
        config = fleet.home.resolve().config
        SETTINGS.write(fleet.home.config_path, dataclasses.replace(config, address=address))
        yield address


def until(fleet: FakeFleet, address: str, wanted: Answer) -> None:
    """Return once HAProxy has heard of the coordinator what it has to."""
    end = time.monotonic() + LIMIT_S
    while who_answers(address, fleet.home.public(fleet.home.ca_path)) is not wanted:
        assert time.monotonic() < end, wanted
        time.sleep(0.1)


def examined(fleet: FakeFleet) -> dict[str, Finding]:
    """Return what doctor finds in this shell, by the checks' names."""
    found = run(CoordinatorChecks(fleet.home, lambda: datetime.now(UTC)).examine())
    return {each.name: each for each in found}


def test_a_database_that_is_down_behind_a_balancer_is_no_fault_of_certificates(
    fleet: FakeFleet, balancer: str, postgres_server: PostgresServer
) -> None:
    async def tasks() -> int:
        async with connect(balancer, fleet.home.operator_credentials()) as operator:
            return len(await operator.tasks())

    def greeting() -> str:
        with CoordinatorClient(identity(fleet, balancer), Clock(), random.Random(0), IMPATIENT) as client:
            return client.hello().software

    until(fleet, balancer, Answer.SERVER)
    assert asyncio.run(tasks()) == 0
    assert greeting().startswith("mien-coordinator")
    postgres_server.stop()
    try:
        until(fleet, balancer, Answer.CLOSED)
        with pytest.raises(UnreachableError, match="shuts them before a coordinator shows itself") as operators:
            asyncio.run(tasks())
        with pytest.raises(UnreachableError, match="shuts them before a server shows itself") as phones:
            greeting()
        for told in (operators, phones):
            assert not any(word in told.value.message for word in ("certificate", "ca.pem", "credentials", "TLS"))
        found = examined(fleet)
        assert "the running coordinator says of its database" in found["database"].detail
        assert "the running coordinator takes no devices (database: " in found["coordinator"].detail
        assert not any("certificate" in each.detail for each in found.values() if not each.ok)
    finally:
        postgres_server.start()
    until(fleet, balancer, Answer.SERVER)
    assert asyncio.run(tasks()) == 0
    assert greeting().startswith("mien-coordinator")


def test_doctor_asks_the_coordinator_and_not_its_own_shell(
    fleet: FakeFleet, balancer: str, monkeypatch: pytest.MonkeyPatch, postgres_url: str
) -> None:
    """This shell knows nothing of the database that the service has: no database is missed, and none is made."""
    until(fleet, balancer, Answer.SERVER)
    found = examined(fleet)
    assert "other settings than this shell reads (address, database_url)" in found["settings"].detail
    assert found["database"].ok
    assert found["database"].detail == "answers, says the running coordinator; this shell reads another database_url"
    for name in ("audit log", "release key", "roll-outs", "replicas"):
        assert found[name].ok
        assert "database_url is not the one that this shell reads" in found[name].detail
    assert found["models"].detail == "0 files, all whole"
    assert found["coordinator"].ok
    assert found["monitoring"].ok
    assert not fleet.home.database_path.exists()
    monkeypatch.setenv("MIEN_COORDINATOR_DATABASE_URL", postgres_url)
    monkeypatch.setenv("MIEN_COORDINATOR_ADDRESS", fleet.address)
    found = examined(fleet)
    assert found["settings"].detail.endswith("the running coordinator has the same")
    assert found["database"].detail.startswith("schema ")
    assert found["audit log"].ok
