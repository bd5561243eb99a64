"""The scenarios: at full scale for `make chaos`, and the small ones that every run of the tests plays."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.chaos.engine import Result, Scenario, play
from tests.chaos.faults import WEATHERS
from tests.chaos.phones import Habits
from tests.servers import postgres, s3
from tests.servers.postgres import PostgresServer
from tests.servers.s3 import S3Server

UNLUCKY: Final = Habits(repeats=0.2, stragglers=0.2, delay_s=0.05)
ANYWHERE: Final = ("weather", "disk", "clock", "freezing", "deaths", "registrar")
AWAY: Final = ("postgres", "bucket")

FULL: Final[Mapping[str, Scenario]] = {
    scenario.name: scenario
    for scenario in (
        Scenario("kills", kills=260, seconds=0.0, pause_s=1.5),
        Scenario("embedded", kills=180, seconds=0.0, faults=ANYWHERE, habits=UNLUCKY, pause_s=1.5),
        Scenario("servers", kills=50, seconds=0.0, faults=(*ANYWHERE, *AWAY), habits=UNLUCKY, pause_s=1.5),
        Scenario(
            "replicas",
            kills=60,
            seconds=0.0,
            faults=("freezing", "deaths"),
            habits=UNLUCKY,
            replicas=3,
            pause_s=2.0,
        ),
        Scenario("silence", kills=0, seconds=320.0, faults=("weather",), weathers=("silence",), silence_s=300.0),
    )
}
"""Together more than 500 kills. `kills` has no other fault, so that rounds get far; `silence` is of five minutes."""

SOON_OVER: Final = tuple(kind for kind in WEATHERS if kind != "half-open")
"""What a network has that devices notice at once: not for small scenarios is what takes them a quarter of a minute."""

QUICK: Final = Scenario(
    "quick", kills=12, seconds=0.0, faults=ANYWHERE, habits=UNLUCKY, weathers=SOON_OVER, pause_s=0.6, silence_s=1.0
)
SMALL: Final = replace(QUICK, name="small", kills=8, pause_s=0.8)
SMALL_SERVERS: Final = Scenario(
    "small-servers", kills=3, seconds=0.0, faults=AWAY, plain=2, masked=4, waves=2, pause_s=0.6
)

ALL: Final[Mapping[str, Scenario]] = {**FULL, **{small.name: small for small in (QUICK, SMALL, SMALL_SERVERS)}}


def missing(scenario: Scenario) -> str:
    """Return why a scenario cannot be played here, nothing if it can."""
    reasons = {"postgres": postgres.missing, "bucket": s3.missing}
    return next((reason for name in _needs(scenario) if (reason := reasons[name]())), "")


def _needs(scenario: Scenario) -> tuple[str, ...]:
    """Return which of the database server and the object store a scenario runs on."""
    return tuple(name for name in AWAY if name in scenario.faults or scenario.replicas > 1)


def play_here(scenario: Scenario, seed: int, *, until: float = float("inf")) -> Result:
    """Return what a scenario has shown, on servers of its own; it ends early at `until` (monotonic seconds)."""
    with tempfile.TemporaryDirectory(prefix="mien-chaos-") as folder, _servers(scenario) as (database, bucket):
        return asyncio.run(play(Path(folder), scenario, seed, postgres=database, bucket=bucket, until=until))


@contextlib.contextmanager
def _servers(
    scenario: Scenario,
) -> Iterator[tuple[tuple[PostgresServer, str] | None, tuple[S3Server, str] | None]]:
    """Lend the database server and the object store that a scenario's faults are about."""
    with contextlib.ExitStack() as stack:
        database, bucket = None, None
        if "postgres" in _needs(scenario):
            server = stack.enter_context(postgres.postgres_server())
            database = (server, stack.enter_context(server.database()))
        if "bucket" in _needs(scenario):
            store = stack.enter_context(s3.s3_server())
            bucket = (store, f"s3://{store.new_bucket()}/mien")
        yield database, bucket
