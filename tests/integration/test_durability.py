"""What was acknowledged survives: kills at each stage, a full disk, a stop with work under way.

Kills at random instants are in `tests/chaos`.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coordinator.operator import client
from mien.errors import (
    CorruptDataError,
    DiskFullError,
    DrainingError,
    MienError,
    NotFoundError,
    UnavailableError,
    VersionError,
)
from mien.layout import ParameterEntry, ParameterLayout
from mien.protocol.canonical import model_to_json, task_from_json
from mien.protocol.rounds import Stage
from mien.protocol.v1 import common_pb2, rounds_pb2
from mien.rounds.machine import Step
from mien.specs import CohortSpec, TaskSpec
from simulation.testing import SPEC, THETA, FakeDevice, FakeFleet, Sent, contribution, free_port, ref_of, tiny_task
from simulation.testing.fleet import STOP_S
from tests.helpers import is_root, raised, run
from tests.integration.test_monitoring import until_held
from tests.integration.test_rounds import expected_theta, in_upload


def by_device(device: FakeDevice) -> Callable[[TaskSpec, rounds_pb2.Assignment], bytes]:
    """Return contributions that follow from device, round and attempt alone, so that a test can make them again."""
    seed = int(device.id[:8], 16)
    return lambda task, assignment: contribution(task, seed, *ref_of(assignment))


def again(task: TaskSpec, device_id: str, round_number: int, attempt: int) -> bytes:
    """Return what a device contributed to an attempt."""
    return contribution(task, int(device_id[:8], 16), round_number, attempt)


def check_history(fleet: FakeFleet, task_id: str, acknowledged: list[Sent]) -> tuple[int, int]:
    """Check every closed round of a task against what its devices sent; return how many closed and aborted.

    Each acknowledged contribution to a round that closed is in its sum, and each model is the previous one plus the
    weighted mean of exactly the contributions that the store names. The audit log holds, and has each of them once.
    """
    with fleet.store() as store:
        task = task_from_json(store.task(task_id).task_json)
        rounds = store.rounds(task_id)
        members = {record.id: store.participants(record.id) for record in rounds}
        store.audit(lambda log, db: log.verify(db))
        entries = store.audit(lambda log, db: log.read(db))
    entered = [entry.action for entry in entries if entry.subject.startswith(f"{task_id}/")]
    assert entered.count("round.closed") == sum(record.stage is Stage.CLOSED for record in rounds)
    closed = [record for record in rounds if record.stage is Stage.CLOSED]
    assert [record.round for record in closed] == list(range(1, len(closed) + 1))
    theta = THETA
    for record in closed:
        assert record.model_id is not None
        uploaded = sorted(device for device, step in members[record.id].items() if step is Step.UPLOADED)
        assert len(uploaded) == record.num_reports >= task.cohort.min_reports
        named = {sent.device_id for sent in acknowledged if sent.round == (record.round, record.attempt)}
        assert named <= set(uploaded), "an acknowledged contribution was lost"
        uploads = [again(task, device, record.round, record.attempt) for device in uploaded]
        found = fleet.theta(record.model_id)
        assert np.abs(found - expected_theta(theta, task, uploads)).max() < 1e-6, "a wrong total"
        theta = found
    open_rounds = [record for record in rounds if not record.stage.is_over]
    assert len(open_rounds) <= 1
    return len(closed), len(rounds) - len(closed) - len(open_rounds)


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("selecting", marks=pytest.mark.slow),
        pytest.param("training", marks=pytest.mark.slow),
        pytest.param("upload", marks=pytest.mark.slow),
        "half an upload",
    ],
)
def test_a_restart_goes_on_with_the_same_round(fleet: FakeFleet, moment: str) -> None:
    async def story() -> tuple[str, list[Sent]]:
        fleet.start()
        async with fleet.operator() as operator:
            await fleet.release_tiny_model(operator)
            cohort = CohortSpec(size=2, min_reports=2)
            status = await operator.submit(tiny_task("same", "same", cohort=cohort), "same")
        async with fleet.devices("same", 2) as devices:
            if moment == "selecting":
                await devices[0].check_in()
                await fleet.restart(*devices)
            assignments = await asyncio.gather(*(device.assignment() for device in devices))
            ref, task = assignments[0].round, task_from_json(assignments[0].task_json)
            assert (ref.round, ref.attempt) == (1, 1)
            data = [by_device(device)(task, assignments[0]) for device in devices]
            if moment == "training":
                await fleet.restart(*devices)
            for device in devices:
                assert (await device.assignment()).round == ref
                await device.report_trained(ref)
            assert (await devices[0].upload(ref, data[0])).accepted
            if moment == "half an upload":
                await devices[1].upload(ref, data[1], stop=600)
            if moment in ("upload", "half an upload"):
                await fleet.restart(*devices)
            assert (await devices[0].upload_status(ref)).accepted
            received = (await devices[1].upload_status(ref)).received_bytes
            assert received == (600 if moment == "half an upload" else 0)
            assert (await devices[1].upload(ref, data[1], offset=received)).accepted
            event = await devices[1].until(ref)
            assert (event.stage, event.num_reports) == (rounds_pb2.CLOSED, 2)
        fleet.kill()
        return status.task_id, [Sent(device.id, (1, 1), sent) for device, sent in zip(devices, data, strict=True)]

    task_id, acknowledged = run(story())
    assert check_history(fleet, task_id, acknowledged) == (1, 0)


def arriving(fleet: FakeFleet) -> int:
    """Return how many contributions have begun to arrive: their first bytes may be in memory still."""
    return sum(path.is_file() for path in (fleet.home.folder / "spool").rglob("*"))


@pytest.mark.slow
def test_sigterm_finishes_what_was_begun(tmp_path: Path) -> None:
    """New devices are turned away at once; an upload that is arriving is taken in; the exit code is 0."""
    fleet = FakeFleet(tmp_path, metrics_port=free_port(), check_in_hold_s=100.0, drain_s=100.0)

    async def story() -> tuple[str, str]:
        fleet.start()
        async with fleet.operator() as operator:
            await fleet.release_tiny_model(operator)
            cohort = CohortSpec(size=2, min_reports=2)
            status = await operator.submit(tiny_task("drain", "drain", cohort=cohort), "drain")
            async with fleet.devices("drain", 2) as devices, fleet.devices("drain", 1) as (newcomer,):
                ref, task = await in_upload(devices)
                waiting = asyncio.create_task(raised(newcomer.check_in()))
                data = [contribution(task, int(device.id[:8], 16), 1, 1) for device in devices]
                assert (await devices[0].upload(ref, data[0])).accepted
                await until_held(fleet, 1)
                go_on = asyncio.Event()
                sending = asyncio.create_task(devices[1].upload(ref, data[1], chunk=200, go_on=go_on))
                while arriving(fleet) < 2:  # not by asking how far it is: the upload would give way to the question
                    await asyncio.sleep(0.05)
                fleet.terminate()
                refusal = await waiting
                assert isinstance(refusal, DrainingError)
                assert refusal.retry_after_s is not None
                assert isinstance(await raised(newcomer.check_in()), UnavailableError)
                go_on.set()
                assert (await sending).accepted
                exit_code = await asyncio.to_thread(fleet.process.wait, STOP_S)
                assert exit_code == 0
                return status.task_id, devices[0].id

    try:
        task_id, _ = run(story())
    finally:
        fleet.close()
    assert check_history(fleet, task_id, []) == (1, 0)
    assert "Traceback" not in fleet.log.read_text()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MB."""
    if not is_root():
        pytest.skip("mounting a small file system needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small file system here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.slow
def test_a_full_disk_loses_nothing_acknowledged(small_disk: Path, tmp_path: Path) -> None:
    """While the disk is full devices are told so; when there is room again the same round goes on."""
    fleet = FakeFleet(small_disk)
    filler = small_disk / "filler"

    async def story() -> tuple[str, list[Sent]]:
        fleet.log = tmp_path / "coordinator.log"
        fleet.ready_file = tmp_path / "ready.json"
        fleet.start()
        async with fleet.operator() as operator, fleet.devices("full", 3) as devices:
            await fleet.release_tiny_model(operator)
            cohort = CohortSpec(size=3, min_reports=3)
            status = await operator.submit(tiny_task("full", "full", cohort=cohort), "full")
            ref, task = await in_upload(devices)
            data = [contribution(task, int(device.id[:8], 16), 1, 1) for device in devices]
            assert (await devices[0].upload(ref, data[0])).accepted
            fill(filler)
            refused = 0
            for device, sent in zip(devices[1:], data[1:], strict=True):
                error = await raised(device.upload(ref, sent))
                assert isinstance(error, DiskFullError), error
                assert "free some" in error.message
                refused += 1
            assert refused == 2
            assert (await devices[0].upload_status(ref)).accepted
            filler.unlink()
            for device, sent in zip(devices[1:], data[1:], strict=True):
                received = (await device.upload_status(ref)).received_bytes
                assert (await device.upload(ref, sent, offset=received)).accepted
            assert (await devices[0].until(ref)).stage == rounds_pb2.CLOSED
            return status.task_id, [Sent(d.id, (1, 1), sent) for d, sent in zip(devices, data, strict=True)]

    try:
        task_id, acknowledged = run(story())
        assert fleet.stop() == 0
        assert check_history(fleet, task_id, acknowledged) == (1, 0)
    finally:
        fleet.close()


def fill(path: Path) -> None:
    """Write a file until there is no room for one more byte."""
    with path.open("wb", buffering=0) as file:
        size = 65536
        while size:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2


def test_a_file_size_limit_is_told_as_a_full_disk(fleet: FakeFleet, tmp_path: Path) -> None:
    """A process that may not grow its files (RLIMIT_FSIZE) refuses an import with a sentence, and goes on.

    It does so in the middle of what it is sent: however often, the operator hears why.
    """
    limit_bytes = 512 * 1024
    layout = ParameterLayout((ParameterEntry("weight", (8 * limit_bytes,)),))
    spec = replace(SPEC, layout_sha256=layout.sha256, trainable=())
    theta = tmp_path / "theta.f32"
    theta.write_bytes(bytes(4 * layout.size))

    async def story() -> list[MienError]:
        fleet.start()
        # From outside: a function before exec would run in a fork of this process and of its gRPC threads.
        resource.prlimit(fleet.process.pid, resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
        async with fleet.operator() as operator:
            errors = [await raised(operator.import_model(model_to_json(spec, layout), theta, None)) for _ in range(8)]
            await fleet.release_tiny_model(operator)
            return errors

    for error in run(story()):
        assert isinstance(error, DiskFullError)
        assert "may not grow" in error.message
    assert list((fleet.home.folder / "models").glob(".*")) == []


def test_a_file_that_cannot_be_read_while_it_is_sent_is_named_and_not_the_network(
    fleet: FakeFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    layout = ParameterLayout((ParameterEntry("weight", (1 << 20,)),))
    spec = replace(SPEC, layout_sha256=layout.sha256, trainable=())
    hashed = client._ref

    def lost(path: Path) -> common_pb2.BlobRef:
        """Return a file's hash and let the file be lost, the first time to a folder."""
        ref = hashed(path)
        path.unlink()
        if path.name == "folder.f32":
            path.mkdir()
        return ref

    monkeypatch.setattr(client, "_ref", lost)

    async def story() -> dict[str, MienError]:
        errors = {}
        fleet.start()
        async with fleet.operator() as operator:
            for name in ("folder.f32", "gone.f32"):
                theta = tmp_path / name
                theta.write_bytes(bytes(4 * layout.size))
                errors[name] = await raised(operator.import_model(model_to_json(spec, layout), theta, None))
            monkeypatch.setattr(client, "_ref", hashed)
            await fleet.release_tiny_model(operator)
        return errors

    errors = run(story())
    assert [type(error) for error in errors.values()] == [CorruptDataError, NotFoundError]
    assert all(name in error.message for name, error in errors.items())
    assert [record for record in caplog.records if record.name.startswith("grpc")] == []  # no traceback in between


def test_two_coordinators_never_share_a_folder(fleet: FakeFleet) -> None:
    fleet.start()
    second = subprocess.run(
        [*fleet.process.args[:3], "serve", "--home", str(fleet.home.folder)],  # type: ignore[index]
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert second.returncode == 16
    assert "another mien-coordinator is using this folder" in second.stderr
    assert "Traceback" not in second.stderr


def test_a_database_of_a_newer_program_stops_the_start(fleet: FakeFleet) -> None:
    import sqlite3

    with fleet.store():
        pass
    database = sqlite3.connect(fleet.home.folder / "coordinator.db")
    with database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    database.close()
    with pytest.raises(AssertionError, match=r"\(version\)|version"):
        fleet.start()
    assert fleet.process.returncode == 40
    assert VersionError.code in fleet.log.read_text()


def test_revealed_data_and_contributions_are_never_in_clear(fleet: FakeFleet) -> None:
    """Between upload and close, no file under the coordinator's folder holds a run of a contribution's bytes."""

    async def story() -> list[bytes]:
        fleet.start()
        async with fleet.operator() as operator, fleet.devices("sealed", 2) as devices:
            await fleet.release_tiny_model(operator)
            cohort = CohortSpec(size=2, min_reports=2)
            await operator.submit(tiny_task("sealed", "sealed", cohort=cohort), "sealed")
            ref, task = await in_upload(devices)
            data = [contribution(task, i) for i in range(2)]
            await devices[0].upload(ref, data[0])
            await devices[1].upload(ref, data[1], stop=len(data[1]) - 1)
            return data

    data = run(story())
    fleet.kill()
    stored = [path.read_bytes() for path in fleet.home.folder.rglob("*") if path.is_file()]
    assert len(list((fleet.home.folder / "spool").rglob("*"))) == 3
    for sent in data:
        assert not any(sent[100:132] in content for content in stored)


def test_the_folder_belongs_to_its_owner_alone(fleet: FakeFleet) -> None:
    fleet.start()
    fleet.stop()
    public = (".pem", ".csr", ".toml")
    loose = [p for p in fleet.home.folder.rglob("*") if p.stat().st_mode & 0o077 and p.suffix not in public]
    assert fleet.home.folder.stat().st_mode & 0o077 == 0
    assert loose == []
