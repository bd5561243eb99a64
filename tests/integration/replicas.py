"""Several coordinators as one: processes that share PostgreSQL and a bucket."""

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
