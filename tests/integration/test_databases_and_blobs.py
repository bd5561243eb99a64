"""The coordinator over PostgreSQL and an object store: what was acknowledged survives the loss of any of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from mien.errors import UnavailableError
from mien.protocol.v1 import rounds_pb2
from mien.specs import CohortSpec
from simulation.testing import THETA, FakeFleet, Sent, contribution, tiny_task
from tests.helpers import raised, run
from tests.integration.test_durability import check_history
from tests.integration.test_rounds import expected_theta, in_upload
from tests.servers.postgres import PASSWORD, PostgresServer
from tests.servers.s3 import S3Server

pytestmark = pytest.mark.slow

DEVICES = 3
AWAY = "the database does not answer; it is asked again and again"


@pytest.fixture
def fleet(tmp_path: Path, postgres_url: str) -> FakeFleet:
    return FakeFleet(tmp_path, database_url=postgres_url)


def test_a_restart_of_postgresql_in_the_middle_of_a_round(fleet: FakeFleet, postgres_server: PostgresServer) -> None:
    """One upload was acknowledged before, two arrive while the database is away: all three are in the sum."""

    async def story() -> tuple[str, list[Sent]]:
        fleet.start()
        async with fleet.operator() as operator, fleet.devices("pg", DEVICES) as devices:
            await fleet.release_tiny_model(operator)
            status = await operator.submit(tiny_task("pg", "pg", cohort=CohortSpec(DEVICES, DEVICES)), "pg")
            ref, task = await in_upload(devices)
            data = [contribution(task, int(device.id[:8], 16), 1, 1) for device in devices]
            assert (await devices[0].upload(ref, data[0])).accepted
            await asyncio.to_thread(postgres_server.stop, crash=True)
            arriving = [asyncio.create_task(d.upload(ref, sent)) for d, sent in zip(devices[1:], data[1:], strict=True)]
            await fleet.until_logged(AWAY)
            await asyncio.to_thread(postgres_server.start)
            assert [status.accepted for status in await asyncio.gather(*arriving)] == [True, True]
            assert (await devices[0].until(ref)).stage == rounds_pb2.CLOSED
            return status.task_id, [Sent(d.id, (1, 1), sent) for d, sent in zip(devices, data, strict=True)]

    try:
        task_id, acknowledged = run(story())
        assert fleet.stop() == 0
        assert check_history(fleet, task_id, acknowledged) == (1, 0)
    finally:
        fleet.close()
    assert len(fleet.log_records(AWAY)) == 1
    assert "Traceback" not in fleet.log.read_text()
    assert PASSWORD not in fleet.log.read_text()


def test_a_database_that_stays_away_is_told_to_devices(fleet: FakeFleet, postgres_server: PostgresServer) -> None:
    """Devices hear that they should come back; a stop ends all the same, and nothing has changed afterwards."""

    async def story() -> str:
        fleet.start()
        async with fleet.operator() as operator, fleet.devices("pg", 1) as (device,):
            await fleet.release_tiny_model(operator)
            status = await operator.submit(tiny_task("pg", "pg"), "pg")
            postgres_server.stop(crash=True)
            assert isinstance(await raised(device.check_in()), UnavailableError)
            return status.task_id

    try:
        task_id = run(story())
        assert fleet.stop() == 0
        postgres_server.start()
        assert check_history(fleet, task_id, []) == (0, 0)
    finally:
        fleet.close()
        postgres_server.start()


def test_an_object_store_that_goes_away_while_a_round_closes(
    postgres_url: str, s3_server: S3Server, tmp_path: Path
) -> None:
    """Everything elsewhere: rows in PostgreSQL, blobs in a bucket. The sum waits until the bucket can be reached."""
    bucket = f"s3://{s3_server.new_bucket()}/mien"
    fleet = FakeFleet(tmp_path, database_url=postgres_url, blobs_url=bucket, blobs_endpoint=s3_server.endpoint)

    async def story() -> None:
        fleet.start()
        async with fleet.operator() as operator, fleet.devices("s3", DEVICES) as devices:
            first = await fleet.release_tiny_model(operator)
            await operator.submit(tiny_task("s3", "s3", cohort=CohortSpec(DEVICES, DEVICES)), "s3")
            ref, task = await in_upload(devices)
            assert await devices[0].download((await devices[0].manifest(first)).theta.sha256) == THETA.tobytes()
            data = [contribution(task, i) for i in range(DEVICES)]
            for device, sent in zip(devices[:-1], data[:-1], strict=True):
                assert (await device.upload(ref, sent)).accepted
            await asyncio.to_thread(s3_server.cut)
            assert (await devices[-1].upload(ref, data[-1])).accepted
            await fleet.until_logged("cannot close the round yet")
            await asyncio.to_thread(s3_server.mend)
            event = await devices[0].until(ref)
            assert event.stage == rounds_pb2.CLOSED
            made = await devices[0].download((await devices[0].manifest(event.model_id)).theta.sha256)
            assert np.abs(np.frombuffer(made, "<f4") - expected_theta(THETA, task, data)).max() < 1e-6

    try:
        run(story())
        assert fleet.stop() == 0
    finally:
        s3_server.cut()
        s3_server.mend()
        fleet.close()
    assert not (fleet.home.folder / "models").exists()
    assert not list((fleet.home.folder / "staging").iterdir())
    assert "Traceback" not in fleet.log.read_text()
