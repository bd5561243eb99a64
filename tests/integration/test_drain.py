"""An orderly stop of a real process: no new cohort, the sum under way is finished, and impatience loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mien.errors import DrainingError
from mien.protocol.canonical import task_from_json
from mien.protocol.v1 import rounds_pb2
from mien.specs import CohortSpec
from simulation.testing import FakeDevice, FakeFleet, contribution, free_port, masked_task, tiny_task
from tests.helpers import raised, run
from tests.integration.test_monitoring import get, until_held
from tests.integration.test_rounds import in_upload


def stages(fleet: FakeFleet, task_id: str) -> list[tuple[int, int, str]]:
    with fleet.store() as store:
        return [(r.round, r.attempt, r.stage.value) for r in store.rounds(task_id)]


async def ended(fleet: FakeFleet, limit_s: float = 100.0) -> tuple[int, float]:
    """Return exit code and how long it took."""
    began = time.monotonic()
    return await asyncio.to_thread(fleet.process.wait, limit_s), time.monotonic() - began


def test_a_masked_round_under_way_is_finished(tmp_path: Path) -> None:
    """From KEYS to the new model: 5 phones are told stage after stage while a newcomer is sent away."""
    fleet = FakeFleet(tmp_path, metrics_port=free_port(), drain_s=100.0)

    async def story() -> str:
        async with fleet.operator() as operator, fleet.devices("m", 5) as devices, fleet.devices("m", 1) as (newcomer,):
            await fleet.release_tiny_model(operator)
            submitted = await operator.submit(masked_task("m", "m", rounds=2), "m")
            assignments = await asyncio.gather(*(device.assignment() for device in devices))
            parts = []
            for device, assignment in zip(devices, assignments, strict=True):
                task = task_from_json(assignment.task_json)
                parts.append(device.masked_part(assignment, task, contribution(task, 1)))
                await device.report_trained(assignment.round)
            await devices[0].until(assignments[0].round, rounds_pb2.KEYS)
            fleet.terminate()
            while (answer := await asyncio.to_thread(get, fleet, "/readyz"))[0] != 503:
                await asyncio.sleep(0.05)
            _, body = answer
            assert "shutting down" in json.loads(body)["checks"]["draining"]
            refusal = await raised(newcomer.check_in())
            assert isinstance(refusal, DrainingError)
            assert 0.2 <= (refusal.retry_after_s or 0.0) <= 0.6  # retry_after_s to three times it
            ways = (device.take_part_masked(part) for device, part in zip(devices, parts, strict=True))
            events = await asyncio.gather(*ways)
            assert {event.stage for event in events} == {rounds_pb2.CLOSED}
            assert (await ended(fleet))[0] == 0
            return submitted.task_id

    try:
        fleet.start()
        task_id = run(story())
        assert stages(fleet, task_id) == [(1, 1, "closed")]
        assert "Traceback" not in fleet.log.read_text()
        with fleet.store() as store:
            last = store.audit(lambda log, db: log.read(db, last=1))[0]
        assert last.action == "server.stop"
    finally:
        fleet.close()


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket on which systemd hears of a service; its path must be short."""
    with (
        tempfile.TemporaryDirectory(prefix="mien-", dir="/tmp") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
    ):
        manager.bind(f"{folder}/notify")
        monkeypatch.setenv("NOTIFY_SOCKET", f"{folder}/notify")
        yield manager


def test_nobody_is_chosen_and_training_is_not_waited_for(tmp_path: Path, manager: socket.socket) -> None:
    """And systemd is told of the start and the stop."""
    fleet = FakeFleet(tmp_path, metrics_port=free_port(), drain_s=100.0, check_in_hold_s=100.0)

    async def until_stopped() -> tuple[str, str]:
        async with fleet.operator() as operator, fleet.devices("a", 2) as training, fleet.devices("b", 3) as waiting:
            await fleet.release_tiny_model(operator)
            cohort = CohortSpec(size=2, min_reports=2)
            first = await operator.submit(tiny_task("a", "a", cohort=cohort), "a")
            second = await operator.submit(tiny_task("b", "b"), "b")
            await asyncio.gather(*(device.assignment() for device in training))
            asked = [asyncio.create_task(raised(device.check_in())) for device in waiting]
            await until_held(fleet, len(waiting))
            fleet.terminate()
            errors = await asyncio.gather(*asked)
            assert [type(error) for error in errors] == [DrainingError] * len(waiting), errors
            code, took_s = await ended(fleet)
            assert code == 0
            assert took_s < 50, "far less than what a sum would be waited for"
            return first.task_id, second.task_id

    try:
        fleet.start()
        first, second = run(until_stopped())
        assert [manager.recv(100) for _ in range(2)] == [b"READY=1", b"STOPPING=1"]
        assert stages(fleet, first) == [(1, 1, "training")]
        assert stages(fleet, second) == [(1, 1, "selecting")]
        fleet.start()
        with fleet.store() as store:
            resumed = store.last_round(first)
        assert resumed is not None
        assert (resumed.attempt, resumed.stage.value) == (1, "training")
    finally:
        fleet.close()


def test_a_second_signal_stops_at_once_and_loses_nothing(tmp_path: Path) -> None:
    fleet = FakeFleet(tmp_path, drain_s=100.0)
    credentials = [fleet.admit("c") for _ in range(2)]

    async def until_killed() -> tuple[str, rounds_pb2.RoundRef]:
        async with (
            fleet.operator() as operator,
            FakeDevice(fleet.address, credentials[0]) as one,
            FakeDevice(fleet.address, credentials[1]) as two,
        ):
            await fleet.release_tiny_model(operator)
            cohort = CohortSpec(size=2, min_reports=2)
            submitted = await operator.submit(tiny_task("c", "c", cohort=cohort), "c")
            ref, task = await in_upload([one, two])
            assert (await one.upload(ref, contribution(task, 1))).accepted
            fleet.terminate()
            await fleet.until_logged("draining; once more stops at once")
            with pytest.raises(subprocess.TimeoutExpired):  # it waits for the upload stage
                await asyncio.to_thread(fleet.process.wait, 1.0)
            fleet.terminate()
            code, took_s = await ended(fleet)
            assert (code, took_s < 50) == (-signal.SIGTERM, True)
            return submitted.task_id, ref

    async def until_closed(ref: rounds_pb2.RoundRef) -> None:
        async with FakeDevice(fleet.address, credentials[1]) as two, fleet.operator() as operator:
            (status,) = await operator.tasks()
            task = task_from_json(status.task_json)
            assert (await two.upload(ref, contribution(task, 2))).accepted
            await two.until(ref, rounds_pb2.CLOSED)

    try:
        fleet.start()
        task_id, ref = run(until_killed())
        fleet.start()
        run(until_closed(ref))
        assert stages(fleet, task_id) == [(1, 1, "closed")]
    finally:
        fleet.close()


@pytest.mark.slow  # the 20 s pass; a server of shorter patience is in tests/coordinator/service/test_rpc.py
@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"\x16", id="first byte of a handshake"),
        pytest.param(b"", id="nothing"),  # the system keeps it to itself for a minute before
    ],
)
def test_who_opens_a_connection_and_shakes_no_hand_is_dropped(tmp_path: Path, said: bytes) -> None:
    """After 20 s; gRPC's own limit is two minutes, and a few idle sockets would use up a process's open files."""
    fleet = FakeFleet(tmp_path)
    fleet.start()
    try:
        with socket.create_connection(("127.0.0.1", fleet.port), timeout=100.0) as silent:
            silent.sendall(said)
            with contextlib.suppress(ConnectionResetError):
                while silent.recv(1024):
                    pass
    finally:
        fleet.close()
