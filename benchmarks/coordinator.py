"""The coordinator under load: how fast it takes contributions in, how soon it answers, how much memory it holds.

Contributions of 4 MB from devices with channels of their own over mutual TLS, all on this machine, are sent to the
coordinator (hash, checks, encryption, a file, fdatasync and commit before each acknowledgement), to a bare gRPC server
with the same TLS that counts bytes, and to that server's method which hashes, encrypts and keeps them and does nothing
else: the same client, pieces of 256 KiB, as many streams at once, one after the other in every repetition.
`ingest_ratio` is the median over repetitions of the sink's time over the coordinator's, `same_work_ratio` of the
sink's over that of the bare work: what is left of the sink's speed for any server that does it in Python. The `cpu`
keys are the same of processor time, servers' and load generator's together, which other programs disturb less.

`memory_contributions_per_device` is how much higher the peak of a fresh coordinator is when 96 devices send at the
same time than when 16 do, in contributions a device. Control calls are timed while `connected` devices follow a round,
first in quiet, then while all of them send their contributions. Selection is the store's and the state machine's part
of one: a million devices on record, two thousand candidates of which a thousand are drawn and committed.

Everything shares the machine's cores, the load generator included: on a busy machine figures are lower than they say.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from benchmarks import _common, _load
from benchmarks._load import Phone, Program, Site
from coordinator.store.database import sqlite_url
from coordinator.store.store import Store
from mien.protocol.ids import AttemptNumber, DeviceId, ModelId, PopulationId, RoundNumber, TaskId
from mien.protocol.rounds import BlobId, Stage
from mien.protocol.v1 import common_pb2, rounds_pb2, rounds_pb2_grpc
from mien.rounds.machine import CheckedIn, RoundRules, RoundState, advance
from mien.rounds.records import ModelRecord, RoundChange, TaskRecord, TaskState
from mien.shell.clock import Clock
from mien.specs import CohortSpec, PrivacySpec, TaskSpec

AIMS: Final = {"ingest_ratio": 0.6, "memory_contributions_per_device": 0.1, "selection_s": 0.1}
SENDING: Final = 32
"""Devices that send at the same time where speeds are compared, in quick runs and in whole ones."""

FEW: Final = 16
MANY: Final = 96
REGISTERED: Final = 1_000_000
SELECTED: Final = 1_000
POPULATION: Final = PopulationId("p")
_CONTROL_CALLS: Final = 400


@dataclass(frozen=True)
class Sizes:
    """How often a run does what it does, and how many devices follow the round beside which calls are timed."""

    repetitions: int
    connected: int


QUICK: Final = Sizes(repetitions=5, connected=100)
FULL: Final = Sizes(repetitions=9, connected=1000)


def main() -> None:
    """Run the benchmark from the command line."""
    args = _common.options("coordinator", (__doc__ or "").split("\n\n")[0]).parse_args()
    _common.run(lambda: benchmark(args), only_json=args.json)


def benchmark(args: argparse.Namespace) -> Mapping[str, Any]:
    """Return all figures; those that have an aim stand beside it in `aims`."""
    sizes = QUICK if args.quick else FULL
    with tempfile.TemporaryDirectory(prefix="mien-load-") as folder:
        measured = asyncio.run(_under_load(Path(folder), sizes))
    _common.progress("memory with few and with many devices")
    peaks = [asyncio.run(_peak_bytes(count)) for count in (FEW, MANY)]
    growth = (peaks[1] - peaks[0]) / measured["contribution_bytes"] / (MANY - FEW)
    measured |= {
        "peak_few_mb": round(peaks[0] / 1e6, 1),
        "peak_many_mb": round(peaks[1] / 1e6, 1),
        "memory_contributions_per_device": round(growth, 3),
    }
    _common.progress("selection among a million registered devices")
    with tempfile.TemporaryDirectory(prefix="mien-load-") as folder:
        measured |= _selection(Path(folder))
    return {
        **measured,
        "aims": AIMS,
        "quick": args.quick,
        "machine": _common.machine(),
        "load_average": round(os.getloadavg()[0], 1),
        "commit": _common.commit(),
        "command": _common.command(),
    }


# Ingest, memory, control calls


async def _under_load(folder: Path, sizes: Sizes) -> dict[str, Any]:
    site = Site(folder)
    phones = [site.device() for _ in range(max(SENDING + 1, sizes.connected))]
    with site.coordinator() as coordinator, site.sink() as sink:
        async with site.operator() as operator:
            await site.give_model(operator)
            load = _Load(site, operator, coordinator, sink)
            _common.progress(f"uploads of {SENDING} devices beside the bare sink, {sizes.repetitions} times")
            timed = [await load.ingest(phones[: SENDING + 1]) for _ in range(sizes.repetitions)]
            _common.progress(f"control calls beside {sizes.connected} devices that follow a round")
            control = await load.control(phones[: sizes.connected])
    return {**_ingest_figures(timed, SENDING), **control}


def _ingest_figures(timed: Sequence[_Ingest], num_devices: int) -> dict[str, Any]:
    size_bytes = timed[0].size_bytes

    def speed(spent: Iterable[_Spent]) -> float:
        return round(size_bytes / statistics.median(one.wall_s for one in spent) / 1e6, 1)

    def ratio(other: Callable[[_Ingest], float], bare: Callable[[_Ingest], float]) -> float:
        return round(statistics.median(bare(one) / other(one) for one in timed), 3)

    def cpu_ms(spent: Iterable[_Spent]) -> float:
        return round(1e3 * statistics.median(one.server_cpu_s for one in spent) / num_devices, 2)

    return {
        "contribution_bytes": size_bytes // num_devices,
        "devices": num_devices,
        "repetitions": len(timed),
        "ingest_mb_s": speed(one.mien for one in timed),
        "work_mb_s": speed(one.work for one in timed),
        "sink_mb_s": speed(one.sink for one in timed),
        "ingest_ratio": ratio(lambda one: one.mien.wall_s, lambda one: one.sink.wall_s),
        "same_work_ratio": ratio(lambda one: one.work.wall_s, lambda one: one.sink.wall_s),
        "ingest_ratio_best": round(min(one.sink.wall_s for one in timed) / min(one.mien.wall_s for one in timed), 3),
        "ingest_cpu_ratio": ratio(lambda one: one.mien.cpu_s, lambda one: one.sink.cpu_s),
        "same_work_cpu_ratio": ratio(lambda one: one.work.cpu_s, lambda one: one.sink.cpu_s),
        "server_cpu_ms_per_upload": cpu_ms(one.mien for one in timed),
        "work_cpu_ms_per_upload": cpu_ms(one.work for one in timed),
        "sink_cpu_ms_per_upload": cpu_ms(one.sink for one in timed),
    }


async def _peak_bytes(num_devices: int) -> int:
    """Return the most memory that a fresh coordinator holds while devices send at the same time."""
    with tempfile.TemporaryDirectory(prefix="mien-load-") as folder:
        site = Site(Path(folder))
        with site.coordinator() as coordinator, site.sink() as sink:
            async with site.operator() as operator:
                await site.give_model(operator)
                load = _Load(site, operator, coordinator, sink)
                return (await load.ingest([site.device() for _ in range(num_devices + 1)])).peak_bytes


@dataclass(frozen=True)
class _Spent:
    """What the same bytes took with one server: wall-clock time, and processor time of the server and the client."""

    wall_s: float
    server_cpu_s: float
    client_cpu_s: float

    @property
    def cpu_s(self) -> float:
        """Processor time of both."""
        return self.server_cpu_s + self.client_cpu_s


@dataclass(frozen=True)
class _Ingest:
    """One repetition: the bare sink, the bare work, the coordinator, and the coordinator's peak memory."""

    size_bytes: int
    sink: _Spent
    work: _Spent
    mien: _Spent
    peak_bytes: int


class _Load:
    """Devices against both servers."""

    def __init__(self, site: Site, operator: Any, coordinator: Program, sink: Program) -> None:
        self._site, self._operator = site, operator
        self._coordinator, self._sink = coordinator, sink
        self._count = 0

    async def ingest(self, phones: Sequence[Phone]) -> _Ingest:
        """Return how long the servers take for one contribution of each device but the last.

        The last one keeps the round from closing: its sum is not ingest, and has memory of its own.
        """
        channels = [phone.channel(self._site.port) for phone in phones]
        bare = [phone.channel(self._sink.port) for phone in phones]
        stubs = [rounds_pb2_grpc.RoundsStub(channel) for channel in channels]
        task, ref = await self._begin(stubs)
        await asyncio.gather(*(stub.ReportTrained(rounds_pb2.ReportTrainedRequest(round=ref)) for stub in stubs))
        data = [_load.contribution(task, seed) for seed in range(len(phones))]
        hashes = [_load.sha256_of(sent) for sent in data]
        every = [*zip(channels, [ref] * len(data), data, hashes, strict=True)]
        await asyncio.gather(*(_load.send_to_sink(channel, b"x") for channel in bare))  # open connections
        sink, work = [
            await self._timed(
                self._sink, [_load.send_to_sink(*sent, method) for sent in zip(bare[:-1], data[:-1], strict=True)]
            )
            for method in (_load.COUNT_METHOD, _load.KEEP_METHOD)
        ]
        self._coordinator.forget_peak()
        mien = await self._timed(self._coordinator, [_load.upload(*sent) for sent in every[:-1]])
        peak_bytes = self._coordinator.peak_bytes
        await _load.upload(*every[-1])
        await _until(stubs[0], ref, rounds_pb2.CLOSED)
        await _close([*channels, *bare])
        return _Ingest(sum(map(len, data[:-1])), sink, work, mien, peak_bytes)

    async def control(self, phones: Sequence[Phone]) -> dict[str, Any]:
        """Return how soon control calls are answered while devices follow a round, and while they send to it."""
        channels = [phone.channel(self._site.port) for phone in phones]
        stubs = [rounds_pb2_grpc.RoundsStub(channel) for channel in channels]
        began = time.perf_counter()
        task, ref = await self._begin(stubs)
        gathered_s = time.perf_counter() - began
        following = [asyncio.create_task(_until(stub, ref, rounds_pb2.CLOSED)) for stub in stubs]
        await asyncio.sleep(0.5)
        quiet = [await _answered_ms(stubs[call % len(stubs)], ref, call) for call in range(_CONTROL_CALLS)]
        await asyncio.gather(*(stub.ReportTrained(rounds_pb2.ReportTrainedRequest(round=ref)) for stub in stubs))
        data, busy = _load.contribution(task, 1), list[float]()
        sha256, began = _load.sha256_of(data), time.perf_counter()
        uploads = [asyncio.create_task(_load.upload(channel, ref, data, sha256)) for channel in channels]
        while not all(upload.done() for upload in uploads):
            busy.append(await _answered_ms(stubs[len(busy) % len(stubs)], ref, 1))
            await asyncio.sleep(0.01)
        sent_s = time.perf_counter() - began
        await asyncio.gather(*uploads, *following)
        await _close(channels)
        return {
            "connected": len(phones),
            "gather_s": round(gathered_s, 2),
            "control_p50_ms": _quantile(quiet, 0.5),
            "control_p99_ms": _quantile(quiet, 0.99),
            "round_mb_s": round(len(data) * len(phones) / sent_s / 1e6, 1),
            "busy_calls": len(busy),
            "busy_control_p50_ms": _quantile(busy, 0.5),
            "busy_control_p99_ms": _quantile(busy, 0.99),
        }

    async def _begin(self, stubs: Sequence[Any]) -> tuple[TaskSpec, rounds_pb2.RoundRef]:
        """Return a task whose round has selected every device."""
        self._count += 1
        task = TaskSpec(
            f"load{self._count}",
            method="fedavg",
            rounds=1,
            population=_load.POPULATION,
            cohort=CohortSpec(size=len(stubs), min_reports=len(stubs)),
            privacy=PrivacySpec(min_cohort=2, secure_aggregation="off"),
        )
        await self._operator.submit(task, task.name)
        assignments = await asyncio.gather(*(_assigned(stub) for stub in stubs))
        return task, assignments[0].round

    @staticmethod
    async def _timed(program: Program, sends: Sequence[Any]) -> _Spent:
        """Return what it takes until all of it was answered."""
        server_s, client_s, began = program.cpu_s, time.process_time(), time.perf_counter()
        await asyncio.gather(*sends)
        wall_s = time.perf_counter() - began
        return _Spent(wall_s, program.cpu_s - server_s, time.process_time() - client_s)


async def _answered_ms(stub: Any, ref: rounds_pb2.RoundRef, call: int) -> float:
    """Return how long one control call takes."""
    began = time.perf_counter()
    if call % 2:
        await stub.Hello(common_pb2.HelloRequest(protocol_versions=[1]))
    else:
        await stub.ReportTrained(rounds_pb2.ReportTrainedRequest(round=ref))
    return 1e3 * (time.perf_counter() - began)


def _quantile(took_ms: Sequence[float], share: float) -> float:
    return round(sorted(took_ms)[int(len(took_ms) * share)], 2)


async def _assigned(stub: Any) -> rounds_pb2.Assignment:
    request = rounds_pb2.CheckInRequest(population=_load.POPULATION, software="load", backbones=["load"])
    while True:
        reply = await stub.CheckIn(request, timeout=_load.CALL_S)
        if reply.HasField("assignment"):
            assignment: rounds_pb2.Assignment = reply.assignment
            return assignment
        await asyncio.sleep(min(reply.wait.retry_after_s, 0.2))


async def _until(stub: Any, ref: rounds_pb2.RoundRef, stage: int) -> None:
    async for event in stub.FollowRound(rounds_pb2.FollowRoundRequest(round=ref)):
        if event.stage in (stage, rounds_pb2.ABORTED):
            return


async def _close(channels: Sequence[grpc.aio.Channel]) -> None:
    await asyncio.gather(*(channel.close() for channel in channels))


# Selection


def _selection(folder: Path) -> dict[str, Any]:
    """Return how long it takes to draw 1,000 of as many candidates as check in, with a million devices on record."""
    store = Store.open(sqlite_url(folder / "c.db"), Clock())
    try:
        began = time.perf_counter()
        _register(store, REGISTERED)
        registered_s = time.perf_counter() - began
        model_id, task_id = ModelId("a" * 64), TaskId("t")
        store.add_model(ModelRecord(model_id, b"{}", "1" * 64, BlobId("b" * 64, 4), 1), actor="load")
        task = TaskRecord(
            task_id, "load", POPULATION, b"{}", "k", TaskState.RUNNING, model_id, model_id, "load", created_ms=1
        )
        record = store.open_attempt(
            store.add_task(task), round_number=RoundNumber(1), attempt=AttemptNumber(1), deadline=1e9
        )
        rules = RoundRules(SELECTED, SELECTED, SELECTED, 60.0, dict.fromkeys(Stage, 60.0), seed=1)
        candidates = frozenset(
            DeviceId(f"{number:032x}") for number in range(0, REGISTERED, REGISTERED // (2 * SELECTED))
        )
        began = time.perf_counter()
        state, _ = advance(rules, RoundState(Stage.SELECTING, 1e9), CheckedIn(candidates), 0.0)
        drawn_s = time.perf_counter() - began
        store.save_round(RoundChange(record, state, steps=state.participants))
        selected_s = time.perf_counter() - began
        began = time.perf_counter()
        store.saw_devices([(device_id, POPULATION, "load") for device_id in list(candidates)[:SELECTED]])
        seen_s = time.perf_counter() - began
    finally:
        store.close()
    assert len(state.participants) == SELECTED
    return {
        "registered": REGISTERED,
        "register_s": round(registered_s, 2),
        "candidates": len(candidates),
        "selected": SELECTED,
        "draw_s": round(drawn_s, 4),
        "selection_s": round(selected_s, 4),
        "seen_again_s": round(seen_s, 4),
    }


def _register(store: Store, count: int) -> None:
    """Put devices on record, many at a time."""
    step = 100_000
    for start in range(0, count, step):
        store.saw_devices([(DeviceId(f"{number:032x}"), POPULATION, "load") for number in range(start, start + step)])


if __name__ == "__main__":
    main()
