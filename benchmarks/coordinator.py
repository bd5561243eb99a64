"""The coordinator under load: how fast it takes contributions in, how soon it answers, how much memory it holds.

Contributions of 4 MB from devices with channels of their own over mutual TLS, all on this machine, are sent to the
coordinator (hash, checks, encryption, fsync and commit before each acknowledgement) and, in the same run, to a bare
gRPC server with the same TLS that counts bytes. Repetitions alternate; `ingest_ratio` compares the medians, and
`ingest_ratio_best` the fastest of each. Memory is how much higher the peak of a fresh coordinator is when 64
devices send at the same time than when 16 do, in contributions a device. Control calls are timed while
`connected` devices follow a round. Selection is the store's and the state machine's part of one: a million devices on
record, two thousand candidates of which a thousand are drawn and committed.

Everything shares the machine's cores, the load generator included: on a busy machine figures are lower than they say.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from benchmarks import _common, _load
from benchmarks._load import Phone, Program, Site
from coordinator.clock import Clock
from coordinator.rounds.machine import CheckedIn, RoundRules, RoundState, Stage, advance
from coordinator.store.database import sqlite_url
from coordinator.store.records import BlobId, ModelRecord, RoundChange, TaskRecord, TaskState
from coordinator.store.store import Store
from mien.specs import CohortSpec, PrivacySpec, TaskSpec
from mien.wire.v1 import common_pb2, rounds_pb2, rounds_pb2_grpc

AIMS: Final = {"ingest_ratio": 0.6, "selection_s": 0.1}
FEW: Final = 16
REGISTERED: Final = 1_000_000
SELECTED: Final = 1_000
_CONTROL_CALLS: Final = 400


@dataclass(frozen=True)
class Sizes:
    """How much of everything a run does."""

    devices: int
    repetitions: int
    connected: int


QUICK: Final = Sizes(devices=16, repetitions=3, connected=100)
FULL: Final = Sizes(devices=32, repetitions=7, connected=1000)


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
    few, many = FEW, 4 * FEW
    peaks = [asyncio.run(_peak_bytes(count)) for count in (few, many)]
    growth = (peaks[1] - peaks[0]) / measured["contribution_bytes"] / (many - few)
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
    phones = [site.device() for _ in range(max(sizes.devices, sizes.connected))]
    with site.coordinator() as coordinator, site.sink() as sink:
        async with site.operator() as operator:
            await site.give_model(operator)
            load = _Load(site, operator, coordinator, sink)
            _common.progress(f"uploads of {sizes.devices} devices beside the bare sink, {sizes.repetitions} times")
            timed = [await load.ingest(phones[: sizes.devices]) for _ in range(sizes.repetitions)]
            _common.progress(f"control calls beside {sizes.connected} devices that follow a round")
            control = await load.control(phones[: sizes.connected])
    size_bytes = timed[0].size_bytes
    mien, bare = [one.mien_s for one in timed], [one.sink_s for one in timed]
    return {
        "contribution_bytes": size_bytes // sizes.devices,
        "devices": sizes.devices,
        "ingest_mb_s": round(size_bytes / statistics.median(mien) / 1e6, 1),
        "sink_mb_s": round(size_bytes / statistics.median(bare) / 1e6, 1),
        "ingest_ratio": round(statistics.median(bare) / statistics.median(mien), 3),
        "ingest_ratio_best": round(min(bare) / min(mien), 3),
        "server_cpu_ms_per_upload": round(1e3 * min(one.mien_cpu_s for one in timed) / sizes.devices, 2),
        "sink_cpu_ms_per_upload": round(1e3 * min(one.sink_cpu_s for one in timed) / sizes.devices, 2),
        **control,
    }


async def _peak_bytes(num_devices: int) -> int:
    """Return the most memory that a fresh coordinator holds while devices send at the same time."""
    with tempfile.TemporaryDirectory(prefix="mien-load-") as folder:
        site = Site(Path(folder))
        with site.coordinator() as coordinator, site.sink() as sink:
            async with site.operator() as operator:
                await site.give_model(operator)
                load = _Load(site, operator, coordinator, sink)
                return (await load.ingest([site.device() for _ in range(num_devices)])).peak_bytes


@dataclass(frozen=True)
class _Ingest:
    """One repetition: wall-clock and processor time of both servers for the same bytes, and the coordinator's peak."""

    size_bytes: int
    mien_s: float
    sink_s: float
    mien_cpu_s: float
    sink_cpu_s: float
    peak_bytes: int


class _Load:
    """Devices against both servers."""

    def __init__(self, site: Site, operator: Any, coordinator: Program, sink: Program) -> None:
        self._site, self._operator = site, operator
        self._coordinator, self._sink = coordinator, sink
        self._count = 0

    async def ingest(self, phones: Sequence[Phone]) -> _Ingest:
        """Return how long the coordinator and the sink take for one contribution of each device."""
        channels = [phone.channel(self._site.port) for phone in phones]
        bare = [phone.channel(self._sink.port) for phone in phones]
        stubs = [rounds_pb2_grpc.RoundsStub(channel) for channel in channels]
        task, ref = await self._begin(stubs)
        await asyncio.gather(*(stub.ReportTrained(rounds_pb2.ReportTrainedRequest(round=ref)) for stub in stubs))
        data = [_load.contribution(task, seed) for seed in range(len(phones))]
        hashes = [_load.sha256_of(sent) for sent in data]
        await asyncio.gather(*(_load.send_to_sink(channel, b"x") for channel in bare))  # open connections
        sink_s, sink_cpu_s = await self._timed(
            self._sink, [_load.send_to_sink(channel, sent) for channel, sent in zip(bare, data, strict=True)]
        )
        self._coordinator.forget_peak()
        sends = [_load.upload(*sent) for sent in zip(stubs, [ref] * len(data), data, hashes, strict=True)]
        mien_s, mien_cpu_s = await self._timed(self._coordinator, sends)
        peak_bytes = self._coordinator.peak_bytes
        await _until(stubs[0], ref, rounds_pb2.CLOSED)
        await _close([*channels, *bare])
        return _Ingest(sum(map(len, data)), mien_s, sink_s, mien_cpu_s, sink_cpu_s, peak_bytes)

    async def control(self, phones: Sequence[Phone]) -> dict[str, Any]:
        """Return how soon control calls are answered while devices follow a round."""
        channels = [phone.channel(self._site.port) for phone in phones]
        stubs = [rounds_pb2_grpc.RoundsStub(channel) for channel in channels]
        began = time.perf_counter()
        _, ref = await self._begin(stubs)
        gathered_s = time.perf_counter() - began
        following = [asyncio.create_task(_until(stub, ref, rounds_pb2.CLOSED)) for stub in stubs]
        await asyncio.sleep(0.5)
        took: list[float] = []
        for call in range(_CONTROL_CALLS):
            stub, began = stubs[call % len(stubs)], time.perf_counter()
            if call % 2:
                await stub.Hello(common_pb2.HelloRequest(protocol_versions=[1]))
            else:
                await stub.ReportTrained(rounds_pb2.ReportTrainedRequest(round=ref))
            took.append(1e3 * (time.perf_counter() - began))
        for follower in following:
            follower.cancel()
        await asyncio.gather(*following, return_exceptions=True)
        await _close(channels)
        took.sort()
        return {
            "connected": len(phones),
            "gather_s": round(gathered_s, 2),
            "control_p50_ms": round(took[len(took) // 2], 2),
            "control_p99_ms": round(took[int(len(took) * 0.99)], 2),
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
    async def _timed(program: Program, sends: Sequence[Any]) -> tuple[float, float]:
        """Return wall-clock and processor time, in seconds, until all of it was answered."""
        cpu_s, began = program.cpu_s, time.perf_counter()
        await asyncio.gather(*sends)
        return time.perf_counter() - began, program.cpu_s - cpu_s


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
        store.add_model(ModelRecord("a" * 64, b"{}", "1" * 64, BlobId("b" * 64, 4), 1), actor="load")
        task = TaskRecord("t", "load", "p", b"{}", "k", TaskState.RUNNING, "a" * 64, "a" * 64, "load", created_ms=1)
        record = store.open_attempt(store.add_task(task), round_number=1, attempt=1, deadline=1e9)
        rules = RoundRules(SELECTED, SELECTED, SELECTED, 60.0, dict.fromkeys(Stage, 60.0), seed=1)
        candidates = frozenset(f"{number:032x}" for number in range(0, REGISTERED, REGISTERED // (2 * SELECTED)))
        began = time.perf_counter()
        state, _ = advance(rules, RoundState(Stage.SELECTING, 1e9), CheckedIn(candidates), 0.0)
        drawn_s = time.perf_counter() - began
        store.save_round(RoundChange(record, state, steps=state.participants))
        selected_s = time.perf_counter() - began
        began = time.perf_counter()
        store.saw_devices([(device_id, "p", "load") for device_id in list(candidates)[:SELECTED]])
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
        store.saw_devices([(f"{number:032x}", "p", "load") for number in range(start, start + step)])


if __name__ == "__main__":
    main()
