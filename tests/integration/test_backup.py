"""A backup taken by the command line in the middle of a masked round, restored elsewhere: the same round goes on."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

from coordinator.home.coordinator_backup import CoordinatorBackup
from coordinator.home.home import CoordinatorHome
from mien.protocol.canonical import task_from_json
from mien.protocol.v1 import rounds_pb2
from mien.shell.clock import Clock
from simulation.testing import FakeDevice, FakeFleet, FakePart, contribution, masked_task
from tests.helpers import run
from tests.integration.test_operating import program


def command(fleet: FakeFleet, *arguments: str, password: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    return program("coordinator.commands.cli", *arguments, "--password-file", str(password), "--json", check=check)


def test_a_round_goes_on_from_a_backup(fleet: FakeFleet, tmp_path: Path) -> None:
    """Two of five masked vectors are in when the backup is taken and the coordinator is lost; the others finish it."""
    password, file, elsewhere = tmp_path / "password", tmp_path / "b.mien", tmp_path / "elsewhere"
    password.write_text("correct horse battery\n")
    credentials = [fleet.admit("m") for _ in range(5)]
    parts: list[FakePart] = []

    async def until_lost() -> str:
        devices = [FakeDevice(fleet.address, each) for each in credentials]
        async with fleet.operator() as operator:
            await fleet.release_tiny_model(operator)
            submitted = await operator.submit(masked_task("m", "m", rounds=2), "m")
            assignments = await asyncio.gather(*(device.assignment() for device in devices))
            for device, assignment in zip(devices, assignments, strict=True):
                task = task_from_json(assignment.task_json)
                parts.append(device.masked_part(assignment, task, contribution(task, 1)))
                await device.report_trained(assignment.round)
            ways = [
                device.take_part_masked(part, gone_at=None if number < 2 else rounds_pb2.UPLOAD)
                for number, (device, part) in enumerate(zip(devices, parts, strict=True))
            ]
            first_two = [asyncio.create_task(way) for way in ways[:2]]
            await asyncio.gather(*ways[2:])
            for device, part in zip(devices[:2], parts[:2], strict=True):
                while not (await device.upload_status(part.ref)).accepted:
                    await asyncio.sleep(0.05)
            told = await asyncio.to_thread(
                command, fleet, "backup", str(file), "--home", str(fleet.home.folder), password=password
            )
            assert json.loads(told.stdout)["audit_head"]
            for task_ in first_two:
                task_.cancel()
            await asyncio.gather(*first_two, return_exceptions=True)
        for device in devices:
            await device.__aexit__(None)
        return submitted.task_id

    async def until_closed() -> None:
        devices = [FakeDevice(fleet.address, each) for each in credentials]
        ways = (device.take_part_masked(part) for device, part in zip(devices, parts, strict=True))
        events = await asyncio.gather(*ways)
        assert {event.stage for event in events} == {rounds_pb2.CLOSED}
        make = lambda task, _: contribution(task, 2)  # noqa: E731
        await asyncio.gather(*(device.take_part(make) for device in devices))
        for device in devices:
            await device.__aexit__(None)

    fleet.start()
    task_id = run(until_lost())
    fleet.kill()
    command(fleet, "restore", str(file), "--home", str(elsewhere), password=password)
    fleet.home = CoordinatorHome(elsewhere)
    fleet.start()
    run(until_closed())
    assert fleet.stop() == 0
    with fleet.store() as store:
        rounds = [(r.round, r.attempt, r.stage.value, r.num_reports) for r in store.rounds(task_id)]
        store.audit(lambda log, db: log.verify(db))
    assert rounds == [(1, 1, "closed", 5), (2, 1, "closed", 5)]
    again = command(fleet, "restore", str(file), "--home", str(elsewhere), password=password, check=False)
    assert again.returncode == 16
    assert "not empty" in again.stderr


def test_backups_of_a_coordinator_that_closes_round_after_round(fleet: FakeFleet, tmp_path: Path) -> None:
    """Whatever instant a backup catches, what it restores to is whole."""

    def there_and_back(number: int) -> None:
        file, copy = tmp_path / f"{number}.mien", CoordinatorHome(tmp_path / f"copy-{number}")
        CoordinatorBackup(fleet.home, Clock()).make(file, "correct horse battery", with_data=True)
        CoordinatorBackup(copy, Clock()).restore(file, "correct horse battery")

    async def story() -> None:
        async with fleet.operator() as operator, fleet.devices("m", 3) as devices:
            await fleet.release_tiny_model(operator)
            await operator.submit(masked_task("m", "m", rounds=1000, size=3), "m")
            stop = asyncio.Event()
            make = lambda task, a: contribution(task, a.round.round)  # noqa: E731
            busy = [asyncio.create_task(device.take_part_stubbornly(make, [], stop)) for device in devices]
            for number in range(3):
                await asyncio.to_thread(there_and_back, number)
            stop.set()
            for task in busy:
                task.cancel()
            await asyncio.gather(*busy, return_exceptions=True)

    fleet.start()
    run(story())
