"""What a phone's round costs the coordinator: from connection and check-in to the closed sum, masked, over mutual TLS.

The coordinator is a process of its own with its usual settings, but for limits that are by address, or on how slow a
caller is, since all phones share one address and one machine. Phones are light: real connections, certificates, keys,
masks and messages, contributions that are made up, several in each of a few processes, and each certificate is checked
once a process. `server_cpu_ms_per_phone` is the coordinator's own processor time, of all its threads, over the cohort:
what phones cost themselves is not in it, and `idle_cpu_share`, what the coordinator takes while the connected phones
say nothing and the prober asks, is subtracted for as long as the round took, because that says how fast this machine's
phones are. `bytes_per_phone` is what their sockets sent and were sent, `messages_per_phone` counts gRPC's messages in
both directions. `p99_control_ms` is how long another phone waits for `Hello` meanwhile; phones and coordinator share
this machine's cores, so it is no better than they leave it. `peak_mb` is the most memory that the coordinator held,
`kept_bytes_per_phone` what the round added to its database: history, audit log and log of private sums.

The keys above are of contributions of 66 KB and the largest cohort of the run: 1000 phones, quick 100.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import itertools
import multiprocessing
import os
import socket
import struct
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np

from benchmarks import _common
from benchmarks._load import Program
from mien.contribution import ContributionLayout
from mien.errors import LateError, UnreachableError
from mien.layout import ParameterEntry, ParameterLayout
from mien.methods import METHODS
from mien.protocol import CHUNK_BYTES
from mien.protocol.canonical import model_to_json, task_from_json
from mien.protocol.v1 import rounds_pb2, rounds_pb2_grpc
from mien.secagg.keys import VerifyLeaf
from mien.secagg.leaves import leaf_verifier
from mien.specs import CohortSpec, DeadlineSpec, FaceInputSpec, ModelSpec, PrivacySpec, TaskSpec
from simulation.testing.device import PROTOCOL_STAGES, DeviceCredentials, FakeDevice
from simulation.testing.fleet import FakeFleet

AIMS: Final = {"server_cpu_ms_per_phone": 15.0}
PARAMETERS: Final = {66: 16_500, 4_000: 1_000_000}
"""Numbers of a model's trained part by the kilobytes that a contribution then has."""

QUICK: Final = ((66, 100), (4_000, 24))
FULL: Final = ((66, 100), (66, 1_000), (4_000, 100), (4_000, 1_000))
POPULATION: Final = "phones"
LIMIT_S: Final = 3_600.0
PROBE_EVERY_S: Final = 0.1
IDLE_S: Final = 3.0
CROWDED: Final = {"connections_per_address": 100_000, "check_in_hold_s": 5.0, "first_message_s": 600.0}
"""What a coordinator has to be told of phones that all share one address and one slow machine."""

_TOLD_CHARS: Final = 2_000
_SENT_AT: Final = 120
"""Where Linux's `struct tcp_info` has the bytes that a peer acknowledged, and behind them those received."""


def main() -> None:
    """Run the benchmark from the command line."""
    args = _common.options("phone_round", (__doc__ or "").split("\n\n")[0]).parse_args()
    _common.run(lambda: benchmark(args), only_json=args.json)


def benchmark(args: argparse.Namespace) -> Mapping[str, Any]:
    """Return the figures that the benchmark prints."""
    rows = [row(kilobytes, phones) for kilobytes, phones in (QUICK if args.quick else FULL)]
    told = max((each for each in rows if each["contribution_kb"] == min(PARAMETERS)), key=lambda each: each["phones"])
    keys = (
        *("server_cpu_ms_per_phone", "bytes_per_phone", "messages_per_phone", "p99_control_ms", "peak_mb"),
        "kept_bytes_per_phone",
    )
    return {
        **{key: told[key] for key in keys},
        "phones": told["phones"],
        "rows": rows,
        "aims": AIMS,
        "quick": args.quick,
        "machine": _common.machine(),
        "load_average": round(os.getloadavg()[0], 1),
        "commit": _common.commit(),
        "command": _common.command(),
    }


def row(kilobytes: int, phones: int) -> dict[str, Any]:
    """Return the figures of one round in a fresh coordinator."""
    _common.progress(f"{phones} phones, {kilobytes} KB each")
    with tempfile.TemporaryDirectory(prefix="mien-phones-") as name, FakeFleet(Path(name), **CROWDED) as fleet:
        return asyncio.run(round_of(fleet, Path(name), kilobytes, phones))


@dataclass(frozen=True)
class Crowd:
    """What one process's phones are told: where the coordinator is, who they are, and how long a contribution is.

    Once they are connected there is a file `connected`, and they wait for one, `go`. If they are told where their tasks
    are run, they go there.
    """

    address: str
    credentials: tuple[DeviceCredentials, ...]
    parameters: int
    connected: Path
    go: Path


@dataclass
class Tally:
    """Messages of gRPC, bytes on sockets."""

    messages: int = 0
    sent: int = 0
    received: int = 0


async def release(fleet: FakeFleet, folder: Path, parameters: int) -> None:
    """Release a model of so many parameters, all of them 0; their file is written into a folder."""
    layout, spec = model(parameters)
    theta = folder / "theta.f32"
    theta.write_bytes(np.zeros(layout.size, "<f4").tobytes())
    async with fleet.operator() as operator:
        imported = await operator.import_model(model_to_json(spec, layout), theta, None)
        await operator.release(imported.model_id)


async def round_of(fleet: FakeFleet, folder: Path, kilobytes: int, phones: int) -> dict[str, Any]:
    """Return the figures of one round of new phones; their processes' notes to one another lie in a folder.

    Raises UnreachableError, and leaves no process of phones behind, where one of them or the coordinator ends too soon.
    """
    parameters = PARAMETERS[kilobytes]
    await release(fleet, folder, parameters)
    async with fleet.operator() as operator:
        await operator.submit(task(phones), "phone-round")
    everybody = [fleet.admit(POPULATION) for _ in range(phones)]
    share = min(_common.num_cores(), 8)
    go = folder / "go"
    crowds = [
        Crowd(fleet.address, tuple(everybody[at::share]), parameters, folder / f"connected-{at}", go)
        for at in range(share)
    ]
    program = Program(fleet.process, fleet.port)
    cpu_s, stored = list[float](), list[int]()

    def note() -> None:
        cpu_s.append(program.cpu_s)
        stored.append(_common.database_bytes(fleet.home.folder / "coordinator.db"))

    async with _probed(fleet) as waits:
        program.forget_peak()
        took_s, told = await go_through(crowds, [fleet], note)
        peak_bytes = program.peak_bytes
    _, _, before, after = stored
    kept = after - before
    connecting_s, idle_s, busy_s = (after - before for before, after in itertools.pairwise(cpu_s))
    share_idle = idle_s / IDLE_S
    return {
        "contribution_kb": kilobytes,
        "phones": phones,
        "server_cpu_ms_per_phone": round(1e3 * (connecting_s + busy_s - share_idle * took_s) / phones, 2),
        "connecting_cpu_ms_per_phone": round(1e3 * connecting_s / phones, 2),
        "idle_cpu_share": round(share_idle, 3),
        "bytes_per_phone": round(sum(each.sent + each.received for each in told) / phones),
        "bytes_sent_per_phone": round(sum(each.sent for each in told) / phones),
        "messages_per_phone": round(sum(each.messages for each in told) / phones, 1),
        "p99_control_ms": round(1e3 * float(np.quantile(waits, 0.99)), 1),
        "p50_control_ms": round(1e3 * float(np.quantile(waits, 0.5)), 1),
        "peak_mb": round(peak_bytes / 1e6, 1),
        "kept_bytes_per_phone": round(kept / phones),
        "round_s": round(took_s, 1),
    }


async def go_through(
    crowds: Sequence[Crowd], fleets: Sequence[FakeFleet], note: Callable[[], None], *, idle_s: float = IDLE_S
) -> tuple[float, list[Tally]]:
    """Let crowds take part in a round, each in a process of its own; return the seconds from connected to closed.

    Beside them is what each exchanged. `note` is called as they connect, when they have, after `idle_s` of silence, and
    at the end. Raises as `taking_part` does.
    """
    async with taking_part(crowds, fleets, note) as tallies:
        while not all(crowd.connected.exists() for crowd in crowds):
            await asyncio.sleep(0.05)
        note()
        await asyncio.sleep(idle_s)
        note()
        began = time.monotonic()
        for go in {crowd.go for crowd in crowds}:
            go.touch()
        told = await asyncio.gather(*tallies)
        took_s = time.monotonic() - began
        note()
    return took_s, told


@contextlib.asynccontextmanager
async def taking_part(
    crowds: Sequence[Crowd], fleets: Sequence[FakeFleet], begins: Callable[[], None]
) -> AsyncIterator[list[asyncio.Task[Tally]]]:
    """Let each crowd take part in a process of its own while a block runs; yield what each will have exchanged.

    `begins` is called once the processes are there. What goes wrong in one of them, or ends it or the coordinator, ends
    the block and all of them: the others would wait for it for as long as the round's deadlines.
    """
    context, before = multiprocessing.get_context("spawn"), set(multiprocessing.active_children())
    with ProcessPoolExecutor(len(crowds), mp_context=context) as pool:
        loop = asyncio.get_running_loop()

        async def take_part(crowd: Crowd) -> Tally:
            return await loop.run_in_executor(pool, _take_part, crowd)

        async def watch() -> None:
            while all(fleet.process.poll() is None for fleet in fleets):
                await asyncio.sleep(0.1)
            raise UnreachableError("the coordinator ended")

        await asyncio.gather(*(loop.run_in_executor(pool, os.getpid) for _ in crowds))
        processes = set(multiprocessing.active_children()) - before
        begins()
        try:
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(watch())
                yield [group.create_task(take_part(crowd)) for crowd in crowds]
                watching.cancel()
        except BaseExceptionGroup as failed:
            for process in processes:
                process.join(0.5)
            codes = [process.exitcode for process in processes if process.exitcode is not None]
            raise _reason(failed.exceptions, codes, fleets) from failed
        finally:
            for process in processes:
                process.kill()


def _reason(failed: Sequence[BaseException], codes: Sequence[int], fleets: Sequence[FakeFleet]) -> BaseException:
    """Return why a round did not come to its end, of all that failed with it."""
    for fleet in fleets:
        if (code := fleet.process.poll()) is not None:
            told = fleet.log.read_text(encoding="utf-8", errors="replace")[-_TOLD_CHARS:]
            ended = f"the coordinator ended with code {code} in the middle of the round"
            return UnreachableError(f"{ended}; its log ends:\n{told}")
    if any(isinstance(error, BrokenProcessPool) for error in failed):
        return UnreachableError(f"a process of phones ended in the middle of the round, with code {codes}")
    return failed[0]


@contextlib.asynccontextmanager
async def _probed(fleet: FakeFleet) -> AsyncIterator[list[float]]:
    """Let one more phone ask again and again while a block runs; yield how long each answer took, in seconds."""
    waits = list[float]()
    async with FakeDevice(fleet.address, fleet.admit("others"), call_s=LIMIT_S) as device:
        await device.hello()

        async def probe() -> None:
            while True:
                began = time.monotonic()
                await device.hello()
                waits.append(time.monotonic() - began)
                await asyncio.sleep(PROBE_EVERY_S)

        probing = asyncio.create_task(probe())
        try:
            yield waits
        finally:
            probing.cancel()
            await asyncio.wait({probing})


def model(parameters: int) -> tuple[ParameterLayout, ModelSpec]:
    """Return a model all of which is trained."""
    layout = ParameterLayout((ParameterEntry("weight", (parameters,)),))
    return layout, ModelSpec(
        backbone="light",
        layout_sha256=layout.sha256,
        input=FaceInputSpec(dim=8),
        source="zeros",
        terms="public domain",
        trainable=("*",),
    )


def task(phones: int, population: str = POPULATION) -> TaskSpec:
    """Return a task of one masked round that needs every phone of a population; no deadline is met."""
    hard = [each.name for each in fields(DeadlineSpec) if "_soft" not in each.name]
    return TaskSpec(
        f"round-of-{population}",
        method="fedavg",
        rounds=1,
        population=population,
        cohort=CohortSpec(size=phones, min_reports=phones),
        deadlines=DeadlineSpec(**dict.fromkeys(hard, LIMIT_S)),
        privacy=PrivacySpec(min_cohort=max(3, phones // 2), max_weight=1),
    )


# Phones


def _take_part(crowd: Crowd) -> Tally:
    """Return what this process's phones exchanged with the coordinator in one round."""
    return asyncio.run(_all_take_part(crowd))


async def _all_take_part(crowd: Crowd) -> Tally:
    tally, registrar = Tally(), crowd.credentials[0].registrar
    verify = functools.cache(leaf_verifier(registrar, crowd.credentials[0].population, lambda: datetime.now(UTC)))
    async with contextlib.AsyncExitStack() as stack:
        options = (("grpc.use_local_subchannel_pool", 1),)
        devices = [
            await stack.enter_async_context(
                FakeDevice(crowd.address, each, backbone="light", call_s=LIMIT_S, options=options)
            )
            for each in crowd.credentials
        ]
        for device in devices:
            _count(device, tally)
        await asyncio.gather(*(device.hello() for device in devices))
        crowd.connected.touch()
        while not crowd.go.exists():
            await asyncio.sleep(0.05)
        await asyncio.gather(*(_one_takes_part(device, crowd.parameters, verify, tally) for device in devices))
        port = int(crowd.address.rpartition(":")[2])
        tally.sent, tally.received = on_sockets(port)
    return tally


async def _one_takes_part(device: FakeDevice, parameters: int, verify: VerifyLeaf, tally: Tally) -> None:
    """Do what `mien-device participate` asks of the coordinator in a round that goes well."""
    assignment = await device.assignment()
    if device.unverified_owner_address in ("", device.address):
        return await _goes_through(device, assignment, parameters, verify)
    await device.channel.close()
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with FakeDevice(
        device.unverified_owner_address, device.credentials, backbone="light", call_s=LIMIT_S, options=options
    ) as there:
        _count(there, tally)
        await there.hello()
        return await _goes_through(there, assignment, parameters, verify)


async def _goes_through(
    device: FakeDevice, assignment: rounds_pb2.Assignment, parameters: int, verify: VerifyLeaf
) -> None:
    """Go through a round that a phone was assigned to, to its end."""
    spec_task = task_from_json(assignment.task_json)
    await device.rounds.ProveRound(rounds_pb2.ProveRoundRequest(round=assignment.round), timeout=LIMIT_S)
    await device.report_trained(assignment.round)
    layout, spec = model(parameters)
    form = METHODS[spec_task.method].contribution_layout(spec_task, layout.part(spec.trainable), spec.input.dim)
    part = device.masked_part(assignment, spec_task, contribution(form), layout=form, model=spec, verify=verify)
    async with contextlib.aclosing(device.events(part.ref)) as events:
        async for event in events:
            if event.stage == rounds_pb2.CLOSED:
                return
            if event.stage == rounds_pb2.ABORTED:
                raise LateError(f"the round was aborted: {event.reason}")
            if not event.message or event.stage not in PROTOCOL_STAGES:
                continue
            message = part.answer(event.stage, event.message)
            if event.stage == rounds_pb2.UPLOAD:
                is_long = len(part.upload) > CHUNK_BYTES  # else it is sent without asking how far it is
                offset = (await device.upload_status(part.ref)).received_bytes if is_long else 0
                await device.upload(part.ref, part.upload, offset=offset, masked=message)
                continue
            try:
                await device.send_step(part.ref, event.stage, message)
            except LateError:
                if not part.upload:
                    raise  # else the sum opened without this one's shares: enough others had sent theirs
    raise LateError("the stream of events ended before the round did")


def contribution(form: ContributionLayout) -> bytes:
    """Return a contribution of weight 1."""
    vector = np.full(form.size, 1e-4, "<f4")  # of a million numbers a step that is well below what a model may take
    vector[form.slices["count"]], vector[form.slices["weight"]] = 1.0, 1.0
    return vector.tobytes()


# What goes over the wire


def _count(device: FakeDevice, tally: Tally) -> None:
    """Count a phone's messages from now on."""
    counted: Any = _Counted(device.channel, tally)
    device.rounds = rounds_pb2_grpc.RoundsStub(counted)


class _Counted:
    """A channel whose messages are counted."""

    def __init__(self, channel: grpc.aio.Channel, tally: Tally) -> None:
        self._channel, self._tally = channel, tally

    def __getattr__(self, form: str) -> Callable[..., Any]:
        """Return what makes a method of one of gRPC's four forms."""
        make: Callable[..., Any] = getattr(self._channel, form)

        def counted(method: str, *, request_serializer: Any, response_deserializer: Any, **options: Any) -> Any:
            sent, received = self._counting(request_serializer), self._counting(response_deserializer)
            return make(method, request_serializer=sent, response_deserializer=received, **options)

        return counted

    def _counting(self, codec: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def counting(message: Any) -> Any:
            self._tally.messages += 1
            return codec(message)

        return counting


def on_sockets(port: int) -> tuple[int, int]:
    """Return the bytes that this process's connections to a port have sent and received, as Linux counts them."""
    sent = received = 0
    for descriptor in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - numbers, not paths
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as found:
            if found.family in (socket.AF_INET, socket.AF_INET6) and found.getpeername()[1] == port:
                told = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                acknowledged, got = struct.unpack_from("=QQ", told, _SENT_AT)
                sent, received = sent + acknowledged, received + got
    return sent, received


if __name__ == "__main__":
    main()
