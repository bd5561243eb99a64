"""Several coordinators as one: processes that share PostgreSQL and a bucket, and a TCP load balancer before them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shutil
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.home.config import SETTINGS
from mien.protocol.ids import ModelId
from simulation.testing import FakeDevice, FakeFleet, free_port

LEASE_S = 8.0


class ReplicaFleet(FakeFleet):
    """One replica's folder and process; all but the first have the first one's keys."""

    def __init__(self, folder: Path, first: FakeFleet | None, **settings: Any) -> None:
        self.peer_address = f"127.0.0.1:{free_port()}"
        super().__init__(folder, replica_address=self.peer_address, replica_lease_s=LEASE_S, **settings)
        if first is not None:
            for path in first.home.folder.iterdir():
                if path.suffix in (".key", ".pem", ".csr"):
                    shutil.copy(path, self.home.folder / path.name)
            self.registrar = first.registrar

    def theta(self, model_id: str) -> Any:
        """Return a model's parameters as they lie in the bucket, float32."""
        with self.store() as store:
            sha256 = store.model(ModelId(model_id)).theta.sha256
        return np.frombuffer(self.home.blobs(self.home.resolve().config, "models").read(sha256), "<f4")

    def lose_everything(self) -> None:
        """End the process as a power cut would, and its disk with it."""
        self.kill()
        shutil.rmtree(self.home.folder)


class Cluster:
    """Replicas of one coordinator; with `is_told` each has phones told of its own address."""

    def __init__(self, folder: Path, count: int, *, is_told: bool = False, **settings: Any) -> None:
        self.replicas: list[ReplicaFleet] = []
        self._settings, self._is_told = settings, is_told
        for number in range(count):
            (folder / str(number)).mkdir()
            first = self.replicas[0] if self.replicas else None
            self.replicas.append(self._made(folder / str(number), first))

    def _made(self, folder: Path, first: ReplicaFleet | None) -> ReplicaFleet:
        replica = ReplicaFleet(folder, first, **self._settings)
        if self._is_told:
            config = dataclasses.replace(replica.home.resolve().config, public_address=replica.address)
            SETTINGS.write(replica.home.config_path, config)
        return replica

    @property
    def first(self) -> ReplicaFleet:
        """The replica that was made first."""
        return self.replicas[0]

    def start(self) -> None:
        """Start all replicas: the first makes the tables, the others begin together."""
        first, *others = self.replicas
        first.start()
        with ThreadPoolExecutor(max(len(others), 1)) as pool:
            list(pool.map(ReplicaFleet.start, others))

    def close(self) -> None:
        """Leave no process behind."""
        for replica in self.replicas:
            replica.close()

    def replace(self, lost: ReplicaFleet) -> None:
        """Start a new replica, in an empty folder with the others' keys, in place of one that was lost."""
        number = self.replicas.index(lost)
        folder = lost.home.folder.parent.with_name(f"{lost.home.folder.parent.name}+")
        folder.mkdir()
        other = self.replicas[number - 1]
        self.replicas[number] = self._made(folder, other)
        self.replicas[number].start()

    @contextlib.asynccontextmanager
    async def devices(self, population: str, addresses: Sequence[str]) -> AsyncIterator[list[FakeDevice]]:
        """Open connections of new devices, one to each of the addresses."""
        async with contextlib.AsyncExitStack() as stack:
            yield [
                await stack.enter_async_context(FakeDevice(address, self.first.admit(population)))
                for address in addresses
            ]

    def again(self, device: FakeDevice, number: int) -> FakeDevice:
        """Return a device's connection to another replica."""
        return FakeDevice(self.replicas[number].address, device.credentials)

    def events(self, event: str) -> list[dict[str, Any]]:
        """Return the log records of one kind, of all replicas."""
        return [record for replica in self.replicas for record in replica.log_records(event)]


async def until(holds: Callable[[], bool], limit_s: float = 120.0) -> None:
    """Return once something holds."""
    end = time.monotonic() + limit_s
    while not await asyncio.to_thread(holds):
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.1)


class Balancer:
    """Forwards TCP connections to the replicas in turn, or to the first of them; who does not answer is left out.

    `num_taken` counts them.
    """

    def __init__(self, addresses: Sequence[str], *, in_turn: bool = True) -> None:
        self._step = int(in_turn)
        self._addresses = [(address.rpartition(":")[0], int(address.rpartition(":")[2])) for address in addresses]
        self._next = 0
        self._open: set[asyncio.StreamWriter] = set()
        self.port = free_port()
        self.address = f"localhost:{self.port}"
        self.num_taken = 0

    async def __aenter__(self) -> Balancer:
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self._server.close()
        for writer in self._open:
            writer.transport.abort()
        while self._open:
            await asyncio.sleep(0.01)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        start, self._next = self._next, self._next + self._step
        self.num_taken += 1
        for number in range(len(self._addresses)):
            host, port = self._addresses[(start + number) % len(self._addresses)]
            try:
                there, back = await asyncio.open_connection(host, port)
            except OSError:
                continue
            self._open.add(back)
            await asyncio.gather(_pump(reader, back), _pump(there, writer))
            back.transport.abort()
            self._open.discard(back)
            break
        writer.transport.abort()
        self._open.discard(writer)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on until one side has gone, and then let the other go."""
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()
