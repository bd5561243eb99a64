"""One scenario of chaos: servers, devices, faults drawn from one seed, and the account of what held.

Three tasks run at once, far longer than the scenario: one of plain sums, one under secure aggregation, and one in
asynchronous mode, two cohorts in flight. Faults
come at random until enough coordinators were killed and enough time has passed; then all is mended, rounds of both
tasks have to close, and the coordinator's account is compared with the devices' (`tests.chaos.ledger`).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from coordinator.store.blobs import BlobStore
from coordinator.store.store import Store
from mien.errors import UnavailableError
from mien.protocol.ids import TaskId
from mien.rounds.records import RoundRecord
from mien.specs import AsynchronousSpec, CohortSpec, DeadlineSpec, TaskSpec
from simulation.testing import FakeFleet, free_port, masked_task, patiently, tiny_task
from simulation.testing.fleet import STOP_S
from tests.chaos import faults, shim
from tests.chaos.faults import WEATHERS
from tests.chaos.ledger import Attempt, Auditor, Ledger
from tests.chaos.phones import Habits, Memory, Moments, Phone
from tests.chaos.proxy import Proxy
from tests.chaos.shim import Disk
from tests.chaos.site import Launcher, Registrar, Uptime, Victim
from tests.helpers import ROOT
from tests.integration.replicas import Cluster
from tests.servers.postgres import PostgresServer
from tests.servers.s3 import S3Server

STAGE_S: Final = 4.0
GRACE_S: Final = 1.0
PATIENCE_S: Final = 4.0
CALM_S: Final = 240.0
_SLACK_S: Final = 60.0
"""How much longer than its deadlines an attempt may take on a machine that is busy with other things."""


@dataclass(frozen=True)
class Scenario:
    """What is to go wrong: at least so many kills of coordinators within at least so many seconds, and `faults`.

    `faults` are names of `tests.chaos.faults.FAULTS`, `weathers` what the network has. `replicas` are how many
    coordinators run as one: more than one share PostgreSQL and a bucket, behind a balancer. `plain`, `masked` and
    `waves` (asynchronous) are how many devices each task has, `pause_s` is the longest pause between a start and the
    next kill, `silence_s` how long a silent network lasts.
    """

    name: str
    kills: int
    seconds: float
    faults: tuple[str, ...] = ()
    replicas: int = 1
    plain: int = 3
    masked: int = 5
    waves: int = 4
    habits: Habits = field(default_factory=Habits)
    weathers: tuple[str, ...] = WEATHERS
    pause_s: float = 0.8
    silence_s: float = 6.0


@dataclass
class Result:
    """What a scenario has shown."""

    scenario: str
    seed: int
    kills: int
    lost: list[str]
    wrong: list[str]
    stuck: list[str]
    seconds: float
    rounds_closed: dict[str, int]
    rounds_aborted: dict[str, int]
    acknowledged: int
    killed_at: dict[str, int]
    killed_how: dict[str, int]
    injected: dict[str, int]
    reasons: dict[str, int]

    @property
    def replay(self) -> str:
        """The command that plays the scenario with the same draws again; the machine's own timing differs."""
        return f"python -m benchmarks.chaos --scenario {self.scenario} --seed {self.seed}"

    @property
    def holds(self) -> bool:
        """Whether nothing was lost, wrong or stuck."""
        return not (self.lost or self.wrong or self.stuck)


class Site:
    """Everything that a scenario runs on, and what its faults may touch."""

    def __init__(
        self,
        folder: Path,
        scenario: Scenario,
        seed: int,
        *,
        postgres: tuple[PostgresServer, str] | None = None,
        bucket: tuple[S3Server, str] | None = None,
    ) -> None:
        self.scenario, self.luck = scenario, random.Random(f"{scenario.name}/{seed}")
        self.postgres, self.bucket = postgres, bucket
        self.disk = None if shim.missing() else Disk(folder)
        self.moments, self.ledger = Moments(), Ledger()
        self.stuck: list[str] = []
        self.injected: Counter[str] = Counter()
        self.killed_at: Counter[str] = Counter()
        self.killed_how: Counter[str] = Counter()
        self.auditor = Auditor(self.ledger, self._say)
        self._folder = folder
        address = f"127.0.0.1:{free_port()}"
        settings: dict[str, Any] = {
            "registrar_address": address,
            "crl_fetch_s": 1.0,
            "max_aborted": 1000,
            "keep_round_models": 1_000_000,
        }
        if postgres is not None:
            settings["database_url"] = postgres[1]
        if bucket is not None:
            settings |= {"blobs_url": bucket[1], "blobs_endpoint": bucket[0].endpoint}
        fleets = self._build(folder, restart_grace_s=GRACE_S, check_in_hold_s=1.0, **settings)
        self.fleet = fleets[0]
        self.registrar = Registrar(folder, address, self.fleet.address)
        self.registrar.introduce(fleets)
        self.launcher = Launcher(self.disk, folder / "launcher.log")
        self.victims = [Victim(fleet, self.launcher) for fleet in fleets]
        self.uptime = Uptime(lambda: all(victim.is_ready and not victim.has_ended for victim in self.victims))
        self.proxy = Proxy([fleet.port for fleet in fleets], self.luck)
        self.memories: list[Memory] = []
        self.lives: dict[int, asyncio.Task[None]] = {}
        self._tasks: dict[str, TaskSpec] = {}
        self._since: dict[Attempt, tuple[float, int]] = {}
        self._logs_read: Counter[Path] = Counter()

    def _build(self, folder: Path, **settings: Any) -> list[FakeFleet]:
        """Return the folders of all coordinators."""
        if self.scenario.replicas == 1:
            return [FakeFleet(folder, **settings)]
        assert self.postgres is not None
        assert self.bucket is not None
        return [*Cluster(folder, self.scenario.replicas, **settings).replicas]

    @property
    def kills(self) -> int:
        """How many coordinators were killed."""
        return self.killed_how.total()

    def _say(self, text: str) -> None:
        print(f"chaos: {text}", file=sys.stderr, flush=True)

    # Coordinators

    async def begin(self) -> None:
        """Start everything and submit both tasks."""
        await self.registrar.start()
        for victim in self.victims:
            assert await victim.start(), self.log_tail()
        deadlines = DeadlineSpec(STAGE_S, STAGE_S, *(STAGE_S,) * 5)
        scenario = self.scenario
        specs = [
            tiny_task("plain", "plain", rounds=100_000, deadlines=deadlines,
                      cohort=CohortSpec(scenario.plain, min_reports=2)),
            masked_task("masked", "masked", size=scenario.masked, min_reports=3, rounds=100_000,
                        deadlines=deadlines),
            tiny_task("waves", "waves", rounds=100_000, deadlines=deadlines, cohort=CohortSpec(2, min_reports=2),
                      asynchronous=AsynchronousSpec(max_concurrency=2)),
        ]  # fmt: skip
        async with self.fleet.operator() as operator:
            await self.fleet.release_tiny_model(operator)
            for spec in specs:
                status = await patiently(partial(operator.submit, spec, spec.name))
                self._tasks[status.task_id] = spec

        def follow(store: Store, _models: BlobStore) -> None:
            for task_id in self._tasks:
                self.auditor.follow(store, TaskId(task_id))

        await self.with_store(follow)
        for population, count in (("plain", scenario.plain), ("masked", scenario.masked), ("waves", scenario.waves)):
            for number in range(count):
                folder = self._folder / f"{population}-{number}"
                self.memories.append(Memory.make(self.fleet.admit(population), folder))

    async def start_again(self, victim: Victim) -> None:
        """Start a coordinator until it serves; one that ends before that without a reason is a fault of its own."""
        while True:
            before = self.uptime.num_outages
            excused = self.uptime.is_disturbed
            if await victim.start(self.wrong_by()):
                break
            await victim.kill()
            if not excused and self.uptime.num_outages == before:
                raise AssertionError(f"a coordinator did not start:\n{self.log_tail()}")
            await asyncio.sleep(0.3)
        self._count_stages()

    async def look_after(self, victim: Victim) -> None:
        """Start a coordinator that has ended without being killed, which is a fault whatever else is broken."""
        if victim.is_ready and await victim.gone(0.0):
            self.auditor.wrong.append("a coordinator has ended by itself")
            self._say(f"{self.auditor.wrong[-1]}:\n{self.log_tail()}")
            await self.start_again(victim)

    def wrong_by(self) -> float:
        """Return how wrong the next coordinator's clock is."""
        return self.luck.uniform(-600.0, 600.0) if "clock" in self.scenario.faults else 0.0

    def _count_stages(self) -> None:
        """Note at which stages the coordinator was killed: it says at which it goes on."""
        lines = "".join(self._new_lines(victim.fleet.log) for victim in self.victims)
        found = re.findall(r'\{"task": "(\w+)",[^}]*"stage": "(\w+)"[^}]*"event": "resumed"', lines)
        self.killed_at.update(f"{task} {stage}" for task, stage in found)
        if len(self.victims) > 1:  # another may have taken the round over long ago
            return
        idle = {spec.name for spec in self._tasks.values()} - {task for task, _ in found}
        self.killed_at.update(f"{task} between rounds" for task in idle)

    def _new_lines(self, log: Path) -> str:
        lines = log.read_text(errors="replace")[self._logs_read[log] :]
        self._logs_read[log] += len(lines)
        return lines

    def log_tail(self) -> str:
        """Return the end of the coordinators' logs."""
        logs = [victim.fleet.log for victim in self.victims]
        return "\n\n".join(log.read_text(errors="replace")[-4000:] for log in logs if log.exists())

    # Devices

    def bear(self, number: int) -> None:
        """Let a device live, from its memory."""
        phone = Phone(
            f"localhost:{self.proxy.port}",
            self.memories[number],
            self.ledger,
            random.Random(self.luck.random()),
            habits=self.scenario.habits,
            moments=self.moments,
            patience_s=PATIENCE_S,
        )

        async def life() -> None:
            async with phone:
                await phone.live()

        self.lives[number] = asyncio.create_task(life())

    async def end_life(self, number: int) -> None:
        """Kill a device; what it was doing is gone."""
        life = self.lives.pop(number)
        life.cancel()
        await asyncio.wait({life})
        if not life.cancelled() and (error := life.exception()) is not None:
            raise error

    # The account

    async def with_store(self, call: Callable[[Store, BlobStore], Any]) -> Any:
        """Return what a call makes of the coordinator's database and models, read beside it."""

        def read() -> Any:
            models = self.fleet.home.blobs(self.fleet.home.resolve().config, "models")
            with self.fleet.store() as store:
                return call(store, models)

        return await asyncio.to_thread(read)

    async def check(self) -> None:
        """Compare all rounds that have ended since the last time; find those that do not end."""
        still_open: list[RoundRecord] = await self.with_store(self.auditor.check)
        for record in still_open:
            attempt = Attempt(record.task_id, record.round, record.attempt)
            since_s, starts = self._since.setdefault(attempt, (self.uptime.seconds, self.num_starts))
            limit_s = 7 * STAGE_S + GRACE_S * (self.num_starts - starts) + _SLACK_S
            if self.uptime.seconds - since_s > limit_s:
                self.stuck.append(f"{attempt} is at {record.stage} after {self.uptime.seconds - since_s:.0f} s")
                self._since[attempt] = (self.uptime.seconds, self.num_starts)
                self._say(self.stuck[-1])

    @property
    def num_starts(self) -> int:
        """How often coordinators were started."""
        return sum(victim.num_starts for victim in self.victims)

    async def keep_checking(self) -> None:
        """Check again and again, while the database can be read."""
        while True:
            if not self.uptime.is_disturbed:
                with contextlib.suppress(UnavailableError):
                    await self.check()
            await asyncio.sleep(1.0)

    async def calm(self) -> None:
        """Wait until two more rounds of each task have closed: nothing is stuck."""
        before = Counter(self.auditor.num_closed)
        end = self.uptime.seconds + CALM_S
        while any(self.auditor.num_closed[spec.name] < before[spec.name] + 2 for spec in self._tasks.values()):
            for victim in self.victims:
                await self.look_after(victim)
            if self.uptime.seconds > end:
                self.stuck.append(f"no rounds closed within {CALM_S:g} s of calm: {self.auditor.num_closed - before}")
                return
            await asyncio.sleep(0.2)

    async def end(self) -> None:
        """End both tasks, let every device hear how its rounds ended, stop in an orderly way, and compare."""
        for number in list(self.lives):
            await self.end_life(number)
        async with self.fleet.operator() as operator:
            for task_id in self._tasks:
                await patiently(partial(operator.cancel, task_id))
        await self._tell_all()
        for victim in self.victims:
            victim.send(signal.SIGTERM)
        for victim in self.victims:
            if not await victim.gone(STOP_S):
                self.stuck.append(f"a coordinator did not stop within {STOP_S:g} s of SIGTERM")
                await victim.kill()
        await self.with_store(self.auditor.check_end)
        command = [sys.executable, "-m", "coordinator.commands.cli", "audit", "verify", "--json", "--home"]
        verified = await asyncio.to_thread(
            subprocess.run, [*command, str(self.fleet.home.folder)], cwd=ROOT, capture_output=True, text=True
        )
        if verified.returncode != 0:
            self.auditor.wrong.append(f"audit verify: {verified.stderr.strip()}")
        spools = [victim.fleet.home.folder / "spool" for victim in self.victims]
        left = [path for spool in spools for path in spool.rglob("*") if path.is_file()]
        if left and len(spools) == 1:
            self.auditor.wrong.append(f"{len(left)} contributions are left in the spool of rounds that are over")

    async def _tell_all(self) -> None:
        by_id = {memory.credentials.device_id: memory for memory in self.memories}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(180.0):
                for attempt, device in self.ledger.untold():
                    phone = Phone(
                        self.fleet.address, by_id[device], self.ledger, self.luck,
                        habits=Habits(), moments=self.moments, patience_s=PATIENCE_S,
                    )  # fmt: skip
                    async with phone:
                        await phone.hear_end(attempt)

    async def close(self) -> None:
        """Leave nothing behind."""
        for life in self.lives.values():
            life.cancel()
        await asyncio.gather(*self.lives.values(), return_exceptions=True)
        self.launcher.close()
        await self.registrar.kill()
        for memory in self.memories:
            memory.log.close()


async def play(
    folder: Path,
    scenario: Scenario,
    seed: int,
    *,
    postgres: tuple[PostgresServer, str] | None = None,
    bucket: tuple[S3Server, str] | None = None,
    until: float = float("inf"),
) -> Result:
    """Return what a scenario has shown; it ends early, in calm, at `until` (monotonic seconds)."""
    began = time.monotonic()
    site = Site(folder, scenario, seed, postgres=postgres, bucket=bucket)
    try:
        await _play(site, until)
    finally:
        await site.close()
    auditor = site.auditor
    return Result(
        scenario=scenario.name,
        seed=seed,
        kills=site.kills,
        lost=auditor.lost,
        wrong=auditor.wrong,
        stuck=site.stuck,
        seconds=round(time.monotonic() - began, 1),
        rounds_closed=dict(auditor.num_closed),
        rounds_aborted=dict(auditor.num_aborted),
        acknowledged=site.ledger.num_acknowledged,
        killed_at=dict(site.killed_at.most_common()),
        killed_how=dict(site.killed_how.most_common()),
        injected=dict(site.injected.most_common()),
        reasons=dict(auditor.reasons.most_common(12)),
    )


async def _play(site: Site, until: float) -> None:
    async with site.proxy:
        await site.begin()
        counting = asyncio.create_task(site.uptime.count())
        checking = asyncio.create_task(site.keep_checking())
        for number in range(len(site.memories)):
            site.bear(number)
        try:
            async with _going_on([faults.FAULTS[name](site) for name in site.scenario.faults]):
                await faults.kill_coordinators(site, until)
            _raise_from(checking, counting)
            await site.calm()
            _raise_from(checking, counting)
        finally:
            for task in (checking, counting):
                task.cancel()
            await asyncio.gather(checking, counting, return_exceptions=True)
        await site.end()


def _raise_from(*tasks: asyncio.Task[Any]) -> None:
    """Raise what has ended a task that ends of itself never."""
    for task in tasks:
        if task.done():
            task.result()


@contextlib.asynccontextmanager
async def _going_on(stories: Sequence[Any]) -> AsyncIterator[None]:
    """Run faults while the block runs; each mends what it broke when it is cancelled."""
    tasks = [asyncio.create_task(story) for story in stories]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for error in ended:
        if isinstance(error, Exception):
            raise error
