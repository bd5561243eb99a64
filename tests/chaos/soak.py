"""Round after round on one coordinator that is left alone, and what the process and its folder hold meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from mien.errors import MienError
from mien.protocol.canonical import task_from_json
from mien.protocol.ids import TaskId
from mien.protocol.v1 import rounds_pb2
from mien.specs import CohortSpec, TaskSpec
from simulation.testing import FakeDevice, FakeFleet, contribution, free_port, masked_task, ref_of, tiny_task

PLAIN: Final = 2
MASKED: Final = 3
WARM_UP: Final = 0.4
"""Share of the rounds after which growth is measured: caches are full, and old models are being given up, by then."""

KEEP: Final = 20
"""How many of a task's models the coordinator keeps: an operator's setting, here low, so that it is soon reached."""


_TIDYING_S: Final = 120.0
"""How long after the last round's end what rounds have replaced may still lie around."""


@dataclass(frozen=True)
class Sample:
    """What a process holds after so many rounds."""

    rounds: int
    rss_bytes: int
    open_files: int
    threads: int
    database_bytes: int
    files: int


def sample(fleet: FakeFleet, rounds: int) -> Sample:
    """Return what the coordinator's process and folder hold now."""
    pid = fleet.process.pid
    status = dict(
        line.split(":", 1)
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
        if ":" in line
    )
    found = _files(fleet.home.folder)
    database = sum(_size(path) for path in found if path.name.startswith("coordinator.db"))
    return Sample(
        rounds=rounds,
        rss_bytes=1024 * int(status["VmRSS"].split()[0]),
        open_files=len(list(Path(f"/proc/{pid}/fd").iterdir())),
        threads=int(status["Threads"]),
        database_bytes=database,
        files=len(found),
    )


def _size(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def growth(samples: Sequence[Sample], name: str) -> float:
    """Return by how much something grows in 1,000 rounds: the slope of a straight line, after the warm-up."""
    warm = [each for each in samples if each.rounds >= WARM_UP * samples[-1].rounds]
    rounds = [each.rounds for each in warm]
    if len(set(rounds)) < 2:
        return 0.0
    slope, _ = np.polyfit(rounds, [getattr(each, name) for each in warm], 1)
    return float(1000 * slope)


@dataclass(frozen=True)
class Soaked:
    """What a soak has shown."""

    rounds: int
    aborted: int
    seconds: float
    samples: tuple[Sample, ...]
    left_in_spool: int
    surplus_models: int
    surplus_states: int
    errors: tuple[str, ...]


async def soak(folder: Path, rounds: int, *, num_samples: int = 60) -> Soaked:
    """Return what a coordinator holds over so many rounds of two tasks, one plain and one under secure aggregation."""
    fleet = FakeFleet(folder, metrics_port=(metrics := free_port()), keep_round_models=KEEP, max_aborted=1000)
    tasks = [
        tiny_task("plain", "plain", rounds=100_000, cohort=CohortSpec(PLAIN, PLAIN)),
        masked_task("masked", "masked", rounds=100_000, size=MASKED, min_reports=MASKED),
    ]
    began = time.monotonic()
    try:
        await asyncio.to_thread(fleet.start)
        async with fleet.operator() as operator:
            await fleet.release_tiny_model(operator)
            task_ids = [(await operator.submit(task, task.name)).task_id for task in tasks]
        counter = _Counter(rounds)
        samples = []
        async with fleet.devices("plain", PLAIN) as plain, fleet.devices("masked", MASKED) as masked:
            lives = [asyncio.create_task(_live(device, counter)) for device in (*plain, *masked)]
            try:
                for step in range(num_samples + 1):
                    await counter.reach(rounds * step // num_samples)
                    await asyncio.to_thread(_scrape, metrics)
                    samples.append(await asyncio.to_thread(sample, fleet, counter.closed))
                seconds = round(time.monotonic() - began, 1)
                await _finish(fleet, task_ids)
            finally:
                for life in lives:
                    life.cancel()
                await asyncio.gather(*lives, return_exceptions=True)
        assert await asyncio.to_thread(fleet.stop) == 0
        return _leftovers(fleet, task_ids, samples, seconds)
    finally:
        fleet.close()


async def _finish(fleet: FakeFleet, task_ids: Sequence[str]) -> None:
    """Let the rounds that are under way end, and begin no others: whatever lies around then is left over."""
    async with fleet.operator() as operator:
        for task_id in task_ids:
            await operator.pause(task_id)

    def is_over() -> bool:
        with fleet.store() as store:
            last = [store.last_round(TaskId(task_id)) for task_id in task_ids]
            return all(record is None or record.stage.is_over for record in last)

    async with asyncio.timeout(_TIDYING_S):
        while not await asyncio.to_thread(is_over):
            await asyncio.sleep(0.1)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_TIDYING_S):
            while any(await asyncio.to_thread(_left_over, fleet)):
                await asyncio.sleep(0.1)


class _Counter:
    """How many rounds have closed, as their devices were told."""

    def __init__(self, wanted: int) -> None:
        self._seen: set[tuple[str, int]] = set()
        self._changed = asyncio.Event()
        self.wanted = wanted

    @property
    def closed(self) -> int:
        return len(self._seen)

    def count(self, task_id: str, number: int) -> None:
        """A round has closed."""
        self._seen.add((task_id, number))
        self._changed.set()

    async def reach(self, count: int) -> None:
        """Return once so many have."""
        while self.closed < count:
            self._changed.clear()
            await self._changed.wait()


async def _live(device: FakeDevice, counter: _Counter) -> None:
    """Take part in round after round until cancelled."""

    def make(task: TaskSpec, assignment: rounds_pb2.Assignment) -> bytes:
        return contribution(task, int(device.id[:8], 16), *ref_of(assignment))

    while True:
        try:
            assignment = await device.assignment()
            await _one_round(device, assignment, make)
            event = await device.until(assignment.round)
            if event.stage == rounds_pb2.CLOSED:
                counter.count(assignment.round.task_id, assignment.round.round)
        except (MienError, TimeoutError):
            await asyncio.sleep(0.05)


async def _one_round(device: FakeDevice, assignment: rounds_pb2.Assignment, make: Any) -> None:
    task, ref = task_from_json(assignment.task_json), assignment.round
    data = make(task, assignment)
    await device.report_trained(ref)
    if task.privacy.is_masked:
        await device.take_part_masked(device.masked_part(assignment, task, data))
    elif (await device.until(ref, rounds_pb2.UPLOAD)).stage == rounds_pb2.UPLOAD:
        await device.upload(ref, data)


def _scrape(port: int) -> None:
    """Do what monitoring does all the time."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        answer.read()


def _leftovers(fleet: FakeFleet, task_ids: Sequence[str], samples: Sequence[Sample], seconds: float) -> Soaked:
    """Compare the folder with what the database names."""
    with fleet.store() as store:
        records = [record for task_id in task_ids for record in store.rounds(TaskId(task_id))]
        store.audit(lambda log, db: log.verify(db))
    left_in_spool, surplus_models, surplus_states = _left_over(fleet)
    lines = fleet.log.read_text(errors="replace").splitlines()
    return Soaked(
        rounds=sum(record.stage.value == "closed" for record in records),
        aborted=sum(record.stage.value == "aborted" for record in records),
        seconds=seconds,
        samples=tuple(samples),
        left_in_spool=left_in_spool,
        surplus_models=surplus_models,
        surplus_states=surplus_states,
        errors=tuple(line for line in lines if '"level": "error"' in line or not line.startswith("{"))[:20],
    )


def _left_over(fleet: FakeFleet) -> tuple[int, int, int]:
    """Return how many contributions lie in the spool, and how many models and states that the database does not name.

    A store keeps its own name beside its blobs, which are named by a hash.
    """
    with fleet.store() as store:
        named = store.model_blobs(), store.state_blobs()
    models, states = (
        {path.name for path in _files(fleet.home.folder / kind) if len(path.name) == 64} - known
        for kind, known in zip(("models", "states"), named, strict=True)
    )
    return len(_files(fleet.home.folder / "spool")), len(models), len(states)


def _files(folder: Path) -> list[Path]:
    """Return all files under a folder; os.walk passes over folders that are deleted meanwhile, as those of rounds."""
    return [Path(place, name) for place, _, names in os.walk(folder) for name in names]
