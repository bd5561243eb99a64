"""Replicas that share PostgreSQL and a bucket: one sum over all of them, and none of them is needed for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mien.errors import UnavailableError
from mien.specs import CohortSpec, DeadlineSpec, TaskSpec
from mien.wire.v1 import rounds_pb2
from tests.integration.house import masked_task, run, tiny_task
from tests.integration.light_device import THETA, LightDevice, contribution, ref_of
from tests.integration.replicas import Balancer, Cluster, ReplicaHouse, until
from tests.integration.test_rounds import expected_theta
from tests.servers.s3 import S3Server

POPULATION = "many"
LONG = DeadlineSpec(60.0, 60.0, *(60.0,) * 5)


@pytest.fixture
def cluster(tmp_path: Path, postgres_url: str, s3_server: S3Server) -> Iterator[Cluster]:
    bucket = f"s3://{s3_server.new_bucket()}/mien"
    cluster = Cluster(tmp_path, 3, database_url=postgres_url, blobs_url=bucket, blobs_endpoint=s3_server.endpoint)
    try:
        yield cluster
    finally:
        cluster.close()


def task_of(kind: str, size: int, rounds: int = 1) -> TaskSpec:
    cohort = CohortSpec(size=size, min_reports=size)
    if kind == "masked":
        return masked_task("task", POPULATION, size=size, min_reports=size, deadlines=LONG, rounds=rounds)
    return tiny_task("task", POPULATION, cohort=cohort, deadlines=LONG, rounds=rounds)


async def submitted(cluster: Cluster, folder: Path, task: TaskSpec) -> str:
    """Release the tiny model and submit a task, each at another replica; return the task's id."""
    async with cluster.replicas[0].operator() as operator:
        await cluster.first.give_model(operator, folder)
    async with cluster.replicas[1].operator() as operator:
        return (await operator.submit(task, "token")).task_id


def bound(task: TaskSpec) -> float:
    """Return how far the new model may be from the plain weighted mean: one rounding step of a masked sum."""
    if not task.privacy.is_masked:
        return 1e-6
    steps = 2**31 / (task.cohort.size * task.privacy.max_weight) - 1
    return float(2.0 ** -np.floor(np.log2(steps))) + 1e-6


async def persistently(call: Any) -> Any:
    """Return what a call answers, however often it has to be made."""
    while True:
        try:
            return await call()
        except (UnavailableError, TimeoutError):
            await asyncio.sleep(0.1)


class Way:
    """One device's way through one round, which it can leave and go on with: it asks again as often as it has to."""

    def __init__(self, device: LightDevice, assignment: rounds_pb2.Assignment, task: TaskSpec, index: int) -> None:
        self.device, self.ref = device, assignment.round
        self.data = contribution(task, index, *ref_of(assignment))
        self.part = device.masked_part(assignment, task, self.data) if task.privacy.is_masked else None

    async def report(self) -> None:
        """Say that the device has trained."""
        await self.device.report_trained(self.ref)

    async def to_the_upload(self) -> None:
        """Go on until the stage of uploads is open."""
        if (part := self.part) is not None:
            await persistently(lambda: self.device.take_part_masked(part, gone_at=rounds_pb2.UPLOAD))
        else:
            await persistently(lambda: self.device.until(self.ref, rounds_pb2.UPLOAD))

    async def to_the_end(self) -> rounds_pb2.StageEvent:
        """Return the round's last event."""
        if (part := self.part) is not None:
            event = await persistently(lambda: self.device.take_part_masked(part))
        else:
            await self.to_the_upload()
            await persistently(self._upload)
            event = await persistently(lambda: self.device.until(self.ref))
        assert isinstance(event, rounds_pb2.StageEvent)
        return event

    async def _upload(self) -> None:
        status = await self.device.upload_status(self.ref)
        if not status.accepted:
            assert (await self.device.upload(self.ref, self.data, offset=status.received_bytes)).accepted


async def take_part(device: LightDevice, index: int, task: TaskSpec) -> bytes:
    """Return the contribution that counts, after one round."""
    way = Way(device, await persistently(device.assignment), task, index)
    await persistently(way.report)
    event = await way.to_the_end()
    assert event.stage == rounds_pb2.CLOSED, event.reason
    return way.data


async def theta_of(device: LightDevice, model_id: str) -> Any:
    manifest = await device.manifest(model_id)
    return np.frombuffer(await device.download(manifest.theta.sha256), "<f4")


@pytest.mark.parametrize("kind", ["plain", "masked"])
def test_a_round_over_three_replicas_is_the_plain_weighted_mean(cluster: Cluster, tmp_path: Path, kind: str) -> None:
    task = task_of(kind, 6, rounds=2)

    async def story() -> None:
        cluster.start()
        await submitted(cluster, tmp_path, task)
        addresses = [replica.address for replica in cluster.replicas]
        async with Balancer(addresses) as balancer, cluster.devices(POPULATION, [balancer.address] * 6) as devices:
            theta = THETA
            for _ in range(task.rounds):
                sent = await asyncio.gather(*(take_part(device, i, task) for i, device in enumerate(devices)))
                async with cluster.replicas[2].operator() as operator:
                    (status,) = await operator.tasks()
                found = await theta_of(devices[0], status.model_id)
                assert np.abs(found - expected_theta(theta, task, sent)).max() <= bound(task)
                theta = found

    run(story())
    sums = cluster.events("sums of replicas")
    assert len(sums) == 2
    assert all(record["parts"] == 3 for record in sums), "each replica added up what it held"


@pytest.mark.parametrize(("kind", "victim"), [("masked", "owner"), ("plain", "owner"), ("masked", "other")])
def test_a_replica_that_is_lost_with_its_disk_loses_nothing(
    cluster: Cluster, tmp_path: Path, kind: str, victim: str
) -> None:
    """Two of four contributions were acknowledged by it: the same attempt closes with all four."""
    task = task_of(kind, 4)

    async def story() -> str:
        cluster.start()
        task_id = await submitted(cluster, tmp_path, task)
        owner = cluster.owner(POPULATION)
        assert owner is not None
        others = [replica for replica in cluster.replicas if replica is not owner]
        lost, left = (owner, others) if victim == "owner" else (others[0], [owner, others[1]])
        async with (
            Balancer([r.address for r in (lost, *left)], in_turn=False) as first,
            Balancer([r.address for r in left]) as second,
            cluster.devices(POPULATION, [first.address] * 2 + [second.address] * 2) as devices,
        ):
            assignments = await asyncio.gather(*(persistently(device.assignment) for device in devices))
            ways = [Way(d, a, task, i) for i, (d, a) in enumerate(zip(devices, assignments, strict=True))]
            await asyncio.gather(*(persistently(way.report) for way in ways))
            going = [asyncio.create_task(way.to_the_end()) for way in ways[:2]]
            await asyncio.gather(*(way.to_the_upload() for way in ways[2:]))
            await until(lambda: num_uploads(left[0], task_id) == 2)
            lost.lose_everything()
            events = await asyncio.gather(*going, *(way.to_the_end() for way in ways[2:]))
            assert {(event.stage, event.num_reports) for event in events} == {(rounds_pb2.CLOSED, 4)}
            found = await theta_of(devices[3], events[3].model_id)
            assert np.abs(found - expected_theta(THETA, task, [way.data for way in ways])).max() <= bound(task)
        return task_id

    task_id = run(story())
    (alive, *_) = [replica for replica in cluster.replicas if replica.process.poll() is None]
    with alive.store() as store:
        assert [(r.round, r.attempt, r.stage.value) for r in store.rounds(task_id)] == [(1, 1, "closed")]


def num_uploads(replica: ReplicaHouse, task_id: str) -> int:
    """Return how many contributions to the task's newest attempt were acknowledged."""
    with replica.store() as store:
        last = store.last_round(task_id)
        return 0 if last is None else len(store.uploads(last.id))
