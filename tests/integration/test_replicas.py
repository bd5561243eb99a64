"""Replicas that share PostgreSQL and a bucket: one sum over all of them, and none of them is needed for it."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import grpc
import numpy as np
import pytest

from coordinator.commands.doctor import CoordinatorChecks
from coordinator.home.config import SETTINGS
from coordinator.keys import pki
from coordinator.replicas.forwarding import CALLER_KEY
from device_sdk.server.client import Assignment, CoordinatorClient
from mien.errors import CertificateError, PermissionDeniedError, UnreachableError, VersionError
from mien.protocol.rounds import Stage
from mien.protocol.v1 import common_pb2, replicas_pb2, rounds_pb2
from mien.shell.clock import Clock
from mien.shell.doctor import Finding
from mien.specs import AsynchronousSpec, CohortSpec, MustInclude, TaskSpec
from simulation.testing import (
    THETA,
    FakeDevice,
    answer,
    contribution,
    free_port,
    masked_task,
    patiently,
    ref_of,
    tiny_task,
)
from tests.helpers import raised, run
from tests.integration.phones import identity
from tests.integration.replicas import Cluster, ReplicaFleet, until
from tests.integration.test_rounds import expected_theta
from tests.servers.postgres import PostgresServer
from tests.servers.relay import Relay
from tests.servers.s3 import S3Server

pytestmark = pytest.mark.slow

T = TypeVar("T")

DENIED = PermissionDeniedError.code


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer, s3_server: S3Server
) -> Iterator[Cluster]:
    """Three replicas, one model; every test has a population of its own, and replaces the replica that it loses."""
    folder = tmp_path_factory.mktemp("cluster")
    bucket = f"s3://{s3_server.new_bucket()}/mien"
    with postgres_server.database() as url:
        shared = {"database_url": url, "blobs_url": bucket, "blobs_endpoint": s3_server.endpoint}
        cluster = Cluster(folder, 3, is_told=True, **shared)

        async def prepare() -> None:
            async with cluster.first.operator() as operator:
                await cluster.first.release_tiny_model(operator)

        try:
            cluster.start()
            run(prepare())
            yield cluster
        finally:
            cluster.close()


def task_of(population: str, size: int, *, is_masked: bool, **changes: Any) -> TaskSpec:
    if is_masked:
        return masked_task(population, population, size=size, min_reports=size, **changes)
    return tiny_task(population, population, cohort=CohortSpec(size=size, min_reports=size), **changes)


async def submitted(replica: ReplicaFleet, task: TaskSpec) -> str:
    """Return the id of a task, after a replica was told of it that runs its population from then on."""
    async with replica.operator() as operator:
        return (await operator.submit(task, task.name)).task_id


def bound(task: TaskSpec) -> float:
    """Return how far the new model may be from the plain weighted mean: one rounding step of a masked sum."""
    if not task.privacy.is_masked:
        return 1e-6
    steps = 2**31 / (task.cohort.size * task.privacy.max_weight) - 1
    return float(2.0 ** -np.floor(np.log2(steps))) + 1e-6


async def persistently(call: Callable[[], Awaitable[T]]) -> T:
    """Return what a call answers, however often it has to be made."""
    return await patiently(call, limit_s=None)


class Way:
    """One device's way through one round, which it can leave and go on with: it asks again as often as it has to."""

    def __init__(self, device: FakeDevice, assignment: rounds_pb2.Assignment, task: TaskSpec, index: int) -> None:
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


async def take_part(device: FakeDevice, index: int, task: TaskSpec) -> bytes:
    """Return the contribution that counts, after one round."""
    way = Way(device, await persistently(device.assignment), task, index)
    await persistently(way.report)
    event = await way.to_the_end()
    assert event.stage == rounds_pb2.CLOSED, event.reason
    return way.data


async def theta_of(device: FakeDevice, model_id: str) -> Any:
    manifest = await device.manifest(model_id)
    return np.frombuffer(await device.download(manifest.theta.sha256), "<f4")


@pytest.mark.parametrize("is_masked", [False, True], ids=["plain", "masked"])
def test_a_round_over_three_replicas_is_the_plain_weighted_mean(cluster: Cluster, is_masked: bool) -> None:
    task = task_of(f"mean-{is_masked}", 6, is_masked=is_masked, rounds=2)

    async def story() -> str:
        task_id = await submitted(cluster.replicas[1], task)
        ports = [replica.port for replica in cluster.replicas]
        async with Relay(ports) as balancer, cluster.devices(task.population, [balancer.address] * 6) as devices:
            theta = THETA
            for _ in range(task.rounds):
                sent = await asyncio.gather(*(take_part(device, i, task) for i, device in enumerate(devices)))
                async with cluster.replicas[2].operator() as operator:
                    (status,) = [each for each in await operator.tasks() if each.task_id == task_id]
                found = await theta_of(devices[0], status.model_id)
                assert np.abs(found - expected_theta(theta, task, sent)).max() <= bound(task)
                theta = found
        return task_id

    task_id = run(story())
    with cluster.first.store() as store:
        ids = {record.id for record in store.rounds(task_id)}
    sums = [record for record in cluster.events("sums of replicas") if record["round_id"] in ids]
    assert [record["parts"] for record in sums] == [3, 3], "each replica added up what it held"


@pytest.mark.parametrize(("is_masked", "victim"), [(True, "owner"), (False, "owner"), (True, "other")])
def test_a_replica_that_is_lost_with_its_disk_loses_nothing(cluster: Cluster, is_masked: bool, victim: str) -> None:
    """Two of four contributions were acknowledged by it: the same attempt closes with all four."""
    task = task_of(f"lost-{is_masked}-{victim}", 4, is_masked=is_masked)
    owner, *others = cluster.replicas
    lost, left = (owner, others) if victim == "owner" else (others[0], [owner, others[1]])

    async def story() -> str:
        task_id = await submitted(owner, task)
        async with (
            Relay([r.port for r in (lost, *left)], in_turn=False) as first,
            Relay([r.port for r in left]) as second,
            cluster.devices(task.population, [first.address] * 2 + [second.address] * 2) as devices,
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
    cluster.replace(lost)
    with cluster.first.store() as store:
        assert [(r.round, r.attempt, r.stage.value) for r in store.rounds(task_id)] == [(1, 1, "closed")]


def asked(client: CoordinatorClient) -> Assignment:
    """Return the assignment of a phone, which asks until it has one."""
    while not isinstance(found := client.check_in(("tiny",)), Assignment):
        time.sleep(0.2)
    return found


def goes_to_the_end(client: CoordinatorClient, assignment: Assignment, index: int) -> tuple[int, bytes]:
    """Return how many contributions there are in a plain round's sum, and the one of this phone."""
    ref, data = assignment.round, contribution(assignment.task, index, assignment.round.round, assignment.round.attempt)
    client.report_trained(ref)
    for event in client.follow(ref):
        if event.stage is Stage.UPLOAD:
            client.upload(ref, data)
        elif event.stage is Stage.CLOSED:
            return event.num_reports, data
        elif event.stage is Stage.ABORTED:
            raise AssertionError(event.reason)
    raise AssertionError("it was not said how the round ended")


def test_phones_go_to_the_owner_and_back_when_it_is_lost_and_the_round_goes_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real phones behind a balancer that knows nothing of populations: the same attempt closes with all of them."""
    monkeypatch.setattr("device_sdk.server.client.GLANCE_S", 60.0)  # on a busy machine, too
    task = task_of("told", 3, is_masked=False, rounds=2)
    owner, *left = cluster.replicas

    async def story() -> str:
        task_id = await submitted(owner, task)
        async with Relay([replica.port for replica in (*left, owner)], in_turn=False) as balancer:
            phones = [
                CoordinatorClient(identity(cluster.first, balancer.address, task.population), Clock(), random.Random(n))
                for n in range(3)
            ]

            async def each(do: Callable[[CoordinatorClient, int], T]) -> list[T]:
                return await asyncio.gather(*(asyncio.to_thread(do, phone, n) for n, phone in enumerate(phones)))

            try:
                assignments = await each(lambda phone, _: asked(phone))
                assert {phone.address for phone in phones} == {owner.address}
                owner.kill()
                ended = await each(lambda phone, n: goes_to_the_end(phone, assignments[n], n))
                assert {num_reports for num_reports, _ in ended} == {3}
                assert {phone.address for phone in phones} == {balancer.address}
                assignments = await each(lambda phone, _: asked(phone))
                where = {phone.address for phone in phones}
                assert where in ({left[1].address}, {balancer.address}), "where the one is that took over"
                await each(lambda phone, n: goes_to_the_end(phone, assignments[n], n))
            finally:
                for phone in phones:
                    phone.close()
        return task_id

    task_id = run(story())
    cluster.replace(owner)
    with cluster.first.store() as store:
        assert [(r.round, r.attempt, r.stage.value) for r in store.rounds(task_id)] == [
            (1, 1, "closed"),
            (2, 1, "closed"),
        ]


def test_doctor_looks_at_the_address_that_phones_are_told_of(cluster: Cluster) -> None:
    replica = cluster.replicas[2]

    def found() -> Finding:
        checks = CoordinatorChecks(replica.home, lambda: datetime.now(UTC))
        (replicas,) = [each for each in run(checks.examine()) if each.name == "replicas"]
        return replicas

    def restart_with(public_address: str) -> None:
        config = replace(replica.home.resolve().config, public_address=public_address)
        SETTINGS.write(replica.home.config_path, config)
        replica.kill()
        replica.start()

    one, nobody = found(), f"localhost:{free_port()}"
    assert one.ok
    assert f"phones are told of {replica.address}, whose certificate is for localhost" in one.detail
    restart_with(nobody)
    try:
        one = found()
        assert not one.ok
        assert f"public_address: no coordinator answers at {nobody}" in one.detail
        other = cluster.replicas[1]
        restart_with(other.address)
        one = found()
        assert not one.ok
        replica_address = other.home.resolve().config.replica_address
        assert f"at {other.address} answers another replica ({replica_address})" in one.detail
    finally:
        restart_with(replica.address)


def test_a_round_whose_owner_is_lost_still_knows_its_source(cluster: Cluster) -> None:
    """Its word went through another replica; the one that takes over gives the round up once the source has left."""
    cohort = CohortSpec(size=4, min_reports=3, must_include=MustInclude())
    task = tiny_task("sources", "sources", method="fedfr_uda", cohort=cohort)
    owner, *left = cluster.replicas

    async def story() -> None:
        await submitted(owner, task)
        async with (
            Relay([replica.port for replica in left]) as balancer,
            cluster.devices(task.population, [balancer.address] * 5) as devices,
        ):
            source, *targets = devices
            source.labelled = True
            held = [asyncio.create_task(persistently(device.assignment)) for device in targets]
            assignment = await persistently(source.assignment)
            chosen, still_held = await asyncio.wait(held, return_when=asyncio.FIRST_COMPLETED)
            while len(chosen) < 3:
                more, still_held = await asyncio.wait(still_held, return_when=asyncio.FIRST_COMPLETED)
                chosen |= more
            assert {ref_of(each.result()) for each in chosen} == {ref_of(assignment)}
            for each in still_held:
                each.cancel()
            owner.lose_everything()
            await persistently(lambda: source.leave(assignment.round))
            (first, *_) = [device for device, each in zip(targets, held, strict=True) if each in chosen]
            event = await persistently(lambda: first.until(assignment.round))
            assert event.stage == rounds_pb2.ABORTED
            assert event.reason == "0 labelled devices are left; cohort.must_include asks for 1"

    run(story())
    cluster.replace(owner)


def test_cohorts_in_flight_outlive_the_owner_of_their_task(cluster: Cluster) -> None:
    """The second one has made a model when the owner is lost, the first one is training: it counts by half."""
    spec = AsynchronousSpec(max_concurrency=2, max_staleness=8, staleness_exponent=1.0)
    task = task_of("lanes", 3, is_masked=True, rounds=2, asynchronous=spec)
    owner, *left = cluster.replicas

    async def chosen(devices: list[FakeDevice], number: int) -> list[Way]:
        found = await asyncio.gather(*(persistently(device.assignment) for device in devices))
        return [Way(d, a, task, 10 * number + i) for i, (d, a) in enumerate(zip(devices, found, strict=True))]

    async def story() -> None:
        await submitted(owner, task)
        async with (
            Relay([replica.port for replica in left]) as balancer,
            cluster.devices(task.population, [balancer.address] * 6) as devices,
        ):
            slow = await chosen(devices[:3], 1)
            quick = await chosen(devices[3:], 2)
            assert [slow[0].ref.round, quick[0].ref.round] == [1, 2]
            theta = THETA
            for ways, weight in ((quick, 1.0), (slow, 0.5)):
                await asyncio.gather(*(persistently(way.report) for way in ways))
                (event, *_) = await asyncio.gather(*(way.to_the_end() for way in ways))
                assert (event.stage, event.num_reports) == (rounds_pb2.CLOSED, 3)
                step = expected_theta(theta, task, [way.data for way in ways]) - theta
                found = await theta_of(devices[0], event.model_id)
                assert np.abs(found - (theta + weight * step)).max() <= 2 * bound(task)
                theta = found
                if ways is quick:
                    owner.lose_everything()

    run(story())
    cluster.replace(owner)


def test_an_owner_that_was_paused_while_another_took_over_commits_nothing(cluster: Cluster) -> None:
    """It sleeps through the round's end, and is in the middle of it by all that it knows when it wakes."""
    task = task_of("paused", 3, is_masked=True)
    owner, *others = cluster.replicas

    async def story() -> str:
        task_id = await submitted(owner, task)
        async with (
            Relay([replica.port for replica in others]) as balancer,
            cluster.devices(task.population, [balancer.address] * 3) as devices,
        ):
            assignments = await asyncio.gather(*(persistently(device.assignment) for device in devices))
            ways = [Way(d, a, task, i) for i, (d, a) in enumerate(zip(devices, assignments, strict=True))]
            owner.process.send_signal(signal.SIGSTOP)
            try:
                await asyncio.gather(*(persistently(way.report) for way in ways))
                events = await asyncio.gather(*(way.to_the_end() for way in ways))
            finally:
                owner.process.send_signal(signal.SIGCONT)
            assert {(event.stage, event.num_reports) for event in events} == {(rounds_pb2.CLOSED, 3)}
            found = await theta_of(devices[0], events[0].model_id)
            assert np.abs(found - expected_theta(THETA, task, [way.data for way in ways])).max() <= bound(task)
            told = ("tasks of a population let go", "transition refused by the disk")
            await until(lambda: any(owner.log_records(event) for event in told))
        return task_id

    task_id = run(story())
    with cluster.first.store() as store:
        assert [(r.round, r.attempt, r.stage.value) for r in store.rounds(task_id)] == [(1, 1, "closed")]
        store.audit(lambda log, db: log.verify(db))


def test_nothing_stays_of_rounds_that_are_over(cluster: Cluster) -> None:
    def is_tidy() -> bool:
        return not any(list((replica.home.folder / "spool").iterdir()) for replica in cluster.replicas)

    run(until(is_tidy))
    assert "Traceback" not in "".join(replica.log.read_text() for replica in cluster.replicas)


def test_replicas_are_listed(cluster: Cluster) -> None:
    command = [sys.executable, "-m", "coordinator.commands.cli", "replica", "list", "--json", "--home"]

    def are_listed() -> bool:
        """One that a busy machine kept from saying so for a while counts as dead until it says so again."""
        told = subprocess.run([*command, str(cluster.first.home.folder)], capture_output=True, check=True, text=True)
        found = [replica for replica in json.loads(told.stdout)["replicas"] if replica["is_alive"]]
        return {replica["address"] for replica in found} >= {replica.peer_address for replica in cluster.replicas} and {
            population for replica in found for population in replica["populations"]
        } >= {"mean-True", "paused"}

    run(until(are_listed))


def test_every_replica_tells_what_the_phones_of_a_task_say_to_its_owner(cluster: Cluster) -> None:
    """Phones say which sums they have no room for to whom runs the task; an operator may ask any replica."""
    task = task_of("said", 3, is_masked=True)

    async def told(replica: ReplicaFleet, task_id: str) -> tuple[int, int]:
        async with replica.operator() as operator:
            (status,) = [each for each in await operator.tasks() if each.task_id == task_id]
        return status.num_used_up, status.gathering_there

    async def story() -> None:
        task_id = await submitted(cluster.replicas[1], task)
        async with cluster.devices(task.population, [cluster.replicas[1].address] * 2) as (full, ready):
            full.used_up_day = True
            await full.check_in()
            await ready.check_in()
            assert {await told(replica, task_id) for replica in cluster.replicas} == {(1, 1)}

    run(story())


def test_an_upload_that_goes_on_at_another_replica_counts_once(cluster: Cluster) -> None:
    """Half of it arrives at one replica, all of it at another, and all of it again at a third."""
    task = task_of("half", 2, is_masked=False)

    async def story() -> None:
        await submitted(cluster.replicas[0], task)
        async with cluster.devices(task.population, [replica.address for replica in cluster.replicas[:2]]) as devices:
            assignments = await asyncio.gather(*(persistently(device.assignment) for device in devices))
            ways = [Way(d, a, task, i) for i, (d, a) in enumerate(zip(devices, assignments, strict=True))]
            await asyncio.gather(*(persistently(way.report) for way in ways))
            await asyncio.gather(*(way.to_the_upload() for way in ways))
            way, ref = ways[1], ways[1].ref
            half = await way.device.upload(ref, way.data, stop=len(way.data) // 2)
            assert (half.received_bytes, half.accepted) == (len(way.data) // 2, False)
            async with cluster.again(way.device, 2) as there, cluster.again(way.device, 0) as again:
                assert (await there.upload_status(ref)).received_bytes == 0
                assert (await there.upload(ref, way.data)).accepted
                assert (await again.upload_status(ref)).accepted
                assert (await again.upload(ref, way.data)).accepted
                assert (await way.device.upload(ref, way.data, offset=half.received_bytes)).accepted
            event = await ways[0].to_the_end()
            assert (event.stage, event.num_reports) == (rounds_pb2.CLOSED, 2)
            found = await theta_of(devices[0], event.model_id)
            assert np.abs(found - expected_theta(THETA, task, [way.data for way in ways])).max() <= bound(task)

    run(story())


def test_only_replicas_enter_their_port_and_they_enter_no_other(cluster: Cluster) -> None:
    """And what they pass on is judged by the certificate that comes with it."""
    home, now = cluster.first.home, cluster.first.now
    authority, registrar = home.authority(), cluster.first.registrar
    replica = pki.issue_replica_leaf(authority, "stranger", now)
    operator, phone = home.operator_credentials(), cluster.first.admit("mean-True")
    stranger = pki.create_authority("registrar", now)
    forged = cluster.first.admit("mean-True", stranger)
    port, front = cluster.first.peer_address, cluster.first.address
    check_in, hello = rounds_pb2.CheckInRequest(), common_pb2.HelloRequest(protocol_versions=[1])
    leaf = pki.load_certificate(phone.chain)
    assert pki.device_identity(leaf, registrar.certificate, now).id == phone.device_id

    async def refusal(address: str, key: bytes, chain: bytes, call: str, request: Any, caller: bytes = b"") -> str:
        """Return the code of the error that a call ends with."""
        tls = grpc.ssl_channel_credentials(authority.certificate_pem, key, chain)
        metadata = ((CALLER_KEY, caller),) if caller else ()
        async with grpc.aio.secure_channel(address, tls) as channel:
            made: Any = channel.unary_unary(f"/mien.v1.{call}")
            error = await raised(answer(made(request.SerializeToString(), metadata=metadata, timeout=60)))
        return error.code

    async def story() -> None:
        as_replica = (replica.key_pem, replica.chain_pem)
        of_sum = replicas_pb2.FindUploadRequest()
        assert await refusal(port, operator.key_pem, operator.chain_pem, "Rounds/CheckIn", check_in) == DENIED
        assert await refusal(port, operator.key_pem, operator.chain_pem, "Replicas/FindUpload", of_sum) == DENIED
        assert await refusal(port, phone.key, phone.chain, "Rounds/CheckIn", check_in) == UnreachableError.code
        assert await refusal(front, *as_replica, "Rounds/CheckIn", check_in) == DENIED
        assert await refusal(front, *as_replica, "Replicas/FindUpload", of_sum) == VersionError.code  # is not there
        assert await refusal(port, *as_replica, "Rounds/CheckIn", check_in) == DENIED  # as itself
        assert await refusal(port, *as_replica, "Rounds/CheckIn", check_in, operator.chain_pem) == DENIED
        assert await refusal(port, *as_replica, "Operator/Hello", hello, phone.chain) == DENIED
        assert await refusal(port, *as_replica, "Replicas/FindUpload", of_sum, phone.chain) == DENIED
        assert await refusal(port, *as_replica, "Models/GetManifest", check_in, phone.chain) == VersionError.code
        assert await refusal(port, *as_replica, "Rounds/CheckIn", check_in, forged.chain) == CertificateError.code
        assert await refusal(port, *as_replica, "Rounds/CheckIn", check_in, b"junk") == CertificateError.code

    run(story())


def num_uploads(replica: ReplicaFleet, task_id: str) -> int:
    """Return how many contributions to the task's newest attempt were acknowledged."""
    with replica.store() as store:
        last = store.last_round(task_id)
        return 0 if last is None else len(store.uploads(last.id))
