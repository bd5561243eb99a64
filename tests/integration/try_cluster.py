"""What `deploy/try_cluster` runs: real servers around two replicas behind HAProxy, and a round of emulated phones."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

from coordinator.home.config import SETTINGS
from coordinator.keys.tls import Answer, who_answers
from coordinator.replicas.registry import listed
from mien.shell.cli import say
from simulation.testing import contribution, free_port, masked_task
from tests.integration.replicas import LEASE_S, Cluster, ReplicaFleet
from tests.servers import haproxy, postgres, s3

REPLICAS, PHONES = 2, 6
READY_S = 120.0


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[tuple[Cluster, str]]:
    """Run everything while the block runs; yield the replicas, and the address at which HAProxy leads to them."""
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(stack.enter_context(postgres.postgres_server()).database())
        bucket = stack.enter_context(s3.s3_server())
        blobs = f"s3://{bucket.new_bucket()}/mien"
        made = Cluster(folder, REPLICAS, database_url=database, blobs_url=blobs, blobs_endpoint=bucket.endpoint)
        stack.callback(made.close)
        servers = []
        for replica in made.replicas:
            config = dataclasses.replace(replica.home.resolve().config, metrics_port=free_port())
            SETTINGS.write(replica.home.config_path, config)
            servers.append(haproxy.Server(f"127.0.0.1:{replica.port}", config.metrics_port))
        made.start()
        address = stack.enter_context(haproxy.haproxy(servers))
        ca_pem, end = made.first.home.public(made.first.home.ca_path), time.monotonic() + READY_S
        while who_answers(address, ca_pem) is not Answer.SERVER:
            assert time.monotonic() < end, "no replica became ready"
            time.sleep(0.1)
        yield made, address


async def round_of(made: Cluster, address: str, name: str) -> str:
    """Return the model that a masked round of emulated phones ends with, all of them connected through HAProxy."""
    task = masked_task(name, name, size=PHONES, min_reports=PHONES)
    async with made.first.operator() as operator, made.devices(name, [address] * PHONES) as phones:
        await made.first.release_tiny_model(operator)
        submitted = await operator.submit(task, name)
        await asyncio.gather(*(phone.take_part(lambda spec, _: contribution(spec, 1)) for phone in phones))
        while True:
            (status,) = [each for each in await operator.tasks() if each.task_id == submitted.task_id]
            if status.state == "done":
                return status.model_id
            await asyncio.sleep(0.1)


def runner_of(made: Cluster, population: str) -> ReplicaFleet:
    """Return the replica that runs a population's tasks."""
    with made.first.store() as store:
        found = store.privacy(lambda db: listed(db, LEASE_S))
    addresses = [each.address for each in found if population in each.populations]
    return next(replica for replica in made.replicas if replica.peer_address in addresses)


def tried(folder: Path, *, only_a_round: bool) -> int:
    """Run a cluster until Ctrl-C, or for one round, saying what there is; returns the exit code."""
    for lacking in (postgres.missing(), s3.missing(), haproxy.missing()):
        if lacking:
            say(lacking)
            return 19
    say("Starting PostgreSQL, an S3 server, two replicas and HAProxy …")
    with contextlib.suppress(KeyboardInterrupt), cluster(folder) as (made, address):
        say(f"HAProxy at {address} passes connections on to:")
        for replica in made.replicas:
            say(f"  {replica.address}, folder {replica.home.folder}")
        say(f"A masked round of {PHONES} emulated phones through HAProxy …")
        say(f"It closed, with model {asyncio.run(round_of(made, address, 'first'))[:12]}.")
        if only_a_round:
            return 0
        homes = [f"--home {replica.home.folder}" for replica in made.replicas]
        say("In another terminal, with AWS_ACCESS_KEY_ID=test-id AWS_SECRET_ACCESS_KEY=test-secret in its environment:")
        for command in ("mien-coordinator replica list", "mien-coordinator task list"):
            say(f"  {command} {homes[0]}")  # doctor would miss the registrar, which there is none of
        say(f"End the replica that ran it with kill {runner_of(made, 'first').process.pid}, and see who does then.")
        say("Ctrl-C stops all.")
        while True:
            time.sleep(3600)
    say("Stopped; nothing is left.")
    return 0
