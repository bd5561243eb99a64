"""What two replicas of a coordinator carry beside one: phones dealt out by a balancer, and phones told where to go.

Two populations of light phones go through a masked round of 66 KB each, over mutual TLS and through one TCP balancer;
replicas share PostgreSQL and an S3 server on this machine. `one` is a replica alone; `dealt_out` are two, each of which
runs the tasks of one population, while the balancer knows nothing of that; `told` are the same with a `public_address`
each, to which their phones go on, and `returning` are phones that begin there, as they do from the second time on. A
small round of each population comes first, unmeasured: a process's first one loads what later ones find. Populations
take turns: with two rounds at once there are two replicas on the cores in place of one, and each takes longer for the
same work, which machines of their own would not. A row's
`busiest_cpu_ms_per_phone` is the processor time of the replica that has more of it, over all phones, and
`total_cpu_ms_per_phone` that of both; what replicas take while nobody says anything is subtracted. `dealt_out_carries`
and so on are how many times the phones of one replica two carry by that: the busiest one's share of `one`, medians of
rounds that take turns. Cores and clients are shared, so that no throughput is measured. `--quick` has one round of
`one` and of `told`, of as many phones: of fewer, what a round costs by itself counts for more.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks import _common
from benchmarks._load import Program
from benchmarks.phone_round import CROWDED, IDLE_S, PARAMETERS, Crowd, go_through, release, task
from mien.errors import MissingDependencyError

if TYPE_CHECKING:
    from tests.integration.replicas import Cluster, ReplicaFleet
    from tests.servers.postgres import PostgresServer
    from tests.servers.s3 import S3Server

AIMS: Final = {"told_carries": 1.8, "returning_carries": 1.8}
WAYS: Final = ("one", "dealt_out", "told", "returning")
POPULATIONS: Final = ("north", "south")
PHONES: Final = 60
"""Phones of each population."""

FIRST_PHONES: Final = 4
ROUNDS: Final = 3


def main() -> None:
    """Run the benchmark from the command line."""
    args = _common.options("replicas", (__doc__ or "").split("\n\n")[0]).parse_args()
    _common.run(lambda: benchmark(args), only_json=args.json)


def benchmark(args: argparse.Namespace) -> Mapping[str, Any]:
    """Return the figures that the benchmark prints."""
    rounds, ways = (1, ("one", "told")) if args.quick else (ROUNDS, WAYS)
    with _servers() as (database, bucket):
        rows = [row(way, PHONES, database, bucket) for _ in range(rounds) for way in ways]
    busiest = {
        way: statistics.median(each["busiest_cpu_ms_per_phone"] for each in rows if each["way"] == way) for way in ways
    }
    return {
        **{f"{way}_cpu_ms_per_phone": busiest[way] for way in ways},
        **{f"{way}_carries": round(busiest["one"] / busiest[way], 2) for way in ways[1:]},
        "phones": len(POPULATIONS) * PHONES,
        "rows": rows,
        "aims": AIMS,
        "quick": args.quick,
        "load_average": round(os.getloadavg()[0], 1),
    }


def row(way: str, phones: int, database: PostgresServer, bucket: S3Server) -> dict[str, Any]:
    """Return the figures of one round of each population, in a fresh cluster."""
    _common.progress(f"{way}: {len(POPULATIONS)} populations of {phones} phones")
    with (
        tempfile.TemporaryDirectory(prefix="mien-replicas-") as name,
        _cluster(Path(name), way, database, bucket) as made,
    ):
        return {"way": way, **asyncio.run(_round(made, Path(name), phones, are_back=way == "returning"))}


@contextlib.contextmanager
def _servers() -> Iterator[tuple[PostgresServer, S3Server]]:
    try:
        from tests.servers import postgres, s3
    except ImportError as error:
        raise MissingDependencyError(f"replicas needs {error.name}; run it in a checkout after make setup") from error
    for lacking in (postgres.missing(), s3.missing()):
        if lacking:
            raise MissingDependencyError(lacking)
    with postgres.postgres_server() as database, s3.s3_server() as bucket:
        yield database, bucket


@contextlib.contextmanager
def _cluster(folder: Path, way: str, database: PostgresServer, bucket: S3Server) -> Iterator[Cluster]:
    from tests.integration.replicas import Cluster

    count, is_told = 1 if way == "one" else 2, way in ("told", "returning")
    shared = {"blobs_url": f"s3://{bucket.new_bucket()}/mien", "blobs_endpoint": bucket.endpoint}
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(database.database())
        made = Cluster(folder, count, is_told=is_told, database_url=url, **shared, **CROWDED)
        stack.callback(made.close)
        made.start()
        yield made


async def _round(made: Cluster, folder: Path, phones: int, *, are_back: bool) -> dict[str, Any]:
    from tests.servers.relay import Relay

    await release(made.first, folder, PARAMETERS[66])
    owners = {name: made.replicas[at % len(made.replicas)] for at, name in enumerate(POPULATIONS)}
    for name, owner in owners.items():
        await _go_through(made, name, owner, owner.address, folder / f"first-{name}", FIRST_PHONES)
    programs = [Program(replica.process, replica.port) for replica in made.replicas]
    spent = list[list[float]]()
    took_s = dict[str, float]()

    def note() -> None:
        spent.append([program.cpu_s for program in programs])

    async with Relay([replica.port for replica in made.replicas]) as balancer:
        for name, owner in owners.items():
            begins = owner.address if are_back else balancer.address
            took_s[name] = await _go_through(made, name, owner, begins, folder / f"measured-{name}", phones, note)
    begun, connected, rested, ended = np.moveaxis(np.reshape(spent, (len(owners), 4, len(programs))), 1, 0)
    idle = (rested - connected) / IDLE_S
    busy = (connected - begun) + (ended - rested) - idle * np.array(list(took_s.values()))[:, None]
    each = 1e3 * busy.sum(0) / (len(POPULATIONS) * phones)
    return {
        "busiest_cpu_ms_per_phone": round(float(each.max()), 2),
        "total_cpu_ms_per_phone": round(float(each.sum()), 2),
        "cpu_ms_per_phone": [round(float(one), 2) for one in each],
        "idle_cpu_share": [round(float(one), 3) for one in idle.mean(0)],
        "round_s": round(sum(took_s.values()), 1),
    }


async def _go_through(
    made: Cluster,
    population: str,
    owner: ReplicaFleet,
    begins: str,
    notes: Path,
    phones: int,
    note: Callable[[], None] | None = None,
) -> float:
    """Return how long a round of so many new phones of a population took; `note` is as `go_through` has it."""
    notes.mkdir()
    async with owner.operator() as operator:  # who is asked runs it
        await operator.submit(task(phones, population), notes.name)
    credentials = tuple(made.first.admit(population) for _ in range(phones))
    crowd = Crowd(begins, credentials, PARAMETERS[66], notes / "connected", notes / "go")
    took_s, _ = await go_through([crowd], made.replicas, note or (lambda: None), idle_s=IDLE_S if note else 0.0)
    return took_s


if __name__ == "__main__":
    main()
